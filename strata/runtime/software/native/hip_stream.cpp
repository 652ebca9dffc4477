// Streams and host functions.

#define STRATA_HIP_DECLARE_FUNCTIONS 1
#include <hip/hip_client.h>

#include <algorithm>

#include "calls.hpp"
#include "checker.hpp"
#include "costs.hpp"
#include "demand.hpp"
#include "runtime.hpp"

using namespace strata::software;

namespace {

constexpr int kLeastPriority = 1;  // AMD's range
constexpr int kGreatestPriority = -1;

hipError_t create_stream(hipStream_t* stream, unsigned flags, int priority) {
  if (stream == nullptr || (flags != hipStreamDefault && flags != hipStreamNonBlocking)) return hipErrorInvalidValue;
  *stream = nullptr;
  Stream* made = make_stream(t_thread.device, flags == hipStreamDefault, priority);
  if (made == nullptr) return hipErrorOutOfMemory;
  *stream = static_cast<hipStream_t>(runtime().streams.publish(made));
  return hipSuccess;
}

// HIP: whether all operations *in* the stream have completed. What the null stream holds is none of an idle
// stream's; the null stream itself stands for the blocking ones.
bool finished(Stream& stream) { return stream.null_stream ? drained(stream) : stream.idle(); }

// Also ends what the null stream's rules make it wait for.
hipError_t synchronize_stream(Stream& stream) {
  if (stream.null_stream) {
    Op marker;
    return submit_and_wait(stream, std::move(marker));
  }
  const std::uint64_t seq = stream.tail.load(std::memory_order_acquire);
  wait_done(stream, seq);
  return stream_status(stream, seq, true);
}

}  // namespace

extern "C" {

hipError_t hipStreamCreate(hipStream_t* stream) {
  const Call call(Fn::StreamCreate);
  return call.answered() ? call.status() : call.finish(create_stream(stream, hipStreamDefault, 0));
}

hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned int flags) {
  const Call call(Fn::StreamCreateWithFlags);
  return call.answered() ? call.status() : call.finish(create_stream(stream, flags, 0));
}

// HIP: a priority beyond the range is clamped to it.
hipError_t hipStreamCreateWithPriority(hipStream_t* stream, unsigned int flags, int priority) {
  STRATA_SW_ENTER(call, Fn::StreamCreateWithPriority);
  return call.finish(create_stream(stream, flags, std::clamp(priority, kGreatestPriority, kLeastPriority)));
}

hipError_t hipDeviceGetStreamPriorityRange(int* least, int* greatest) {
  STRATA_SW_ENTER(call, Fn::DeviceGetStreamPriorityRange);
  if (least != nullptr) *least = kLeastPriority;
  if (greatest != nullptr) *greatest = kGreatestPriority;
  return call.finish(hipSuccess);
}

hipError_t hipStreamGetFlags(hipStream_t stream, unsigned int* flags) {
  STRATA_SW_ENTER(call, Fn::StreamGetFlags, stream);
  if (flags == nullptr) return call.finish(hipErrorInvalidValue);
  const Stream* found = find_stream(stream);
  if (found == nullptr) return call.finish(no_stream(stream));
  *flags = found->null_stream || found->blocking ? hipStreamDefault : hipStreamNonBlocking;
  return call.finish(hipSuccess);
}

hipError_t hipStreamGetPriority(hipStream_t stream, int* priority) {
  STRATA_SW_ENTER(call, Fn::StreamGetPriority, stream);
  if (priority == nullptr) return call.finish(hipErrorInvalidValue);
  const Stream* found = find_stream(stream);
  if (found == nullptr) return call.finish(no_stream(stream));
  *priority = found->priority;
  return call.finish(hipSuccess);
}

// What is queued still runs to its end.
hipError_t hipStreamDestroy(hipStream_t stream) {
  STRATA_SW_ENTER(call, Fn::StreamDestroy, stream);
  Runtime& rt = runtime();
  Stream* found = rt.streams.find(stream);
  if (found == nullptr || !rt.streams.retire(found, stream)) return call.finish(no_stream(stream));
  end_stream(*found);
  return call.finish(hipSuccess);
}

hipError_t hipStreamSynchronize(hipStream_t stream) {
  STRATA_SW_ENTER(call, Fn::StreamSynchronize, stream);
  Stream* found = find_stream(stream);
  if (found == nullptr) return call.finish(no_stream(stream));
  const Captured captured = call.checked() ? checker_capture(*found) : nullptr;
  return call.finish(joined(synchronize_stream(*found), captured));
}

hipError_t hipStreamQuery(hipStream_t stream) {
  STRATA_SW_ENTER(call, Fn::StreamQuery, stream);
  Stream* found = find_stream(stream);
  if (found == nullptr) return call.finish(no_stream(stream));
  const Captured captured = call.checked() ? checker_capture(*found) : nullptr;
  const std::uint64_t seq = found->tail.load(std::memory_order_acquire);
  if (!finished(*found)) {
    if (!mode_has(kModeDemand)) return call.finish(hipErrorNotReady);
    demand_query(*found, seq, &found->fruitless);
    if (!finished(*found)) return call.finish(hipErrorNotReady);
  }
  found->fruitless = 0;
  return call.finish(joined(stream_status(*found, seq, false), captured));
}

hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned int flags) {
  STRATA_SW_ENTER(call, Fn::StreamWaitEvent, stream, event);
  if (flags != 0) return call.finish(hipErrorInvalidValue);
  Stream* waiting = find_stream(stream);
  Event* awaited = find_event(event);
  if (waiting == nullptr) return call.finish(no_stream(stream));
  if (awaited == nullptr) return call.finish(no_event(event));
  if (call.checked()) checker_wait(*waiting, *awaited);
  const Dependency dependency = awaited->latest();
  if (dependency.stream == nullptr) return call.finish(hipSuccess);  // never recorded: nothing to wait for
  const bool ordered_already = dependency.stream == waiting || dependency.satisfied();
  if (ordered_already && !mode_has(kModeCosts)) return call.finish(hipSuccess);
  Op op;
  op.kind = OpKind::Wait;
  if (dependency.stream != waiting) op.depend_on(dependency);
  return call.finish(submit(*waiting, std::move(op)));
}

hipError_t hipStreamGetDevice(hipStream_t stream, int* device) {
  STRATA_SW_ENTER(call, Fn::StreamGetDevice, stream);
  if (device == nullptr) return call.finish(hipErrorInvalidValue);
  Stream* found = find_stream(stream);
  if (found == nullptr) return call.finish(no_stream(stream));
  *device = found->device;
  return call.finish(hipSuccess);
}

hipError_t hipLaunchHostFunc(hipStream_t stream, hipHostFn_t fn, void* user_data) {
  STRATA_SW_ENTER(call, Fn::LaunchHostFunc, stream, nullptr, user_data);
  if (fn == nullptr) return call.finish(hipErrorInvalidValue);
  Stream* found = find_stream(stream);
  if (found == nullptr) return call.finish(no_stream(stream));
  Op op;
  op.kind = OpKind::HostFunction;
  op.function = fn;
  op.argument = user_data;
  if (call.checked()) checker_host_function(*found, stream, op);
  return call.finish(submit(*found, std::move(op)));
}

}  // extern "C"
