"""Where a NumPy array's values lie, for code without the GIL.

A typed memoryview would do; but it adds some 18,000 lines of C++ to every module, a fifth of the whole build.
"""
from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBuffer_Release, PyObject_GetBuffer


cdef inline void* values_of(object array, Py_ssize_t itemsize) except? NULL:
    """The first value of an array, which the caller keeps alive; with no value in it, a pointer not to be read."""
    cdef Py_buffer view
    PyObject_GetBuffer(array, &view, PyBUF_C_CONTIGUOUS)
    cdef void* first = view.buf
    cdef Py_ssize_t size = view.itemsize
    PyBuffer_Release(&view)
    if size != itemsize:
        raise TypeError(f"an array of {size} bytes a value; {itemsize} are wanted")
    return first
