// HIP's batched copies over either form of the driver's.
#include <cstdint>
#include <new>
#include <vector>

#include "address.hpp"
#include "context.hpp"

using namespace strata_cuda;

namespace {

// HIP's arrays go to the driver as they are.
static_assert(sizeof(void*) == sizeof(CUdeviceptr), "addresses are 64 bits wide");
static_assert(sizeof(hipMemcpyAttributes) == sizeof(CUmemcpyAttributes), "same layout of attributes");
static_assert(offsetof(hipMemcpyAttributes, srcLocHint) == offsetof(CUmemcpyAttributes, srcLocHint), "");
static_assert(offsetof(hipMemcpyAttributes, dstLocHint) == offsetof(CUmemcpyAttributes, dstLocHint), "");
static_assert(offsetof(hipMemcpyAttributes, flags) == offsetof(CUmemcpyAttributes, flags), "");

constexpr size_t kNoCopyInParticular = SIZE_MAX;

struct Batch {
  void** dsts;
  void** srcs;
  size_t* sizes;
  size_t count;
  hipMemcpyAttributes* attrs;
  size_t* attrs_idxs;
  size_t num_attrs;
};

CUresult submit(const Batch& batch, size_t* fail_idx, hipStream_t stream) {
  auto* dsts = reinterpret_cast<CUdeviceptr*>(batch.dsts);
  auto* srcs = reinterpret_cast<CUdeviceptr*>(batch.srcs);
  auto* attrs = reinterpret_cast<CUmemcpyAttributes*>(batch.attrs);
  auto queue = reinterpret_cast<CUstream>(stream);
  *fail_idx = kNoCopyInParticular;
  if (driver.cuMemcpyBatchAsync13 != nullptr) {
    return driver.cuMemcpyBatchAsync13(dsts, srcs, batch.sizes, batch.count, attrs, batch.attrs_idxs,
                                       batch.num_attrs, queue);
  }
  return driver.cuMemcpyBatchAsync12(dsts, srcs, batch.sizes, batch.count, attrs, batch.attrs_idxs,
                                     batch.num_attrs, fail_idx, queue);
}

// Each attribute covers the copies from its index up to the next one's.
bool indices_are_valid(const Batch& batch) {
  if (batch.num_attrs == 0 || batch.attrs == nullptr || batch.attrs_idxs == nullptr) return false;
  if (batch.attrs_idxs[0] != 0) return false;
  for (size_t k = 1; k < batch.num_attrs; ++k) {
    if (batch.attrs_idxs[k] <= batch.attrs_idxs[k - 1]) return false;
  }
  return batch.attrs_idxs[batch.num_attrs - 1] < batch.count;
}

// Submits a batch in which some copies are empty without them: HIP lets a copy of zero bytes succeed, the
// driver need not.
STRATA_COLD hipError_t submit_nonempty(const Batch& batch, size_t* fail_idx, hipStream_t stream) {
  if (!indices_are_valid(batch)) return failed(hipErrorInvalidValue);
  std::vector<void*> dsts, srcs;
  std::vector<size_t> sizes;
  std::vector<hipMemcpyAttributes> attrs;  // those that still cover a copy
  std::vector<size_t> attrs_idxs;          // and where each begins among the copies that are left
  try {
    size_t covering = 0;
    size_t last_kept = batch.num_attrs;
    for (size_t i = 0; i < batch.count; ++i) {
      while (covering + 1 < batch.num_attrs && batch.attrs_idxs[covering + 1] <= i) ++covering;
      if (batch.sizes[i] == 0) continue;
      if (covering != last_kept) {
        attrs.push_back(batch.attrs[covering]);
        attrs_idxs.push_back(sizes.size());
        last_kept = covering;
      }
      dsts.push_back(batch.dsts[i]);
      srcs.push_back(batch.srcs[i]);
      sizes.push_back(batch.sizes[i]);
    }
  } catch (const std::bad_alloc&) {
    return failed(hipErrorOutOfMemory);
  }
  if (sizes.empty()) return hipSuccess;
  Batch rest{dsts.data(),  srcs.data(),       sizes.data(), sizes.size(),
             attrs.data(), attrs_idxs.data(), attrs.size()};
  CUresult status = submit(rest, fail_idx, stream);
  if (status != kCudaSuccess && *fail_idx < sizes.size()) {
    // Back to the caller's numbering: the copy's place among all, empty ones included.
    size_t remaining = *fail_idx;
    size_t place = 0;
    while (batch.sizes[place] == 0 || remaining-- > 0) ++place;
    *fail_idx = place;
  }
  return settle(status);
}

}  // namespace

hipError_t hipMemcpyBatchAsync(void** dsts, void** srcs, size_t* sizes, size_t count,
                               hipMemcpyAttributes* attrs, size_t* attrs_idxs, size_t num_attrs,
                               size_t* fail_idx, hipStream_t stream) {
  size_t nowhere = 0;
  if (fail_idx == nullptr) fail_idx = &nowhere;
  *fail_idx = kNoCopyInParticular;
  STRATA_ENTER(enter_context);
  if (driver.cuMemcpyBatchAsync13 == nullptr && driver.cuMemcpyBatchAsync12 == nullptr) {
    return failed(hipErrorNotSupported);
  }
  if (dsts == nullptr || srcs == nullptr || sizes == nullptr || count == 0) {
    return failed(hipErrorInvalidValue);
  }
  // The driver takes no batch on the legacy null stream.
  if (stream == nullptr || reinterpret_cast<CUstream>(stream) == legacy_stream()) {
    return failed(hipErrorInvalidValue);
  }
  Batch batch{dsts, srcs, sizes, count, attrs, attrs_idxs, num_attrs};
  for (size_t i = 0; i < count; ++i) {
    if (sizes[i] == 0) return submit_nonempty(batch, fail_idx, stream);
  }
  return settle(submit(batch, fail_idx, stream));
}
