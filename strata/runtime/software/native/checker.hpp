// The happens-before checker.
//
// Every stream and every host thread is a component with a vector clock. What orders two things is
// known when a call is made, whenever the operations run: program order on a thread, submission,
// stream order, record and wait, the null stream's rules, a synchronization that returned, a query
// that said "complete", a hand-over between threads that was announced. Each operation's accesses to
// device and pinned memory, and the host accesses that are announced, are compared with the earlier
// ones to the same bytes; two that conflict without an order are a finding, whatever the schedule
// made of them this time.
//
// All functions take the checker's lock; none is called while it is off.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "operation.hpp"
#include "shadow.hpp"
#include "stream.hpp"

namespace strata::software {

struct Event;

// A host function while it runs: what it accesses and hands over counts as its stream's.
struct Actor {
  Stream* stream = nullptr;
  const void* handle = nullptr;
  std::uint64_t session = 0;
  std::size_t component = 0;
  std::uint64_t epoch = 0;
  VectorClock clock;
  std::int64_t label[3] = {-1, -1, -1};
};

class ActorScope {
 public:
  explicit ActorScope(const std::shared_ptr<Actor>& actor) noexcept;
  ~ActorScope();
  ActorScope(const ActorScope&) = delete;
  ActorScope& operator=(const ActorScope&) = delete;
};

struct AnnouncedAccess {
  const void* address;
  std::size_t bytes;
  bool write;
};

// A clock taken when a synchronization began, joined once it returned.
using Captured = std::shared_ptr<const VectorClock>;

void checker_start();  // begins anew, and turns it on
void checker_stop();   // findings stay

// Handles, since a place in a table is used again.
void checker_stream_made(Stream& stream);
void checker_event_made(Event& event);

void checker_copy(Stream& stream, const void* handle, const Op& op);
void checker_memset(Stream& stream, const void* handle, const Op& op);
void checker_host_function(Stream& stream, const void* handle, Op& op);
void checker_record(Stream& stream, Event& event, const void* event_handle);
void checker_wait(Stream& stream, Event& event);

Captured checker_capture(Event& event);
Captured checker_capture(Stream& stream);  // the null stream: and its blocking streams
Captured checker_capture_device(int device);
void checker_join(const Captured& captured);
// The same where the synchronization succeeded; its status.
inline hipError_t joined(hipError_t status, const Captured& captured) {
  if (captured && status == hipSuccess) checker_join(captured);
  return status;
}

// The whole allocation is given back by this thread, or by an operation of a stream, which ends in `forget`.
void checker_free(const void* address);
void checker_free_in_stream(Stream& stream, const void* handle, const Op& op);
void checker_forget(const void* base);

void checker_host_access(const void* address, std::size_t bytes, bool write);
void checker_hand_over(const void* token);
void checker_take_over(const void* token);
void checker_next_host_function(std::vector<AnnouncedAccess> accesses);
void checker_name(const void* handle, std::string name);

struct Finding {
  AccessPtr earlier, later;
  std::uintptr_t begin = 0, end = 0;  // the bytes that both access
  std::string earlier_stream, later_stream;
  const void* missing_event = nullptr;  // recorded after the earlier access, waited for by nobody
  std::string missing_name;
  std::string text;
};
std::vector<Finding> findings();
std::uint64_t finding_count();  // those too that were not kept
std::uint64_t checked_accesses();
void clear_findings();

}  // namespace strata::software
