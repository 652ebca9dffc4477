/* Control surface of strata's software HIP runtime: plain C, exported from the same library as the
 * HIP functions, found by dlsym. None of these is a HIP call: they set no last error, are not
 * counted, and work whatever the schedule. All are thread-safe.
 *
 * Functions that can fail return 0 on success and -1 on failure; strata_sw_problem() then says what
 * was wrong, on the same thread. In a forked child every one of them fails.
 */
#ifndef STRATA_SW_CONTROL_H
#define STRATA_SW_CONTROL_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define STRATA_SW_API __declspec(dllexport)
#else
#define STRATA_SW_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* What was wrong with this thread's last failing control call, else with the environment at load;
 * an empty text if nothing was. Valid until the thread's next control call. */
STRATA_SW_API const char* strata_sw_problem(void);

/* ---- configuration: changes only while no operation is pending ---- */

typedef struct strata_sw_configuration {
  char schedule[16];      /* eager lazy random copies-first compute-first timed null */
  uint64_t seed;          /* of the random schedule */
  uint64_t pinned_limit;  /* bytes of hipHostMalloc and hipHostRegister together; UINT64_MAX: none */
  uint64_t device_memory; /* bytes of each device */
  int32_t devices;        /* 0 to 4 */
  int32_t idle_ms;        /* schedules on demand: pending work runs after so long without any call; 0: never */
  uint64_t max_pending;   /* operations that a stream holds; a call that would add one more waits; 0: no limit */
  char batch[16];         /* hipMemcpyBatchAsync: full, no-attributes (with any: not supported), unsupported */
  char batch_reads[16];   /* a batch without attributes reads pinned sources in stream order or in the call */
  uint64_t batch_calls;   /* batch calls that are served from now on, later ones not supported; UINT64_MAX: all */
  char registration[16];  /* a second hipHostRegister of a range: refuses, or accepts (one unregistration ends both) */
} strata_sw_configuration;

STRATA_SW_API int strata_sw_get_configuration(strata_sw_configuration* configuration);
STRATA_SW_API int strata_sw_set_configuration(const strata_sw_configuration* configuration);

/* ---- what is alive, what was called ---- */

typedef struct strata_sw_live {
  uint64_t streams, events;
  uint64_t device_allocations, device_bytes;
  uint64_t pinned_allocations, pinned_bytes;
  uint64_t registered_ranges, registered_bytes;
  uint64_t executor_threads;
  uint64_t pending_operations;
  uint64_t blocked_submissions; /* calls that wait for room in their stream now */
} strata_sw_live;

STRATA_SW_API int strata_sw_get_live(strata_sw_live* live);

/* Names are those of the HIP functions; NULL past the last one. */
STRATA_SW_API const char* strata_sw_call_name(size_t index);
/* Fills counts[0..count) with calls since the last reset, in the order of the names. */
STRATA_SW_API int strata_sw_calls(uint64_t* counts, size_t count);
STRATA_SW_API int strata_sw_reset_calls(void);

/* ---- holding a stream ---- */

/* Queues a latch on a stream: what is queued after it runs only once it is released. Returns its
 * number, 0 on failure. */
STRATA_SW_API uint64_t strata_sw_hold(const void* stream);
/* Opens a latch; one that is open already, or unknown, is a failure. */
STRATA_SW_API int strata_sw_release(uint64_t hold);

/* ---- costs ---- */

/* Kinds: copy memset record wait query sync host_func delay. Nanoseconds on the calling thread for
 * each call, and in stream order for each operation. Time is spent by waiting; each stream keeps an
 * absolute clock, so that errors do not add up. */
STRATA_SW_API int strata_sw_set_cost(const char* kind, int64_t host_ns, int64_t stream_ns);
STRATA_SW_API int strata_sw_set_byte_cost(double ns_per_byte);
/* No costs any more, and totals of zero. */
STRATA_SW_API int strata_sw_clear_costs(void);
/* What was spent on a kind so far, by the runtime's own accounts. Any pointer may be NULL. */
STRATA_SW_API int strata_sw_spent(const char* kind, uint64_t* host_ns, uint64_t* stream_ns,
                                  uint64_t* operations);
/* A stream's clock, in nanoseconds; only differences mean anything. -1 on failure. */
STRATA_SW_API int64_t strata_sw_stream_clock(const void* stream);
/* Queues an operation that takes so long and does nothing. */
STRATA_SW_API int strata_sw_delay(const void* stream, int64_t ns);

/* ---- faults ---- */

/* The nth call (from 1, counted from now) of a HIP function, by its name, "fail"s with a status and
 * has no effect, or is accepted and "ignore"d, or "hang"s until strata_sw_release_hangs() and then
 * goes on as usual (status 0) or fails. `thread`: only calls of threads of that role or name; NULL
 * for all. Returns the injection's number, 0 on failure. */
STRATA_SW_API uint64_t strata_sw_inject(const char* call, uint64_t nth, int status, const char* action,
                                        const char* thread);
/* 1 if the injection has struck, 0 if not, -1 if there is none of that number. */
STRATA_SW_API int strata_sw_injection_fired(uint64_t injection);
/* Forgets all injections and the failing copy. */
STRATA_SW_API int strata_sw_clear_injections(void);
STRATA_SW_API int64_t strata_sw_hanging_calls(void);
STRATA_SW_API int strata_sw_release_hangs(void);

/* The nth copy that runs from now fails with a status and copies nothing. Sticky: the device is lost
 * with it. Else synchronizing with it, or with what follows in its stream, reports the status until
 * a stream or device synchronization has. */
STRATA_SW_API int strata_sw_fail_operation(uint64_t nth, int status, int sticky);

/* Every later call answers this status, and what is pending ends without effect; calls that give
 * something back still do. */
STRATA_SW_API int strata_sw_lose_device(int status);
STRATA_SW_API int strata_sw_restore_device(void);

/* The role of the calling thread, for logs, injections and findings; NULL: its system name. */
STRATA_SW_API int strata_sw_thread_role(const char* role);

typedef struct strata_sw_logged_call {
  uint64_t number;        /* from 1, in the order in which the calls began */
  const char* function;   /* static */
  const void* stream;     /* handles and addresses as passed; NULL where there is none */
  const void* event;
  const void* address;
  uint64_t bytes;
  int64_t entry, slot, generation; /* labels of the calling thread; -1: none */
  uint64_t thread_number; /* of the system */
  char thread[48];        /* role, else name */
  int32_t intercepted;    /* an injection struck here */
} strata_sw_logged_call;

/* Turning the log on begins an empty one; turning it off keeps what it has. */
STRATA_SW_API int strata_sw_call_log(int on);
/* Fills calls[0..capacity), returns how many there are; -1 on failure. */
STRATA_SW_API int64_t strata_sw_logged_calls(strata_sw_logged_call* calls, size_t capacity);

/* ---- happens-before checker ---- */

/* On: begins anew, with no findings and no past: what is pending counts as ordered. Off: findings
 * stay. While it is off, the functions up to strata_sw_next_host_func_accesses() cost a load. */
STRATA_SW_API int strata_sw_checker(int on);

/* The calling thread reads or writes memory itself. Only device and pinned memory is watched; the
 * rest of the address space may be announced, too, and is ignored. */
STRATA_SW_API void strata_sw_host_read(const void* address, size_t bytes);
STRATA_SW_API void strata_sw_host_write(const void* address, size_t bytes);

/* Hand-overs between host threads, by any address that both sides agree on: a release gives the
 * token what its thread knows, an acquire takes what the token has been given so far. */
STRATA_SW_API void strata_sw_handover_release(const void* token);
STRATA_SW_API void strata_sw_handover_acquire(const void* token);

/* What the calling thread's next operations and accesses are about, until it says otherwise; -1:
 * nothing. Shown by findings and by the log of calls; works with the checker off. */
STRATA_SW_API void strata_sw_label(int64_t entry, int64_t slot, int64_t generation);

typedef struct strata_sw_range {
  const void* address;
  size_t bytes;
  int32_t write; /* 0: read */
} strata_sw_range;

/* What the function of this thread's next hipLaunchHostFunc will access. (What it announces itself
 * while it runs counts, too.) */
STRATA_SW_API void strata_sw_next_host_func_accesses(const strata_sw_range* ranges, size_t count);

/* A name for a stream or an event in findings: "copy", "used[3]". NULL: the null stream. */
STRATA_SW_API int strata_sw_name(const void* handle, const char* name);

typedef struct strata_sw_access {
  char operation[24];     /* "H2D write", "D2H read", "host function read", "host write", "free", ... */
  char stream[48];        /* name of the stream; empty for a host thread's own access */
  char thread[48];        /* role or name of the thread that submitted or made it */
  const void* stream_handle;
  const void* address;
  uint64_t bytes;
  int64_t entry, slot, generation;
  uint64_t serial;        /* accesses are numbered in the order of the calls */
} strata_sw_access;

typedef struct strata_sw_finding {
  strata_sw_access earlier, later; /* in the order of the calls */
  const void* address;             /* the bytes that both access */
  uint64_t bytes;
  const void* missing_event;       /* recorded behind the earlier one, and not waited for; or NULL */
  char missing_name[48];
  char text[512];
} strata_sw_finding;

/* Fills findings[0..capacity), returns how many are kept (the first 1000); -1 on failure. */
STRATA_SW_API int64_t strata_sw_findings(strata_sw_finding* findings, size_t capacity);
/* All findings so far, those that were not kept included. */
STRATA_SW_API int64_t strata_sw_finding_count(void);
STRATA_SW_API int strata_sw_clear_findings(void);
/* Accesses to watched memory since the checker was turned on. */
STRATA_SW_API int64_t strata_sw_checked_accesses(void);

/* ---- the end of the process ---- */

/* For a program whose host functions need something that goes away before the process does, an
 * interpreter say: from now on, and for good, host functions count as done without being called.
 * 0 once none is running any more, -1 if one still is after so many milliseconds. */
STRATA_SW_API int strata_sw_stop_host_functions(int32_t timeout_ms);

#ifdef __cplusplus
}
#endif

#endif
