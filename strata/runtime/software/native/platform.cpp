// What platform.hpp promises, on Linux.
#if defined(__linux__)

#include "platform.hpp"

#include "strata/thread_start.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <thread>
#include <utility>

#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace strata::software {

namespace {

struct ThreadEnd {
  void (*function)(void*);
  void* argument;
  ThreadEnd* earlier;
};

struct ThreadEnds {
  ThreadEnd* last = nullptr;
  ~ThreadEnds() {
    while (last != nullptr) {
      const std::unique_ptr<ThreadEnd> now(std::exchange(last, last->earlier));
      now->function(now->argument);
    }
  }
};

thread_local ThreadEnds t_ends;

struct ThreadStart {
  void (*body)(void*);
  void* argument;
  char name[kThreadNameBytes];
};

}  // namespace

void* allocate_pages(std::size_t bytes) noexcept {
  void* address =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return nullptr;
  if (bytes >= (std::size_t{8} << 20)) madvise(address, bytes, MADV_HUGEPAGE);
  return address;
}

void free_pages(void* address, std::size_t bytes) noexcept { munmap(address, bytes); }

bool pages_exist(const void* address, std::size_t bytes) noexcept {
  static const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
  constexpr std::uintptr_t kPagesAtOnce = 4096;
  unsigned char resident[kPagesAtOnce];
  const std::uintptr_t end = reinterpret_cast<std::uintptr_t>(address) + bytes;
  std::uintptr_t at = reinterpret_cast<std::uintptr_t>(address) & ~(page - 1);
  while (at < end) {
    const std::uintptr_t here = std::min(end - at, kPagesAtOnce * page);
    if (mincore(reinterpret_cast<void*>(at), here, resident) != 0 && errno == ENOMEM) return false;
    at += kPagesAtOnce * page;
    if (at < kPagesAtOnce * page) break;  // the top of the address space
  }
  return true;
}

void* allocate_aligned(std::size_t alignment, std::size_t bytes) noexcept {
  return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

void free_aligned(void* address) noexcept { std::free(address); }

bool start_thread(void (*body)(void*), void* argument, const char* name) noexcept {
  auto* start = new (std::nothrow) ThreadStart{body, argument, {}};
  if (start == nullptr) return false;
  std::snprintf(start->name, sizeof start->name, "%s", name);
  const SignalsBlocked inherited;
  pthread_t thread;
  const int failed = pthread_create(
      &thread, nullptr,
      [](void* opaque) -> void* {
        std::unique_ptr<ThreadStart> begun(static_cast<ThreadStart*>(opaque));
        name_this_thread(begun->name);
        prctl(PR_SET_TIMERSLACK, 1UL);  // simulated costs are tens of microseconds
        begun->body(begun->argument);
        return nullptr;
      },
      start);
  if (failed != 0) {
    delete start;
    return false;
  }
  pthread_setname_np(thread, name);  // here as well: whoever looks once this returns finds it by its name
  pthread_detach(thread);
  return true;
}

bool at_thread_end(void (*function)(void*), void* argument) noexcept {
  auto* end = new (std::nothrow) ThreadEnd{function, argument, t_ends.last};
  if (end == nullptr) return false;
  t_ends.last = end;
  return true;
}

void thread_name(char* buffer, std::size_t bytes) noexcept {
  buffer[0] = '\0';
  char name[16] = {};
  if (pthread_getname_np(pthread_self(), name, sizeof name) == 0) std::snprintf(buffer, bytes, "%s", name);
}

std::uint64_t thread_number() noexcept { return static_cast<std::uint64_t>(syscall(SYS_gettid)); }

void at_fork(void (*in_child)()) noexcept { pthread_atfork(nullptr, nullptr, in_child); }

void keep_library_mapped() noexcept {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&keep_library_mapped), &info) != 0 && info.dli_fname != nullptr) {
    // The handle is leaked on purpose; RTLD_NODELETE holds even if somebody closes another one.
    dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE);
  }
}

void sleep_until_ns(std::int64_t deadline) noexcept {
  constexpr std::int64_t kLate = 15'000;  // what a sleeping thread may come late, spun instead
  if (deadline - now_ns() > 2 * kLate) {
    std::this_thread::sleep_until(std::chrono::steady_clock::time_point(std::chrono::nanoseconds(deadline - kLate)));
  }
  while (now_ns() < deadline) cpu_relax();
}

}  // namespace strata::software
#endif
