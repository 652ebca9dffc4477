// What the runtime knows about addresses: device memory, pinned memory, registered ranges.
#pragma once

#define STRATA_HIP_DECLARE_FUNCTIONS 1
#include <hip/hip_runtime.h>

#include <cstddef>
#include <cstdint>

namespace strata::software {

enum class MemoryKind : std::uint8_t { Pageable, Device, Pinned, Registered };

struct MemoryRange {
  MemoryKind kind = MemoryKind::Pageable;
  int device = 0;
  std::uintptr_t base = 0;  // for pageable memory, of the gap between known ranges
  std::uintptr_t end = 0;   // exclusive
  unsigned flags = 0;
  bool leaving = false;  // hipFreeAsync has it: given back when its stream comes to it

  bool on_device() const noexcept { return kind == MemoryKind::Device; }
  bool pinned() const noexcept { return kind == MemoryKind::Pinned || kind == MemoryKind::Registered; }
  // Whether [address, address + bytes) stays inside; pageable memory has no known end.
  bool holds(const void* address, std::size_t bytes) const noexcept {
    return kind == MemoryKind::Pageable || bytes <= end - reinterpret_cast<std::uintptr_t>(address);
  }
};

// Cheap: remembers a thread's last answers. Flags are not filled in.
MemoryRange find_range(const void* address);
// The whole truth, flags included.
MemoryRange describe_range(const void* address);

hipError_t allocate_device(int device, std::size_t bytes, void** address);
hipError_t allocate_pinned(int device, std::size_t bytes, unsigned flags, void** address);
// The exact base of an allocation of that kind, else hipErrorInvalidValue.
hipError_t release_memory(void* address, MemoryKind kind);
hipError_t register_range(int device, void* address, std::size_t bytes, unsigned flags);
hipError_t unregister_range(void* address);
// Device memory that an operation of a stream will release; false if one will already.
bool mark_leaving(void* address);
// Everything that belongs to a device, registered ranges included.
void release_device(int device);

struct MemoryUse {
  std::uint64_t device_allocations = 0, device_bytes = 0;
  std::uint64_t pinned_allocations = 0, pinned_bytes = 0;
  std::uint64_t registered_ranges = 0, registered_bytes = 0;
};
MemoryUse memory_use();
std::uint64_t device_bytes(int device);

}  // namespace strata::software
