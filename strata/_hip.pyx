"""The one room that calls HIP, through hip-python's Cython bindings, without the GIL.

The bindings open the library and look a symbol up at its first call, take the GIL there, and raise
from inside ``nogil`` code. `load` therefore calls every symbol once, harmlessly, on the thread that
chooses the runtime, before any other thread exists; a missing library or symbol is an error there.
"""
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int64_t, uint8_t, uint64_t, uintptr_t
from libc.string cimport memset
from libcpp.atomic cimport atomic, memory_order_relaxed

from rocm.bindings cimport cyhip

import atexit
import contextlib
import os
import sys

from strata.errors import HipError, RuntimeNotFound, StrataError

cdef const char** _CALL_NAMES = [
    "none", "hipGetDeviceCount", "hipGetDevice", "hipSetDevice", "hipMemGetInfo", "hipMalloc",
    "hipFree", "hipHostMalloc", "hipHostFree", "hipHostRegister", "hipHostUnregister",
    "hipPointerGetAttributes", "hipMemcpyAsync", "hipMemcpyBatchAsync", "hipMemsetAsync",
    "hipStreamCreateWithFlags", "hipStreamDestroy", "hipStreamSynchronize", "hipStreamQuery",
    "hipStreamWaitEvent", "hipStreamGetDevice", "hipEventCreateWithFlags", "hipEventDestroy",
    "hipEventRecord", "hipEventQuery", "hipEventSynchronize",
    "hipLaunchHostFunc", "hipDeviceSynchronize", "memcpy into a host buffer",
    "hipDeviceGetName", "a read of a file", "malloc",
]

cdef const char* call_name(int call) noexcept nogil:
    if call < 0 or call >= CALL_COUNT:
        return "an unknown call"
    return _CALL_NAMES[call]


cdef const char* status_name(int status) noexcept nogil:
    """HIP's own name for a status."""
    cdef const char* name = cyhip.hipGetErrorName(<cyhip.hipError_t>status)
    if name == NULL:
        return "an unknown status"
    return name


# --- state of the process -------------------------------------------------------------------------

cdef bint _loaded = False
cdef bint _choosing = False
cdef bint _forked = False
cdef bint _abandoned = False
cdef bint _leaving = False       # the interpreter ends, and a device may never come back
cdef atomic[int] _host_functions
batch_use = BATCH_NONE
_batch_problem = "no runtime was chosen yet"   # why batches are not used, or are used in another way
_bound = None          # path of the library that the bindings have opened for strata, also where it was of no use then
_library = None        # the same, once it is the runtime of this process
_name = None           # rocm, software or cuda


cpdef int refuse_child() except -1:
    """Raise in the child of a fork that came after the first use of HIP, or in the midst of it."""
    if _forked:
        raise StrataError(
            "strata was used before this process was forked; HIP does not survive a fork: start the "
            "process with the 'spawn' method, or fork before the first use of strata")
    return 0


cdef int check_usable() except -1:
    """Refuse any use in a process that was forked after HIP was first used; choose a runtime if none is."""
    refuse_child()
    if not _loaded:
        from strata import runtime
        runtime.ensure()
    return 0


cdef bint forked() noexcept nogil:
    return _forked


cdef void host_functions_pending(int change) noexcept nogil:
    """A Python function was queued on a stream (1), or will need the GIL no more (-1)."""
    _host_functions.fetch_add(change)


cdef bint gil_is_wanted() noexcept nogil:
    """Whether a Python function of strata's is queued on any stream.

    A driver may hold a call until earlier work is done: where a stream holds no more operations, or under a lock
    that such a call has. With the GIL held, that function could not run, and neither thread would go on. Only with
    the GIL is one queued: who holds it and hears *no* may call the driver without giving it up.
    """
    return _host_functions.load(memory_order_relaxed) != 0


cdef void abandon(object owners):
    """Never free these: a DMA may read what they own for ever. Not even when the interpreter ends.

    What others own is freed as before, until the interpreter ends: then the process gives it all back anyway, and a call
    that waits for the device could keep it from ending.
    """
    global _abandoned
    _abandoned = True
    Py_INCREF(owners)


def _leave():
    global _leaving
    _leaving = _abandoned


atexit.register(_leave)


cdef bint leaving() noexcept nogil:
    return _leaving


cdef object runtime_name():
    return _name


def _mark_forked():
    global _forked
    _forked = _forked or _loaded or _choosing


if hasattr(os, "register_at_fork"):   # Windows has no fork
    os.register_at_fork(after_in_child=_mark_forked)


@contextlib.contextmanager
def choosing():
    """While a library is looked for, asked and opened: a child that is forked meanwhile has half of it."""
    global _choosing
    _choosing = True
    try:
        yield
    finally:
        _choosing = False


def is_forked():
    """Whether this is the child of a fork that came after the first use of HIP."""
    return bool(_forked)


def loaded_runtime():
    """Name and library path of the runtime that the bindings opened, or ``(None, None)``."""
    return _name, _library


def has_batch_copy():
    """Whether the opened library serves batches; and why not, or not as they should be (else an empty text)."""
    return batch_use != BATCH_NONE, _batch_problem


# --- device and memory ----------------------------------------------------------------------------

cdef int get_device_count(int* count) noexcept nogil:
    return <int>cyhip.hipGetDeviceCount(count)

cdef int get_device(int* device) noexcept nogil:
    return <int>cyhip.hipGetDevice(device)

cdef int set_device(int device) noexcept nogil:
    return <int>cyhip.hipSetDevice(device)

cdef int device_synchronize() noexcept nogil:
    return <int>cyhip.hipDeviceSynchronize()

cdef int mem_get_info(size_t* free_bytes, size_t* total_bytes) noexcept nogil:
    return <int>cyhip.hipMemGetInfo(free_bytes, total_bytes)

cdef int device_alloc(uintptr_t* address, size_t nbytes) noexcept nogil:
    cdef void* p = NULL
    cdef int status = <int>cyhip.hipMalloc(&p, nbytes)
    address[0] = <uintptr_t>p
    return status

cdef int device_free(uintptr_t address) noexcept nogil:
    return <int>cyhip.hipFree(<void*>address)

cdef uint64_t _unpinnable = 0  # of the next allocations, those whose bit is set are refused

cdef int host_alloc(uintptr_t* address, size_t nbytes) noexcept nogil:
    global _unpinnable
    cdef void* p = NULL
    cdef int status = HIP_OUT_OF_MEMORY
    if not _unpinnable & 1:
        status = <int>cyhip.hipHostMalloc(&p, nbytes, cyhip.hipHostMallocPortable)
    _unpinnable >>= 1
    address[0] = <uintptr_t>p
    return status

cdef bint says_no_more_pinned(int status) noexcept nogil:
    # hipErrorOutOfMemory by HIP's text; hipErrorRuntimeMemory where AMD's runtime hands on its own allocation's failure.
    # Anything else, a lost device say, is a failure like any other.
    return status == HIP_OUT_OF_MEMORY or status == 1052

cdef int host_free(uintptr_t address) noexcept nogil:
    return <int>cyhip.hipHostFree(<void*>address)

cdef int pointer_attributes(uintptr_t address, int* memory_type, int* device) noexcept nogil:
    cdef cyhip.hipPointerAttribute_t attributes
    memset(&attributes, 0, sizeof(attributes))
    cdef int status = <int>cyhip.hipPointerGetAttributes(&attributes, <const void*>address)
    memory_type[0] = <int>attributes.type
    device[0] = attributes.device
    return status


# --- copies ---------------------------------------------------------------------------------------

cdef int copy_h2d(uintptr_t dst, uintptr_t src, size_t nbytes, uintptr_t stream) noexcept nogil:
    return <int>cyhip.hipMemcpyAsync(<void*>dst, <const void*>src, nbytes,
                                     cyhip.hipMemcpyHostToDevice, <cyhip.hipStream_t>stream)

cdef int copy_d2h(uintptr_t dst, uintptr_t src, size_t nbytes, uintptr_t stream) noexcept nogil:
    return <int>cyhip.hipMemcpyAsync(<void*>dst, <const void*>src, nbytes,
                                     cyhip.hipMemcpyDeviceToHost, <cyhip.hipStream_t>stream)

cdef int copy_h2d_batch(void** dsts, void** srcs, size_t* sizes, size_t count,
                        uintptr_t stream) noexcept nogil:
    cdef cyhip.hipMemcpyAttributes attributes
    cdef size_t first = 0
    cdef size_t failed = 0
    if batch_use == BATCH_PLAIN:
        return <int>cyhip.hipMemcpyBatchAsync(dsts, srcs, sizes, count, NULL, NULL, 0, &failed,
                                              <cyhip.hipStream_t>stream)
    memset(&attributes, 0, sizeof(attributes))
    # The source is read when the copy runs: as a single asynchronous copy from pinned memory does.
    attributes.srcAccessOrder = cyhip.hipMemcpySrcAccessOrderStream
    return <int>cyhip.hipMemcpyBatchAsync(dsts, srcs, sizes, count, &attributes, &first, 1, &failed,
                                          <cyhip.hipStream_t>stream)


# --- streams and events ---------------------------------------------------------------------------

cdef int stream_create(uintptr_t* stream) noexcept nogil:
    cdef cyhip.hipStream_t made = NULL
    cdef int status = <int>cyhip.hipStreamCreateWithFlags(&made, cyhip.hipStreamNonBlocking)
    stream[0] = <uintptr_t>made
    return status

cdef int stream_destroy(uintptr_t stream) noexcept nogil:
    return <int>cyhip.hipStreamDestroy(<cyhip.hipStream_t>stream)

cdef int stream_synchronize(uintptr_t stream) noexcept nogil:
    return <int>cyhip.hipStreamSynchronize(<cyhip.hipStream_t>stream)

cdef int stream_drain(uintptr_t stream, int* first_status, int* call) noexcept nogil:
    """Wait until nothing queued on the stream runs any more.

    A failure that the first try reports may be one of the work: the stream can be empty all the same. So it is
    tried again, then with the whole device; only where that fails, too, may something still run.
    """
    cdef int status
    call[0] = CALL_STREAM_SYNCHRONIZE
    status = stream_synchronize(stream)
    first_status[0] = status
    if status != HIP_SUCCESS:
        clear_last_error()
        status = stream_synchronize(stream)
        if status != HIP_SUCCESS:
            call[0] = CALL_DEVICE_SYNCHRONIZE
            status = device_synchronize()
            if status != HIP_SUCCESS:
                clear_last_error()
    return status

cdef int stream_query(uintptr_t stream) noexcept nogil:
    return <int>cyhip.hipStreamQuery(<cyhip.hipStream_t>stream)

cdef int stream_wait_event(uintptr_t stream, uintptr_t event) noexcept nogil:
    return <int>cyhip.hipStreamWaitEvent(<cyhip.hipStream_t>stream, <cyhip.hipEvent_t>event, 0)

cdef int stream_get_device(uintptr_t stream, int* device) noexcept nogil:
    return <int>cyhip.hipStreamGetDevice(<cyhip.hipStream_t>stream, device)

cdef int event_create(uintptr_t* event, bint blocking_sync) noexcept nogil:
    cdef cyhip.hipEvent_t made = NULL
    cdef unsigned int flags = cyhip.hipEventDisableTiming
    if blocking_sync:
        flags |= cyhip.hipEventBlockingSync
    cdef int status = <int>cyhip.hipEventCreateWithFlags(&made, flags)
    event[0] = <uintptr_t>made
    return status

cdef int event_destroy(uintptr_t event) noexcept nogil:
    return <int>cyhip.hipEventDestroy(<cyhip.hipEvent_t>event)

cdef int event_record(uintptr_t event, uintptr_t stream) noexcept nogil:
    return <int>cyhip.hipEventRecord(<cyhip.hipEvent_t>event, <cyhip.hipStream_t>stream)

cdef int event_query(uintptr_t event) noexcept nogil:
    return <int>cyhip.hipEventQuery(<cyhip.hipEvent_t>event)

cdef int event_synchronize(uintptr_t event) noexcept nogil:
    return <int>cyhip.hipEventSynchronize(<cyhip.hipEvent_t>event)

cdef int launch_host_func(uintptr_t stream, void (*function)(void*) noexcept nogil,
                          void* argument) noexcept nogil:
    return <int>cyhip.hipLaunchHostFunc(<cyhip.hipStream_t>stream, <cyhip.hipHostFn_t>function, argument)


# --- statuses -------------------------------------------------------------------------------------

cdef int unread_error() noexcept nogil:
    return <int>cyhip.hipPeekAtLastError()


cdef void restore_error(int before) noexcept nogil:
    """Leave the thread's last error as it was before calls of strata's that may have failed.

    HIP keeps the latest only and has no call that sets it: what strata's replaced is made again, by a harmless call
    that ends in it. Those of a lost device come back by themselves.
    """
    cdef void* nothing = NULL
    if <int>cyhip.hipPeekAtLastError() == before:
        return
    cyhip.hipGetLastError()
    if before == HIP_INVALID_VALUE:
        cyhip.hipPointerGetAttributes(NULL, NULL)
    elif before == HIP_INVALID_DEVICE:
        cyhip.hipSetDevice(-1)
    elif before == HIP_INVALID_HANDLE:
        cyhip.hipEventQuery(NULL)
    elif before == HIP_OUT_OF_MEMORY:
        if cyhip.hipMalloc(&nothing, <size_t>-4096) == cyhip.hipSuccess:
            cyhip.hipFree(nothing)


cdef void forget_not_ready() noexcept nogil:
    # No last error in HIP 7; where it is one, the engine must not inherit it. An unread error of the engine's stays.
    if <int>cyhip.hipPeekAtLastError() == HIP_NOT_READY:
        cyhip.hipGetLastError()


cdef void clear_last_error() noexcept nogil:
    # After a failed call of strata's own, which has replaced what was there: the engine must not inherit it.
    cyhip.hipGetLastError()


cdef object status_error(int call, int status, int64_t entry, int64_t slot):
    """The exception for a failed call, with HIP's own name for the status."""
    return HipError(call_name(call).decode(), status, status_name(status).decode(errors="replace"),
                    entry=None if entry < 0 else entry, slot=None if slot < 0 else slot)


cdef bint _says_foreign(int status) noexcept nogil:
    """Whether a status says that a handle or address is none of the runtime's, not that the runtime fails."""
    # InvalidValue, InvalidDevicePointer, InvalidDevice, InvalidContext, InvalidHandle, ContextIsDestroyed
    return status == 1 or status == 17 or status == 101 or status == 201 or status == 400 or status == 709


cdef int check_stream(object name, uintptr_t stream) except -1:
    """Refuse a handle that is no stream of the runtime; the device that the stream belongs to."""
    cdef int device = 0
    cdef int status
    if stream == PER_THREAD_STREAM:
        raise ValueError(f"{name} is 2, hipStreamPerThread: on strata's own threads that is another stream than on the "
                         "caller's; pass a stream that was made (hipStreamCreateWithFlags), or 0 for the null stream")
    with nogil:
        status = stream_get_device(stream, &device)
    if status != HIP_SUCCESS and _says_foreign(status):
        clear_last_error()
        error = status_error(CALL_STREAM_GET_DEVICE, status, -1, -1)
        raise ValueError(f"{name} is {stream:#x}, which is no stream of the {_name} runtime ({error.name})")
    raise_status(CALL_STREAM_GET_DEVICE, status)
    return device


cdef int raise_status(int call, int status, int64_t entry=-1, int64_t slot=-1) except -1:
    """Raise for a failed status; the one place where a status becomes an exception."""
    if status == HIP_SUCCESS:
        return 0
    clear_last_error()
    raise status_error(call, status, entry, slot)


# --- opening the library --------------------------------------------------------------------------

cdef void _nothing(void* argument) noexcept nogil:
    pass


def load(str name, str path):
    """Bind hip-python's bindings to the library at `path`, once and for good.

    Parameters
    ----------
    name : str
        The runtime's name, for messages: ``rocm``, ``software`` or ``cuda``.
    path : str
        The library, absolute. It must open: the bindings keep the first path that they were given,
        also when it does not, so the caller has opened it once by itself.

    Raises
    ------
    StrataError
        If the bindings were used before and hold another library.
    RuntimeNotFound
        If the library has no device, or lacks a symbol that strata needs; the symbol is named. The same library may be
        tried again.
    """
    global _loaded, _name, _library, _bound
    from rocm.bindings.util import paths

    cdef int count = 0
    cdef int status
    asked = []

    def _this_library(shortname, bundled_location=None):
        if shortname != "amdhip64":
            return original(shortname, bundled_location)
        asked.append(shortname)
        # On Windows the bindings call LoadLibraryA, which takes the ANSI code page.
        return path.encode("mbcs") if sys.platform == "win32" else os.fsencode(path)

    original = paths.get_library_path
    paths.get_library_path = _this_library
    problem = None
    try:
        status = <int>cyhip.hipGetDeviceCount(&count)
    except (RuntimeError, UnicodeError) as error:    # the library, its name or the symbol could not be had
        problem = error
        status = HIP_INVALID_VALUE
    finally:
        paths.get_library_path = original
    if asked:
        _bound = path
    elif _bound is not None and _bound != path:
        raise StrataError(
            f"strata tried {_bound} before, which was of no use then, and hip-python's bindings keep the library that "
            f"they have opened: the {name} runtime ({path}) takes another process")
    elif _bound is None:
        raise StrataError(
            f"HIP was used through hip-python's bindings before strata chose its runtime ({name}): the "
            "bindings open one library for good. Choose first, with strata.runtime.use() or "
            "STRATA_HIP_RUNTIME, then use HIP")
    if problem is not None:
        raise RuntimeNotFound(f"the {name} runtime ({path}) does not open: {problem}")
    if status != HIP_SUCCESS or count < 1:
        clear_last_error()
        raise RuntimeNotFound(
            f"the {name} runtime ({path}) has no device: hipGetDeviceCount gave status {status}, "
            f"{count} device(s)")
    _resolve_symbols(name)
    _library = path
    _name = name
    _loaded = True


def _resolve_symbols(name_of_runtime):
    """Call every symbol that strata uses once, so that no later call resolves, takes the GIL or raises."""
    global _batch_problem
    cdef int device = 0
    cdef int number = 0
    cdef size_t nfree = 0
    cdef size_t ntotal = 0
    cdef void* p = NULL
    cdef void* h = NULL
    cdef char name[256]
    cdef char byte = 0
    cdef cyhip.hipStream_t stream = NULL
    cdef cyhip.hipEvent_t event = NULL
    cdef cyhip.hipPointerAttribute_t attributes
    cdef size_t failed = 0
    cdef bint has_batch = True
    cdef int before = HIP_SUCCESS
    missing = []

    try:
        before = <int>cyhip.hipPeekAtLastError()
        # In the order in which each call is harmless: creation before use, use before destruction.
        cyhip.hipRuntimeGetVersion(&number)
        cyhip.hipDriverGetVersion(&number)
        cyhip.hipGetDevice(&device)
        cyhip.hipSetDevice(device)
        cyhip.hipDeviceGetName(name, sizeof(name), device)
        cyhip.hipDeviceGetAttribute(&number, cyhip.hipDeviceAttributeIntegrated, device)
        cyhip.hipMemGetInfo(&nfree, &ntotal)
        cyhip.hipGetErrorName(cyhip.hipSuccess)
        cyhip.hipGetErrorString(cyhip.hipSuccess)
        cyhip.hipMalloc(&p, 256)
        cyhip.hipHostMalloc(&h, 256, cyhip.hipHostMallocPortable)
        cyhip.hipHostRegister(NULL, 0, cyhip.hipHostRegisterPortable)
        cyhip.hipHostUnregister(NULL)
        memset(&attributes, 0, sizeof(attributes))
        cyhip.hipPointerGetAttributes(&attributes, <const void*>&byte)
        cyhip.hipStreamCreateWithFlags(&stream, cyhip.hipStreamNonBlocking)
        cyhip.hipEventCreateWithFlags(&event, 0)
        cyhip.hipMemcpyAsync(p, h, 0, cyhip.hipMemcpyHostToDevice, stream)
        cyhip.hipMemcpy(p, h, 0, cyhip.hipMemcpyHostToDevice)
        cyhip.hipMemsetAsync(p, 0, 16, stream)
        cyhip.hipEventRecord(event, stream)
        cyhip.hipStreamWaitEvent(stream, event, 0)
        cyhip.hipLaunchHostFunc(stream, <cyhip.hipHostFn_t>_nothing, NULL)
        cyhip.hipStreamQuery(stream)
        cyhip.hipEventQuery(event)
        cyhip.hipStreamGetDevice(stream, &number)
        cyhip.hipStreamSynchronize(stream)
        cyhip.hipEventSynchronize(event)
        cyhip.hipDeviceSynchronize()
        cyhip.hipEventDestroy(event)
        cyhip.hipStreamDestroy(stream)
        cyhip.hipFree(p)
        cyhip.hipHostFree(h)
        cyhip.hipGetLastError()
    except RuntimeError as problem:
        missing.append(str(problem))
    try:
        cyhip.hipMemcpyBatchAsync(NULL, NULL, NULL, 0, NULL, NULL, 0, &failed, NULL)
    except RuntimeError:
        has_batch = False       # older libraries: grouped submission is not to be had
    if not missing:
        if has_batch:
            from strata.engine.batch_probe import probe
            _batch_problem = probe()
        else:
            _batch_problem = "the library has no hipMemcpyBatchAsync"
        restore_error(before)
        return
    raise RuntimeNotFound(f"the {name_of_runtime} runtime ({_bound}) lacks a symbol that strata needs: {missing[0]}")


# --- the same calls for Python callers: set-up, tools and tests --------------------------------------
#
# None keeps the GIL, which a Python function on a stream may need before the driver lets the call return.

cdef int _do(int call, int (*function)(uintptr_t) noexcept nogil, uintptr_t handle) except -1:
    cdef int status
    check_usable()
    with nogil:
        status = function(handle)
    return raise_status(call, status)


cdef int _undo(int call, int (*function)(uintptr_t) noexcept nogil, uintptr_t handle) except -1:
    """Silent in a forked child, and at the interpreter's end where a device may never come back."""
    cdef int status
    if _forked or _leaving:
        return 0
    with nogil:
        status = function(handle)
    return raise_status(call, status)


cdef int _queue(int call, int (*function)(uintptr_t, uintptr_t) noexcept nogil, uintptr_t one, uintptr_t other) except -1:
    cdef int status
    check_usable()
    with nogil:
        status = function(one, other)
    return raise_status(call, status)


cdef object _number(int call, int (*function)(int*) noexcept nogil):
    cdef int number = 0
    cdef int status
    check_usable()
    with nogil:
        status = function(&number)
    raise_status(call, status)
    return number


cdef object _memory(int call, int (*function)(uintptr_t*, size_t) noexcept nogil, size_t nbytes):
    cdef uintptr_t address = 0
    cdef int status
    check_usable()
    with nogil:
        status = function(&address, nbytes)
    raise_status(call, status)
    return address


def device_count():
    """Number of devices of the chosen runtime."""
    return _number(CALL_GET_DEVICE_COUNT, get_device_count)


def current_device():
    """The calling thread's current device."""
    return _number(CALL_GET_DEVICE, get_device)


def use_device(int device):
    """Make `device` the calling thread's current one."""
    cdef int status
    check_usable()
    with nogil:
        status = set_device(device)
    raise_status(CALL_SET_DEVICE, status)


def device_name(int device):
    """HIP's name of a device."""
    cdef char name[256]
    cdef int status
    check_usable()
    memset(name, 0, sizeof(name))
    with nogil:
        status = <int>cyhip.hipDeviceGetName(name, sizeof(name) - 1, device)
    raise_status(CALL_DEVICE_GET_NAME, status)
    return (<bytes>name).decode(errors="replace")


def versions():
    """``(runtime, driver)`` version numbers as HIP reports them."""
    cdef int runtime = 0
    cdef int driver = 0
    check_usable()
    with nogil:
        cyhip.hipRuntimeGetVersion(&runtime)
        cyhip.hipDriverGetVersion(&driver)
    return runtime, driver


def memory_info():
    """``(free, total)`` bytes of the current device."""
    cdef size_t nfree = 0
    cdef size_t ntotal = 0
    cdef int status
    check_usable()
    with nogil:
        status = mem_get_info(&nfree, &ntotal)
    raise_status(CALL_MEM_GET_INFO, status)
    return nfree, ntotal


cdef int _range_pinned(uintptr_t at, size_t n, bint* pinned) noexcept nogil:
    # The last byte first: that a range leaves pinned memory at its end is the usual case of a wrong one.
    cdef uintptr_t last = at + n - 1
    cdef int kind = MEMORY_HOST
    cdef int device = -1
    cdef int status = HIP_SUCCESS
    if n > 0:
        status = pointer_attributes(last, &kind, &device)
        while status == HIP_SUCCESS and kind == MEMORY_HOST and at <= last:
            status = pointer_attributes(at, &kind, &device)
            at = (at | (PAGE_BYTES - 1)) + 1
    pinned[0] = status == HIP_SUCCESS and kind == MEMORY_HOST
    if status != HIP_SUCCESS and _says_foreign(status):
        clear_last_error()
        return HIP_SUCCESS
    return status


def range_is_pinned(address, nbytes):
    """Whether every page of host memory ``[address, address + nbytes)`` is page-locked for the runtime.

    One question a page of 4 KiB: both ends may be pinned, by two registrations, and what lies between not. Stops at
    the first page that is not.
    """
    cdef uintptr_t at = address
    cdef size_t n = nbytes
    cdef bint pinned = False
    cdef int status
    check_usable()
    with nogil:
        status = _range_pinned(at, n, &pinned)
    raise_status(CALL_POINTER_GET_ATTRIBUTES, status)
    return pinned


def rows_are_pinned(address, stride, nbytes, rows):
    """`range_is_pinned` of each of the `rows` ranges that begin `stride` bytes apart, as bytes of 0 or 1."""
    cdef uintptr_t at = address
    cdef int64_t step = stride
    cdef size_t n = nbytes
    cdef int64_t count = rows
    cdef int64_t k
    cdef bint pinned = False
    cdef int status = HIP_SUCCESS
    answers = bytearray(count)
    cdef uint8_t* answer = answers
    check_usable()
    with nogil:
        for k in range(count):
            status = _range_pinned(at + <uintptr_t>(k * step), n, &pinned)
            if status != HIP_SUCCESS:
                break
            answer[k] = pinned
    raise_status(CALL_POINTER_GET_ATTRIBUTES, status)
    return answers


def memory_type(address):
    """``(type, device)`` of an address: 0 unregistered, 1 pinned host, 2 device, 3 managed."""
    cdef int kind = 0
    cdef int device = -1
    cdef int status
    cdef uintptr_t asked = address
    check_usable()
    if gil_is_wanted():
        with nogil:
            status = pointer_attributes(asked, &kind, &device)
    else:               # asked of many addresses in a row: beside a busy thread, giving the GIL up takes 5 ms
        status = pointer_attributes(asked, &kind, &device)
    if status != HIP_SUCCESS and _says_foreign(status):
        clear_last_error()
        return 0, -1
    raise_status(CALL_POINTER_GET_ATTRIBUTES, status)
    return kind, device


def pinned_alloc(size_t nbytes):
    """Address of `nbytes` of new pinned memory."""
    return _memory(CALL_HOST_MALLOC, host_alloc, nbytes)


def pinned_free(uintptr_t address):
    """Free what `pinned_alloc` gave. Silent in a forked child."""
    _undo(CALL_HOST_FREE, host_free, address)


def host_register(uintptr_t address, size_t nbytes):
    """Pin existing host memory in place."""
    cdef int status
    check_usable()
    with nogil:
        status = <int>cyhip.hipHostRegister(<void*>address, nbytes, cyhip.hipHostRegisterPortable)
    raise_status(CALL_HOST_REGISTER, status)


def host_unregister(uintptr_t address):
    """Undo `host_register`."""
    cdef int status
    if _forked or _leaving:
        return
    with nogil:
        status = <int>cyhip.hipHostUnregister(<void*>address)
    raise_status(CALL_HOST_UNREGISTER, status)


def malloc(size_t nbytes):
    """Address of `nbytes` of new device memory."""
    return _memory(CALL_MALLOC, device_alloc, nbytes)


def free(uintptr_t address):
    """Free device memory."""
    _undo(CALL_FREE, device_free, address)


def create_stream():
    """A new non-blocking stream, as an int."""
    cdef uintptr_t stream = 0
    cdef int status
    check_usable()
    with nogil:
        status = stream_create(&stream)
    raise_status(CALL_STREAM_CREATE, status)
    return stream


def destroy_stream(uintptr_t stream):
    """Destroy a stream; its pending work still runs."""
    _undo(CALL_STREAM_DESTROY, stream_destroy, stream)


def synchronize_stream(uintptr_t stream):
    """Block until everything queued on the stream is done."""
    _do(CALL_STREAM_SYNCHRONIZE, stream_synchronize, stream)


def stream_device(uintptr_t stream, name="stream"):
    """The device that a stream belongs to; `ValueError`, with the argument's name, for what is no stream."""
    check_usable()
    return check_stream(name, stream)


def create_event(bint blocking_sync=True):
    """A new event, as an int."""
    cdef uintptr_t event = 0
    cdef int status
    check_usable()
    with nogil:
        status = event_create(&event, blocking_sync)
    raise_status(CALL_EVENT_CREATE, status)
    return event


def destroy_event(uintptr_t event):
    """Destroy an event."""
    _undo(CALL_EVENT_DESTROY, event_destroy, event)


def record_event(uintptr_t event, uintptr_t stream):
    """Record an event on a stream."""
    _queue(CALL_EVENT_RECORD, event_record, event, stream)


def wait_event(uintptr_t stream, uintptr_t event):
    """Make a stream wait for the event's latest record."""
    _queue(CALL_STREAM_WAIT_EVENT, stream_wait_event, stream, event)


def query_event(uintptr_t event):
    """Whether the work before the event's latest record is done."""
    cdef int status
    check_usable()
    with nogil:
        status = event_query(event)
    if status == HIP_NOT_READY:
        forget_not_ready()
        return False
    raise_status(CALL_EVENT_QUERY, status)
    return True


def synchronize_event(uintptr_t event):
    """Block until the work before the event's latest record is done."""
    _do(CALL_EVENT_SYNCHRONIZE, event_synchronize, event)


cdef int _copy(int (*function)(uintptr_t, uintptr_t, size_t, uintptr_t) noexcept nogil,
               uintptr_t dst, uintptr_t src, size_t nbytes, uintptr_t stream) except -1:
    cdef int status
    check_usable()
    with nogil:
        status = function(dst, src, nbytes, stream)
    return raise_status(CALL_MEMCPY_ASYNC, status)


def memcpy_h2d_async(uintptr_t dst, uintptr_t src, size_t nbytes, uintptr_t stream):
    """Queue a host-to-device copy."""
    _copy(copy_h2d, dst, src, nbytes, stream)


def memcpy_d2h_async(uintptr_t dst, uintptr_t src, size_t nbytes, uintptr_t stream):
    """Queue a device-to-host copy."""
    _copy(copy_d2h, dst, src, nbytes, stream)


def memset_async(uintptr_t dst, int value, size_t nbytes, uintptr_t stream):
    """Queue a fill of device memory."""
    cdef int status
    check_usable()
    with nogil:
        status = <int>cyhip.hipMemsetAsync(<void*>dst, value, nbytes, <cyhip.hipStream_t>stream)
    raise_status(CALL_MEMSET_ASYNC, status)


def pending_host_functions():
    """How many Python functions of strata's are queued on streams or run."""
    return _host_functions.load(memory_order_relaxed)


def last_error():
    """HIP's last error of the calling thread, which stays as it is."""
    check_usable()
    return <int>cyhip.hipPeekAtLastError()


# --- announcements to the happens-before checker -----------------------------------------------------

ctypedef void (*_range_hook)(const void* address, size_t nbytes) noexcept nogil
ctypedef void (*_token_hook)(const void* token) noexcept nogil
ctypedef void (*_label_hook)(int64_t entry, int64_t slot, int64_t generation) noexcept nogil

cdef _range_hook _write_hook = NULL
cdef _range_hook _read_hook = NULL
cdef _token_hook _release_hook = NULL
cdef _token_hook _acquire_hook = NULL
cdef _label_hook _label_hook_ = NULL


def set_announcements(uintptr_t write, uintptr_t read, uintptr_t release, uintptr_t acquire, uintptr_t label):
    """Give the addresses of the checker's functions, or five zeros to switch announcements off.

    Only while no streamer of the process has a request.
    """
    global _write_hook, _read_hook, _release_hook, _acquire_hook, _label_hook_
    _write_hook = <_range_hook>write
    _read_hook = <_range_hook>read
    _release_hook = <_token_hook>release
    _acquire_hook = <_token_hook>acquire
    _label_hook_ = <_label_hook>label


def refuse_pinned(buffers=()):
    """Have some of the next allocations of pinned memory refused, as if no more could be pinned: for the self-test.

    Parameters
    ----------
    buffers : sequence of int
        Counted from 0, the next one; 0 to 63. What an earlier call asked for is forgotten.

    Notes
    -----
    On the engine's thread, which allocates the host ring's buffers. The library is not called, so that this goes on
    every runtime.
    """
    global _unpinnable
    cdef uint64_t refused = 0
    for buffer in buffers:
        refused |= <uint64_t>1 << <int>buffer
    _unpinnable = refused


cdef void announce_write(uintptr_t address, size_t nbytes) noexcept nogil:
    if _write_hook != NULL:
        _write_hook(<const void*>address, nbytes)

cdef void announce_read(uintptr_t address, size_t nbytes) noexcept nogil:
    if _read_hook != NULL:
        _read_hook(<const void*>address, nbytes)

cdef void announce_release(const void* token) noexcept nogil:
    if _release_hook != NULL:
        _release_hook(token)

cdef void announce_acquire(const void* token) noexcept nogil:
    if _acquire_hook != NULL:
        _acquire_hook(token)

cdef void announce_label(int64_t entry, int64_t slot, int64_t generation) noexcept nogil:
    if _label_hook_ != NULL:
        _label_hook_(entry, slot, generation)
