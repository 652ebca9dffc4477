# cython: nonecheck=True
"""A request as what was acquired from it sees it: where its streamer is, and whether it still runs."""
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t

from strata.engine.core cimport PyThreadState, StreamerCore, let_python_run, python_has_run
from strata.engine.pipeline cimport (STEP_BUSY, STEP_OK, Pipeline, pipeline_pause, pipeline_progress,
                                     pipeline_slot_arrived)
from strata.engine.threads cimport now_ns, time_waited

from strata.errors import RequestAborted, StrataError


cdef class Running:
    """What a `strata.Request` is to its slots and spans."""

    cdef Pipeline* pipeline(self) except NULL:
        if self.core is None:
            raise StrataError("this request was made by no streamer: ExpertStreamer.begin() makes requests")
        if self.ended is not None:
            if self.ended == "finished":
                raise StrataError("this request is finished")
            raise RequestAborted(f"this request is over: {self.ended}")
        self.core.check_open()
        return self.core.p

    cdef void loop_takes(self, void* held, int64_t begin, int64_t end, bint span):
        """A loop over the request holds this slot or span until its next turn."""
        self.looped = held
        self.looped_begin = begin
        self.looped_end = end
        self.looped_span = span

    cdef void loop_forgets(self, void* held, bint released):
        """The object was released by hand, or is gone: then a loop's entries are held all the same."""
        if self.looped == held:
            self.looped = NULL
            if released:
                self.looped_begin = -1

    cdef int let_handlers_run(self) except -1:
        """Signal handlers may end the request, or close the streamer: then the call that waits ends, too."""
        PyErr_CheckSignals()
        self.pipeline()
        return 0

    cdef int wait_arrived(self, int64_t entry, object held) except -1:
        """Block the host until the bytes of an entry that `held` holds have arrived."""
        cdef StreamerCore core
        cdef Pipeline* p = self.pipeline()
        cdef int64_t pause = 20000
        cdef int64_t progress, began, waited
        cdef int64_t unmoved = 0
        cdef PyThreadState* state
        cdef int step
        core = self.core
        state = let_python_run(core)
        step = pipeline_slot_arrived(p, entry)
        python_has_run(core, state)
        if step == STEP_BUSY:
            progress = pipeline_progress(p)
        while step == STEP_BUSY:
            core.busy = True
            with nogil:
                began = now_ns()
                pipeline_pause(p, pause)
                step = pipeline_slot_arrived(p, entry)
                waited = time_waited(began, pause)
            core.busy = False
            pause = min(pause + pause // 2, 1000000)
            self.let_handlers_run()
            held.check_held("was released meanwhile")
            if core.stall_ns and step == STEP_BUSY:
                core.watch_stall(&progress, &unmoved, waited, f"the bytes of entry {entry} have not arrived")
        if step != STEP_OK:
            self.end_with(step)
        return 0

    cdef int end_with(self, int step) except -1:
        """End the request where the step demands it, and raise what the engine must know."""
        raise NotImplementedError
