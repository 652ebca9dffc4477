"""Python callables on a stream (`strata.runtime.launch_host`): called by the runtime, ended with the interpreter."""
from cpython.exc cimport PyErr_WriteUnraisable
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF, PyObject
from libc.stdint cimport int64_t, uintptr_t
from libcpp.atomic cimport atomic

from strata cimport _hip
from strata.engine.clock cimport now_ns, pause_briefly, time_waited

import atexit

cdef extern from "Python.h":
    PyObject* PyObject_CallNoArgs(PyObject* function)       # what is raised stays set

cdef atomic[int] _stopped
cdef atomic[int] _running


cdef void _call_python(void* argument) noexcept with gil:
    # What the callable raises has nobody to go to but the unraisable hook.
    function = <object>argument
    Py_DECREF(function)
    cdef PyObject* result = PyObject_CallNoArgs(<PyObject*>function)
    if result == NULL:
        PyErr_WriteUnraisable(function)
    Py_XDECREF(result)


cdef void _host_function(void* argument) noexcept nogil:
    # Once the interpreter goes, no thread may ask for the GIL any more: what is still queued is dropped.
    _running.fetch_add(1)
    if not _stopped.load():
        _call_python(argument)
    _running.fetch_sub(1)
    _hip.host_functions_pending(-1)


@atexit.register
def _stop():
    """Before the interpreter finalizes: let running functions end, start no others. Bounded."""
    cdef int64_t left = 5000000000
    cdef int64_t began
    if _hip.forked():
        return
    _stopped.store(1)
    with nogil:
        while _running.load() != 0 and left > 0:
            began = now_ns()
            pause_briefly()
            left -= time_waited(began, 100000)


def launch_host(uintptr_t stream, function):
    """Queue a Python callable on a stream; see `strata.runtime.launch_host`."""
    cdef int status
    cdef void* argument = <void*>function
    _hip.check_usable()
    if not callable(function):
        raise TypeError(f"function is {function!r}; a callable is wanted")
    if stream == _hip.PER_THREAD_STREAM:
        _hip.check_stream("stream", stream)
    Py_INCREF(function)
    _hip.host_functions_pending(1)
    with nogil:                 # a schedule may run the function before the call returns
        status = _hip.launch_host_func(stream, _host_function, argument)
    if status != _hip.HIP_SUCCESS:
        _hip.host_functions_pending(-1)
        Py_DECREF(function)
    _hip.raise_status(_hip.CALL_LAUNCH_HOST_FUNC, status)
