// Streams and host functions.

#include "calls.hpp"
#include "checker.hpp"
#include "costs.hpp"
#include "demand.hpp"
#include "runtime.hpp"

using namespace strata::software;

namespace {

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

hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned int flags) {
  const Call call(Fn::StreamCreateWithFlags);
  if (call.answered()) return call.status();
  if (stream == nullptr || (flags != hipStreamDefault && flags != hipStreamNonBlocking)) {
    return call.finish(hipErrorInvalidValue);
  }
  *stream = nullptr;
  Runtime& rt = runtime();
  Stream* made = rt.streams.take();
  if (made == nullptr) return call.finish(hipErrorOutOfMemory);
  {
    std::lock_guard<std::mutex> lock(made->mutex);
    made->device = t_thread.device;
    made->blocking = flags == hipStreamDefault;
    made->destroyed = false;
    made->retiring = false;
    made->favoured = false;
    made->failed_seq = 0;
    made->fruitless = 0;
  }
  reset_stream_clock(*made);
  if (call.checked()) checker_stream_made(*made);
  *stream = static_cast<hipStream_t>(rt.streams.publish(made));
  return call.finish(hipSuccess);
}

// What is queued still runs to its end.
hipError_t hipStreamDestroy(hipStream_t stream) {
  const Call call(Fn::StreamDestroy, stream);
  if (call.answered()) return call.status();
  Runtime& rt = runtime();
  Stream* found = rt.streams.find(stream);
  if (found == nullptr || !rt.streams.retire(found, stream)) return call.finish(hipErrorInvalidHandle);
  end_stream(*found);
  return call.finish(hipSuccess);
}

hipError_t hipStreamSynchronize(hipStream_t stream) {
  const Call call(Fn::StreamSynchronize, stream);
  if (call.answered()) return call.status();
  Stream* found = find_stream(stream);
  if (found == nullptr) return call.finish(hipErrorInvalidHandle);
  const Captured captured = call.checked() ? checker_capture(*found) : nullptr;
  const hipError_t status = synchronize_stream(*found);
  if (call.checked() && status == hipSuccess) checker_join(captured);
  return call.finish(status);
}

hipError_t hipStreamQuery(hipStream_t stream) {
  const Call call(Fn::StreamQuery, stream);
  if (call.answered()) return call.status();
  Stream* found = find_stream(stream);
  if (found == nullptr) return call.finish(hipErrorInvalidHandle);
  const Captured captured = call.checked() ? checker_capture(*found) : nullptr;
  const std::uint64_t seq = found->tail.load(std::memory_order_acquire);
  if (!drained(*found)) {
    if (!mode_has(kModeDemand)) return call.finish(hipErrorNotReady);
    demand_query(*found, seq, &found->fruitless);
    if (!drained(*found)) return call.finish(hipErrorNotReady);
  }
  found->fruitless = 0;
  const hipError_t status = stream_status(*found, seq, false);
  if (call.checked() && status == hipSuccess) checker_join(captured);
  return call.finish(status);
}

hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned int flags) {
  const Call call(Fn::StreamWaitEvent, stream, event);
  if (call.answered()) return call.status();
  if (flags != 0) return call.finish(hipErrorInvalidValue);
  Stream* waiting = find_stream(stream);
  Event* awaited = find_event(event);
  if (waiting == nullptr || awaited == nullptr) return call.finish(hipErrorInvalidHandle);
  if (call.checked()) checker_wait(*waiting, *awaited);
  const Dependency dependency = awaited->latest();
  if (dependency.stream == nullptr) return call.finish(hipSuccess);  // never recorded: nothing to wait for
  const bool ordered_already = dependency.stream == waiting || dependency.satisfied();
  if (ordered_already && !mode_has(kModeCosts)) return call.finish(hipSuccess);
  Op op;
  op.kind = OpKind::Wait;
  if (dependency.stream != waiting) op.depend_on(dependency);
  std::uint64_t seq = 0;
  return call.finish(submit(*waiting, std::move(op), &seq));
}

hipError_t hipStreamGetDevice(hipStream_t stream, int* device) {
  const Call call(Fn::StreamGetDevice, stream);
  if (call.answered()) return call.status();
  if (device == nullptr) return call.finish(hipErrorInvalidValue);
  Stream* found = find_stream(stream);
  if (found == nullptr) return call.finish(hipErrorInvalidHandle);
  *device = found->device;
  return call.finish(hipSuccess);
}

hipError_t hipLaunchHostFunc(hipStream_t stream, hipHostFn_t fn, void* user_data) {
  const Call call(Fn::LaunchHostFunc, stream, nullptr, user_data);
  if (call.answered()) return call.status();
  if (fn == nullptr) return call.finish(hipErrorInvalidValue);
  Stream* found = find_stream(stream);
  if (found == nullptr) return call.finish(hipErrorInvalidHandle);
  Op op;
  op.kind = OpKind::HostFunction;
  op.function = fn;
  op.argument = user_data;
  if (call.checked()) checker_host_function(*found, stream, op);
  std::uint64_t seq = 0;
  return call.finish(submit(*found, std::move(op), &seq));
}

}  // extern "C"
