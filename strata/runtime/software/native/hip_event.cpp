// Events.

#define STRATA_HIP_DECLARE_FUNCTIONS 1
#include <hip/hip_client.h>

#include "calls.hpp"
#include "checker.hpp"
#include "demand.hpp"
#include "runtime.hpp"

using namespace strata::software;

namespace {

// blocking sync, disable timing, interprocess; HIP's own fence flags
constexpr unsigned kEventFlags = 0xe0000007;
constexpr unsigned kEventInterprocess = 0x4;
constexpr unsigned kEventFences = 0xe0000000;  // no system fence; release to the device; to the system

// HIP: interprocess events must not be timed. AMD's runtime takes one of the fence flags at most.
bool flags_agree(unsigned flags) {
  const unsigned fences = flags & kEventFences;
  if ((fences & (fences - 1)) != 0) return false;
  return (flags & kEventInterprocess) == 0 || (flags & hipEventDisableTiming) != 0;
}

hipError_t create_event(const Call& call, hipEvent_t* event, unsigned flags) {
  if (event == nullptr || (flags & ~kEventFlags) != 0 || !flags_agree(flags)) return hipErrorInvalidValue;
  *event = nullptr;
  Runtime& rt = runtime();
  Event* made = rt.events.take();
  if (made == nullptr) return hipErrorOutOfMemory;
  {
    std::lock_guard<std::mutex> lock(made->mutex);
    made->device = t_thread.device;
    made->flags = flags;
    made->stream = nullptr;
    made->seq = 0;
    made->fruitless = 0;
  }
  if (call.checked()) checker_event_made(*made);
  *event = static_cast<hipEvent_t>(rt.events.publish(made));
  return hipSuccess;
}

}  // namespace

extern "C" {

hipError_t hipEventCreate(hipEvent_t* event) {
  const Call call(Fn::EventCreate);
  return call.answered() ? call.status() : call.finish(create_event(call, event, hipEventDefault));
}

hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned int flags) {
  const Call call(Fn::EventCreateWithFlags);
  return call.answered() ? call.status() : call.finish(create_event(call, event, flags));
}

// Waits that captured a record keep it: they know the operation, not the event.
hipError_t hipEventDestroy(hipEvent_t event) {
  STRATA_SW_ENTER(call, Fn::EventDestroy, nullptr, event);
  Runtime& rt = runtime();
  Event* found = rt.events.find(event);
  if (found == nullptr || !rt.events.retire(found, event)) return call.finish(no_event(event));
  rt.events.recycle(found);
  return call.finish(hipSuccess);
}

hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream) {
  STRATA_SW_ENTER(call, Fn::EventRecord, stream, event);
  Event* recorded = find_event(event);
  Stream* recording = find_stream(stream);
  if (recorded == nullptr) return call.finish(no_event(event));
  if (recording == nullptr) return call.finish(no_stream(stream));
  if (recorded->device != recording->device) return call.finish(hipErrorInvalidHandle);
  make_room(*recording);  // before the event's lock: a full stream must not keep others from asking for the event
  Op op;
  op.kind = OpKind::Record;
  std::lock_guard<std::mutex> lock(recorded->mutex);
  if ((recorded->flags & hipEventDisableTiming) == 0) {
    std::lock_guard<std::mutex> time_lock(recorded->time_mutex);
    op.event = recorded;
    op.record = ++recorded->record;
  }
  if (call.checked()) checker_record(*recording, *recorded, event);
  std::uint64_t seq = 0;
  const hipError_t status = submit_at_once(*recording, std::move(op), &seq);
  if (status == hipSuccess) {
    recorded->stream = recording;
    recorded->seq = seq;
  }
  return call.finish(status);
}

hipError_t hipEventQuery(hipEvent_t event) {
  STRATA_SW_ENTER(call, Fn::EventQuery, nullptr, event);
  Event* found = find_event(event);
  if (found == nullptr) return call.finish(no_event(event));
  const Captured captured = call.checked() ? checker_capture(*found) : nullptr;
  const Dependency latest = found->latest();
  if (latest.stream == nullptr) return call.finish(hipSuccess);
  if (!latest.satisfied()) {
    if (!mode_has(kModeDemand)) return call.finish(hipErrorNotReady);
    demand_query(*latest.stream, latest.seq, &found->fruitless);
    if (!latest.satisfied()) return call.finish(hipErrorNotReady);
  }
  found->fruitless = 0;
  return call.finish(joined(stream_status(*latest.stream, latest.seq, false), captured));
}

hipError_t hipEventSynchronize(hipEvent_t event) {
  STRATA_SW_ENTER(call, Fn::EventSynchronize, nullptr, event);
  Event* found = find_event(event);
  if (found == nullptr) return call.finish(no_event(event));
  const Captured captured = call.checked() ? checker_capture(*found) : nullptr;
  const Dependency latest = found->latest();
  if (latest.stream == nullptr) return call.finish(hipSuccess);
  wait_done(*latest.stream, latest.seq);
  return call.finish(joined(stream_status(*latest.stream, latest.seq, false), captured));
}

hipError_t hipEventElapsedTime(float* ms, hipEvent_t start, hipEvent_t stop) {
  STRATA_SW_ENTER(call, Fn::EventElapsedTime, nullptr, start);
  if (ms == nullptr) return call.finish(hipErrorInvalidValue);
  // What can never be answered comes before what cannot be answered yet: handles, flags, devices, then records.
  Event* events[2] = {find_event(start), find_event(stop)};
  if (events[0] == nullptr) return call.finish(no_event(start));
  if (events[1] == nullptr) return call.finish(no_event(stop));
  for (const Event* event : events) {
    if ((event->flags & hipEventDisableTiming) != 0) return call.finish(hipErrorInvalidHandle);
  }
  if (events[0]->device != events[1]->device) return call.finish(hipErrorInvalidHandle);
  const Dependency latest[2] = {events[0]->latest(), events[1]->latest()};
  if ((latest[0].stream == nullptr || latest[1].stream == nullptr) && !mode_has(kModeNull)) {
    return call.finish(hipErrorInvalidHandle);  // null mode records nothing
  }
  std::int64_t times[2] = {};
  for (int i = 0; i < 2; ++i) {
    if (latest[i].stream == nullptr) continue;
    if (!latest[i].satisfied()) return call.finish(hipErrorNotReady);
    std::lock_guard<std::mutex> lock(events[i]->time_mutex);
    times[i] = events[i]->time_ns;
  }
  *ms = static_cast<float>(static_cast<double>(times[1] - times[0]) / 1e6);
  return call.finish(hipSuccess);
}

}  // extern "C"
