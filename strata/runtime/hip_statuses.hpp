// HIP 7's statuses in words, for the runtimes that strata ships.
#pragma once

namespace strata_hip {

struct StatusText {
  int status;
  const char* name;
  const char* text;
};

// In numeric order.
constexpr StatusText kStatuses[] = {
    {0, "hipSuccess", "no error"},
    {1, "hipErrorInvalidValue", "an argument has a value that is not allowed"},
    {2, "hipErrorOutOfMemory", "not enough memory"},
    {3, "hipErrorNotInitialized", "the driver is not initialized"},
    {4, "hipErrorDeinitialized", "the driver is shutting down"},
    {5, "hipErrorProfilerDisabled", "the profiler is disabled"},
    {6, "hipErrorProfilerNotInitialized", "the profiler is not initialized"},
    {7, "hipErrorProfilerAlreadyStarted", "the profiler runs already"},
    {8, "hipErrorProfilerAlreadyStopped", "the profiler is stopped already"},
    {9, "hipErrorInvalidConfiguration", "invalid launch configuration"},
    {12, "hipErrorInvalidPitchValue", "invalid pitch"},
    {13, "hipErrorInvalidSymbol", "invalid device symbol"},
    {17, "hipErrorInvalidDevicePointer", "invalid device pointer"},
    {21, "hipErrorInvalidMemcpyDirection", "invalid direction of a copy"},
    {35, "hipErrorInsufficientDriver", "no driver, or one that cannot be used"},
    {52, "hipErrorMissingConfiguration", "a launch configuration is missing"},
    {53, "hipErrorPriorLaunchFailure", "an earlier launch failed"},
    {98, "hipErrorInvalidDeviceFunction", "invalid device function"},
    {100, "hipErrorNoDevice", "no device"},
    {101, "hipErrorInvalidDevice", "no device of this number"},
    {200, "hipErrorInvalidImage", "invalid code object"},
    {201, "hipErrorInvalidContext", "no valid context"},
    {202, "hipErrorContextAlreadyCurrent", "the context is current already"},
    {205, "hipErrorMapFailed", "mapping failed"},
    {206, "hipErrorUnmapFailed", "unmapping failed"},
    {207, "hipErrorArrayIsMapped", "the array is mapped"},
    {208, "hipErrorAlreadyMapped", "the resource is mapped already"},
    {209, "hipErrorNoBinaryForGpu", "no code for this device"},
    {210, "hipErrorAlreadyAcquired", "the resource is acquired already"},
    {211, "hipErrorNotMapped", "the resource is not mapped"},
    {212, "hipErrorNotMappedAsArray", "the resource is not mapped as an array"},
    {213, "hipErrorNotMappedAsPointer", "the resource is not mapped as a pointer"},
    {214, "hipErrorECCNotCorrectable", "uncorrectable memory error on the device"},
    {215, "hipErrorUnsupportedLimit", "the device does not have this limit"},
    {216, "hipErrorContextAlreadyInUse", "another thread uses the context"},
    {217, "hipErrorPeerAccessUnsupported", "the devices cannot reach each other's memory"},
    {218, "hipErrorInvalidKernelFile", "invalid kernel source"},
    {219, "hipErrorInvalidGraphicsContext", "invalid graphics context"},
    {300, "hipErrorInvalidSource", "invalid source"},
    {301, "hipErrorFileNotFound", "file not found"},
    {302, "hipErrorSharedObjectSymbolNotFound", "a shared library lacks a symbol"},
    {303, "hipErrorSharedObjectInitFailed", "a shared library could not be initialized"},
    {304, "hipErrorOperatingSystem", "a call to the operating system failed"},
    {400, "hipErrorInvalidHandle", "invalid handle"},
    {401, "hipErrorIllegalState", "the resource is in a state that forbids the call"},
    {500, "hipErrorNotFound", "not found"},
    {600, "hipErrorNotReady", "not complete yet"},
    {700, "hipErrorIllegalAddress", "the device accessed an illegal address"},
    {701, "hipErrorLaunchOutOfResources", "too few resources for the launch"},
    {702, "hipErrorLaunchTimeOut", "a launch ran out of time"},
    {704, "hipErrorPeerAccessAlreadyEnabled", "peer access is enabled already"},
    {705, "hipErrorPeerAccessNotEnabled", "peer access is not enabled"},
    {708, "hipErrorSetOnActiveProcess", "the device is active already"},
    {709, "hipErrorContextIsDestroyed", "the context is destroyed, or belongs to the process before a fork"},
    {710, "hipErrorAssert", "a device assertion failed"},
    {712, "hipErrorHostMemoryAlreadyRegistered", "the host memory is registered already"},
    {713, "hipErrorHostMemoryNotRegistered", "the host memory is not registered"},
    {719, "hipErrorLaunchFailure", "an operation on the device failed"},
    {720, "hipErrorCooperativeLaunchTooLarge", "too many blocks for a cooperative launch"},
    {801, "hipErrorNotSupported", "not supported"},
    {900, "hipErrorStreamCaptureUnsupported", "not permitted while a stream is captured"},
    {901, "hipErrorStreamCaptureInvalidated", "the capture was invalidated by an earlier error"},
    {902, "hipErrorStreamCaptureMerge", "the call would merge two captures"},
    {903, "hipErrorStreamCaptureUnmatched", "the capture was not begun on this stream"},
    {904, "hipErrorStreamCaptureUnjoined", "the capture holds work that was not joined"},
    {905, "hipErrorStreamCaptureIsolation", "a dependency would cross the capture's border"},
    {906, "hipErrorStreamCaptureImplicit", "the call would depend on the null stream"},
    {907, "hipErrorCapturedEvent", "not permitted on an event recorded in a captured stream"},
    {908, "hipErrorStreamCaptureWrongThread", "the capture was begun by another thread"},
    {910, "hipErrorGraphExecUpdateFailure", "the graph cannot be updated"},
    {911, "hipErrorInvalidChannelDescriptor", "the channel descriptor is invalid"},
    {912, "hipErrorInvalidTexture", "the texture is invalid"},
    {914, "hipErrorInvalidResourceType", "invalid type of resource"},
    {915, "hipErrorInvalidResourceConfiguration", "invalid configuration of a resource"},
    {916, "hipErrorStreamDetached", "the stream is detached"},
    {999, "hipErrorUnknown", "unknown error"},
    {1052, "hipErrorRuntimeMemory", "a memory call inside the runtime failed"},
    {1053, "hipErrorRuntimeOther", "a call inside the runtime failed"},
    {1054, "hipErrorInvalidClusterSize", "invalid cluster size"},
    {1055, "hipErrorTbd", "an error without a name of its own"},
};

// Null where HIP has no such status.
inline const StatusText* find_status(int status) {
  for (const StatusText& entry : kStatuses) {
    if (entry.status == status) return &entry;
  }
  return nullptr;
}

}  // namespace strata_hip
