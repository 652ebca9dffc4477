"""Memory of a slot as a DLPack capsule, so that any array library can view it without a copy.

The structs are those of DLPack's specification, version 0.8 (unversioned capsules, which every library takes).
"""
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New
from cpython.ref cimport PyObject, Py_DECREF, Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc

cdef struct DLDevice:
    int32_t device_type
    int32_t device_id

cdef struct DLDataType:
    uint8_t code
    uint8_t bits
    uint16_t lanes

cdef struct DLTensor:
    void* data
    DLDevice device
    int32_t ndim
    DLDataType dtype
    int64_t* shape
    int64_t* strides
    uint64_t byte_offset

cdef struct DLManagedTensor:
    DLTensor tensor
    void* manager
    void (*deleter)(DLManagedTensor* self) noexcept with gil

# One allocation: the shape lies behind the struct.
cdef struct Managed:
    DLManagedTensor base
    int64_t[1] shape


cdef void _delete(DLManagedTensor* managed) noexcept with gil:
    Py_DECREF(<object>managed.manager)
    free(managed)


cdef void _discard(object capsule) noexcept:
    """Of a capsule that nobody has taken."""
    cdef DLManagedTensor* managed
    if PyCapsule_IsValid(capsule, "dltensor"):
        managed = <DLManagedTensor*>PyCapsule_GetPointer(capsule, "dltensor")
        managed.deleter(managed)


def bytes_capsule(owner, uintptr_t address, int64_t nbytes, int device_type, int device_id):
    """A one-dimensional uint8 tensor over memory that `owner` keeps alive."""
    cdef Managed* managed = <Managed*>malloc(sizeof(Managed))
    if managed == NULL:
        raise MemoryError("no memory for a DLPack tensor")
    managed.shape[0] = nbytes
    managed.base.tensor.data = <void*>address
    managed.base.tensor.device.device_type = device_type
    managed.base.tensor.device.device_id = device_id
    managed.base.tensor.ndim = 1
    managed.base.tensor.dtype.code = 1          # kDLUInt
    managed.base.tensor.dtype.bits = 8
    managed.base.tensor.dtype.lanes = 1
    managed.base.tensor.shape = managed.shape
    managed.base.tensor.strides = NULL
    managed.base.tensor.byte_offset = 0
    managed.base.manager = <void*><PyObject*>owner
    managed.base.deleter = _delete
    Py_INCREF(owner)
    try:
        return PyCapsule_New(managed, "dltensor", _discard)
    except BaseException:
        _delete(&managed.base)
        raise
