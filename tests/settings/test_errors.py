"""The exceptions: what they say, what they are, and that they survive pickling."""

import pickle

import pytest

from strata.errors import (
    HipError,
    RequestAborted,
    RuntimeNotFound,
    SettingsError,
    StallError,
    StrataError,
)


def test_hip_error_names_call_status_entry_and_slot():
    error = HipError("hipMemcpyAsync", 1, "hipErrorInvalidValue", entry=7, slot=3)
    assert str(error) == "hipMemcpyAsync failed with hipErrorInvalidValue (1) at entry 7, slot 3"
    assert (error.call, error.status, error.name) == ("hipMemcpyAsync", 1, "hipErrorInvalidValue")
    assert (error.entry, error.slot, error.detail) == (7, 3, None)


@pytest.mark.parametrize(
    ("places", "text"),
    [
        ({}, "hipMalloc failed with hipErrorOutOfMemory (2)"),
        ({"entry": 0}, "hipMalloc failed with hipErrorOutOfMemory (2) at entry 0"),
        ({"slot": 0}, "hipMalloc failed with hipErrorOutOfMemory (2) at slot 0"),
        ({"detail": "64 bytes"}, "hipMalloc failed with hipErrorOutOfMemory (2): 64 bytes"),
    ],
)
def test_hip_error_says_only_what_it_knows(places, text):
    assert str(HipError("hipMalloc", 2, "hipErrorOutOfMemory", **places)) == text


@pytest.mark.parametrize(
    ("kind", "also"),
    [
        (HipError, Exception),
        (SettingsError, ValueError),
        (StallError, TimeoutError),
        (RequestAborted, Exception),
        (RuntimeNotFound, Exception),
    ],
)
def test_every_error_is_a_strata_error_and_its_standard_kind(kind, also):
    assert issubclass(kind, StrataError)
    assert issubclass(kind, also)


@pytest.mark.parametrize("kind", [StrataError, SettingsError, StallError, RequestAborted, RuntimeNotFound])
def test_message_survives_pickling(kind):
    copy = pickle.loads(pickle.dumps(kind("who waits for what")))
    assert type(copy) is kind
    assert str(copy) == "who waits for what"


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_hip_error_survives_pickling_whole(protocol):
    error = HipError("hipEventRecord", 709, "hipErrorContextIsDestroyed", 5, 2, detail="ring of 3")
    copy = pickle.loads(pickle.dumps(error, protocol))
    assert type(copy) is HipError
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)
    assert copy.args == error.args
