"""Batched copies over both forms of the driver's call, and where the driver has none."""

from __future__ import annotations

import pytest

# Five copies of 8 bytes each under two attributes (copies 0 to 2, and 3 to 4).
PREPARE = """
ok(hip.hipSetDevice(0))
stream = new_stream()
source = ctypes.create_string_buffer(bytes(range(1, 41)), 40)
target = ctypes.create_string_buffer(40)
attributes = (MemcpyAttributes * 2)(MemcpyAttributes(1, 0, 0, 1, 5, 0), MemcpyAttributes(3, 2, 7, 1, 6, 1))
failed_at = c_size_t(77)

def submit(sizes, *, indices=(0, 3), queue=stream, count=None, attrs=attributes):
    srcs = void_array([location(source) + 8 * i for i in range(len(sizes))])
    dsts = void_array([location(target) + 8 * i for i in range(len(sizes))])
    clear()
    return hip.hipMemcpyBatchAsync(
        dsts, srcs, sizes_array(sizes), len(sizes) if count is None else count, attrs, sizes_array(indices),
        len(indices), byref(failed_at), queue)

def copy(i, k, size=8):
    a = attributes[k]
    return ("copy", 0, [location(target) + 8 * i, location(source) + 8 * i, size, a.order, a.source_type,
                        a.source_id, a.destination_type, a.destination_id, a.flags])
"""

FORMS = pytest.mark.parametrize(
    ("variant", "call"),
    [("cuda13", "cuMemcpyBatchAsync_v2"), ("cuda12.8", "cuMemcpyBatchAsync")],
    ids=["cuda13", "cuda12.8"],
)


@FORMS
def test_a_batch_is_one_driver_call(run_client, variant, call):
    run_client(
        PREPARE
        + f"""
ok(submit([8, 8, 8, 8, 8]))
equal(calls(), [("{call}", 0, [5, 2, stream]), copy(0, 0), copy(1, 0), copy(2, 0), copy(3, 1), copy(4, 1)])
equal(target.raw, source.raw)
equal(hip.strata_cuda_has_batch(), 1)
equal(last(), 0)
""",
        variant=variant,
    )


@FORMS
def test_empty_copies_are_left_out_and_attributes_follow(run_client, variant, call):
    run_client(
        PREPARE
        + f"""
ok(submit([0, 8, 0, 8, 0]))
equal(calls(), [("{call}", 0, [2, 2, stream]), copy(1, 0), copy(3, 1)])
ok(submit([0, 0, 0, 0, 4]))
equal(calls(), [("{call}", 0, [1, 1, stream]), copy(4, 1, 4)])
ok(submit([8, 0, 7, 0, 0]))
equal(calls(), [("{call}", 0, [2, 1, stream]), copy(0, 0), copy(2, 0, 7)])
ok(submit([0] * 5))
equal(calls(), [])
""",
        variant=variant,
    )


def test_the_failing_copy_is_told_where_the_driver_tells_it(run_client):
    run_client(
        PREPARE
        + """
stub.stub_fail(b"cuMemcpyBatchAsync", 700)
stub.stub_fail_batch_at(1)
equal(submit([8, 8, 8, 8, 8]), 700)
equal(failed_at.value, 1)
equal(last(), 700)
equal(submit([0, 8, 0, 0, 8]), 700)
equal(failed_at.value, 4)
stub.stub_fail_batch_at(0)
equal(submit([0, 8, 0, 0, 8]), 700)
equal(failed_at.value, 1)
stub.stub_fail_batch_at(2**64 - 1)
equal(submit([0, 8, 0, 0, 8]), 700)
equal(failed_at.value, 2**64 - 1)
""",
        variant="cuda12.8",
    )


def test_no_copy_in_particular_where_the_driver_tells_none(run_client):
    run_client(
        PREPARE
        + """
stub.stub_fail(b"cuMemcpyBatchAsync_v2", 719)
stub.stub_fail_batch_at(1)
equal(submit([8, 8, 8, 8, 8]), 719)
equal(failed_at.value, 2**64 - 1)
"""
    )


def test_bad_batches_reach_no_driver(run_client):
    run_client(
        PREPARE
        + """
for queue in (None, 1):
    expect_none(submit([8, 8, 8, 8, 8], queue=queue), 1)
expect_none(submit([8, 8, 8, 8, 8], count=0), 1)
for arrays in ((None, 1, 1), (1, None, 1), (1, 1, None)):
    given = [value and sizes_array([8]) for value in arrays]
    status = hip.hipMemcpyBatchAsync(*given, 1, attributes, sizes_array([0]), 1, None, stream)
    expect_none(status, 1)
for indices in ((1, 3), (0, 0), (0, 5), (3, 0), ()):
    expect_none(submit([8, 0, 8, 8, 8], indices=indices), 1)
expect_none(submit([8, 0, 8, 8, 8], attrs=None), 1)
"""
    )


def test_the_place_of_the_failing_copy_need_not_be_asked_for(run_client):
    run_client(
        PREPARE
        + """
one = void_array([location(source)])
into = void_array([location(target)])
stub.stub_fail(b"cuMemcpyBatchAsync", 700)
size, first = sizes_array([8]), sizes_array([0])
status = hip.hipMemcpyBatchAsync(into, one, size, 1, attributes, first, 1, None, stream)
equal(status, 700)
""",
        variant="cuda12.8",
    )


def test_a_driver_without_batches(run_client):
    run_client(
        PREPARE
        + """
equal(hip.strata_cuda_has_batch(), 0)
expect_none(submit([8, 8, 8, 8, 8]), 801)
equal(failed_at.value, 2**64 - 1)
equal(name(last()), "hipErrorNotSupported")
status = hip.hipMemcpyBatchAsync(None, None, None, 0, None, None, 0, None, None)
equal(status, 801)
ok(hip.hipMemcpyAsync(location(target), location(source), 40, 1, stream))
equal(target.raw, source.raw)
""",
        variant="cuda12.4",
    )


def test_a_new_thread_gets_its_context_for_a_batch(run_client):
    run_client(PREPARE + "equal(in_thread(lambda: submit([8] * 5)), 0)\nequal(target.raw, source.raw)")
