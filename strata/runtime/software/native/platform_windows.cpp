// What platform.hpp promises, on Windows 10 and later.
#if defined(_WIN32)

#undef _WIN32_WINNT
#define _WIN32_WINNT 0x0A00
#include "strata/thread_start.hpp"  // windows.h

#include <malloc.h>

#include <new>
#include <string>
#include <thread>
#include <utility>

#include "platform.hpp"

namespace strata::software {

namespace {

// Of Windows 10 1607, and not declared by every toolchain.
using GetName = HRESULT(WINAPI*)(HANDLE, PWSTR*);

struct ThreadEnd {
  void (*function)(void*);
  void* argument;
  ThreadEnd* earlier;
};

void WINAPI end_thread(void* last) {
  for (auto* end = static_cast<ThreadEnd*>(last); end != nullptr;) {
    end->function(end->argument);
    delete std::exchange(end, end->earlier);
  }
}

}  // namespace

void* allocate_pages(std::size_t bytes) noexcept {
  return VirtualAlloc(nullptr, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
}

void free_pages(void* address, std::size_t) noexcept { VirtualFree(address, 0, MEM_RELEASE); }

bool pages_exist(const void* address, std::size_t bytes) noexcept {
  auto at = reinterpret_cast<std::uintptr_t>(address);
  const std::uintptr_t end = at + bytes;
  while (at < end) {
    MEMORY_BASIC_INFORMATION region;
    if (VirtualQuery(reinterpret_cast<void*>(at), &region, sizeof region) == 0) return false;  // not the user's half
    if (region.State != MEM_COMMIT) return false;
    at = reinterpret_cast<std::uintptr_t>(region.BaseAddress) + region.RegionSize;
  }
  return true;
}

void* allocate_aligned(std::size_t alignment, std::size_t bytes) noexcept { return _aligned_malloc(bytes, alignment); }

void free_aligned(void* address) noexcept { _aligned_free(address); }

bool start_thread(void (*body)(void*), void* argument, const char* name) noexcept {
  try {
    std::thread([body, argument, own = std::string(name)] {
      name_this_thread(own.c_str());
      body(argument);
    }).detach();
  } catch (...) {
    return false;
  }
  return true;
}

bool at_thread_end(void (*function)(void*), void* argument) noexcept {
  static const DWORD slot = FlsAlloc(end_thread);
  if (slot == FLS_OUT_OF_INDEXES) return false;
  auto* end = new (std::nothrow) ThreadEnd{function, argument, static_cast<ThreadEnd*>(FlsGetValue(slot))};
  if (end == nullptr) return false;
  if (FlsSetValue(slot, end)) return true;
  delete end;
  return false;
}

void thread_name(char* buffer, std::size_t bytes) noexcept {
  buffer[0] = '\0';
  const HMODULE kernel = GetModuleHandleW(L"kernel32.dll");  // every process has it
  const auto get_name = reinterpret_cast<GetName>(reinterpret_cast<void*>(GetProcAddress(kernel, "GetThreadDescription")));
  PWSTR name = nullptr;
  if (get_name == nullptr || FAILED(get_name(GetCurrentThread(), &name))) return;
  const int written = WideCharToMultiByte(CP_UTF8, 0, name, -1, buffer, static_cast<int>(bytes), nullptr, nullptr);
  if (written == 0) buffer[bytes - 1] = '\0';  // longer than the buffer
  LocalFree(name);
}

std::uint64_t thread_number() noexcept { return GetCurrentThreadId(); }

void at_fork(void (*)()) noexcept {}  // there is no fork

void keep_library_mapped() noexcept {
  HMODULE self;
  GetModuleHandleExW(GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_PIN,
                     reinterpret_cast<LPCWSTR>(&keep_library_mapped), &self);
}

void sleep_until_ns(std::int64_t deadline) noexcept {
  constexpr std::int64_t kLate = 600'000;  // what the timer below may come late, spun instead
  // Sleep() counts in ticks of up to 15.6 ms. Windows before 10 1803 has no finer timer, and spins.
  constexpr DWORD kHighResolution = 0x00000002;  // CREATE_WAITABLE_TIMER_HIGH_RESOLUTION
  const std::int64_t left = deadline - now_ns();
  if (left > 2 * kLate) {
    if (const HANDLE timer = CreateWaitableTimerExW(nullptr, nullptr, kHighResolution, TIMER_ALL_ACCESS)) {
      LARGE_INTEGER due;
      due.QuadPart = -(left - kLate) / 100;  // negative: from now, in units of 100 ns
      if (SetWaitableTimer(timer, &due, 0, nullptr, nullptr, FALSE)) WaitForSingleObject(timer, INFINITE);
      CloseHandle(timer);
    }
  }
  while (now_ns() < deadline) cpu_relax();
}

}  // namespace strata::software
#endif
