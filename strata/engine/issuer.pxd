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

cdef struct Issuer:
    GpuRing* ring
    HostRing* host
    Control* control
    CounterBlock* counters
    int device
    bint timing
    bint group_submission           # one batch call a group of direct copies, where the runtime has it
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
