// The part of the CUDA driver API that this runtime calls: types, values and symbols, declared here so
// that nothing of CUDA is needed to build. Handles and addresses keep the driver's own representation,
// because a stream, an event or an address of this runtime *is* the driver's.
#pragma once

#include <cstddef>

#if defined(_WIN32)
#define STRATA_CUDA_CALL __stdcall
#else
#define STRATA_CUDA_CALL
#endif

namespace strata_cuda {

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
using CUcontext = struct OpaqueContext*;
using CUstream = struct OpaqueStream*;
using CUevent = struct OpaqueEvent*;
using CUhostFn = void(STRATA_CUDA_CALL*)(void*);

// Statuses that this runtime tells apart; all others are only passed on.
constexpr CUresult kCudaSuccess = 0;
constexpr CUresult kCudaNoDevice = 100;
constexpr CUresult kCudaInvalidClusterSize = 912;

// CUdevice_attribute
constexpr int kCudaIntegrated = 18;
constexpr int kCudaPciBusId = 33;
constexpr int kCudaPciDeviceId = 34;
constexpr int kCudaAsyncEngineCount = 40;
constexpr int kCudaUnifiedAddressing = 41;
constexpr int kCudaPciDomainId = 50;

// CUpointer_attribute
constexpr int kPointerMemoryType = 2;
constexpr int kPointerDevicePointer = 3;
constexpr int kPointerHostPointer = 4;
constexpr int kPointerIsManaged = 8;
constexpr int kPointerDeviceOrdinal = 9;

// CUmemorytype (0: the driver does not know the address)
constexpr unsigned int kCudaMemoryHost = 1;
constexpr unsigned int kCudaMemoryDevice = 2;
constexpr unsigned int kCudaMemoryArray = 3;
constexpr unsigned int kCudaMemoryUnified = 4;

// CUstream values that name the legacy null stream beside NULL itself.
inline CUstream legacy_stream() { return reinterpret_cast<CUstream>(0x1); }

struct CUmemLocation {
  int type;
  int id;
};

struct CUmemcpyAttributes {
  int srcAccessOrder;
  CUmemLocation srcLocHint;
  CUmemLocation dstLocHint;
  unsigned int flags;
};

}  // namespace strata_cuda

// X(name in the code, symbol in the library, parameters). All of them exist since CUDA 10; the symbols are
// the ones whose null stream is the legacy one. The library is unusable if any of them is missing.
#define STRATA_CUDA_REQUIRED(X)                                                                          \
  X(cuInit, "cuInit", (unsigned int flags))                                                              \
  X(cuDriverGetVersion, "cuDriverGetVersion", (int* version))                                            \
  X(cuGetErrorName, "cuGetErrorName", (CUresult status, const char** name))                              \
  X(cuGetErrorString, "cuGetErrorString", (CUresult status, const char** text))                          \
  X(cuDeviceGetCount, "cuDeviceGetCount", (int* count))                                                  \
  X(cuDeviceGet, "cuDeviceGet", (CUdevice * device, int ordinal))                                        \
  X(cuDeviceGetName, "cuDeviceGetName", (char* name, int length, CUdevice device))                       \
  X(cuDeviceGetAttribute, "cuDeviceGetAttribute", (int* value, int attribute, CUdevice device))          \
  X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (CUcontext * context, CUdevice device))        \
  X(cuCtxGetCurrent, "cuCtxGetCurrent", (CUcontext * context))                                           \
  X(cuCtxSetCurrent, "cuCtxSetCurrent", (CUcontext context))                                             \
  X(cuCtxPushCurrent, "cuCtxPushCurrent_v2", (CUcontext context))                                        \
  X(cuCtxPopCurrent, "cuCtxPopCurrent_v2", (CUcontext * context))                                        \
  X(cuCtxGetDevice, "cuCtxGetDevice", (CUdevice * device))                                               \
  X(cuCtxSynchronize, "cuCtxSynchronize", ())                                                            \
  X(cuMemGetInfo, "cuMemGetInfo_v2", (size_t * free_bytes, size_t * total_bytes))                        \
  X(cuMemAlloc, "cuMemAlloc_v2", (CUdeviceptr * address, size_t bytes))                                  \
  X(cuMemFree, "cuMemFree_v2", (CUdeviceptr address))                                                    \
  X(cuMemHostAlloc, "cuMemHostAlloc", (void** address, size_t bytes, unsigned int flags))                \
  X(cuMemFreeHost, "cuMemFreeHost", (void* address))                                                     \
  X(cuMemHostRegister, "cuMemHostRegister_v2", (void* address, size_t bytes, unsigned int flags))        \
  X(cuMemHostUnregister, "cuMemHostUnregister", (void* address))                                         \
  X(cuPointerGetAttributes, "cuPointerGetAttributes",                                                    \
    (unsigned int count, int* attributes, void** data, CUdeviceptr address))                             \
  X(cuMemcpy, "cuMemcpy", (CUdeviceptr dst, CUdeviceptr src, size_t bytes))                              \
  X(cuMemcpyHtoD, "cuMemcpyHtoD_v2", (CUdeviceptr dst, const void* src, size_t bytes))                   \
  X(cuMemcpyDtoH, "cuMemcpyDtoH_v2", (void* dst, CUdeviceptr src, size_t bytes))                         \
  X(cuMemcpyDtoD, "cuMemcpyDtoD_v2", (CUdeviceptr dst, CUdeviceptr src, size_t bytes))                   \
  X(cuMemcpyAsync, "cuMemcpyAsync", (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream))   \
  X(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2",                                                           \
    (CUdeviceptr dst, const void* src, size_t bytes, CUstream stream))                                   \
  X(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2",                                                           \
    (void* dst, CUdeviceptr src, size_t bytes, CUstream stream))                                         \
  X(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2",                                                           \
    (CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream))                                   \
  X(cuMemsetD8Async, "cuMemsetD8Async",                                                                  \
    (CUdeviceptr dst, unsigned char value, size_t bytes, CUstream stream))                               \
  X(cuStreamCreate, "cuStreamCreate", (CUstream * stream, unsigned int flags))                           \
  X(cuStreamDestroy, "cuStreamDestroy_v2", (CUstream stream))                                            \
  X(cuStreamSynchronize, "cuStreamSynchronize", (CUstream stream))                                       \
  X(cuStreamQuery, "cuStreamQuery", (CUstream stream))                                                   \
  X(cuStreamWaitEvent, "cuStreamWaitEvent", (CUstream stream, CUevent event, unsigned int flags))        \
  X(cuStreamGetCtx, "cuStreamGetCtx", (CUstream stream, CUcontext * context))                            \
  X(cuLaunchHostFunc, "cuLaunchHostFunc", (CUstream stream, CUhostFn fn, void* user_data))               \
  X(cuEventCreate, "cuEventCreate", (CUevent * event, unsigned int flags))                               \
  X(cuEventDestroy, "cuEventDestroy_v2", (CUevent event))                                                \
  X(cuEventRecord, "cuEventRecord", (CUevent event, CUstream stream))                                    \
  X(cuEventQuery, "cuEventQuery", (CUevent event))                                                       \
  X(cuEventElapsedTime, "cuEventElapsedTime", (float* ms, CUevent start, CUevent stop))

// Batched copies changed their signature: CUDA 12.8 reports the failing copy, CUDA 13 does not.
#define STRATA_CUDA_OPTIONAL(X)                                                                          \
  X(cuMemcpyBatchAsync12, "cuMemcpyBatchAsync",                                                          \
    (CUdeviceptr * dsts, CUdeviceptr * srcs, size_t * sizes, size_t count, CUmemcpyAttributes * attrs,   \
     size_t * attrs_idxs, size_t num_attrs, size_t * fail_idx, CUstream stream))                         \
  X(cuMemcpyBatchAsync13, "cuMemcpyBatchAsync_v2",                                                       \
    (CUdeviceptr * dsts, CUdeviceptr * srcs, size_t * sizes, size_t count, CUmemcpyAttributes * attrs,   \
     size_t * attrs_idxs, size_t num_attrs, CUstream stream))
