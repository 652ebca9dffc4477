// Positioned reads of files by native threads. Declared to Cython in strata/engine/files.pxd.
//
// No function here touches Python, and none throws: a caller may hold no GIL.
#ifndef STRATA_FILES_HPP
#define STRATA_FILES_HPP

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(_WIN32)
#ifndef NOMINMAX
#define NOMINMAX
#endif
#include <windows.h>
#else
#include <unistd.h>
#endif

namespace strata {

// An open file, as a thread reads it.
struct SourceFile {
  int64_t handle;     // a descriptor, or a HANDLE opened with FILE_FLAG_OVERLAPPED
  int64_t size;       // when it was opened
  int64_t alignment;  // of direct reads: offset, length and address are multiples of it; 0: through the page cache
};

// One read at a position; the bytes read (0 at the end of the file), or -1 with `error` set to an errno value, or on
// Windows to a system error code.
inline int64_t read_once(const SourceFile& file, void* to, int64_t nbytes, int64_t offset, int* error) noexcept {
  constexpr int64_t kMost = int64_t{1} << 30;
  if (nbytes > kMost) nbytes = kMost;
#if defined(_WIN32)
  OVERLAPPED where;
  std::memset(&where, 0, sizeof(where));
  where.Offset = static_cast<DWORD>(static_cast<uint64_t>(offset));
  where.OffsetHigh = static_cast<DWORD>(static_cast<uint64_t>(offset) >> 32);
  // An event of its own: several threads read one handle.
  where.hEvent = CreateEventW(nullptr, TRUE, FALSE, nullptr);
  if (where.hEvent == nullptr) {
    *error = static_cast<int>(GetLastError());
    return -1;
  }
  HANDLE handle = reinterpret_cast<HANDLE>(static_cast<intptr_t>(file.handle));
  DWORD got = 0;
  DWORD failed = 0;
  if (!ReadFile(handle, to, static_cast<DWORD>(nbytes), nullptr, &where)) {
    failed = GetLastError();
    if (failed == ERROR_IO_PENDING) failed = 0;
  }
  if (failed == 0 && !GetOverlappedResult(handle, &where, &got, TRUE)) failed = GetLastError();
  CloseHandle(where.hEvent);
  if (failed == ERROR_HANDLE_EOF) return 0;
  if (failed != 0) {
    *error = static_cast<int>(failed);
    return -1;
  }
  return static_cast<int64_t>(got);
#else
  for (;;) {
    const ssize_t got = ::pread(static_cast<int>(file.handle), to, static_cast<size_t>(nbytes), static_cast<off_t>(offset));
    if (got >= 0) return got;
    if (errno != EINTR) {
      *error = errno;
      return -1;
    }
  }
#endif
}

// Read exactly `nbytes`; the bytes that came, fewer at the end of the file (`error` 0) or at a failure (`error` set).
inline int64_t read_at(const SourceFile& file, void* to, int64_t nbytes, int64_t offset, int* error) noexcept {
  int64_t done = 0;
  *error = 0;
  while (done < nbytes) {
    const int64_t got = read_once(file, static_cast<char*>(to) + done, nbytes - done, offset + done, error);
    if (got <= 0) break;
    done += got;
    // A direct read ends in the file's last, unaligned piece: what follows can only be the end.
    if (file.alignment > 0 && done % file.alignment != 0) break;
  }
  return done;
}

}  // namespace strata
#endif
