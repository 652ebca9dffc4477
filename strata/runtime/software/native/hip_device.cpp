// Devices, versions and the last error.

#define STRATA_HIP_DECLARE_FUNCTIONS 1
#include <hip/hip_client.h>

#include <cstdio>

#include "calls.hpp"
#include "checker.hpp"
#include "memory.hpp"
#include "runtime.hpp"

using namespace strata::software;

namespace {

constexpr int kVersion = 70253211;  // HIP 7.2, in hipRuntimeGetVersion's form
constexpr const char* kDeviceName = "strata software device";

bool is_device(int device) { return device >= 0 && device < runtime().devices.load(std::memory_order_relaxed); }

hipError_t version_into(int* version) {
  if (version == nullptr) return hipErrorInvalidValue;
  *version = kVersion;
  return hipSuccess;
}

}  // namespace

extern "C" {

hipError_t hipGetDeviceCount(int* count) {
  STRATA_SW_ENTER(call, Fn::GetDeviceCount);
  if (count == nullptr) return call.finish(hipErrorInvalidValue);
  *count = runtime().devices.load(std::memory_order_relaxed);
  return call.finish(*count == 0 ? hipErrorNoDevice : hipSuccess);
}

hipError_t hipGetDevice(int* device) {
  STRATA_SW_ENTER(call, Fn::GetDevice);
  if (device == nullptr) return call.finish(hipErrorInvalidValue);
  *device = t_thread.device;
  return call.finish(hipSuccess);
}

hipError_t hipSetDevice(int device) {
  STRATA_SW_ENTER(call, Fn::SetDevice);
  if (!is_device(device)) return call.finish(hipErrorInvalidDevice);
  t_thread.device = device;
  return call.finish(hipSuccess);
}

hipError_t hipDeviceGetName(char* name, int len, int device) {
  STRATA_SW_ENTER(call, Fn::DeviceGetName);
  if (!is_device(device)) return call.finish(hipErrorInvalidDevice);
  if (name == nullptr || len <= 0) return call.finish(hipErrorInvalidValue);
  std::snprintf(name, static_cast<std::size_t>(len), "%s", kDeviceName);
  return call.finish(hipSuccess);
}

hipError_t hipDeviceGetAttribute(int* value, hipDeviceAttribute_t attribute, int device) {
  STRATA_SW_ENTER(call, Fn::DeviceGetAttribute);
  if (value == nullptr) return call.finish(hipErrorInvalidValue);
  if (!is_device(device)) return call.finish(hipErrorInvalidDevice);
  switch (attribute) {
    case hipDeviceAttributeIntegrated:
    case hipDeviceAttributePciBusId:
    case hipDeviceAttributePciDomainID:
      *value = 0;
      return call.finish(hipSuccess);
    case hipDeviceAttributePciDeviceId:
      *value = device;
      return call.finish(hipSuccess);
    case hipDeviceAttributeAsyncEngineCount:
    case hipDeviceAttributeUnifiedAddressing:
      *value = 1;
      return call.finish(hipSuccess);
    default:
      return call.finish(hipErrorInvalidValue);
  }
}

hipError_t hipDeviceSynchronize(void) {
  STRATA_SW_ENTER(call, Fn::DeviceSynchronize);
  const Captured captured = call.checked() ? checker_capture_device(t_thread.device) : nullptr;
  return call.finish(joined(synchronize_device(t_thread.device), captured));
}

hipError_t hipInit(unsigned int flags) {
  const Call call(Fn::Init);
  return call.answered() ? call.status() : call.finish(flags == 0 ? hipSuccess : hipErrorInvalidValue);
}

// HIP: deletes the device's streams and events and frees its memory. Its null stream and each thread's own
// stream stay, empty.
hipError_t hipDeviceReset(void) {
  STRATA_SW_ENTER(call, Fn::DeviceReset);
  const int device = t_thread.device;
  Runtime& rt = runtime();
  wait_device(device);
  for (std::uint32_t place = 0; place < rt.events.size(); ++place) {
    Event* event = rt.events.at(place);
    if (event->device == device && event->live() && rt.events.retire(event, rt.events.handle_of(event))) {
      rt.events.recycle(event);
    }
  }
  every_stream([&](Stream& stream) {
    if (stream.device != device) return;
    stream.failed_seq = 0;
    if (stream.live() && rt.streams.retire(&stream, rt.streams.handle_of(&stream))) end_stream(stream);
  });
  release_device(device);
  return call.finish(hipSuccess);
}

hipError_t hipGetDevicePropertiesR0600(hipDeviceProp_tR0600* properties, int device) {
  STRATA_SW_ENTER(call, Fn::GetDeviceProperties);
  if (properties == nullptr) return call.finish(hipErrorInvalidValue);
  if (!is_device(device)) return call.finish(hipErrorInvalidDevice);
  *properties = hipDeviceProp_tR0600{};
  std::snprintf(properties->name, sizeof properties->name, "%s", kDeviceName);
  std::snprintf(properties->gcnArchName, sizeof properties->gcnArchName, "%s", "software");
  properties->totalGlobalMem = configuration().device_memory;
  properties->pciDeviceID = device;
  properties->warpSize = 64;
  properties->multiProcessorCount = 1;
  properties->asyncEngineCount = 1;
  properties->deviceOverlap = 1;
  properties->unifiedAddressing = 1;
  properties->canMapHostMemory = 1;
  properties->canUseHostPointerForRegisteredMem = 1;
  properties->hostRegisterSupported = 1;
  return call.finish(hipSuccess);
}

hipError_t hipRuntimeGetVersion(int* version) {
  const Call call(Fn::RuntimeGetVersion);
  return call.answered() ? call.status() : call.finish(version_into(version));
}

hipError_t hipDriverGetVersion(int* version) {
  const Call call(Fn::DriverGetVersion);
  return call.answered() ? call.status() : call.finish(version_into(version));
}

hipError_t hipMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  STRATA_SW_ENTER(call, Fn::MemGetInfo);
  if (free_bytes == nullptr || total_bytes == nullptr) return call.finish(hipErrorInvalidValue);
  const std::uint64_t total = configuration().device_memory;
  const std::uint64_t used = device_bytes(t_thread.device);
  *total_bytes = total;
  *free_bytes = used < total ? total - used : 0;
  return call.finish(hipSuccess);
}

// HIP 7: a failure stays until it is read here; calls that succeed do not clear it.
hipError_t hipGetLastError(void) {
  STRATA_SW_ENTER(call, Fn::GetLastError);
  const hipError_t status = t_thread.last_error;
  t_thread.last_error = hipSuccess;
  return status;
}

hipError_t hipPeekAtLastError(void) {
  const Call call(Fn::PeekAtLastError);
  return call.answered() ? call.status() : t_thread.last_error;
}

}  // extern "C"
