"""One list of entries as the threads walk it. A request is a chain of them: its first list and its extensions."""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libcpp.atomic cimport atomic, memory_order_acq_rel, memory_order_acquire

from strata.engine.files cimport SourceFile

cdef enum CommandKind:
    COMMAND_ENTRIES = 0      # issue the entries
    COMMAND_FINISH = 1       # end the request: host ring, copy stream
    COMMAND_QUIT = 2         # end the thread
    COMMAND_SETTLE = 3       # wait for the compute stream, where no event can tell

# The twin of strata.ExpertCopies: its rows, as the engine gave them.
cdef struct Rows:
    int64_t n_entries
    const uint64_t* addresses       # per segment: in host memory, or the offset in its file
    const int64_t* nbytes
    const int64_t* offsets          # in the slot
    const int64_t* entry_starts     # n_entries + 1
    const uint8_t* staged           # per entry
    const int64_t* regions          # per segment: the allocation, mapping or file that it lies in, -1 unknown; or NULL
    const int32_t* files            # per segment: index in `open_files`, -1 memory; NULL where all lie in memory
    const SourceFile* open_files

# What was decided of an entry, as bits: the engine drops it, a thread of strata takes it to copy it. The first one counts;
# a drop that came second is kept, too, so that the engine's side passes the entry over in either case.
cdef enum EntryMark:
    MARK_DROPPED = 1
    MARK_TAKEN = 2

# Per entry of one segment: 8 bytes each of address, size, offset, start, job and end, and one each of source type and
# mark: 50. A staged one has a job entry besides: 58.
cdef struct Command:
    atomic[Command*] next
    int kind
    int64_t first_entry
    int64_t n_entries
    int64_t first_job
    int64_t n_jobs
    # Of the list of copies: borrowed from it (its owner lives as long as the request) or copied.
    const uint64_t* addresses
    const int64_t* nbytes
    const int64_t* offsets
    const int64_t* entry_starts
    const int64_t* regions
    const int32_t* files
    const SourceFile* open_files
    # Of the plan, in one allocation.
    int64_t* jobs            # per entry: -1, or the job
    int64_t* ends            # per entry: the exclusive end of its copy group, in entries of the request
    int64_t* job_entries     # per job of this command: its entry, counted from the command's first
    atomic[uint8_t]* marks   # per entry: `EntryMark`; NULL where nothing can be dropped


cdef inline int64_t entry_span(const Command* command, int64_t index) noexcept nogil:
    """Bytes from the slot's start to the end of the entry's last segment."""
    cdef int64_t s, end
    cdef int64_t span = 0
    for s in range(command.entry_starts[index], command.entry_starts[index + 1]):
        if command.nbytes[s] > 0:
            end = command.offsets[s] + command.nbytes[s]
            if end > span:
                span = end
    return span


cdef inline bint entry_is_dropped(const Command* command, int64_t index) noexcept nogil:
    """Whether the engine does not want the entry, in time or not."""
    return command.marks[index].load(memory_order_acquire) & MARK_DROPPED


cdef inline bint take_entry(Command* command, int64_t index) noexcept nogil:
    """Decide that the entry is copied; False where it was dropped before."""
    cdef uint8_t before = 0
    if command.marks == NULL:
        return True
    return command.marks[index].compare_exchange_strong(before, MARK_TAKEN, memory_order_acq_rel) or before & MARK_TAKEN


cdef inline bint entry_is_taken(const Command* command, int64_t index) noexcept nogil:
    """Whether somebody has taken the entry."""
    return command.marks == NULL or command.marks[index].load(memory_order_acquire) & MARK_TAKEN
