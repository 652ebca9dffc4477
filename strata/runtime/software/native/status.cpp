#define STRATA_HIP_DECLARE_FUNCTIONS 1
#include <hip/hip_runtime.h>

#include <algorithm>
#include <iterator>

namespace {

struct StatusText {
  int code;
  const char* name;
  const char* text;
};

// HIP 7's statuses, in ascending order of their codes.
constexpr StatusText kStatuses[] = {
    {0, "hipSuccess", "no error"},
    {1, "hipErrorInvalidValue", "an argument is invalid"},
    {2, "hipErrorOutOfMemory", "out of memory"},
    {3, "hipErrorNotInitialized", "the runtime is not initialized"},
    {4, "hipErrorDeinitialized", "the runtime was shut down"},
    {5, "hipErrorProfilerDisabled", "the profiler is disabled"},
    {6, "hipErrorProfilerNotInitialized", "the profiler is not initialized"},
    {7, "hipErrorProfilerAlreadyStarted", "the profiler was already started"},
    {8, "hipErrorProfilerAlreadyStopped", "the profiler was already stopped"},
    {9, "hipErrorInvalidConfiguration", "the configuration is invalid"},
    {12, "hipErrorInvalidPitchValue", "the pitch is invalid"},
    {13, "hipErrorInvalidSymbol", "the symbol is invalid"},
    {17, "hipErrorInvalidDevicePointer", "the device pointer is invalid"},
    {21, "hipErrorInvalidMemcpyDirection", "the direction of the copy is invalid"},
    {35, "hipErrorInsufficientDriver", "the driver is missing or too old"},
    {52, "hipErrorMissingConfiguration", "a configuration is missing"},
    {53, "hipErrorPriorLaunchFailure", "an earlier launch failed"},
    {98, "hipErrorInvalidDeviceFunction", "the device function is invalid"},
    {100, "hipErrorNoDevice", "no device was found"},
    {101, "hipErrorInvalidDevice", "the device number is invalid"},
    {200, "hipErrorInvalidImage", "the device image is invalid"},
    {201, "hipErrorInvalidContext", "the context is invalid"},
    {202, "hipErrorContextAlreadyCurrent", "the context is already current"},
    {205, "hipErrorMapFailed", "mapping failed"},
    {206, "hipErrorUnmapFailed", "unmapping failed"},
    {207, "hipErrorArrayIsMapped", "the array is mapped"},
    {208, "hipErrorAlreadyMapped", "the resource is already mapped"},
    {209, "hipErrorNoBinaryForGpu", "there is no binary for this device"},
    {210, "hipErrorAlreadyAcquired", "the resource is already acquired"},
    {211, "hipErrorNotMapped", "the resource is not mapped"},
    {212, "hipErrorNotMappedAsArray", "the resource is not mapped as an array"},
    {213, "hipErrorNotMappedAsPointer", "the resource is not mapped as a pointer"},
    {214, "hipErrorECCNotCorrectable", "an uncorrectable memory error occurred"},
    {215, "hipErrorUnsupportedLimit", "the limit is not supported"},
    {216, "hipErrorContextAlreadyInUse", "the context is already in use"},
    {217, "hipErrorPeerAccessUnsupported", "peer access is not supported"},
    {218, "hipErrorInvalidKernelFile", "the kernel file is invalid"},
    {219, "hipErrorInvalidGraphicsContext", "the graphics context is invalid"},
    {300, "hipErrorInvalidSource", "the source is invalid"},
    {301, "hipErrorFileNotFound", "the file was not found"},
    {302, "hipErrorSharedObjectSymbolNotFound", "a symbol of a shared object was not found"},
    {303, "hipErrorSharedObjectInitFailed", "a shared object could not be initialized"},
    {304, "hipErrorOperatingSystem", "an operating system call failed"},
    {400, "hipErrorInvalidHandle", "the handle is invalid"},
    {401, "hipErrorIllegalState", "the resource is not in a state that allows this"},
    {500, "hipErrorNotFound", "the name was not found"},
    {600, "hipErrorNotReady", "the work is not complete yet"},
    {700, "hipErrorIllegalAddress", "the device accessed an illegal address"},
    {701, "hipErrorLaunchOutOfResources", "a launch needs more resources than there are"},
    {702, "hipErrorLaunchTimeOut", "a launch took too long"},
    {704, "hipErrorPeerAccessAlreadyEnabled", "peer access is already enabled"},
    {705, "hipErrorPeerAccessNotEnabled", "peer access is not enabled"},
    {708, "hipErrorSetOnActiveProcess", "the device is already in use by this process"},
    {709, "hipErrorContextIsDestroyed", "the context is destroyed"},
    {710, "hipErrorAssert", "a device assertion failed"},
    {712, "hipErrorHostMemoryAlreadyRegistered", "the host memory is already registered"},
    {713, "hipErrorHostMemoryNotRegistered", "the host memory is not registered"},
    {719, "hipErrorLaunchFailure", "work on the device failed"},
    {720, "hipErrorCooperativeLaunchTooLarge", "a cooperative launch is too large"},
    {801, "hipErrorNotSupported", "the operation is not supported"},
    {900, "hipErrorStreamCaptureUnsupported", "the operation is not permitted while a stream is captured"},
    {901, "hipErrorStreamCaptureInvalidated", "the capture was invalidated by an earlier error"},
    {902, "hipErrorStreamCaptureMerge", "two captures would merge"},
    {903, "hipErrorStreamCaptureUnmatched", "the capture was not begun in this stream"},
    {904, "hipErrorStreamCaptureUnjoined", "a forked stream was not joined"},
    {905, "hipErrorStreamCaptureIsolation", "a dependency would leave the capture"},
    {906, "hipErrorStreamCaptureImplicit", "the null stream would be captured"},
    {907, "hipErrorCapturedEvent", "the event was last recorded in a captured stream"},
    {908, "hipErrorStreamCaptureWrongThread", "the capture belongs to another thread"},
    {910, "hipErrorGraphExecUpdateFailure", "the graph could not be updated"},
    {911, "hipErrorInvalidChannelDescriptor", "the channel descriptor is invalid"},
    {912, "hipErrorInvalidTexture", "the texture is invalid"},
    {914, "hipErrorInvalidResourceType", "the resource type is invalid"},
    {915, "hipErrorInvalidResourceConfiguration", "the resource configuration is invalid"},
    {916, "hipErrorStreamDetached", "the stream is detached"},
    {999, "hipErrorUnknown", "unknown error"},
    {1052, "hipErrorRuntimeMemory", "a memory call of the runtime failed"},
    {1053, "hipErrorRuntimeOther", "a call of the runtime failed"},
    {1054, "hipErrorInvalidClusterSize", "the cluster size is invalid"},
    {1055, "hipErrorTbd", "an error that has no code of its own yet"},
};

const StatusText& describe(hipError_t status) {
  const int code = static_cast<int>(status);
  const auto found = std::lower_bound(std::begin(kStatuses), std::end(kStatuses), code,
                                      [](const StatusText& row, int wanted) { return row.code < wanted; });
  if (found != std::end(kStatuses) && found->code == code) return *found;
  static constexpr StatusText kUnknown = {999, "hipErrorUnknown", "unknown error"};
  return kUnknown;
}

}  // namespace

extern "C" const char* hipGetErrorName(hipError_t status) { return describe(status).name; }
extern "C" const char* hipGetErrorString(hipError_t status) { return describe(status).text; }
