"""Switches for what versions of the library do differently: batches and second registrations."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from strata.runtime.software import control
from tests.software_runtime.hip import ALREADY_REGISTERED, NOT_REGISTERED, NOT_SUPPORTED, SUCCESS, view
from tests.software_runtime.test_copies import Batch
from tests.support.libraries import library_without

N = 4096
IN_ORDER = [(0, 1)]


@pytest.fixture
def one(hip, device, schedule):
    """A batch of one copy from pinned memory, and its stream."""
    pinned, gpu, stream = device.host_malloc(N), device.malloc(N), device.stream()
    view(pinned, N)[:] = 1
    view(gpu, N)[:] = 0
    return Batch([(gpu, pinned, N)]), stream, view(gpu, N), view(pinned, N)


def test_attributes_may_be_refused(hip, one):
    batch, stream, gpu, _ = one
    control.configure(batch="no-attributes")
    assert batch.submit(hip, stream, IN_ORDER) == NOT_SUPPORTED
    assert hip.GetLastError() == NOT_SUPPORTED
    hip.do("StreamSynchronize", stream)
    assert (gpu == 0).all()
    assert batch.submit(hip, stream, []) == SUCCESS
    hip.do("StreamSynchronize", stream)
    assert (gpu == 1).all()


def test_batches_may_be_unsupported(hip, one):
    batch, stream, gpu, _ = one
    control.configure(batch="unsupported")
    for attributes in (IN_ORDER, []):
        assert batch.submit(hip, stream, attributes) == NOT_SUPPORTED
    hip.do("StreamSynchronize", stream)
    assert (gpu == 0).all()


def test_batches_may_stop_being_served(hip, one):
    batch, stream, _, _ = one
    control.configure(batch_calls=2)
    answers = [batch.submit(hip, stream, IN_ORDER) for _ in range(4)]
    assert answers == [SUCCESS, SUCCESS, NOT_SUPPORTED, NOT_SUPPORTED]
    hip.do("StreamSynchronize", stream)
    control.configure()  # counts anew
    assert batch.submit(hip, stream, IN_ORDER) == SUCCESS
    hip.do("StreamSynchronize", stream)


@pytest.mark.parametrize(
    ("reads", "attributes", "expected"),
    [
        ("stream", [], 2),
        ("call", [], 1),
        ("call", IN_ORDER, 2),  # the attribute says when
    ],
)
def test_a_batch_without_attributes_may_read_early(hip, one, reads, attributes, expected):
    batch, stream, gpu, pinned = one
    control.configure(batch_reads=reads)
    with control.hold(stream):
        assert batch.submit(hip, stream, attributes) == SUCCESS
        pinned[:] = 2
    hip.do("StreamSynchronize", stream)
    assert (gpu == expected).all()


def test_a_second_registration_may_be_accepted_and_ends_with_the_first_unregistration(hip):
    array = np.zeros(3 * N, np.uint8)
    base = array.ctypes.data
    hip.do("HostRegister", base, 2 * N, 0)
    assert hip.HostRegister(base, 2 * N, 0) == ALREADY_REGISTERED
    control.configure(registration="accepts")
    assert hip.HostRegister(base, 2 * N, 0) == SUCCESS
    assert hip.HostRegister(base + N, N, 0) == SUCCESS  # a part of it
    assert hip.HostRegister(base + N, 2 * N, 0) == ALREADY_REGISTERED
    assert control.live()["registered_ranges"] == 1
    assert hip.HostUnregister(base) == SUCCESS
    assert control.live()["registered_ranges"] == 0
    assert hip.HostUnregister(base) == NOT_REGISTERED


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"batch": "absent"}, "batch='absent'"),
        ({"batch_reads": "any"}, "batch_reads='any'"),
        ({"batch_calls": -1}, "batch_calls=-1"),
        ({"registration": "x" * 16}, "registration='xxxx"),
    ],
)
def test_wrong_values_are_named(wrong, text):
    with pytest.raises(control.ControlError, match=text):
        control.configure(**wrong)


def test_a_library_may_lack_the_symbol(tmp_path):
    library = ctypes.CDLL(str(library_without("hipMemcpyBatchAsync", tmp_path)))
    assert not hasattr(library, "hipMemcpyBatchAsync")
    assert library.hipMemcpyAsync(None, None, 0, 1, None) == SUCCESS
