"""The issuer: the native thread that submits every copy and the dependencies around each group."""
from libc.stdint cimport int64_t, uintptr_t
from libcpp.atomic cimport atomic

from strata.engine.control cimport Control
from strata.engine.counters cimport CounterBlock
from strata.engine.command cimport Command
from strata.engine.gpu_ring cimport GpuRing
from strata.engine.host_ring cimport HostRing
from strata.engine.threads cimport Thread, Watermark

cdef enum IssuerState:
    ISSUER_PARKED = 0
    ISSUER_WAITS_FOR_WINDOW = 1     # the engine has to release slots
    ISSUER_WAITS_FOR_SOURCE = 2     # a worker has to fill the job's buffer
    ISSUER_SUBMITS = 3              # in the HIP call named by `call`
    ISSUER_FINISHES = 4             # in the host ring's finish, or in the HIP call named by `call`

cdef enum Submission:
    SUBMIT_SINGLE = 0               # one copy a segment; a staged entry is one
    SUBMIT_GROUP = 1                # one batch call a group
    SUBMIT_COALESCED = 2            # neighbouring direct segments of a group are one copy, and what is left one batch call

# Copies of one group that are put together and not submitted yet.
cdef struct Pieces:
    int64_t n                       # of a batch: in `batch_dsts` and its neighbours
    int64_t first                   # entry of its first
    # Of a run of neighbours, 0 bytes where there is none.
    int64_t entry
    uintptr_t dst
    uintptr_t src
    int64_t nbytes
    int64_t region
    int64_t slot
    # Entries all of whose pieces are among these or submitted.
    int64_t copies
    int64_t payload

cdef struct Issuer:
    GpuRing* ring
    HostRing* host
    Control* control
    CounterBlock* counters
    int device
    bint timing
    int submission                  # `Submission`
    Pieces pieces
    # Commands since the thread's birth. `tail` is the last one listed; it outlives its execution, so that
    # the thread can find its successor.
    Watermark submitted
    Watermark done
    Command* first
    Command* tail
    atomic[int] dirty               # something was submitted on the copy stream since it was drained
    # Of the request.
    Watermark issued                # published: the terminal completion of every entry below is recorded
    Watermark consumed              # the `used` record of every entry below is submitted
    # Outcome of the last COMMAND_FINISH.
    int finish_status
    int finish_call
    # Frees what the streamer owns, as the last command: each of its calls may wait for the device.
    void (*dispose)(void* owner) noexcept nogil
    void* owner
    # For whoever asks what it is doing.
    atomic[int] state
    atomic[int] call
    atomic[int64_t] entry
    atomic[int] exited
    # Room for one group's arguments of a batch call.
    void** batch_dsts
    void** batch_srcs
    size_t* batch_sizes
    int64_t batch_room
    Thread thread

cdef bint issuer_start(Issuer* issuer) noexcept nogil
cdef void issuer_submit(Issuer* issuer, Command* command) noexcept nogil
