/* The part of HIP's C ABI that strata uses, declared by strata itself.
 *
 * hip-python's Cython declarations (rocm/bindings/cyhip.pxd) want a header of this name at compile
 * time. No HIP SDK is needed: every name below has HIP 7's value, every struct that is passed has
 * HIP 7's layout, and types that are only handled by pointer are opaque. tests/abi compares the
 * constants and sizes with what the installed bindings report.
 *
 * The software and the cuda runtime define these functions; nothing here is linked against.
 */
#ifndef STRATA_HIP_RUNTIME_H
#define STRATA_HIP_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum hipError_t {
  hipSuccess = 0,
  hipErrorInvalidValue = 1,
  hipErrorOutOfMemory = 2,
  hipErrorMemoryAllocation = 2,
  hipErrorNotInitialized = 3,
  hipErrorInitializationError = 3,
  hipErrorDeinitialized = 4,
  hipErrorInvalidConfiguration = 9,
  hipErrorInvalidSymbol = 13,
  hipErrorInvalidDevicePointer = 17,
  hipErrorInvalidMemcpyDirection = 21,
  hipErrorInsufficientDriver = 35,
  hipErrorNoDevice = 100,
  hipErrorInvalidDevice = 101,
  hipErrorInvalidContext = 201,
  hipErrorSharedObjectSymbolNotFound = 302,
  hipErrorSharedObjectInitFailed = 303,
  hipErrorOperatingSystem = 304,
  hipErrorInvalidHandle = 400,
  hipErrorInvalidResourceHandle = 400,
  hipErrorIllegalState = 401,
  hipErrorNotFound = 500,
  hipErrorNotReady = 600,
  hipErrorIllegalAddress = 700,
  hipErrorLaunchOutOfResources = 701,
  hipErrorLaunchTimeOut = 702,
  hipErrorContextIsDestroyed = 709,
  hipErrorHostMemoryAlreadyRegistered = 712,
  hipErrorHostMemoryNotRegistered = 713,
  hipErrorLaunchFailure = 719,
  hipErrorNotSupported = 801,
  hipErrorUnknown = 999,
  hipErrorRuntimeMemory = 1052,
  hipErrorRuntimeOther = 1053,
  hipErrorForceWidth = 0x7fffffff
} hipError_t;

typedef enum hipDeviceAttribute_t {
  hipDeviceAttributeAsyncEngineCount = 2,
  hipDeviceAttributeIntegrated = 16,
  hipDeviceAttributePciBusId = 67,
  hipDeviceAttributePciDeviceId = 68,
  hipDeviceAttributePciDomainID = 69,
  hipDeviceAttributeUnifiedAddressing = 85,
  hipDeviceAttributeForceWidth = 0x7fffffff
} hipDeviceAttribute_t;

typedef enum hipMemoryType {
  hipMemoryTypeUnregistered = 0,
  hipMemoryTypeHost = 1,
  hipMemoryTypeDevice = 2,
  hipMemoryTypeManaged = 3,
  hipMemoryTypeArray = 10,
  hipMemoryTypeUnified = 11
} hipMemoryType;

typedef enum hipMemcpyKind {
  hipMemcpyHostToHost = 0,
  hipMemcpyHostToDevice = 1,
  hipMemcpyDeviceToHost = 2,
  hipMemcpyDeviceToDevice = 3,
  hipMemcpyDefault = 4,
  hipMemcpyDeviceToDeviceNoCU = 1024
} hipMemcpyKind;

typedef enum hipMemLocationType {
  hipMemLocationTypeInvalid = 0,
  hipMemLocationTypeNone = 0,
  hipMemLocationTypeDevice = 1,
  hipMemLocationTypeHost = 2,
  hipMemLocationTypeHostNuma = 3,
  hipMemLocationTypeHostNumaCurrent = 4
} hipMemLocationType;

typedef enum hipMemcpySrcAccessOrder {
  hipMemcpySrcAccessOrderInvalid = 0,
  hipMemcpySrcAccessOrderStream = 1,
  hipMemcpySrcAccessOrderDuringApiCall = 2,
  hipMemcpySrcAccessOrderAny = 3,
  hipMemcpySrcAccessOrderMax = 0x7fffffff
} hipMemcpySrcAccessOrder;

typedef enum hipPointer_attribute {
  HIP_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
  HIP_POINTER_ATTRIBUTE_DEVICE_POINTER = 3,
  HIP_POINTER_ATTRIBUTE_HOST_POINTER = 4,
  HIP_POINTER_ATTRIBUTE_IS_MANAGED = 8,
  HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
  HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
  HIP_POINTER_ATTRIBUTE_RANGE_SIZE = 12,
  HIP_POINTER_ATTRIBUTE_MAPPED = 13
} hipPointer_attribute;

typedef struct hipPointerAttribute_t {
  hipMemoryType type;
  int device;
  void* devicePointer;
  void* hostPointer;
  int isManaged;
  unsigned int allocationFlags;
} hipPointerAttribute_t;

typedef struct hipMemLocation {
  hipMemLocationType type;
  int id;
} hipMemLocation;

typedef struct hipMemcpyAttributes {
  hipMemcpySrcAccessOrder srcAccessOrder;
  hipMemLocation srcLocHint;
  hipMemLocation dstLocHint;
  unsigned int flags;
} hipMemcpyAttributes;

/* Handled by pointer only. */
typedef struct ihipStream_t ihipStream_t;
typedef struct ihipEvent_t ihipEvent_t;
typedef ihipStream_t* hipStream_t;
typedef ihipEvent_t* hipEvent_t;
typedef void (*hipHostFn_t)(void* userData);

#define hipStreamDefault 0x00
#define hipStreamNonBlocking 0x01
#define hipEventDefault 0x0
#define hipEventBlockingSync 0x1
#define hipEventDisableTiming 0x2
#define hipHostMallocDefault 0x0
#define hipHostMallocPortable 0x1
#define hipHostRegisterDefault 0x0
#define hipHostRegisterPortable 0x1

#if !defined(STRATA_HIP_DECLARE_FUNCTIONS)
/* Stand-ins. Cython repeats every anonymous union of the bindings' declarations in the C++ it
 * generates, so the types that those embed must be complete. strata passes none of them: their
 * layout is not HIP's, and sizeof of them means nothing. */
typedef struct hipArray* hipArray_t;
typedef struct hipMipmappedArray { int opaque; } hipMipmappedArray;
typedef hipMipmappedArray* hipMipmappedArray_t;
typedef struct ihipMemGenericAllocationHandle* hipMemGenericAllocationHandle_t;
enum hipArray_Format { STRATA_OPAQUE_hipArray_Format };
enum hipStreamBatchMemOpType { STRATA_OPAQUE_hipStreamBatchMemOpType };
enum hipMemAllocationHandleType { STRATA_OPAQUE_hipMemAllocationHandleType };
#define STRATA_OPAQUE(name) struct name { int opaque; }
STRATA_OPAQUE(hipChannelFormatDesc);
STRATA_OPAQUE(hipOffset3D);
STRATA_OPAQUE(hipDevSmResource);
STRATA_OPAQUE(hipDevWorkqueueConfigResource);
STRATA_OPAQUE(hipDevWorkqueueResource);
STRATA_OPAQUE(hipKernelNodeParams);
STRATA_OPAQUE(hipMemcpyNodeParams);
STRATA_OPAQUE(hipMemsetParams);
STRATA_OPAQUE(hipHostNodeParams);
STRATA_OPAQUE(hipChildGraphNodeParams);
STRATA_OPAQUE(hipEventWaitNodeParams);
STRATA_OPAQUE(hipEventRecordNodeParams);
STRATA_OPAQUE(hipExternalSemaphoreSignalNodeParams);
STRATA_OPAQUE(hipExternalSemaphoreWaitNodeParams);
STRATA_OPAQUE(hipMemAllocNodeParams);
STRATA_OPAQUE(hipMemFreeNodeParams);
#undef STRATA_OPAQUE
union hipLaunchAttributeValue { int opaque; };
#endif

#if defined(STRATA_HIP_DECLARE_FUNCTIONS)
/* Declared for the runtimes that strata ships: they define these. */
#if defined(_WIN32)
#define STRATA_HIP_API __declspec(dllexport)
#else
#define STRATA_HIP_API __attribute__((visibility("default")))
#endif

STRATA_HIP_API hipError_t hipGetDeviceCount(int* count);
STRATA_HIP_API hipError_t hipGetDevice(int* device);
STRATA_HIP_API hipError_t hipSetDevice(int device);
STRATA_HIP_API hipError_t hipDeviceGetName(char* name, int len, int device);
STRATA_HIP_API hipError_t hipDeviceGetAttribute(int* value, hipDeviceAttribute_t attr, int device);
STRATA_HIP_API hipError_t hipDeviceSynchronize(void);
STRATA_HIP_API hipError_t hipRuntimeGetVersion(int* version);
STRATA_HIP_API hipError_t hipDriverGetVersion(int* version);
STRATA_HIP_API hipError_t hipMemGetInfo(size_t* free_bytes, size_t* total_bytes);

STRATA_HIP_API hipError_t hipGetLastError(void);
STRATA_HIP_API hipError_t hipPeekAtLastError(void);
STRATA_HIP_API const char* hipGetErrorName(hipError_t status);
STRATA_HIP_API const char* hipGetErrorString(hipError_t status);

STRATA_HIP_API hipError_t hipMalloc(void** ptr, size_t bytes);
STRATA_HIP_API hipError_t hipFree(void* ptr);
STRATA_HIP_API hipError_t hipHostMalloc(void** ptr, size_t bytes, unsigned int flags);
STRATA_HIP_API hipError_t hipHostFree(void* ptr);
STRATA_HIP_API hipError_t hipHostRegister(void* ptr, size_t bytes, unsigned int flags);
STRATA_HIP_API hipError_t hipHostUnregister(void* ptr);
STRATA_HIP_API hipError_t hipPointerGetAttributes(hipPointerAttribute_t* attributes, const void* ptr);

STRATA_HIP_API hipError_t hipMemcpy(void* dst, const void* src, size_t bytes, hipMemcpyKind kind);
STRATA_HIP_API hipError_t hipMemcpyAsync(void* dst, const void* src, size_t bytes, hipMemcpyKind kind,
                                         hipStream_t stream);
STRATA_HIP_API hipError_t hipMemcpyBatchAsync(void** dsts, void** srcs, size_t* sizes, size_t count,
                                              hipMemcpyAttributes* attrs, size_t* attrs_idxs,
                                              size_t num_attrs, size_t* fail_idx, hipStream_t stream);
STRATA_HIP_API hipError_t hipMemsetAsync(void* dst, int value, size_t bytes, hipStream_t stream);

STRATA_HIP_API hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned int flags);
STRATA_HIP_API hipError_t hipStreamDestroy(hipStream_t stream);
STRATA_HIP_API hipError_t hipStreamSynchronize(hipStream_t stream);
STRATA_HIP_API hipError_t hipStreamQuery(hipStream_t stream);
STRATA_HIP_API hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned int flags);
STRATA_HIP_API hipError_t hipStreamGetDevice(hipStream_t stream, int* device);
STRATA_HIP_API hipError_t hipLaunchHostFunc(hipStream_t stream, hipHostFn_t fn, void* user_data);

STRATA_HIP_API hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned int flags);
STRATA_HIP_API hipError_t hipEventDestroy(hipEvent_t event);
STRATA_HIP_API hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream);
STRATA_HIP_API hipError_t hipEventQuery(hipEvent_t event);
STRATA_HIP_API hipError_t hipEventSynchronize(hipEvent_t event);
STRATA_HIP_API hipError_t hipEventElapsedTime(float* ms, hipEvent_t start, hipEvent_t stop);
#endif

#ifdef __cplusplus
}
#endif
#endif
