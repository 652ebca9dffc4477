#include "shared_library.hpp"

#include <cstdio>

#if defined(_WIN32)
#include <windows.h>
#else
#include <dlfcn.h>
#endif

namespace strata_cuda {

#if defined(_WIN32)

void* open_library(const char* name, char* why, size_t why_bytes) {
  HMODULE library = LoadLibraryA(name);
  if (library == nullptr) std::snprintf(why, why_bytes, "LoadLibrary error %lu", GetLastError());
  return reinterpret_cast<void*>(library);
}

void* find_symbol(void* library, const char* symbol) {
  return reinterpret_cast<void*>(GetProcAddress(reinterpret_cast<HMODULE>(library), symbol));
}

#else

void* open_library(const char* name, char* why, size_t why_bytes) {
  // Local, so that the driver's names do not shadow anybody's. A copy that the process has mapped already
  // (torch's) is the one that comes back.
  void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* reason = dlerror();
    std::snprintf(why, why_bytes, "%s", reason != nullptr ? reason : "no reason given");
  }
  return library;
}

void* find_symbol(void* library, const char* symbol) { return dlsym(library, symbol); }

#endif

}  // namespace strata_cuda
