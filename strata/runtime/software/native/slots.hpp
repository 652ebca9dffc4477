// Tables of objects that are handed out as handles.
//
// A handle is no address: it is a tag, the object's place in its table and the generation of that
// place. So any number is validated without being dereferenced and without a lock, a handle of
// another library is refused, and a destroyed one stays refused when its place is used again.
// Objects are never freed, only reused: whoever still holds a pointer reads valid memory.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

namespace strata::software {

struct Slot {
  std::atomic<std::uint32_t> generation{0};  // odd: a live handle exists
  std::uint32_t place = 0;

  bool live() const noexcept { return (generation.load(std::memory_order_acquire) & 1u) != 0; }
};

template <class T, std::uint16_t Tag>
class SlotTable {
 public:
  // A reusable or new object, not yet live; nullptr when the table is full.
  T* take() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!free_.empty()) {
      T* object = free_.back();
      free_.pop_back();
      return object;
    }
    const std::uint32_t place = size_.load(std::memory_order_relaxed);
    if (place == kChunks * kChunk) return nullptr;
    std::atomic<Chunk*>& chunk = chunks_[place / kChunk];
    if (chunk.load(std::memory_order_relaxed) == nullptr) chunk.store(new Chunk, std::memory_order_release);
    T* object = &(*chunk.load(std::memory_order_relaxed))[place % kChunk];
    object->place = place;
    size_.store(place + 1, std::memory_order_release);
    return object;
  }

  // Makes the object's handle valid; returns it.
  void* publish(T* object) noexcept {
    const std::uint32_t generation = object->generation.fetch_add(1, std::memory_order_acq_rel) + 1;
    live_.fetch_add(1, std::memory_order_relaxed);
    return encode(object->place, generation);
  }

  // Makes the handle invalid. False if another thread was faster.
  bool retire(T* object, void* handle) noexcept {
    std::uint32_t expected = object->generation.load(std::memory_order_acquire);
    if (encode(object->place, expected) != handle) return false;
    if (!object->generation.compare_exchange_strong(expected, expected + 1)) return false;
    live_.fetch_sub(1, std::memory_order_relaxed);
    return true;
  }

  // Gives the place back for reuse.
  void recycle(T* object) {
    std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(object);
  }

  // The live object of this handle, else nullptr.
  T* find(const void* handle) const noexcept {
    const auto word = reinterpret_cast<std::uintptr_t>(handle);
    if ((static_cast<std::uint64_t>(word) >> 48) != Tag) return nullptr;
    const auto place = static_cast<std::uint32_t>(word & 0xffffffu);
    if (place >= size_.load(std::memory_order_acquire)) return nullptr;
    T* object = at(place);
    const std::uint32_t generation = object->generation.load(std::memory_order_acquire);
    return (generation & 1u) != 0 && encode(place, generation) == handle ? object : nullptr;
  }

  // Whether the number was a handle of this table, live or not.
  bool made(const void* handle) const noexcept {
    const auto word = reinterpret_cast<std::uintptr_t>(handle);
    const auto place = static_cast<std::uint32_t>(word & 0xffffffu);
    const auto generation = static_cast<std::uint32_t>(static_cast<std::uint64_t>(word) >> 24) & 0xffffffu;
    return (static_cast<std::uint64_t>(word) >> 48) == Tag && place < size() && (generation & 1u) != 0 &&
           generation <= at(place)->generation.load(std::memory_order_acquire);
  }

  void* handle_of(const T* object) const noexcept {
    return encode(object->place, object->generation.load(std::memory_order_acquire));
  }

  T* at(std::uint32_t place) const noexcept {
    return &(*chunks_[place / kChunk].load(std::memory_order_acquire))[place % kChunk];
  }

  std::uint32_t size() const noexcept { return size_.load(std::memory_order_acquire); }
  std::uint32_t live() const noexcept { return live_.load(std::memory_order_relaxed); }

 private:
  static constexpr std::uint32_t kChunk = 128;
  static constexpr std::uint32_t kChunks = 8192;
  using Chunk = std::array<T, kChunk>;

  static void* encode(std::uint32_t place, std::uint32_t generation) noexcept {
    const std::uint64_t word = (std::uint64_t{Tag} << 48) |
                               (static_cast<std::uint64_t>(generation & 0xffffffu) << 24) | place;
    return reinterpret_cast<void*>(static_cast<std::uintptr_t>(word));
  }

  std::mutex mutex_;
  std::vector<T*> free_;
  std::atomic<std::uint32_t> size_{0};
  std::atomic<std::uint32_t> live_{0};
  std::array<std::atomic<Chunk*>, kChunks> chunks_{};
};

}  // namespace strata::software
