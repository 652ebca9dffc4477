// Copies and fills.

#define STRATA_HIP_DECLARE_FUNCTIONS 1
#include <hip/hip_client.h>

#include <cstring>

#include "calls.hpp"
#include "checker.hpp"
#include "costs.hpp"
#include "memory.hpp"
#include "runtime.hpp"

using namespace strata::software;

namespace {

// Sources that were snapshotted and not copied yet; beyond this a copy waits for its stream instead.
constexpr std::uint64_t kSnapshotLimit = std::uint64_t{256} << 20;
std::atomic<std::uint64_t> g_snapshot_bytes{0};

// To pageable memory HIP copies through a buffer of its own, and returns when that is done; from
// pageable memory it has read the source when it returns.
struct Plan {
  Direction direction = Direction::HostToHost;
  bool pageable_source = false;
  bool pageable_target = false;
};

bool valid_kind(hipMemcpyKind kind) {
  return (kind >= hipMemcpyHostToHost && kind <= hipMemcpyDefault) || kind == hipMemcpyDeviceToDeviceNoCU;
}

// HIP: addresses are unified, and pinned memory is mapped for the devices, so it may stand where a device pointer
// is asked for. (A kind that lies otherwise is undefined in HIP, and refused here.)
bool kind_fits(hipMemcpyKind kind, const MemoryRange& to, const MemoryRange& from) {
  const auto host = [](const MemoryRange& range) { return !range.on_device(); };
  const auto device = [](const MemoryRange& range) { return range.kind != MemoryKind::Pageable; };
  switch (kind) {
    case hipMemcpyHostToHost:
      return host(to) && host(from);
    case hipMemcpyHostToDevice:
      return device(to) && host(from);
    case hipMemcpyDeviceToHost:
      return host(to) && device(from);
    case hipMemcpyDefault:
      return true;
    default:
      return device(to) && device(from);
  }
}

// What kind of copy this is, or why it cannot be one. `bytes` is not zero.
hipError_t plan_copy(const void* target, const void* source, std::size_t bytes, hipMemcpyKind kind, Plan* plan) {
  if (target == nullptr || source == nullptr) return hipErrorInvalidValue;
  const MemoryRange to = find_range(target);
  const MemoryRange from = find_range(source);
  if (!to.holds(target, bytes) || !from.holds(source, bytes)) return hipErrorInvalidValue;
  if (!kind_fits(kind, to, from)) return hipErrorInvalidValue;
  plan->direction = from.on_device() ? (to.on_device() ? Direction::DeviceToDevice : Direction::DeviceToHost)
                                     : (to.on_device() ? Direction::HostToDevice : Direction::HostToHost);
  plan->pageable_source = from.kind == MemoryKind::Pageable;
  plan->pageable_target = to.kind == MemoryKind::Pageable;
  return hipSuccess;
}

Op copy_op(void* target, const void* source, std::size_t bytes, const Plan& plan) {
  Op op;
  op.kind = OpKind::Copy;
  op.direction = plan.direction;
  op.target = target;
  op.source = source;
  op.bytes = bytes;
  return op;
}

// Reads the source now, for a copy that runs later.
bool snapshot(Op& op) {
  const std::uint64_t before = g_snapshot_bytes.fetch_add(op.bytes, std::memory_order_relaxed);
  if (before + op.bytes <= kSnapshotLimit) {
    void* memory = std::malloc(op.bytes);
    if (memory != nullptr) {
      std::memcpy(memory, op.source, op.bytes);
      op.snapshot = Snapshot(memory, FreeSnapshot{&g_snapshot_bytes, op.bytes});
      return true;
    }
  }
  g_snapshot_bytes.fetch_sub(op.bytes, std::memory_order_relaxed);
  return false;
}

// What hipMemcpyAsync does for pinned and device memory; pageable memory is copied before it returns, and so is
// host memory to host memory, whatever its kind (CUDA's "API synchronization behavior", which AMD's tests expect).
bool async_call_waits(const Plan& plan) { return plan.pageable_target || plan.direction == Direction::HostToHost; }

// A synchronous copy from device to device does not wait for the host: AMD's tests expect the call to return
// while the copy is pending.
bool sync_call_waits(const Plan& plan) { return plan.direction != Direction::DeviceToDevice; }

// `wait`: the copy is done before the call returns.
hipError_t submit_copy(const Call& call, Stream& stream, const void* handle, Op&& op, bool wait,
                       bool read_now = false) {
  if (call.checked()) checker_copy(stream, handle, op);
  if (wait) {
    const Captured captured = call.checked() ? checker_capture(stream) : nullptr;
    return joined(submit_and_wait(stream, std::move(op)), captured);
  }
  // `read_now`: the source is read before the call returns.
  if (!read_now || time_is_simulated()) {
    return submit(stream, std::move(op));
  }
  if (!drained(stream) || mode_has(kModeDemand)) {
    if (!snapshot(op)) return submit_and_wait(stream, std::move(op));
  }
  std::uint64_t seq = 0;
  return submit_or_run(stream, std::move(op), &seq);
}

// What the configuration lets hipMemcpyBatchAsync do.
bool batch_is_served(std::size_t num_attrs) {
  Runtime& rt = runtime();
  const Batch batch = rt.batch.load(std::memory_order_relaxed);
  if (batch == Batch::Unsupported || (batch == Batch::NoAttributes && num_attrs != 0)) return false;
  std::uint64_t left = rt.batch_calls_left.load(std::memory_order_relaxed);
  if (left == UINT64_MAX) return true;
  while (left != 0 && !rt.batch_calls_left.compare_exchange_weak(left, left - 1)) {
  }
  return left != 0;
}

bool are_devices(int first, int second) {
  const int devices = runtime().devices.load(std::memory_order_relaxed);
  return first >= 0 && first < devices && second >= 0 && second < devices;
}

hipError_t copy_sync(const Call& call, void* dst, const void* src, std::size_t bytes, hipMemcpyKind kind) {
  if (!valid_kind(kind)) return hipErrorInvalidMemcpyDirection;
  if (bytes == 0) return hipSuccess;
  Plan plan;
  const hipError_t status = plan_copy(dst, src, bytes, kind, &plan);
  if (status != hipSuccess) return status;
  return submit_copy(call, *find_stream(nullptr), nullptr, copy_op(dst, src, bytes, plan), sync_call_waits(plan));
}

hipError_t copy_async(const Call& call, void* dst, const void* src, std::size_t bytes, hipMemcpyKind kind,
                      hipStream_t stream, bool waits = false) {
  if (!valid_kind(kind)) return hipErrorInvalidMemcpyDirection;
  Stream* target = find_stream(stream);
  if (target == nullptr) return no_stream(stream);
  if (bytes == 0) return hipSuccess;
  Plan plan;
  const hipError_t status = plan_copy(dst, src, bytes, kind, &plan);
  if (status != hipSuccess) return status;
  return submit_copy(call, *target, stream, copy_op(dst, src, bytes, plan), waits || async_call_waits(plan),
                     plan.pageable_source);
}

hipError_t fill(const Call& call, void* dst, int value, std::size_t bytes, hipStream_t stream, bool sync) {
  Stream* target = find_stream(stream);
  if (target == nullptr) return no_stream(stream);
  if (bytes == 0) return hipSuccess;
  if (dst == nullptr) return hipErrorInvalidValue;
  const MemoryRange range = find_range(dst);
  if (range.kind == MemoryKind::Pageable || !range.holds(dst, bytes)) return hipErrorInvalidValue;
  Op op;
  op.kind = OpKind::Memset;
  op.target = dst;
  op.value = static_cast<unsigned char>(value);
  op.bytes = bytes;
  if (call.checked()) checker_memset(*target, stream, op);
  // AMD's tests: hipMemset is asynchronous with respect to the host, except where it fills pinned host memory.
  if (sync && range.pinned()) {
    const Captured captured = call.checked() ? checker_capture(*target) : nullptr;
    return joined(submit_and_wait(*target, std::move(op)), captured);
  }
  return submit(*target, std::move(op));
}

}  // namespace

extern "C" {

hipError_t hipMemcpy(void* dst, const void* src, size_t bytes, hipMemcpyKind kind) {
  const Call call(Fn::Memcpy, nullptr, nullptr, dst, bytes);
  return call.answered() ? call.status() : call.finish(copy_sync(call, dst, src, bytes, kind));
}

// Copies whose names say which way they go.
#define STRATA_SW_COPY(way, Source, kind)                                                                \
  hipError_t hipMemcpy##way(void* dst, Source src, size_t bytes) {                                       \
    STRATA_SW_ENTER(call, Fn::Memcpy##way, nullptr, nullptr, dst, bytes);                                \
    return call.finish(copy_sync(call, dst, src, bytes, kind));                                          \
  }                                                                                                      \
  hipError_t hipMemcpy##way##Async(void* dst, Source src, size_t bytes, hipStream_t stream) {            \
    STRATA_SW_ENTER(call, Fn::Memcpy##way##Async, stream, nullptr, dst, bytes);                          \
    return call.finish(copy_async(call, dst, src, bytes, kind, stream));                                 \
  }

STRATA_SW_COPY(HtoD, const void*, hipMemcpyHostToDevice)
STRATA_SW_COPY(DtoH, void*, hipMemcpyDeviceToHost)
STRATA_SW_COPY(DtoD, void*, hipMemcpyDeviceToDevice)
#undef STRATA_SW_COPY

// AMD: a copy of the current device's null stream, as hipMemcpy's.
hipError_t hipMemcpyPeer(void* dst, int dst_device, const void* src, int src_device, size_t bytes) {
  STRATA_SW_ENTER(call, Fn::MemcpyPeer, nullptr, nullptr, dst, bytes);
  if (!are_devices(dst_device, src_device)) return call.finish(hipErrorInvalidDevice);
  return call.finish(copy_sync(call, dst, src, bytes, hipMemcpyDeviceToDevice));
}

hipError_t hipMemcpyAsync(void* dst, const void* src, size_t bytes, hipMemcpyKind kind, hipStream_t stream) {
  const Call call(Fn::MemcpyAsync, stream, nullptr, dst, bytes);
  return call.answered() ? call.status() : call.finish(copy_async(call, dst, src, bytes, kind, stream));
}

hipError_t hipMemcpyPeerAsync(void* dst, int dst_device, const void* src, int src_device, size_t bytes,
                              hipStream_t stream) {
  STRATA_SW_ENTER(call, Fn::MemcpyPeerAsync, stream, nullptr, dst, bytes);
  if (!are_devices(dst_device, src_device)) return call.finish(hipErrorInvalidDevice);
  return call.finish(copy_async(call, dst, src, bytes, hipMemcpyDeviceToDevice, stream));
}

// HIP: hipMemcpyAsync and hipStreamSynchronize in one.
hipError_t hipMemcpyWithStream(void* dst, const void* src, size_t bytes, hipMemcpyKind kind, hipStream_t stream) {
  const Call call(Fn::MemcpyWithStream, stream, nullptr, dst, bytes);
  return call.answered() ? call.status() : call.finish(copy_async(call, dst, src, bytes, kind, stream, true));
}

// The single copies, in order. Nothing is submitted unless every one of them is sound.
hipError_t hipMemcpyBatchAsync(void** dsts, void** srcs, size_t* sizes, size_t count, hipMemcpyAttributes* attrs,
                               size_t* attrs_idxs, size_t num_attrs, size_t* fail_idx, hipStream_t stream) {
  STRATA_SW_ENTER(call, Fn::MemcpyBatchAsync, stream, nullptr, dsts != nullptr && count != 0 ? dsts[0] : nullptr,
                  count);
  if (!batch_is_served(num_attrs)) return call.finish(hipErrorNotSupported);
  if (fail_idx != nullptr) *fail_idx = SIZE_MAX;
  if (dsts == nullptr || srcs == nullptr || sizes == nullptr || count == 0 || num_attrs > count ||
      (num_attrs != 0 && (attrs == nullptr || attrs_idxs == nullptr || attrs_idxs[0] != 0))) {
    return call.finish(hipErrorInvalidValue);
  }
  for (std::size_t i = 0; i < num_attrs; ++i) {
    const bool known = attrs[i].srcAccessOrder >= hipMemcpySrcAccessOrderStream &&
                       attrs[i].srcAccessOrder <= hipMemcpySrcAccessOrderAny;
    if (!known || (i != 0 && (attrs_idxs[i] <= attrs_idxs[i - 1] || attrs_idxs[i] >= count))) {
      return call.finish(hipErrorInvalidValue);
    }
  }
  Stream* target = find_stream(stream);
  if (target == nullptr) return call.finish(no_stream(stream));
  std::vector<Plan> plans(count);
  for (std::size_t i = 0; i < count; ++i) {
    // AMD's tests: unlike a single copy, one of a batch may not be empty.
    const hipError_t status = sizes[i] == 0
                                  ? hipErrorInvalidValue
                                  : plan_copy(dsts[i], srcs[i], sizes[i], hipMemcpyDefault, &plans[i]);
    if (status != hipSuccess) {
      if (fail_idx != nullptr) *fail_idx = i;
      return call.finish(status);
    }
  }
  const bool reads_early = runtime().batch_reads.load(std::memory_order_relaxed) == BatchReads::DuringTheCall;
  std::size_t attribute = 0;
  for (std::size_t i = 0; i < count; ++i) {
    while (attribute + 1 < num_attrs && attrs_idxs[attribute + 1] <= i) ++attribute;
    const bool read_now = num_attrs == 0
                              ? plans[i].pageable_source || reads_early
                              : attrs[attribute].srcAccessOrder == hipMemcpySrcAccessOrderDuringApiCall;
    const hipError_t status =
        submit_copy(call, *target, stream, copy_op(dsts[i], srcs[i], sizes[i], plans[i]),
                    async_call_waits(plans[i]), read_now);
    if (status != hipSuccess) {
      if (fail_idx != nullptr) *fail_idx = i;
      return call.finish(status);
    }
  }
  return call.finish(hipSuccess);
}

hipError_t hipMemset(void* dst, int value, size_t bytes) {
  const Call call(Fn::Memset, nullptr, nullptr, dst, bytes);
  return call.answered() ? call.status() : call.finish(fill(call, dst, value, bytes, nullptr, true));
}

hipError_t hipMemsetAsync(void* dst, int value, size_t bytes, hipStream_t stream) {
  const Call call(Fn::MemsetAsync, stream, nullptr, dst, bytes);
  return call.answered() ? call.status() : call.finish(fill(call, dst, value, bytes, stream, false));
}

}  // extern "C"
