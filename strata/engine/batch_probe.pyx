"""What of hipMemcpyBatchAsync a library serves, found out by the very call that requests make."""
from libc.stdint cimport int64_t, uintptr_t
from libc.string cimport memset
from libcpp.atomic cimport atomic

from strata cimport _hip
from strata.engine.clock cimport now_ns, pause_briefly

cdef enum:
    PROBE_BYTES = 4096          # of each of the probe's two copies

cdef atomic[int] _gate          # holds the probe's stream back


cdef void _wait_at_gate(void* argument) noexcept nogil:
    # Not for ever: a driver may wait for the host function before a call returns.
    cdef int64_t deadline = now_ns() + 2000000000
    while not _gate.load() and now_ns() < deadline:
        pause_briefly()
    _gate.fetch_add(2)          # 2: nobody had opened it; 3: it was opened first


cdef int _submit_probe(uintptr_t device, uintptr_t host, uintptr_t stream) noexcept nogil:
    cdef void* dsts[2]
    cdef void* srcs[2]
    cdef size_t[2] sizes
    cdef int k
    for k in range(2):
        dsts[k] = <void*>(device + k * PROBE_BYTES)
        srcs[k] = <void*>(host + k * PROBE_BYTES)
        sizes[k] = PROBE_BYTES
    return _hip.copy_h2d_batch(dsts, srcs, sizes, 2, stream)


cdef bint _plain_batch_keeps_order(uintptr_t device, uintptr_t host, uintptr_t stream, int* status) noexcept nogil:
    """Whether a batch without attributes reads its sources where the stream comes to it.

    The stream is held back by a host function while the batch is submitted and its sources are written once more.
    """
    cdef uintptr_t back = host + 2 * PROBE_BYTES
    cdef int k
    _gate.store(0)
    memset(<void*>host, 1, 2 * PROBE_BYTES)
    memset(<void*>back, 0, 2 * PROBE_BYTES)
    status[0] = _hip.launch_host_func(stream, _wait_at_gate, NULL)
    if status[0] != _hip.HIP_SUCCESS:
        return False
    status[0] = _submit_probe(device, host, stream)
    memset(<void*>host, 2, 2 * PROBE_BYTES)
    _gate.fetch_add(1)
    if status[0] == _hip.HIP_SUCCESS:
        status[0] = _hip.copy_d2h(back, device, 2 * PROBE_BYTES, stream)
    if _hip.stream_synchronize(stream) != _hip.HIP_SUCCESS or status[0] != _hip.HIP_SUCCESS or _gate.load() != 3:
        return False
    for k in range(2 * PROBE_BYTES):
        if (<char*>back)[k] != 2:
            return False
    return True


cdef int _try(uintptr_t device, uintptr_t host, uintptr_t stream, int* refused, int* plain) noexcept nogil:
    """How requests may submit batches; the statuses say why not in a better way."""
    _hip.batch_use = _hip.BATCH_WITH_ATTRIBUTES
    refused[0] = _submit_probe(device, host, stream)
    if refused[0] == _hip.HIP_SUCCESS:
        refused[0] = _hip.stream_synchronize(stream)
    if refused[0] == _hip.HIP_SUCCESS:
        return _hip.BATCH_WITH_ATTRIBUTES
    _hip.batch_use = _hip.BATCH_PLAIN
    return _hip.BATCH_PLAIN if _plain_batch_keeps_order(device, host, stream, plain) else _hip.BATCH_NONE


def probe():
    """Try a small batch in memory of the probe's own, and let requests use what works.

    Returns
    -------
    str
        Why batches are not used, or are used without attributes; empty where nothing is to be said.
    """
    cdef uintptr_t stream = 0
    cdef uintptr_t device = 0
    cdef uintptr_t host = 0
    cdef int status
    cdef int refused = _hip.HIP_SUCCESS
    cdef int plain = _hip.HIP_SUCCESS
    cdef int found = _hip.BATCH_NONE
    with nogil:
        status = _hip.stream_create(&stream)
        if status == _hip.HIP_SUCCESS:
            status = _hip.device_alloc(&device, 2 * PROBE_BYTES)
        if status == _hip.HIP_SUCCESS:
            status = _hip.host_alloc(&host, 4 * PROBE_BYTES)
        if status == _hip.HIP_SUCCESS:
            found = _try(device, host, stream, &refused, &plain)
        _hip.batch_use = found
        if host != 0:
            _hip.host_free(host)
        if device != 0:
            _hip.device_free(device)
        if stream != 0:
            _hip.stream_destroy(stream)
    name = "hipMemcpyBatchAsync"
    if status != _hip.HIP_SUCCESS:
        return f"{name} could not be tried ({_name(status)})"
    if found == _hip.BATCH_WITH_ATTRIBUTES:
        return ""
    if found == _hip.BATCH_PLAIN:
        return f"{name} refuses attributes ({_name(refused)}), and keeps the order without"
    if plain == _hip.HIP_SUCCESS:
        return f"{name} refuses attributes ({_name(refused)}), and without does not keep the order"
    return f"{name} answers {_name(refused)}"


cdef object _name(int status):
    return _hip.status_error(_hip.CALL_MEMCPY_BATCH_ASYNC, status, -1, -1).name
