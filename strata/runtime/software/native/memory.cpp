#include "memory.hpp"

#include <algorithm>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "platform.hpp"
#include "runtime.hpp"
#include "thread_state.hpp"

namespace strata::software {

namespace {

constexpr std::size_t kPageAllocation = 64 << 10;  // from here on, straight from the kernel
constexpr std::size_t kAlignment = 256;

struct Entry {
  std::size_t bytes;
  MemoryKind kind;
  int device;
  unsigned flags;
  bool leaving = false;
};

struct Registry {
  mutable std::shared_mutex mutex;
  std::map<std::uintptr_t, Entry> ranges;
  std::atomic<std::uint64_t> epoch{1};  // changes with every change of `ranges`
  MemoryUse use;
  std::uint64_t device_bytes[kMaxDevices] = {};
};

Registry& registry() {
  static Registry* const kept = new Registry;
  return *kept;
}

void* obtain(std::size_t bytes) {
  if (bytes > SIZE_MAX - kAlignment) return nullptr;
  return bytes >= kPageAllocation ? allocate_pages(bytes) : allocate_aligned(kAlignment, bytes);
}

void give_up(void* address, std::size_t bytes) {
  if (bytes >= kPageAllocation) {
    free_pages(address, bytes);
  } else {
    free_aligned(address);
  }
}

// Under the registry's lock, shared or not.
MemoryRange look_up(const Registry& kept, const void* address) {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  MemoryRange found;
  const auto next = kept.ranges.upper_bound(at);
  found.end = next == kept.ranges.end() ? UINTPTR_MAX : next->first;
  if (next != kept.ranges.begin()) {
    const auto& [base, entry] = *std::prev(next);
    if (at - base < entry.bytes) {
      return {entry.kind, entry.device, base, base + entry.bytes, entry.flags, entry.leaving};
    }
    found.base = base + entry.bytes;
  }
  return found;
}

void changed(Registry& kept) { kept.epoch.fetch_add(1, std::memory_order_release); }

void account(Registry& kept, const Entry& entry, bool added) {
  const std::uint64_t bytes = added ? entry.bytes : std::uint64_t{0} - entry.bytes;
  const std::uint64_t one = added ? 1 : UINT64_MAX;
  switch (entry.kind) {
    case MemoryKind::Device:
      kept.use.device_allocations += one;
      kept.use.device_bytes += bytes;
      kept.device_bytes[entry.device] += bytes;
      break;
    case MemoryKind::Pinned:
      kept.use.pinned_allocations += one;
      kept.use.pinned_bytes += bytes;
      break;
    case MemoryKind::Registered:
      kept.use.registered_ranges += one;
      kept.use.registered_bytes += bytes;
      break;
    case MemoryKind::Pageable:
      break;
  }
}

hipError_t allocate(const Entry& entry, std::uint64_t limit, std::uint64_t used, void** address) {
  Registry& kept = registry();  // its lock is held
  if (entry.bytes > limit || used > limit - entry.bytes) return hipErrorOutOfMemory;
  void* memory = obtain(entry.bytes);
  if (memory == nullptr) return hipErrorOutOfMemory;
  kept.ranges.emplace(reinterpret_cast<std::uintptr_t>(memory), entry);
  account(kept, entry, true);
  changed(kept);
  *address = memory;
  return hipSuccess;
}

}  // namespace

MemoryRange find_range(const void* address) {
  Registry& kept = registry();
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  ThreadState& thread = t_thread;
  const std::uint64_t epoch = kept.epoch.load(std::memory_order_acquire);
  for (const RangeHint& hint : thread.hints) {
    if (hint.epoch == epoch && at >= hint.begin && at < hint.end) {
      return {static_cast<MemoryKind>(hint.kind), hint.device, hint.begin, hint.end, 0, false};
    }
  }
  std::shared_lock<std::shared_mutex> lock(kept.mutex);
  const MemoryRange found = look_up(kept, address);
  RangeHint& hint = thread.hints[thread.next_hint];
  thread.next_hint ^= 1u;
  hint.epoch = kept.epoch.load(std::memory_order_acquire);
  hint.begin = found.base;
  hint.end = found.end;
  hint.kind = static_cast<std::uint8_t>(found.kind);
  hint.device = static_cast<std::int8_t>(found.device);
  return found;
}

MemoryRange describe_range(const void* address) {
  const Registry& kept = registry();
  std::shared_lock<std::shared_mutex> lock(kept.mutex);
  return look_up(kept, address);
}

hipError_t allocate_device(int device, std::size_t bytes, void** address) {
  const std::uint64_t limit = configuration().device_memory;
  Registry& kept = registry();
  std::unique_lock<std::shared_mutex> lock(kept.mutex);
  return allocate({bytes, MemoryKind::Device, device, 0}, limit, kept.device_bytes[device], address);
}

hipError_t allocate_pinned(int device, std::size_t bytes, unsigned flags, void** address) {
  const std::uint64_t limit = configuration().pinned_limit;
  Registry& kept = registry();
  std::unique_lock<std::shared_mutex> lock(kept.mutex);
  return allocate({bytes, MemoryKind::Pinned, device, flags}, limit,
                  kept.use.pinned_bytes + kept.use.registered_bytes, address);
}

hipError_t release_memory(void* address, MemoryKind kind) {
  Registry& kept = registry();
  std::size_t bytes = 0;
  {
    std::unique_lock<std::shared_mutex> lock(kept.mutex);
    const auto found = kept.ranges.find(reinterpret_cast<std::uintptr_t>(address));
    if (found == kept.ranges.end() || found->second.kind != kind) return hipErrorInvalidValue;
    bytes = found->second.bytes;
    account(kept, found->second, false);
    kept.ranges.erase(found);
    changed(kept);
  }
  give_up(address, bytes);
  return hipSuccess;
}

bool mark_leaving(void* address) {
  Registry& kept = registry();
  std::unique_lock<std::shared_mutex> lock(kept.mutex);
  const auto found = kept.ranges.find(reinterpret_cast<std::uintptr_t>(address));
  if (found == kept.ranges.end() || found->second.kind != MemoryKind::Device || found->second.leaving) return false;
  found->second.leaving = true;
  return true;
}

void release_device(int device) {
  Registry& kept = registry();
  std::vector<std::pair<std::uintptr_t, Entry>> released;
  {
    std::unique_lock<std::shared_mutex> lock(kept.mutex);
    for (auto range = kept.ranges.begin(); range != kept.ranges.end();) {
      if (range->second.device != device) {
        ++range;
        continue;
      }
      account(kept, range->second, false);
      released.push_back(*range);
      range = kept.ranges.erase(range);
    }
    changed(kept);
  }
  for (const auto& [base, entry] : released) {
    if (entry.kind != MemoryKind::Registered) give_up(reinterpret_cast<void*>(base), entry.bytes);
  }
}

hipError_t register_range(int device, void* address, std::size_t bytes, unsigned flags) {
  const auto base = reinterpret_cast<std::uintptr_t>(address);
  if (bytes > UINTPTR_MAX - base || !pages_exist(address, bytes)) return hipErrorInvalidValue;
  const std::uint64_t limit = configuration().pinned_limit;
  Registry& kept = registry();
  std::unique_lock<std::shared_mutex> lock(kept.mutex);
  const MemoryRange around = look_up(kept, address);
  if (around.kind == MemoryKind::Device) return hipErrorInvalidValue;
  // AMD's runtime takes such a range again, and forgets it at the first unregistration.
  if (around.kind == MemoryKind::Registered && bytes <= around.end - base &&
      runtime().registration.load(std::memory_order_relaxed) == Registration::Accepts) {
    return hipSuccess;
  }
  if (around.kind != MemoryKind::Pageable || bytes > around.end - base) {
    return hipErrorHostMemoryAlreadyRegistered;
  }
  const std::uint64_t used = kept.use.pinned_bytes + kept.use.registered_bytes;
  if (bytes > limit || used > limit - bytes) return hipErrorOutOfMemory;
  const Entry entry{bytes, MemoryKind::Registered, device, flags};
  kept.ranges.emplace(base, entry);
  account(kept, entry, true);
  changed(kept);
  return hipSuccess;
}

hipError_t unregister_range(void* address) {
  Registry& kept = registry();
  std::unique_lock<std::shared_mutex> lock(kept.mutex);
  const auto found = kept.ranges.find(reinterpret_cast<std::uintptr_t>(address));
  if (found == kept.ranges.end() || found->second.kind != MemoryKind::Registered) {
    return hipErrorHostMemoryNotRegistered;
  }
  account(kept, found->second, false);
  kept.ranges.erase(found);
  changed(kept);
  return hipSuccess;
}

MemoryUse memory_use() {
  const Registry& kept = registry();
  std::shared_lock<std::shared_mutex> lock(kept.mutex);
  return kept.use;
}

std::uint64_t device_bytes(int device) {
  const Registry& kept = registry();
  std::shared_lock<std::shared_mutex> lock(kept.mutex);
  return kept.device_bytes[device];
}

}  // namespace strata::software
