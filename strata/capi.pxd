"""strata for engines in Cython: the engine's side of a request, and the plan, without the GIL.

``cimport strata.capi as strata`` needs no HIP header and no C++: handles and device addresses are
``uintptr_t``. Get a request's handle once, with the GIL; use it on the engine's thread until the request is
over. Every function returns a `strata_status`; after ``STRATA_STOPPED``, and where `extend` returns ``STRATA_FAILED`` or
``STRATA_NO_MEMORY``, the request is stopped: `cause` says why, and any method of the Python `Request` aborts it and raises
that.
"""
from libc.stdint cimport int64_t, uint8_t, uint64_t, uintptr_t

# The interface's number: it changes with every struct, enum, signature or meaning in here. A module that cimports this one
# looks, when it is imported, for the class with the number that it was compiled against; where the installed strata has
# another, that is an ImportError that says so.
cdef enum:
    STRATA_ABI = 1

cdef class abi_1:
    pass

cdef enum strata_status:
    STRATA_OK = 0
    STRATA_END = 1         # past the end of the list
    STRATA_BUSY = 2        # not published within the time given: call again
    STRATA_HELD = 3        # only a release by the caller could let the entry be published
    STRATA_STOPPED = 4     # a failure, or cancel
    STRATA_ORDER = 5       # released twice, or out of order
    STRATA_FAILED = 6      # a HIP call of this step failed
    STRATA_NO_MEMORY = 7
    STRATA_HUNG = 8        # a thread of strata has ended or has not come back
    STRATA_IDLE = 9        # the request is over
    STRATA_INVALID = 10    # an argument is out of range: nothing was done
    STRATA_DROPPED = 11    # the entry was dropped: it cannot be taken; skip() passes it

cdef enum strata_who:
    STRATA_ENGINE = 0      # the engine's own thread, in a call of strata's
    STRATA_ISSUER = 1
    STRATA_WORKER = 2

# Why a request was stopped.
cdef struct strata_cause:
    int who                # strata_who
    int worker             # which worker; -1 where it was none
    const char* call       # the HIP call that failed, or another word for what did; never NULL
    int status             # that it returned
    const char* name       # HIP's name for the status; never NULL
    int64_t entry          # -1 where it was none's
    int64_t slot           # index in the GPU ring, or -1
    int64_t wanted         # bytes of host memory that were asked for and not to be had; else 0

cdef struct strata_slot:
    int64_t entry          # of the request
    int64_t slot           # index in the GPU ring
    uintptr_t address      # on the device
    int64_t nbytes         # to the end of the entry's last segment

cdef struct strata_span:
    int64_t begin          # entries [begin, end) of the request
    int64_t end
    int64_t slot           # index of the first one in the GPU ring; the others follow
    uintptr_t address      # of the first one, on the device
    int64_t stride         # from one slot to the next, bytes

cdef struct strata_limits:
    int64_t gpu_ring
    int64_t host_ring
    int64_t copy_batch
    int64_t stage_batch
    int64_t stage_copy_batch
    const uint8_t* host_pinned      # per host buffer, or NULL: all are pinned

ctypedef void* strata_request

# With the GIL: the handle of a running strata.Request; raises TypeError or StrataError.
cdef strata_request request_handle(object request) except NULL

# Take the next entry; wait up to timeout_ns (0: not at all, negative: without end) for its publication.
cdef int acquire(strata_request request, strata_slot* out, int64_t timeout_ns) noexcept nogil
# Give the oldest held entry back.
cdef int release(strata_request request, int64_t entry) noexcept nogil
# Take the longest run of next entries, at most limit (1 to the ring's depth), whose slots lie at one distance; see
# Request.acquire_span.
cdef int acquire_span(strata_request request, int64_t limit, strata_span* out, int64_t timeout_ns) noexcept nogil
# Give a span back: the oldest of what is held.
cdef int release_span(strata_request request, const strata_span* span) noexcept nogil
# Entry span.begin + index of a span that is held: STRATA_DROPPED where it is a hole.
cdef int span_slot(strata_request request, const strata_span* span, int64_t index, strata_slot* out) noexcept nogil
# Mark n coming entries, from first on, as unwanted; STRATA_INVALID, and none is marked, where one of them was acquired
# or is past the list's end. Too late is no error.
cdef int drop(strata_request request, int64_t first, int64_t n) noexcept nogil
# Record what was released and shares a record that is still to come.
cdef int flush(strata_request request) noexcept nogil
# Pass the next n entries unread; STRATA_END where fewer are left: none is passed then.
cdef int skip(strata_request request, int64_t n, int64_t timeout_ns) noexcept nogil
# Append entries, or none of them. STRATA_FAILED and STRATA_NO_MEMORY stop the request. The arrays are copied; what the
# addresses point to stays the caller's to keep alive until the request is over. entry_starts is in CSR form,
# n_entries + 1 values: the first is 0, none is below the one before it, and entry i has the segments entry_starts[i] up
# to entry_starts[i + 1].
cdef int extend(strata_request request, const uint64_t* addresses, const int64_t* nbytes,
                const int64_t* offsets, const int64_t* entry_starts, const uint8_t* staged,
                int64_t n_entries) noexcept nogil
# Why the request was stopped: STRATA_OK, or STRATA_END where nothing has failed (it may have been cancelled). The strings
# live as long as the process.
cdef int cause(strata_request request, strata_cause* out) noexcept nogil
# From any thread: the engine's next call returns STRATA_STOPPED.
cdef int cancel(strata_request request) noexcept nogil
cdef int64_t issued(strata_request request) noexcept nogil
cdef int64_t consumed(strata_request request) noexcept nogil
cdef int64_t released(strata_request request) noexcept nogil
cdef int64_t length(strata_request request) noexcept nogil

# The plan: ends[i] is the exclusive end of entry i's copy group, counted from the request's first entry.
cdef int plan_groups(const strata_limits* limits, const int64_t* jobs, int64_t n, int64_t first_entry,
                     int64_t* ends) noexcept nogil
# The exclusive end of the job's ownership group, in a list (or extension) that ends at job jobs_end.
cdef int plan_ownership_end(const strata_limits* limits, int64_t job, int64_t jobs_end,
                            int64_t* end) noexcept nogil
# Whether the window is open for a group that ends at group_end: STRATA_OK, or STRATA_BUSY.
cdef int plan_window(const strata_limits* limits, int64_t group_end, int64_t entries_consumed) noexcept nogil
