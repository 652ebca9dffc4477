// Loads the runtimes' DLLs as a process does: arguments are the software runtime's and the cuda runtime's.
#define WIN32_LEAN_AND_MEAN
#include <windows.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#define STRATA_HIP_DECLARE_FUNCTIONS 1
#include <hip/hip_runtime.h>

namespace {

HMODULE load(const char* path) {
  const HMODULE library = LoadLibraryA(path);
  if (library == nullptr) {
    std::printf("%s does not load: error %lu\n", path, GetLastError());
    std::exit(1);
  }
  return library;
}

template <typename Function>
Function* symbol(HMODULE library, const char* name) {
  void* found = reinterpret_cast<void*>(GetProcAddress(library, name));
  if (found == nullptr) {
    std::printf("no %s\n", name);
    std::exit(1);
  }
  Function* function;
  std::memcpy(&function, &found, sizeof function);
  return function;
}

#define WANT(condition)                                                   \
  do {                                                                    \
    if (!(condition)) {                                                   \
      std::printf("line %d: %s is not so\n", __LINE__, #condition);       \
      std::exit(1);                                                       \
    }                                                                     \
  } while (0)

#define IMPORT(library, name) auto* const name##_ = symbol<decltype(name)>(library, #name)

void copies(HMODULE library) {
  IMPORT(library, hipMalloc);
  IMPORT(library, hipHostMalloc);
  IMPORT(library, hipStreamCreateWithFlags);
  IMPORT(library, hipMemcpyAsync);
  IMPORT(library, hipStreamSynchronize);
  constexpr std::size_t kBytes = 1 << 20;
  void *device, *there, *back;
  hipStream_t stream;
  WANT(hipMalloc_(&device, kBytes) == hipSuccess);
  WANT(hipHostMalloc_(&there, kBytes, 0) == hipSuccess);
  WANT(hipHostMalloc_(&back, kBytes, 0) == hipSuccess);
  WANT(hipStreamCreateWithFlags_(&stream, hipStreamNonBlocking) == hipSuccess);
  for (std::size_t k = 0; k < kBytes; ++k) static_cast<unsigned char*>(there)[k] = static_cast<unsigned char>(k * 7);
  WANT(hipMemcpyAsync_(device, there, kBytes, hipMemcpyHostToDevice, stream) == hipSuccess);
  WANT(hipMemcpyAsync_(back, device, kBytes, hipMemcpyDeviceToHost, stream) == hipSuccess);
  WANT(hipStreamSynchronize_(stream) == hipSuccess);
  WANT(std::memcmp(there, back, kBytes) == 0);
}

}  // namespace

int main(int, char** arguments) {
  const HMODULE software = load(arguments[1]);
  int count = 0;
  IMPORT(software, hipGetDeviceCount);
  WANT(hipGetDeviceCount_(&count) == hipSuccess && count >= 1);
  copies(software);
  const HMODULE cuda = load(arguments[2]);
  auto* const cuda_count = symbol<decltype(hipGetDeviceCount)>(cuda, "hipGetDeviceCount");
  WANT(cuda_count(&count) != hipSuccess);  // no driver here
  std::printf("1 MiB through the software runtime; cuda: %s\n", symbol<const char*()>(cuda, "strata_cuda_problem")());
  return 0;
}
