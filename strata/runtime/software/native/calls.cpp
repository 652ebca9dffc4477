#include "calls.hpp"

#include <cstring>
#include <memory>
#include <mutex>
#include <set>

#include "costs.hpp"
#include "demand.hpp"
#include "faults.hpp"
#include "runtime.hpp"

namespace strata::software {

std::atomic<std::uint32_t> g_mode{kModeUnborn};
std::atomic<int> g_refusal{hipSuccess};
thread_local ThreadState t_thread STRATA_SW_TLS;

namespace {

using Counts = std::array<std::atomic<std::uint64_t>, kFnCount>;

struct CountBook {
  std::mutex mutex;
  std::set<Counts*> threads;
  std::array<std::uint64_t, kFnCount> ended{};     // of threads that are gone
  std::array<std::uint64_t, kFnCount> baseline{};  // totals at the last reset
};

CountBook& book() {
  static CountBook* const kept = new CountBook;  // leaked: threads outlive static destructors
  return *kept;
}

std::array<std::uint64_t, kFnCount> totals(const CountBook& kept) {
  auto sum = kept.ended;
  for (const Counts* counts : kept.threads) {
    for (std::size_t i = 0; i < kFnCount; ++i) sum[i] += (*counts)[i].load(std::memory_order_relaxed);
  }
  return sum;
}

// Folds a thread's counts into the book when the thread ends.
void end_counts(void* opaque) {
  const std::unique_ptr<Counts> counts(static_cast<Counts*>(opaque));
  CountBook& kept = book();
  std::lock_guard<std::mutex> lock(kept.mutex);
  for (std::size_t i = 0; i < kFnCount; ++i) kept.ended[i] += (*counts)[i].load(std::memory_order_relaxed);
  kept.threads.erase(counts.get());
  t_thread.counts = nullptr;
}

const char* const kNames[kFnCount] = {
#define STRATA_SW_NAME(name) "hip" #name,
    STRATA_SW_FUNCTIONS(STRATA_SW_NAME)
#undef STRATA_SW_NAME
};

// Answers about the library itself, which a lost device does not change.
bool survives_loss(Fn fn) {
  switch (fn) {
    case Fn::GetDeviceCount:
    case Fn::GetDevice:
    case Fn::SetDevice:
    case Fn::DeviceGetName:
    case Fn::DeviceGetAttribute:
    case Fn::RuntimeGetVersion:
    case Fn::DriverGetVersion:
    case Fn::GetLastError:
    case Fn::PeekAtLastError:
    case Fn::PointerGetAttributes:
    case Fn::StreamGetDevice:
    case Fn::Init:
    case Fn::GetDeviceProperties:
    case Fn::DeviceGetStreamPriorityRange:
    case Fn::HostGetDevicePointer:
    case Fn::HostGetFlags:
    case Fn::PointerGetAttribute:
    case Fn::StreamGetFlags:
    case Fn::StreamGetPriority:
      return true;
    default:
      return false;
  }
}

bool needs_no_device(Fn fn) {
  return fn == Fn::GetDeviceCount || fn == Fn::RuntimeGetVersion || fn == Fn::DriverGetVersion ||
         fn == Fn::GetLastError || fn == Fn::PeekAtLastError;
}

// Gives something back: does so on a lost device too, then reports the loss.
bool gives_back(Fn fn) {
  return fn == Fn::Free || fn == Fn::HostFree || fn == Fn::HostUnregister || fn == Fn::StreamDestroy ||
         fn == Fn::EventDestroy || fn == Fn::FreeHost || fn == Fn::FreeAsync || fn == Fn::DeviceReset;
}

}  // namespace

const char* fn_name(Fn fn) noexcept { return kNames[static_cast<std::size_t>(fn)]; }

bool fn_of(const char* name, Fn* out) noexcept {
  for (std::size_t i = 0; i < kFnCount; ++i) {
    if (std::strcmp(name, kNames[i]) == 0 || std::strcmp(name, kNames[i] + 3) == 0) {
      *out = static_cast<Fn>(i);
      return true;
    }
  }
  return false;
}

std::array<std::uint64_t, kFnCount> call_counts() {
  CountBook& kept = book();
  std::lock_guard<std::mutex> lock(kept.mutex);
  auto sum = totals(kept);
  for (std::size_t i = 0; i < kFnCount; ++i) sum[i] -= kept.baseline[i];
  return sum;
}

void reset_call_counts() {
  CountBook& kept = book();
  std::lock_guard<std::mutex> lock(kept.mutex);
  kept.baseline = totals(kept);
}

void Call::adopt_thread() {
  auto* counts = new Counts{};
  at_thread_end(end_counts, counts);
  t_thread.counts = counts->data();
  CountBook& kept = book();
  std::lock_guard<std::mutex> lock(kept.mutex);
  kept.threads.insert(counts);
}

void Call::answer(hipError_t status) noexcept {
  answered_ = true;
  status_ = status;
  store_error(status);
}

void Call::special(const CallSite& site, std::uint32_t bits) {
  if ((bits & kModeUnborn) != 0) {
    create_runtime();
    bits = mode();
    if (bits == 0) return;
  }
  if ((bits & kModeRefused) != 0) return answer(static_cast<hipError_t>(g_refusal.load()));
  if ((bits & kModeNoDevice) != 0 && !needs_no_device(site.fn)) return answer(hipErrorNoDevice);
  if ((bits & kModeHooks) != 0) {
    hipError_t verdict = hipSuccess;
    if (intercept(site, &verdict)) return answer(verdict);
    bits = mode();  // a call that hung meets the world as it is afterwards
  }
  if ((bits & kModeLost) != 0 && !survives_loss(site.fn)) {
    const auto loss = static_cast<hipError_t>(g_refusal.load());
    if (!gives_back(site.fn)) return answer(loss);
    afterwards_ = loss;
  }
  if ((bits & kModeNull) != 0 && accepted_in_null_mode(site.fn)) {
    answered_ = true;
    return;
  }
  if ((bits & kModeCosts) != 0) pay_call(site.fn);
  if ((bits & kModeDemand) != 0) demand_on_call();
}

}  // namespace strata::software
