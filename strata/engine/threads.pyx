"""The start of a native thread: named by its kind, taking no signals. Tests have a start fail, or name it themselves."""
from libc.stdint cimport int64_t
from libc.string cimport memset, strncpy
from libcpp.atomic cimport atomic, memory_order_acq_rel, memory_order_acquire, memory_order_release

cdef extern from "strata/thread_start.hpp" namespace "strata" nogil:
    void thread_name_of(char* name, const char* kind, int index) noexcept

cdef atomic[int64_t] _until_refused      # starts that still succeed, plus 1; 0: all do
cdef atomic[int] _renamed
cdef ThreadName _given


cdef bint thread_start(Thread* thread, const char* kind, int index, void (*run)(void*) noexcept nogil,
                       void* argument) noexcept nogil:
    """Start a thread that is called ``strata-kind``, or ``strata-kind-index`` from 0. False where there is none."""
    cdef ThreadName name
    cdef int64_t left = _until_refused.load(memory_order_acquire)
    if left == 1:
        return False
    if left > 1:
        _until_refused.fetch_sub(1, memory_order_acq_rel)
    if _renamed.load(memory_order_acquire):
        name = _given
    else:
        thread_name_of(name.text, kind, index)
    return thread.start(run, argument, name)


def refuse_after(starts):
    """For tests: let so many threads start, and no further one; None takes that back."""
    _until_refused.store(0 if starts is None else <int64_t>starts + 1, memory_order_release)


def rename(name):
    """For tests that tell streamers apart: what threads are called that start from now on; None takes that back."""
    _renamed.store(0, memory_order_release)
    if name is not None:
        text = name.encode()
        if len(text) >= <Py_ssize_t>sizeof(_given.text):
            raise ValueError(f"name is {name!r}; at most {sizeof(_given.text) - 1} bytes are wanted")
        memset(_given.text, 0, sizeof(_given.text))
        strncpy(_given.text, text, sizeof(_given.text) - 1)
        _renamed.store(1, memory_order_release)
