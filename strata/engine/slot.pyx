# cython: nonecheck=True
"""A slot that the engine holds, by itself or as a part of a span."""
cimport cython
from libc.stdint cimport int64_t

from strata cimport _hip
from strata.engine.consumption cimport pipeline_release
from strata.engine.core cimport PyThreadState, StreamerCore, let_python_run, python_has_run
from strata.engine.pipeline cimport STEP_OK, STEP_ORDER, AcquiredSlot, Pipeline
from strata.engine.running cimport Running

from strata.engine.dlpack import bytes_capsule
from strata.engine.host_view import as_array, asked_for, check_wait
from strata.errors import StrataError


cdef Slot new_slot(Running request, object span, const AcquiredSlot* got):
    cdef Slot slot = Slot.__new__(Slot)
    slot.request = request
    slot.span = span
    slot.entry = got.entry
    slot.slot = got.slot
    slot.address = got.address
    slot.nbytes = got.nbytes
    return slot


@cython.no_gc_clear                   # its end needs its request; no cycle leads through it
@cython.freelist(64)
cdef class Slot:
    """A slot that holds an entry's bytes, from `Request.acquire` to `release`. A context manager: leaving it releases it.

    Attributes
    ----------
    entry : int
        Number of the entry in its request.
    slot : int
        Index in the GPU ring.
    address : int
        Device address of the slot.
    nbytes : int
        Bytes from the slot's start to the end of the entry's last segment.

    Notes
    -----
    Kernels queued on the compute stream between `acquire` and `release` see the bytes. After `release` the
    slot is strata's again.
    ``numpy.asarray(slot)`` is `array` where the host can read the memory, and an error elsewhere.
    """

    def __init__(self):
        raise TypeError("a Slot is made by Request.acquire()")

    def release(self):
        """Record that the kernels queued so far are the slot's last readers, and give it back.

        Raises
        ------
        StrataError
            If it was released before, or an older slot is still held.
        """
        cdef Running request = self.request
        cdef StreamerCore core
        cdef PyThreadState* state
        cdef Pipeline* p
        cdef int64_t entry = self.entry
        cdef int step
        if self.span is not None:
            raise StrataError(f"slot {self.slot} (entry {self.entry}) is part of a span and not released by itself: release "
                              "the span")
        if request is None:
            self.check_held()
        p = request.pipeline()
        core = request.core
        state = let_python_run(core)
        step = pipeline_release(p, entry)
        python_has_run(core, state)
        if step == STEP_OK:
            request.loop_forgets(<void*>self, True)
            self.request = None
            return
        if step == STEP_ORDER:
            raise StrataError(f"entry {self.entry} cannot be released before entry {p.released}: "
                              "slots are released in the order in which they were acquired")
        request.end_with(step)

    def __dealloc__(self):
        if self.request is not None:
            self.request.loop_forgets(<void*>self, False)

    def synchronize(self):
        """Block the host until the bytes have arrived. Ctrl-C, `cancel` and `stall_timeout` end the wait.

        Raises
        ------
        StrataError
            If the slot was released before.
        StallError, RequestAborted, HipError
            As `Request.acquire`.
        """
        self.check_held()
        self.request.wait_arrived(self.entry, self)

    def array(self, wait=True):
        """The slot's bytes as a NumPy array, where device memory is host memory (software runtime).

        Parameters
        ----------
        wait : bool, optional
            False: do not wait until the bytes have arrived, for an engine that knows that they have.

        Returns
        -------
        ndarray of uint8, shape (nbytes,)
            It shows the entry until `release`; after that the slot's next bytes. It keeps memory of strata's own alive,
            past `ExpertStreamer.close`, too. Lent slots are the lender's to keep.

        Raises
        ------
        StrataError
            On a device whose memory the host cannot address.
        StrataError, StallError, RequestAborted, HipError
            As `synchronize`.
        """
        check_wait(wait)
        self.check_held()
        self.request.pipeline()
        if _hip.runtime_name() != "software":
            raise StrataError("array() needs the software runtime; on a device use __cuda_array_interface__")
        if wait:
            self.synchronize()
        return as_array(self.request.core.slot_memory(), self.address, (self.nbytes,))

    def tensors(self):
        """The slot's bytes as named tensors, by the layout of a `strata.integrations.torch.TorchStreamer`.

        Returns
        -------
        mapping of str to torch.Tensor
            Views, made once; valid until `release`. On a GPU for kernels of the request's compute stream; on the CPU
            this waits until the bytes have arrived.

        Raises
        ------
        StrataError
            If the slot was released before, the streamer is no `TorchStreamer`, or torch's current stream is another
            than the request's.
        """
        self.check_held()
        views = self.request.core.slot_tensors()
        if views.on_host:
            self.synchronize()
        return views.slot(self.slot)

    def __dlpack_device__(self):
        """DLPack's device type (1 CPU, 2 CUDA, 10 ROCm) and number."""
        kind = {"software": 1, "cuda": 2}.get(_hip.runtime_name(), 10)
        return kind, self.request.core.device if self.request is not None else 0

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        """The slot's bytes as a DLPack capsule of uint8; valid until `release`.

        Raises
        ------
        BufferError
            If a copy, another device, or another stream than the request's compute stream is asked for.
        StrataError
            If the slot was released before.
        """
        self.check_held()
        device = self.__dlpack_device__()
        if copy or (dl_device is not None and tuple(dl_device) != device):
            raise BufferError(f"a slot is lent as it lies on device {device}; copy is {copy!r} and dl_device {dl_device!r}")
        if device[0] == 1:
            self.synchronize()
        elif stream is not None and stream != -1 and (0 if stream in (0, 1) else stream) != self.request.compute_stream:
            raise BufferError(f"stream is {stream}; the bytes are there for the request's compute stream, "
                              f"{self.request.compute_stream:#x}")
        return bytes_capsule((self, self.request.core.slot_memory()), self.address, self.nbytes, device[0], device[1])

    def check_held(self, problem="was released before"):
        """Raise `StrataError` unless the slot is held."""
        _hip.refuse_child()
        if not self.held:
            raise StrataError(f"slot {self.slot} (entry {self.entry}) {problem}")

    @property
    def held(self):
        """Whether the slot, or the span that it is a part of, was not released yet."""
        return self.request is not None and (self.span is None or self.span.held)

    def __enter__(self):
        self.check_held()
        return self

    def __exit__(self, kind, value, traceback):
        if self.request is None or self.span is not None or self.request.ended is not None:
            return False
        try:
            self.release()
        except StrataError:
            if kind is None:
                raise
        return False

    @property
    def __cuda_array_interface__(self):
        if _hip.runtime_name() == "software":
            raise AttributeError("the software runtime's memory is host memory: use array()")
        self.check_held()
        return {"shape": (self.nbytes,), "typestr": "|u1", "data": (self.address, False), "version": 3,
                "strides": None}

    @property
    def __array_interface__(self):
        if _hip.runtime_name() != "software":
            # An AttributeError has NumPy ask for __array__, which says why.
            raise AttributeError("device memory is not the host's: use __cuda_array_interface__")
        self.viewed = self.array()                # lives as long as who asked keeps this object
        return self.viewed.__array_interface__

    def __array__(self, dtype=None, copy=None):
        if _hip.runtime_name() != "software":
            raise StrataError(f"slot {self.slot} (entry {self.entry}) lies in device memory, which the host cannot address: "
                              "use __cuda_array_interface__, or copy it to the host")
        return asked_for(self.array(), dtype, copy)

    def __reduce__(self):
        raise TypeError("a Slot cannot be copied or pickled: it is held once")

    def __repr__(self):
        held = "held" if self.held else "released"
        return f"<strata.Slot {self.slot}: entry {self.entry}, {self.nbytes} bytes at {self.address:#x}, {held}>"
