"""The one room that calls HIP: every call as a function that returns the status.

Handles and device addresses are ``uintptr_t`` everywhere else in strata. No function here raises
or keeps the GIL; `raise_status` is the one place that turns a status into an exception.
"""
from libc.stdint cimport int64_t, uintptr_t

# The calls, by number, so that a native thread can say which one failed or has not returned.
cdef enum Call:
    CALL_NONE = 0
    CALL_GET_DEVICE_COUNT
    CALL_GET_DEVICE
    CALL_SET_DEVICE
    CALL_MEM_GET_INFO
    CALL_MALLOC
    CALL_FREE
    CALL_HOST_MALLOC
    CALL_HOST_FREE
    CALL_HOST_REGISTER
    CALL_HOST_UNREGISTER
    CALL_POINTER_GET_ATTRIBUTES
    CALL_MEMCPY_ASYNC
    CALL_MEMCPY_BATCH_ASYNC
    CALL_MEMSET_ASYNC
    CALL_STREAM_CREATE
    CALL_STREAM_DESTROY
    CALL_STREAM_SYNCHRONIZE
    CALL_STREAM_QUERY
    CALL_STREAM_WAIT_EVENT
    CALL_STREAM_GET_DEVICE
    CALL_EVENT_CREATE
    CALL_EVENT_DESTROY
    CALL_EVENT_RECORD
    CALL_EVENT_QUERY
    CALL_EVENT_SYNCHRONIZE
    CALL_LAUNCH_HOST_FUNC
    CALL_DEVICE_SYNCHRONIZE
    CALL_HOST_MEMCPY          # strata's own copy into a host buffer
    CALL_DEVICE_GET_NAME
    CALL_FILE_READ            # a worker's read of a file; its status is the system's, not HIP's
    CALL_HOST_MEMORY          # the system's allocator; its status is always out of memory
    CALL_COUNT

# What of hipMemcpyBatchAsync requests use.
cdef enum:
    BATCH_NONE = 0
    BATCH_WITH_ATTRIBUTES     # one, that says when the source is read
    BATCH_PLAIN               # without: attributes are refused, and the probe saw the order kept

cdef int batch_use

cdef enum:
    HIP_SUCCESS = 0
    HIP_INVALID_VALUE = 1
    HIP_OUT_OF_MEMORY = 2
    HIP_INVALID_DEVICE = 101
    HIP_INVALID_HANDLE = 400
    HIP_NOT_READY = 600
    HIP_CONTEXT_IS_DESTROYED = 709
    HIP_NOT_SUPPORTED = 801

cdef enum:
    MEMORY_UNREGISTERED = 0
    MEMORY_HOST = 1
    MEMORY_DEVICE = 2
    MEMORY_MANAGED = 3
    PER_THREAD_STREAM = 2  # hipStreamPerThread
    PAGE_BYTES = 4096  # the least that a runtime page-locks

# Python functions that are queued on streams: see `_hip.pyx`.
cdef void host_functions_pending(int change) noexcept nogil
cdef bint gil_is_wanted() noexcept nogil

cdef int get_device_count(int* count) noexcept nogil
cdef int get_device(int* device) noexcept nogil
cdef int set_device(int device) noexcept nogil
cdef int device_synchronize() noexcept nogil
cdef int mem_get_info(size_t* free_bytes, size_t* total_bytes) noexcept nogil
cdef int device_alloc(uintptr_t* address, size_t nbytes) noexcept nogil
cdef int device_free(uintptr_t address) noexcept nogil
cdef int host_alloc(uintptr_t* address, size_t nbytes) noexcept nogil
cdef bint says_no_more_pinned(int status) noexcept nogil
cdef int host_free(uintptr_t address) noexcept nogil
cdef int pointer_attributes(uintptr_t address, int* memory_type, int* device) noexcept nogil

cdef int copy_h2d(uintptr_t dst, uintptr_t src, size_t nbytes, uintptr_t stream) noexcept nogil
cdef int copy_d2h(uintptr_t dst, uintptr_t src, size_t nbytes, uintptr_t stream) noexcept nogil
cdef int copy_h2d_batch(void** dsts, void** srcs, size_t* sizes, size_t count,
                        uintptr_t stream) noexcept nogil

cdef int stream_create(uintptr_t* stream) noexcept nogil
cdef int stream_destroy(uintptr_t stream) noexcept nogil
cdef int stream_synchronize(uintptr_t stream) noexcept nogil
cdef int stream_drain(uintptr_t stream, int* first_status, int* call) noexcept nogil
cdef int stream_query(uintptr_t stream) noexcept nogil
cdef int stream_wait_event(uintptr_t stream, uintptr_t event) noexcept nogil
cdef int stream_get_device(uintptr_t stream, int* device) noexcept nogil

cdef int event_create(uintptr_t* event, bint blocking_sync) noexcept nogil
cdef int event_destroy(uintptr_t event) noexcept nogil
cdef int event_record(uintptr_t event, uintptr_t stream) noexcept nogil
cdef int event_query(uintptr_t event) noexcept nogil
cdef int event_synchronize(uintptr_t event) noexcept nogil
cdef int launch_host_func(uintptr_t stream, void (*function)(void*) noexcept nogil,
                          void* argument) noexcept nogil

cdef int unread_error() noexcept nogil
cdef void restore_error(int before) noexcept nogil
cdef void forget_not_ready() noexcept nogil
cdef void clear_last_error() noexcept nogil
cdef const char* call_name(int call) noexcept nogil
cdef const char* status_name(int status) noexcept nogil

# What the runtime could not do without, checked at every public entrance.
cpdef int refuse_child() except -1
cdef int check_usable() except -1
cdef bint forked() noexcept nogil
cdef void abandon(object owners)
cdef bint leaving() noexcept nogil
cdef object runtime_name()
cdef object status_error(int call, int status, int64_t entry, int64_t slot)
cdef int check_stream(object name, uintptr_t stream) except -1
cdef int raise_status(int call, int status, int64_t entry=*, int64_t slot=*) except -1

# Announcements to the software runtime's happens-before checker: no-ops unless it is on.
cdef void announce_write(uintptr_t address, size_t nbytes) noexcept nogil
cdef void announce_read(uintptr_t address, size_t nbytes) noexcept nogil
cdef void announce_release(const void* token) noexcept nogil
cdef void announce_acquire(const void* token) noexcept nogil
cdef void announce_label(int64_t entry, int64_t slot, int64_t generation) noexcept nogil
