// What the runtime needs from the operating system, and nothing else of it.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#if defined(__linux__) && defined(__GLIBC__)
// Static TLS: one instruction instead of a call on the path of every HIP function.
#define STRATA_SW_TLS __attribute__((tls_model("initial-exec")))
#else
#define STRATA_SW_TLS
#endif

namespace strata::software {

// Zero-filled memory whose pages the kernel hands out at first touch; nullptr when there is none.
void* allocate_pages(std::size_t bytes) noexcept;
void free_pages(void* address, std::size_t bytes) noexcept;

// Whether every page of the range is mapped in this process; true where the system cannot say.
bool pages_exist(const void* address, std::size_t bytes) noexcept;

// Memory at a multiple of `alignment`, a power of two; nullptr when there is none.
void* allocate_aligned(std::size_t alignment, std::size_t bytes) noexcept;
void free_aligned(void* address) noexcept;

// Nanoseconds of the steady clock.
inline std::int64_t now_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Returns at `deadline` (steady clock), to a few microseconds: sleeps, then spins briefly.
void sleep_until_ns(std::int64_t deadline) noexcept;

// Starts a detached thread that takes no signals (Ctrl-C belongs to the program's own threads).
// `body` must not throw. False if the system refuses a thread.
bool start_thread(void (*body)(void*), void* argument, const char* name) noexcept;

// Calls `function(argument)` when the calling thread ends; the last one asked for comes first. A thread-local object
// with a destructor would not do: MinGW frees such objects before it destroys them. False if there is no memory.
bool at_thread_end(void (*function)(void*), void* argument) noexcept;

// Name of the calling thread, as the system knows it; always terminated.
void thread_name(char* buffer, std::size_t bytes) noexcept;

// A small number that identifies the calling thread to a person with a debugger.
std::uint64_t thread_number() noexcept;

// Calls `in_child` in every process forked from this one.
void at_fork(void (*in_child)()) noexcept;

// Keeps this library mapped: its threads run its code until the process ends.
void keep_library_mapped() noexcept;

inline void cpu_relax() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace strata::software
