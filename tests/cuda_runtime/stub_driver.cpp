// A stand-in for the CUDA driver library: the same symbols over malloc and memcpy, for machines without a
// GPU. Everything runs at once, on the calling thread. Every call is recorded with its inputs and with the
// context that was current; any call can be told to fail with a given status.
//
// Built by the tests, in variants:
//   -DSTUB_BATCH12   has cuMemcpyBatchAsync (as in CUDA 12.8: the failing copy's index is reported)
//   -DSTUB_BATCH13   has cuMemcpyBatchAsync_v2 (as in CUDA 13: it is not)
//   -DSTUB_LACKS_HOST_REGISTER, -DSTUB_LACKS_LAUNCH_HOST_FUNC   lacks these symbols
// Read at cuInit: STUB_INIT_STATUS (its answer, default 0), STUB_DEVICES (default 2), STUB_HOLD_START (if set,
// cuInit returns only after stub_release_start).
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using Status = int;
using Address = unsigned long long;

struct Context {
  int device;
};

struct Stream {
  Context* context;
  unsigned int flags;
};

struct Event {
  unsigned int flags;
  bool recorded;
};

struct Range {
  size_t bytes;
  unsigned int type;  // 1 host, 2 device
  unsigned int managed;
  int device;
};

// The driver's handle of a device is not its ordinal here, so that mixing them up shows.
constexpr int kFirstHandle = 10;
constexpr int kMaxDevices = 80;

struct State {
  std::mutex mutex;
  std::vector<std::string> log;
  std::map<std::string, Status> failures;
  std::map<uintptr_t, Range> ranges;
  int devices = 0;
  bool started = false;
  bool quiet = false;
  std::condition_variable changed;  // of the two below
  bool starting = false;
  bool released = false;
  size_t batch_failure = SIZE_MAX;
};

State& state() {
  static State* instance = new State;
  return *instance;
}

Context primaries[kMaxDevices];
thread_local Context* current = nullptr;

int context_number(const Context* context) {
  if (context == nullptr) return -1;
  bool primary = context >= primaries && context < primaries + kMaxDevices;
  return primary ? context->device : 1000 + context->device;
}

template <typename Value>
std::string text(Value value) {
  if constexpr (std::is_pointer_v<Value>) {
    return std::to_string(reinterpret_cast<uintptr_t>(value));
  } else {
    return std::to_string(value);
  }
}

// Records a call and gives the status that it was told to fail with, or 0.
template <typename... Inputs>
Status note(const char* name, Inputs... inputs) {
  State& s = state();
  if (s.quiet) return 0;
  std::string line = std::string(name) + " " + std::to_string(context_number(current));
  ((line += " " + text(inputs)), ...);
  std::lock_guard<std::mutex> lock(s.mutex);
  s.log.push_back(line);
  auto found = s.failures.find(name);
  return found == s.failures.end() ? 0 : found->second;
}

#define BEGIN(...)                            \
  do {                                        \
    Status told = note(__func__, __VA_ARGS__); \
    if (told != 0) return told;               \
    if (!state().started) return 3;           \
  } while (0)

#define BEGIN_IN_CONTEXT(...)         \
  do {                                \
    BEGIN(__VA_ARGS__);               \
    if (current == nullptr) return 201; \
  } while (0)

void* pointer(Address address) { return reinterpret_cast<void*>(static_cast<uintptr_t>(address)); }
Address address(const void* p) { return static_cast<Address>(reinterpret_cast<uintptr_t>(p)); }

void* allocate(size_t bytes, unsigned int type) {
  void* made = std::malloc(bytes);
  std::lock_guard<std::mutex> lock(state().mutex);
  state().ranges[reinterpret_cast<uintptr_t>(made)] = {bytes, type, 0, current->device};
  return made;
}

Status release(void* base, unsigned int type, bool free_it) {
  std::lock_guard<std::mutex> lock(state().mutex);
  auto found = state().ranges.find(reinterpret_cast<uintptr_t>(base));
  if (found == state().ranges.end() || found->second.type != type) return 1;
  state().ranges.erase(found);
  if (free_it) std::free(base);
  return 0;
}

struct Name {
  Status status;
  const char* name;
  const char* text;
};

constexpr Name kNames[] = {
    {0, "CUDA_SUCCESS", "stub: no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "stub: invalid argument"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "stub: initialization error"},
    {100, "CUDA_ERROR_NO_DEVICE", "stub: no device"},
    {803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "stub: driver mismatch"},
    {802, "CUDA_ERROR_SYSTEM_NOT_READY", "stub: system not ready"},
    {911, "CUDA_ERROR_EXTERNAL_DEVICE", "stub: external device"},
    {912, "CUDA_ERROR_INVALID_CLUSTER_SIZE", "stub: invalid cluster size"},
    {916, "CUDA_ERROR_KEY_ROTATION", "stub: key rotation"},
};

const Name* find_name(Status status) {
  for (const Name& entry : kNames) {
    if (entry.status == status) return &entry;
  }
  return nullptr;
}

}  // namespace

// --- what the tests call ---------------------------------------------------------------------------------

EXPORT int stub_log_length() {
  std::lock_guard<std::mutex> lock(state().mutex);
  return static_cast<int>(state().log.size());
}

EXPORT void stub_log_line(int index, char* line, int bytes) {
  std::lock_guard<std::mutex> lock(state().mutex);
  std::snprintf(line, static_cast<size_t>(bytes), "%s", state().log[static_cast<size_t>(index)].c_str());
}

EXPORT void stub_clear_log() {
  std::lock_guard<std::mutex> lock(state().mutex);
  state().log.clear();
}

// From now on the call answers `status` and does nothing; 0 lets it work again.
EXPORT void stub_fail(const char* name, Status status) {
  std::lock_guard<std::mutex> lock(state().mutex);
  state().failures[name] = status;
}

// The index that a failing cuMemcpyBatchAsync reports.
EXPORT void stub_fail_batch_at(size_t index) { state().batch_failure = index; }

// Without a log and failures, so that only the runtime's own cost is left.
EXPORT void stub_quiet(int quiet) { state().quiet = quiet != 0; }

// The device whose primary context is current on this thread, 1000 + device for another context, -1: none.
EXPORT int stub_current() { return context_number(current); }

// What torch does behind the runtime's back: changes this thread's current context. Device -1: none.
EXPORT void stub_make_primary_current(int device) {
  current = nullptr;
  if (device >= 0) {
    primaries[device].device = device;
    current = &primaries[device];
  }
}

EXPORT void stub_make_other_current(int device) { current = new Context{device}; }

EXPORT void* stub_stream_of(int device) {
  primaries[device].device = device;
  return new Stream{&primaries[device], 0};
}

EXPORT void stub_add_range(void* base, size_t bytes, unsigned int type, unsigned int managed, int device) {
  std::lock_guard<std::mutex> lock(state().mutex);
  state().ranges[reinterpret_cast<uintptr_t>(base)] = {bytes, type, managed, device};
}

// Blocks until a thread is inside cuInit.
EXPORT void stub_wait_until_starting() {
  std::unique_lock<std::mutex> lock(state().mutex);
  state().changed.wait(lock, [] { return state().starting; });
}

EXPORT void stub_release_start() {
  std::lock_guard<std::mutex> lock(state().mutex);
  state().released = true;
  state().changed.notify_all();
}

// --- the driver ------------------------------------------------------------------------------------------

EXPORT Status cuInit(unsigned int flags) {
  note(__func__, flags);
  if (std::getenv("STUB_HOLD_START") != nullptr) {
    std::unique_lock<std::mutex> lock(state().mutex);
    state().starting = true;
    state().changed.notify_all();
    state().changed.wait(lock, [] { return state().released; });
  }
  const char* answer = std::getenv("STUB_INIT_STATUS");
  Status status = answer != nullptr ? std::atoi(answer) : 0;
  if (status != 0) return status;
  const char* devices = std::getenv("STUB_DEVICES");
  state().devices = devices != nullptr ? std::atoi(devices) : 2;
  state().started = true;
  return 0;
}

EXPORT Status cuDriverGetVersion(int* version) {
  BEGIN(0);
  *version = 13000;
  return 0;
}

EXPORT Status cuGetErrorName(Status status, const char** name) {
  const Name* entry = find_name(status);
  *name = entry != nullptr ? entry->name : nullptr;
  return entry != nullptr ? 0 : 1;
}

EXPORT Status cuGetErrorString(Status status, const char** name) {
  const Name* entry = find_name(status);
  *name = entry != nullptr ? entry->text : nullptr;
  return entry != nullptr ? 0 : 1;
}

EXPORT Status cuDeviceGetCount(int* count) {
  BEGIN(0);
  *count = state().devices;
  return 0;
}

EXPORT Status cuDeviceGet(int* device, int ordinal) {
  BEGIN(ordinal);
  if (ordinal < 0 || ordinal >= state().devices) return 101;
  *device = kFirstHandle + ordinal;
  return 0;
}

EXPORT Status cuDeviceGetName(char* name, int length, int device) {
  BEGIN(length, device);
  std::snprintf(name, static_cast<size_t>(length), "stub device %d", device - kFirstHandle);
  return 0;
}

EXPORT Status cuDeviceGetAttribute(int* value, int attribute, int device) {
  BEGIN(attribute, device);
  *value = 1000 * device + attribute;
  return 0;
}

EXPORT Status cuDevicePrimaryCtxRetain(Context** context, int device) {
  BEGIN(device);
  int ordinal = device - kFirstHandle;
  if (ordinal < 0 || ordinal >= state().devices) return 101;
  primaries[ordinal].device = ordinal;
  *context = &primaries[ordinal];
  return 0;
}

EXPORT Status cuCtxGetCurrent(Context** context) {
  Status told = note(__func__);
  if (told != 0) return told;
  *context = current;
  return 0;
}

EXPORT Status cuCtxSetCurrent(Context* context) {
  BEGIN(context_number(context));
  current = context;
  return 0;
}

thread_local std::vector<Context*> pushed;

EXPORT Status cuCtxPushCurrent_v2(Context* context) {
  BEGIN(context_number(context));
  pushed.push_back(current);
  current = context;
  return 0;
}

EXPORT Status cuCtxPopCurrent_v2(Context** context) {
  BEGIN_IN_CONTEXT(0);
  if (pushed.empty()) return 201;
  *context = current;
  current = pushed.back();
  pushed.pop_back();
  return 0;
}

EXPORT Status cuCtxGetDevice(int* device) {
  BEGIN_IN_CONTEXT(0);
  *device = kFirstHandle + current->device;
  return 0;
}

EXPORT Status cuCtxSynchronize() {
  BEGIN_IN_CONTEXT(0);
  return 0;
}

EXPORT Status cuMemGetInfo_v2(size_t* free_bytes, size_t* total_bytes) {
  BEGIN_IN_CONTEXT(0);
  *free_bytes = 3u << 20;
  *total_bytes = 7u << 20;
  return 0;
}

EXPORT Status cuMemAlloc_v2(Address* made, size_t bytes) {
  BEGIN_IN_CONTEXT(bytes);
  if (bytes == 0) return 1;
  *made = address(allocate(bytes, 2));
  return 0;
}

EXPORT Status cuMemFree_v2(Address base) {
  BEGIN_IN_CONTEXT(base);
  return release(pointer(base), 2, true);
}

EXPORT Status cuMemHostAlloc(void** made, size_t bytes, unsigned int flags) {
  BEGIN_IN_CONTEXT(bytes, flags);
  if (bytes == 0 || flags > 7) return 1;
  *made = allocate(bytes, 1);
  return 0;
}

EXPORT Status cuMemFreeHost(void* base) {
  BEGIN_IN_CONTEXT(base);
  return release(base, 1, true);
}

#if !defined(STUB_LACKS_HOST_REGISTER)
EXPORT Status cuMemHostRegister_v2(void* base, size_t bytes, unsigned int flags) {
  BEGIN_IN_CONTEXT(base, bytes, flags);
  std::lock_guard<std::mutex> lock(state().mutex);
  if (state().ranges.count(reinterpret_cast<uintptr_t>(base)) != 0) return 712;
  state().ranges[reinterpret_cast<uintptr_t>(base)] = {bytes, 1, 0, current->device};
  return 0;
}
#endif

EXPORT Status cuMemHostUnregister(void* base) {
  BEGIN_IN_CONTEXT(base);
  return release(base, 1, false) == 0 ? 0 : 713;
}

EXPORT Status cuPointerGetAttributes(unsigned int count, int* attributes, void** data, Address asked) {
  BEGIN_IN_CONTEXT(count, asked);
  uintptr_t at = static_cast<uintptr_t>(asked);
  Range range = {0, 0, 0, -2};  // what the driver says of memory that it does not know
  {
    std::lock_guard<std::mutex> lock(state().mutex);
    for (const auto& entry : state().ranges) {
      if (at >= entry.first && at < entry.first + entry.second.bytes) range = entry.second;
    }
  }
  bool known = range.type != 0;
  for (unsigned int i = 0; i < count; ++i) {
    switch (attributes[i]) {
      case 2: *static_cast<unsigned int*>(data[i]) = range.type; break;
      case 3: *static_cast<Address*>(data[i]) = known ? asked : 0; break;
      case 4:
        *static_cast<void**>(data[i]) = range.type == 1 || range.managed != 0 ? pointer(asked) : nullptr;
        break;
      case 8: *static_cast<unsigned char*>(data[i]) = range.managed != 0; break;  // one byte is enough
      case 9: *static_cast<int*>(data[i]) = range.device; break;
      default: return 1;
    }
  }
  return 0;
}

EXPORT Status cuMemcpy(Address dst, Address src, size_t bytes) {
  BEGIN_IN_CONTEXT(dst, src, bytes);
  std::memcpy(pointer(dst), pointer(src), bytes);
  return 0;
}

EXPORT Status cuMemcpyHtoD_v2(Address dst, const void* src, size_t bytes) {
  BEGIN_IN_CONTEXT(dst, src, bytes);
  std::memcpy(pointer(dst), src, bytes);
  return 0;
}

EXPORT Status cuMemcpyDtoH_v2(void* dst, Address src, size_t bytes) {
  BEGIN_IN_CONTEXT(dst, src, bytes);
  std::memcpy(dst, pointer(src), bytes);
  return 0;
}

EXPORT Status cuMemcpyDtoD_v2(Address dst, Address src, size_t bytes) {
  BEGIN_IN_CONTEXT(dst, src, bytes);
  std::memcpy(pointer(dst), pointer(src), bytes);
  return 0;
}

EXPORT Status cuMemcpyAsync(Address dst, Address src, size_t bytes, Stream* stream) {
  BEGIN_IN_CONTEXT(dst, src, bytes, stream);
  std::memcpy(pointer(dst), pointer(src), bytes);
  return 0;
}

EXPORT Status cuMemcpyHtoDAsync_v2(Address dst, const void* src, size_t bytes, Stream* stream) {
  BEGIN_IN_CONTEXT(dst, src, bytes, stream);
  if (state().quiet) return 0;
  std::memcpy(pointer(dst), src, bytes);
  return 0;
}

EXPORT Status cuMemcpyDtoHAsync_v2(void* dst, Address src, size_t bytes, Stream* stream) {
  BEGIN_IN_CONTEXT(dst, src, bytes, stream);
  std::memcpy(dst, pointer(src), bytes);
  return 0;
}

EXPORT Status cuMemcpyDtoDAsync_v2(Address dst, Address src, size_t bytes, Stream* stream) {
  BEGIN_IN_CONTEXT(dst, src, bytes, stream);
  std::memcpy(pointer(dst), pointer(src), bytes);
  return 0;
}

EXPORT Status cuMemsetD8Async(Address dst, unsigned char value, size_t bytes, Stream* stream) {
  BEGIN_IN_CONTEXT(dst, value, bytes, stream);
  std::memset(pointer(dst), value, bytes);
  return 0;
}

EXPORT Status cuStreamCreate(Stream** stream, unsigned int flags) {
  BEGIN_IN_CONTEXT(flags);
  if (flags > 1) return 1;
  *stream = new Stream{current, flags};
  return 0;
}

EXPORT Status cuStreamDestroy_v2(Stream* stream) {
  BEGIN_IN_CONTEXT(stream);
  delete stream;
  return 0;
}

EXPORT Status cuStreamSynchronize(Stream* stream) {
  BEGIN_IN_CONTEXT(stream);
  return 0;
}

EXPORT Status cuStreamQuery(Stream* stream) {
  BEGIN_IN_CONTEXT(stream);
  return 0;
}

EXPORT Status cuStreamWaitEvent(Stream* stream, Event* event, unsigned int flags) {
  BEGIN_IN_CONTEXT(stream, event, flags);
  return 0;
}

EXPORT Status cuStreamGetCtx(Stream* stream, Context** context) {
  BEGIN_IN_CONTEXT(stream);
  *context = stream->context;
  return 0;
}

#if !defined(STUB_LACKS_LAUNCH_HOST_FUNC)
EXPORT Status cuLaunchHostFunc(Stream* stream, void (*function)(void*), void* user_data) {
  BEGIN_IN_CONTEXT(stream, reinterpret_cast<void*>(function), user_data);
  function(user_data);
  return 0;
}
#endif

EXPORT Status cuEventCreate(Event** event, unsigned int flags) {
  BEGIN_IN_CONTEXT(flags);
  if (flags > 7) return 1;
  *event = new Event{flags, false};
  return 0;
}

EXPORT Status cuEventDestroy_v2(Event* event) {
  BEGIN_IN_CONTEXT(event);
  delete event;
  return 0;
}

EXPORT Status cuEventRecord(Event* event, Stream* stream) {
  BEGIN_IN_CONTEXT(event, stream);
  event->recorded = true;
  return 0;
}

EXPORT Status cuEventQuery(Event* event) {
  BEGIN_IN_CONTEXT(event);
  return 0;
}

EXPORT Status cuEventSynchronize(Event* event) {
  BEGIN_IN_CONTEXT(event);
  return 0;
}

EXPORT Status cuEventElapsedTime(float* milliseconds, Event* start, Event* stop) {
  BEGIN_IN_CONTEXT(start, stop);
  if (!start->recorded || !stop->recorded) return 400;
  *milliseconds = 1.5f;
  return 0;
}

#if defined(STUB_BATCH12) || defined(STUB_BATCH13)
struct Attributes {
  int order;
  int source_type, source_id;
  int destination_type, destination_id;
  unsigned int flags;
};

namespace {

// The copies with the attributes that cover them, recorded one by one, then done. `name` is the driver call's.
Status batch(const char* name, Address* dsts, Address* srcs, size_t* sizes, size_t count, Attributes* attrs,
             size_t* indices, size_t n, size_t* failed_at, Stream* stream) {
  Status told = note(name, count, n, stream);
  for (size_t i = 0, k = 0; i < count; ++i) {
    while (k + 1 < n && indices[k + 1] <= i) ++k;
    const Attributes& a = attrs[k];
    note("copy", dsts[i], srcs[i], sizes[i], a.order, a.source_type, a.source_id, a.destination_type,
         a.destination_id, a.flags);
  }
  if (told != 0) {
    if (failed_at != nullptr) *failed_at = state().batch_failure;
    return told;
  }
  if (current == nullptr) return 201;
  if (n == 0 || n > count || stream == nullptr) return 1;
  for (size_t i = 0; i < count; ++i) {
    if (sizes[i] == 0) return 1;
  }
  for (size_t i = 0; i < count; ++i) std::memcpy(pointer(dsts[i]), pointer(srcs[i]), sizes[i]);
  return 0;
}

}  // namespace
#endif

#if defined(STUB_BATCH12)
EXPORT Status cuMemcpyBatchAsync(Address* dsts, Address* srcs, size_t* sizes, size_t count, Attributes* attrs,
                                 size_t* indices, size_t n, size_t* failed_at, Stream* stream) {
  return batch(__func__, dsts, srcs, sizes, count, attrs, indices, n, failed_at, stream);
}
#endif

#if defined(STUB_BATCH13)
EXPORT Status cuMemcpyBatchAsync_v2(Address* dsts, Address* srcs, size_t* sizes, size_t count,
                                    Attributes* attrs, size_t* indices, size_t n, Stream* stream) {
  return batch(__func__, dsts, srcs, sizes, count, attrs, indices, n, nullptr, stream);
}
#endif
