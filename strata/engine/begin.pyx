"""How a request begins: everything is checked first, then nothing comes in between."""
from libc.stdint cimport int64_t, uintptr_t

import weakref

from strata._arrays cimport values_of
from strata._planner cimport PlanLimits
from strata.engine.core cimport PyThreadState, StreamerCore, let_python_run, python_has_run
from strata.engine.pipeline cimport STEP_OK, Pipeline, pipeline_begin
from strata.engine.request cimport Request

from strata.errors import StrataError


def begin_request(StreamerCore core, limits, copies, lent_slots, uintptr_t compute_stream, settings, int64_t run_ahead):
    """Begin a request; see `strata.ExpertStreamer.begin`."""
    cdef PlanLimits plan
    cdef const uintptr_t* slot_pointer = NULL
    cdef Pipeline* p
    cdef PyThreadState* state
    cdef int step
    cdef Request request
    core.check_open()
    request = core.current() if core.current is not None else None
    if core.p.running and core.p.ending and request is not None:
        request._drain()
    request = None
    if copies is not None:
        copies._check_in_place()
        core._check_entries(copies, 0)
    plan.gpu_ring = core.gpu_ring
    plan.host_ring = core.host_ring
    plan.copy_batch = limits.copy_batch
    plan.stage_batch = limits.stage_batch
    plan.stage_copy_batch = limits.stage_copy_batch
    plan.host_pinned = NULL
    if lent_slots is not None:
        slot_pointer = <const uintptr_t*>values_of(lent_slots, sizeof(uintptr_t))
    request = Request.__new__(Request)
    request.core = core
    request.settings_ = settings
    request.looped_begin = -1
    request.looped = NULL
    request.compute_stream = compute_stream
    request.ended = "it has not begun"
    current, last = weakref.ref(request), core.current
    # From here to the end of the request's beginning nothing is Python, and no object is made or let go: no signal
    # handler and no collector comes in between, and no other thread, for which the streamer is in use.
    core.check_open()
    if core.p.running:
        raise StrataError("a request of this streamer is still running: finish() or abort() it first")
    p = core.p
    state = let_python_run(core)
    step = pipeline_begin(p, &plan, run_ahead, slot_pointer, compute_stream)
    python_has_run(core, state)
    if step != STEP_OK:
        raise core.setup_problem(step)
    request.generation = p.generation
    request.ended = None
    core.counting = True
    core.current = current
    last = None
    if copies is not None:
        try:
            request.extend(copies)
        except BaseException:
            request._end_quietly()
            raise
    return request
