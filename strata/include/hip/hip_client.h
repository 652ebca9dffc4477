/* Functions of the software runtime that strata itself does not call and clients of HIP expect.
 *
 * hipDeviceProp_t has here the name that HIP's headers give it since HIP 6, where hipGetDeviceProperties
 * is a macro for hipGetDevicePropertiesR0600. tests/abi compares prototypes, size and places with the
 * installed bindings.
 */
#ifndef STRATA_HIP_CLIENT_H
#define STRATA_HIP_CLIENT_H

#include <hip/hip_runtime.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hipUUID {
  char bytes[16];
} hipUUID;

typedef struct hipDeviceArch_t {
  unsigned hasGlobalInt32Atomics : 1;
  unsigned hasGlobalFloatAtomicExch : 1;
  unsigned hasSharedInt32Atomics : 1;
  unsigned hasSharedFloatAtomicExch : 1;
  unsigned hasFloatAtomicAdd : 1;
  unsigned hasGlobalInt64Atomics : 1;
  unsigned hasSharedInt64Atomics : 1;
  unsigned hasDoubles : 1;
  unsigned hasWarpVote : 1;
  unsigned hasWarpBallot : 1;
  unsigned hasWarpShuffle : 1;
  unsigned hasFunnelShift : 1;
  unsigned hasThreadFenceSystem : 1;
  unsigned hasSyncThreadsExt : 1;
  unsigned hasSurfaceFuncs : 1;
  unsigned has3dGrid : 1;
  unsigned hasDynamicParallelism : 1;
} hipDeviceArch_t;

typedef struct hipDeviceProp_tR0600 {
  char name[256];
  hipUUID uuid;
  char luid[8];
  unsigned int luidDeviceNodeMask;
  size_t totalGlobalMem;
  size_t sharedMemPerBlock;
  int regsPerBlock;
  int warpSize;
  size_t memPitch;
  int maxThreadsPerBlock;
  int maxThreadsDim[3];
  int maxGridSize[3];
  int clockRate;
  size_t totalConstMem;
  int major;
  int minor;
  size_t textureAlignment;
  size_t texturePitchAlignment;
  int deviceOverlap;
  int multiProcessorCount;
  int kernelExecTimeoutEnabled;
  int integrated;
  int canMapHostMemory;
  int computeMode;
  int maxTexture1D;
  int maxTexture1DMipmap;
  int maxTexture1DLinear;
  int maxTexture2D[2];
  int maxTexture2DMipmap[2];
  int maxTexture2DLinear[3];
  int maxTexture2DGather[2];
  int maxTexture3D[3];
  int maxTexture3DAlt[3];
  int maxTextureCubemap;
  int maxTexture1DLayered[2];
  int maxTexture2DLayered[3];
  int maxTextureCubemapLayered[2];
  int maxSurface1D;
  int maxSurface2D[2];
  int maxSurface3D[3];
  int maxSurface1DLayered[2];
  int maxSurface2DLayered[3];
  int maxSurfaceCubemap;
  int maxSurfaceCubemapLayered[2];
  size_t surfaceAlignment;
  int concurrentKernels;
  int ECCEnabled;
  int pciBusID;
  int pciDeviceID;
  int pciDomainID;
  int tccDriver;
  int asyncEngineCount;
  int unifiedAddressing;
  int memoryClockRate;
  int memoryBusWidth;
  int l2CacheSize;
  int persistingL2CacheMaxSize;
  int maxThreadsPerMultiProcessor;
  int streamPrioritiesSupported;
  int globalL1CacheSupported;
  int localL1CacheSupported;
  size_t sharedMemPerMultiprocessor;
  int regsPerMultiprocessor;
  int managedMemory;
  int isMultiGpuBoard;
  int multiGpuBoardGroupID;
  int hostNativeAtomicSupported;
  int singleToDoublePrecisionPerfRatio;
  int pageableMemoryAccess;
  int concurrentManagedAccess;
  int computePreemptionSupported;
  int canUseHostPointerForRegisteredMem;
  int cooperativeLaunch;
  int cooperativeMultiDeviceLaunch;
  size_t sharedMemPerBlockOptin;
  int pageableMemoryAccessUsesHostPageTables;
  int directManagedMemAccessFromHost;
  int maxBlocksPerMultiProcessor;
  int accessPolicyMaxWindowSize;
  size_t reservedSharedMemPerBlock;
  int hostRegisterSupported;
  int sparseHipArraySupported;
  int hostRegisterReadOnlySupported;
  int timelineSemaphoreInteropSupported;
  int memoryPoolsSupported;
  int gpuDirectRDMASupported;
  unsigned int gpuDirectRDMAFlushWritesOptions;
  int gpuDirectRDMAWritesOrdering;
  unsigned int memoryPoolSupportedHandleTypes;
  int deferredMappingHipArraySupported;
  int ipcEventSupported;
  int clusterLaunch;
  int unifiedFunctionPointers;
  int reserved[63];
  int hipReserved[32];
  char gcnArchName[256];
  size_t maxSharedMemoryPerMultiProcessor;
  int clockInstructionRate;
  hipDeviceArch_t arch;
  unsigned int* hdpMemFlushCntl;
  unsigned int* hdpRegFlushCntl;
  int cooperativeMultiDeviceUnmatchedFunc;
  int cooperativeMultiDeviceUnmatchedGridDim;
  int cooperativeMultiDeviceUnmatchedBlockDim;
  int cooperativeMultiDeviceUnmatchedSharedMem;
  int isLargeBar;
  int asicRevision;
} hipDeviceProp_tR0600;

typedef hipDeviceProp_tR0600 hipDeviceProp_t;

STRATA_HIP_API hipError_t hipInit(unsigned int flags);
STRATA_HIP_API hipError_t hipDeviceReset(void);
STRATA_HIP_API hipError_t hipGetDevicePropertiesR0600(hipDeviceProp_tR0600* prop, int device);
STRATA_HIP_API hipError_t hipDeviceGetStreamPriorityRange(int* least, int* greatest);

STRATA_HIP_API hipError_t hipMallocAsync(void** ptr, size_t bytes, hipStream_t stream);
STRATA_HIP_API hipError_t hipFreeAsync(void* ptr, hipStream_t stream);
STRATA_HIP_API hipError_t hipHostAlloc(void** ptr, size_t bytes, unsigned int flags);
STRATA_HIP_API hipError_t hipFreeHost(void* ptr);
STRATA_HIP_API hipError_t hipHostGetDevicePointer(void** device_ptr, void* host_ptr, unsigned int flags);
STRATA_HIP_API hipError_t hipHostGetFlags(unsigned int* flags, void* host_ptr);
STRATA_HIP_API hipError_t hipPointerGetAttribute(void* data, hipPointer_attribute attribute, void* ptr);

STRATA_HIP_API hipError_t hipMemset(void* dst, int value, size_t bytes);
STRATA_HIP_API hipError_t hipMemcpyHtoD(void* dst, const void* src, size_t bytes);
STRATA_HIP_API hipError_t hipMemcpyDtoH(void* dst, void* src, size_t bytes);
STRATA_HIP_API hipError_t hipMemcpyDtoD(void* dst, void* src, size_t bytes);
STRATA_HIP_API hipError_t hipMemcpyHtoDAsync(void* dst, const void* src, size_t bytes, hipStream_t stream);
STRATA_HIP_API hipError_t hipMemcpyDtoHAsync(void* dst, void* src, size_t bytes, hipStream_t stream);
STRATA_HIP_API hipError_t hipMemcpyDtoDAsync(void* dst, void* src, size_t bytes, hipStream_t stream);
STRATA_HIP_API hipError_t hipMemcpyWithStream(void* dst, const void* src, size_t bytes, hipMemcpyKind kind,
                                              hipStream_t stream);
STRATA_HIP_API hipError_t hipMemcpyPeer(void* dst, int dst_device, const void* src, int src_device, size_t bytes);
STRATA_HIP_API hipError_t hipMemcpyPeerAsync(void* dst, int dst_device, const void* src, int src_device,
                                             size_t bytes, hipStream_t stream);

STRATA_HIP_API hipError_t hipStreamCreate(hipStream_t* stream);
STRATA_HIP_API hipError_t hipStreamCreateWithPriority(hipStream_t* stream, unsigned int flags, int priority);
STRATA_HIP_API hipError_t hipStreamGetFlags(hipStream_t stream, unsigned int* flags);
STRATA_HIP_API hipError_t hipStreamGetPriority(hipStream_t stream, int* priority);
STRATA_HIP_API hipError_t hipEventCreate(hipEvent_t* event);

#ifdef __cplusplus
}
#endif
#endif
