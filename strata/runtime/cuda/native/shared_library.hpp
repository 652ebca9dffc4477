// A library opened at run time: dlopen on POSIX, LoadLibrary on Windows.
#pragma once

#include <cstddef>

namespace strata_cuda {

// Opens the library for good (it is never closed). Null on failure, with the loader's reason in `why`.
void* open_library(const char* name, char* why, size_t why_bytes);

// The symbol's address, or null where the library lacks it.
void* find_symbol(void* library, const char* symbol);

}  // namespace strata_cuda
