# cython: nonecheck=True
"""A span: a run of neighbouring slots that the engine holds together.

It costs what one entry costs, however long it is: what belongs to a single slot is made when it is asked for.
"""
cimport cython
from libc.stdint cimport int64_t, uint8_t

import numpy as np

from strata cimport _hip
from strata._arrays cimport values_of
from strata.engine.command cimport Command, entry_is_dropped, entry_span
from strata.engine.consumption cimport pipeline_command_of, pipeline_describe, pipeline_release_span
from strata.engine.core cimport PyThreadState, StreamerCore, let_python_run, python_has_run
from strata.engine.pipeline cimport STEP_OK, STEP_ORDER, AcquiredSlot, Pipeline
from strata.engine.running cimport Running
from strata.engine.slot cimport new_slot

from strata.engine.host_view import as_array, asked_for, check_wait
from strata.errors import StrataError


@cython.no_gc_clear                   # its end needs its request; no cycle leads through it
@cython.freelist(64)
cdef class Span:
    """Neighbouring slots that hold the bytes of consecutive entries, from `Request.acquire_span` to `release`.

    Slot ``k`` of the span lies at ``address + k * stride`` and holds entry ``begin + k``. A context manager:
    leaving it releases the span.

    Attributes
    ----------
    begin, end : int
        The entries ``[begin, end)`` of the request.
    slot : int
        Index of the first slot in the GPU ring; the others follow it.
    address : int
        Device address of the first slot.
    stride : int
        Bytes from one slot to the next; at least a slot's bytes.

    Notes
    -----
    ``len()`` is the number of entries. ``span[k]`` makes a `Slot`; iterating makes one for each entry that is
    wanted. Kernels queued on the compute stream between `Request.acquire_span` and `release` see the bytes. The
    slots are released together. ``numpy.asarray(span)`` is `array` where the host can read
    the memory, and an error elsewhere. One thread, the engine's, uses a span.
    """

    def __init__(self):
        raise TypeError("a Span is made by Request.acquire_span()")

    def __len__(self):
        return self.end - self.begin

    def check_held(self, problem="was released before"):
        """Raise `StrataError` unless the span is held."""
        _hip.refuse_child()
        if self.request is None:
            raise StrataError(f"the span of entries {self.begin} to {self.end - 1} {problem}")

    @property
    def held(self):
        """Whether the span was not released yet."""
        return self.request is not None

    @property
    def wanted(self):
        """(len,) bool, read-only: False where the entry was dropped, so that the slot holds no bytes for it."""
        if self.wanted_ is None:
            self._look()
        return self.wanted_

    @property
    def nbytes(self):
        """(len,) int64, read-only: bytes from each slot's start to the end of its entry's last segment; 0 if dropped."""
        if self.nbytes_ is None:
            self._look()
        return self.nbytes_

    def _look(self):
        """Make the arrays. The list has them as long as the request runs."""
        cdef Pipeline* p
        cdef Command* command
        cdef int64_t k
        cdef int64_t n = self.end - self.begin
        cdef int64_t* sizes
        cdef uint8_t* marks
        nbytes = np.zeros(n, np.int64)
        wanted = np.ones(n, np.bool_)
        sizes = <int64_t*>values_of(nbytes, sizeof(int64_t))
        marks = <uint8_t*>values_of(wanted, 1)
        if self.origin is None:
            raise StrataError("this span was made by no request")
        p = self.origin.pipeline()
        command = pipeline_command_of(p, self.begin)
        if command == NULL:
            raise StrataError(f"the span of entries {self.begin} to {self.end - 1} was released, and its list is done with: "
                              "ask before that")
        for k in range(n):
            if entry_is_dropped(command, self.begin + k - command.first_entry):
                marks[k] = 0
            else:
                sizes[k] = entry_span(command, self.begin + k - command.first_entry)
        nbytes.flags.writeable = False
        wanted.flags.writeable = False
        self.nbytes_ = nbytes
        self.wanted_ = wanted

    def __getitem__(self, index):
        """The slot of one entry.

        Raises
        ------
        IndexError
            Past the span's end.
        TypeError
            If the index is no integer.
        StrataError
            If the entry was dropped, or the span released.
        """
        cdef AcquiredSlot got
        cdef Pipeline* p
        cdef int64_t n = self.end - self.begin
        cdef int64_t k
        if isinstance(index, (bool, np.bool_)) or not isinstance(index, (int, np.integer)):
            raise TypeError(f"a span is indexed by an integer, not {index!r}")
        index = int(index)
        if not -n <= index < n:
            raise IndexError(f"index is {index}; the span has {n} entries")
        k = index + n if index < 0 else index
        self.check_held()
        if not self.wanted[k]:
            raise StrataError(f"entry {self.begin + k} was dropped: its slot holds nothing of it")
        p = self.request.pipeline()
        pipeline_describe(p, pipeline_command_of(p, self.begin), self.begin + k, &got)
        return new_slot(self.request, self, &got)

    def __iter__(self):
        for k in np.flatnonzero(self.wanted).tolist():
            yield self[k]

    def release(self):
        """Record that the kernels queued so far are the last readers of these slots, and give them back.

        Raises
        ------
        StrataError
            If the span was released before, or something older is still held.
        """
        cdef Running request = self.request
        cdef StreamerCore core
        cdef PyThreadState* state
        cdef Pipeline* p
        cdef int64_t begin = self.begin
        cdef int64_t end = self.end
        cdef int step
        if request is None:
            self.check_held()
        p = request.pipeline()
        core = request.core
        state = let_python_run(core)
        step = pipeline_release_span(p, begin, end)
        python_has_run(core, state)
        if step == STEP_OK:
            request.loop_forgets(<void*>self, True)
            self.request = None
            return
        if step == STEP_ORDER:
            raise StrataError(f"entries {self.begin} to {self.end - 1} cannot be released before entry "
                              f"{request.core.p.released}: what was acquired is released in order")
        request.end_with(step)

    def __dealloc__(self):
        if self.request is not None:
            self.request.loop_forgets(<void*>self, False)

    def synchronize(self):
        """Block the host until the bytes of every entry have arrived. Ctrl-C, `cancel` and `stall_timeout` end the wait.

        Raises
        ------
        StrataError
            If the span was released before.
        StallError, RequestAborted, HipError
            As `Request.acquire`.
        """
        self.check_held()
        self.request.wait_arrived(self.end - 1, self)

    def tensors(self):
        """The span's bytes as named tensors with one more dimension in front, (len, ...): see `Slot.tensors`.

        Returns
        -------
        mapping of str to torch.Tensor
            Views, made once; valid until `release`. On a GPU for kernels of the request's compute stream; on the CPU
            this waits until the bytes have arrived.

        Raises
        ------
        StrataError
            If the span was released before, the streamer is no `TorchStreamer`, or torch's current stream is another
            than the request's.
        """
        self.check_held()
        views = self.request.core.slot_tensors()
        if views.on_host:
            self.synchronize()
        return views.span(self.slot, self.end - self.begin)

    def array(self, wait=True):
        """All slots as one NumPy array, where device memory is host memory (software runtime).

        Parameters
        ----------
        wait : bool, optional
            False: do not wait until the bytes have arrived, for an engine that knows that they have.

        Returns
        -------
        ndarray of uint8, shape (len, slot_bytes), strides (stride, 1)
            It shows the entries until `release`, in row ``k`` only up to ``nbytes[k]``. It keeps memory of strata's own
            alive, past `ExpertStreamer.close`, too. Lent slots are the lender's to keep.

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
        return as_array(self.request.core.slot_memory(), self.address, (self.end - self.begin, self.request.core.slot_bytes),
                        (self.stride, 1))

    def _interface(self):
        cdef int64_t slot_bytes = self.request.core.slot_bytes
        return {"shape": (self.end - self.begin, slot_bytes), "typestr": "|u1", "data": (self.address, False),
                "version": 3, "strides": (self.stride, 1)}

    @property
    def __cuda_array_interface__(self):
        if _hip.runtime_name() == "software":
            raise AttributeError("the software runtime's memory is host memory: use array()")
        self.check_held()
        return self._interface()

    def __enter__(self):
        self.check_held()
        return self

    def __exit__(self, kind, value, traceback):
        if self.request is None or self.request.ended is not None:
            return False
        try:
            self.release()
        except StrataError:
            if kind is None:
                raise
        return False

    @property
    def __array_interface__(self):
        if _hip.runtime_name() != "software":
            # An AttributeError has NumPy ask for __array__, which says why.
            raise AttributeError("device memory is not the host's: use __cuda_array_interface__")
        self.viewed = self.array()                # lives as long as who asked keeps this object
        return self.viewed.__array_interface__

    def __array__(self, dtype=None, copy=None):
        if _hip.runtime_name() != "software":
            raise StrataError(f"the span of entries {self.begin} to {self.end - 1} lies in device memory, which the host cannot address: "
                              "use __cuda_array_interface__, or copy it to the host")
        return asked_for(self.array(), dtype, copy)

    def __reduce__(self):
        raise TypeError("a Span cannot be copied or pickled: it is held once")

    def __repr__(self):
        held = "held" if self.request is not None else "released"
        return (f"<strata.Span of entries {self.begin} to {self.end - 1}: slots from {self.slot}, at {self.address:#x}, "
                f"{self.stride} bytes apart, {held}>")
