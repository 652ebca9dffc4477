// HIP's untyped addresses as the driver writes them, and back.
#pragma once

#include <cstdint>

#include "driver_api.hpp"

namespace strata_cuda {

inline CUdeviceptr device_address(const void* pointer) {
  return static_cast<CUdeviceptr>(reinterpret_cast<std::uintptr_t>(pointer));
}

inline void* host_pointer(CUdeviceptr address) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
}

}  // namespace strata_cuda
