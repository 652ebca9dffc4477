// What the start of a native thread asks of the operating system: that it takes no signals, and its name.
//
// The one header here that knows systems apart: the C++ library has neither. A signal goes to any thread of the process
// that does not block it, so a thread of strata's that did not would take those that the program waits for by
// sigwait() or signalfd(), or run its handlers.
#ifndef STRATA_THREAD_START_HPP
#define STRATA_THREAD_START_HPP

#include <cstddef>
#include <cstdio>

#if defined(_WIN32)
#if !defined(NOMINMAX)
#define NOMINMAX
#endif
#if !defined(WIN32_LEAN_AND_MEAN)
#define WIN32_LEAN_AND_MEAN
#endif
#include <windows.h>
#else
#include <pthread.h>
#include <signal.h>
#endif

namespace strata {

// Linux keeps 15 characters of a name, and refuses longer ones.
constexpr std::size_t kThreadNameBytes = 16;

// "strata-issuer" for index -1, "strata-worker-0"; of a long number's word as many letters as there is room for.
inline void thread_name_of(char (&name)[kThreadNameBytes], const char* kind, int index) noexcept {
  if (index < 0) {
    std::snprintf(name, sizeof name, "strata-%s", kind);
    return;
  }
  int letters = static_cast<int>(sizeof name) - 1 - 7 - 1;
  for (int rest = index; letters > 1; rest /= 10) {
    --letters;
    if (rest < 10) break;
  }
  std::snprintf(name, sizeof name, "strata-%.*s-%d", letters, kind, index);
}

// While one of these lives, the calling thread blocks every signal; so do the threads that it starts, for good.
class SignalsBlocked {
 public:
#if defined(_WIN32)
  SignalsBlocked() noexcept {}  // a console's Ctrl-C comes on a thread of its own
  ~SignalsBlocked() {}
#else
  SignalsBlocked() noexcept {
    sigset_t all;
    sigfillset(&all);
    known_ = pthread_sigmask(SIG_SETMASK, &all, &before_) == 0;
  }
  ~SignalsBlocked() {
    if (known_) pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
#endif
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

#if !defined(_WIN32)
 private:
  sigset_t before_;
  bool known_;
#endif
};

// Names the calling thread, for debuggers and for the system's tools. Not being able to is no error.
inline void name_this_thread(const char* name) noexcept {
#if defined(_WIN32)
  // From Windows 10, 1607, on; looked up, so that the library loads on older ones and links without its import.
  using SetDescription = HRESULT(WINAPI*)(HANDLE, PCWSTR);
  wchar_t wide[kThreadNameBytes] = {};
  for (std::size_t k = 0; k + 1 < kThreadNameBytes && name[k] != '\0'; ++k) wide[k] = static_cast<wchar_t>(name[k]);
  if (HMODULE kernel = GetModuleHandleW(L"kernel32.dll")) {
    const FARPROC found = GetProcAddress(kernel, "SetThreadDescription");
    if (found != nullptr) reinterpret_cast<SetDescription>(reinterpret_cast<void*>(found))(GetCurrentThread(), wide);
  }
#elif defined(__APPLE__)
  pthread_setname_np(name);
#elif defined(__linux__)
  pthread_setname_np(pthread_self(), name);
#else
  (void)name;
#endif
}

}  // namespace strata
#endif
