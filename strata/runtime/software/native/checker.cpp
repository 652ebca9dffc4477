#include "checker.hpp"

#include <cstdio>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>

#include "event.hpp"
#include "faults.hpp"
#include "memory.hpp"
#include "mode.hpp"
#include "runtime.hpp"
#include "thread_state.hpp"

namespace strata::software {

namespace {

constexpr std::size_t kKeptFindings = 1000;

struct RecordMark {
  std::uint64_t epoch;
  const void* event;
};

struct StreamView {
  std::size_t component = 0;
  const void* handle = nullptr;
  VectorClock clock;
  std::vector<RecordMark> records;
};

struct ThreadView {
  std::size_t component = 0;
  VectorClock clock;
  std::vector<AnnouncedAccess> next_host_function;
};

struct Checker {
  std::mutex mutex;
  std::uint64_t session = 0;
  std::size_t components = 0;
  std::uint64_t serial = 0;
  std::map<const Stream*, StreamView> streams;
  std::map<std::size_t, const Stream*> stream_of;
  std::map<const Event*, Captured> events;
  std::deque<ThreadView> threads;
  std::unordered_map<const void*, VectorClock> tokens;
  std::map<std::uintptr_t, Shadow> shadows;  // by the base of the allocation
  std::vector<std::pair<std::size_t, std::vector<RecordMark>>> ended_streams;
  std::map<const void*, std::string> names;
  std::vector<Finding> findings;
  std::set<std::pair<std::uint64_t, std::uint64_t>> reported;  // pairs of serials
  std::uint64_t finding_count = 0;
};

Checker& checker() {
  static Checker* const kept = new Checker;
  return *kept;
}

// Everything below: with the checker's lock held.

ThreadView& this_thread(Checker& c) {
  ThreadState& thread = t_thread;
  if (thread.checker_session != c.session) {
    c.threads.emplace_back();
    ThreadView& made = c.threads.back();
    made.component = c.components++;
    made.clock.set(made.component, 1);
    thread.checker = &made;
    thread.checker_session = c.session;
  }
  return *static_cast<ThreadView*>(thread.checker);
}

StreamView& view_of(Checker& c, const Stream& stream) {
  const auto [it, made] = c.streams.try_emplace(&stream);
  if (made) {
    it->second.component = c.components++;
    it->second.handle = stream.null_stream ? nullptr : runtime().streams.handle_of(&stream);
    c.stream_of[it->second.component] = &stream;
  }
  return it->second;
}

void join_view(Checker& c, VectorClock& into, const Stream& stream) {
  const auto found = c.streams.find(&stream);
  if (found != c.streams.end()) into.join(found->second.clock);
}

void join_blocking_streams(Checker& c, VectorClock& into, const Stream& null_stream) {
  every_stream([&](Stream& other) {
    if (other.blocking && other.device == null_stream.device) join_view(c, into, other);
  });
}

// A new operation at the stream's end, submitted by this thread.
StreamView& submitted(Checker& c, Stream& stream) {
  ThreadView& thread = this_thread(c);
  StreamView& view = view_of(c, stream);
  view.clock.join(thread.clock);
  if (stream.null_stream) {
    join_blocking_streams(c, view.clock, stream);
  } else if (stream.blocking) {
    join_view(c, view.clock, *runtime().null_streams[stream.device]);
  }
  view.clock.set(view.component, view.clock.at(view.component) + 1);
  thread.clock.set(thread.component, thread.clock.at(thread.component) + 1);
  return view;
}

std::string name_of(const Checker& c, const void* handle) {
  const auto found = c.names.find(handle);
  if (found != c.names.end()) return found->second;
  char text[32];
  std::snprintf(text, sizeof text, "%p", handle);
  return text;
}

std::string stream_name(const Checker& c, const AccessRecord& access) {
  if (c.stream_of.count(access.component) == 0) return "";
  return access.stream == nullptr && c.names.count(nullptr) == 0 ? "the null stream" : name_of(c, access.stream);
}

std::string describe(const Checker& c, const AccessRecord& access) {
  std::string text = access.operation;
  if (access.label[1] >= 0) text += " of slot " + std::to_string(access.label[1]);
  std::string within;
  if (access.label[0] >= 0) within += "entry " + std::to_string(access.label[0]);
  if (access.label[2] >= 0) {
    within += (within.empty() ? "generation " : ", generation ") + std::to_string(access.label[2]);
  }
  const std::string stream = stream_name(c, access);
  if (!stream.empty()) within += (within.empty() ? "stream " : ", stream ") + stream;
  within += (within.empty() ? "thread " : ", thread ") + access.thread;
  return text + " (" + within + ")";
}

// The first event that was recorded behind an access in its stream.
const RecordMark* record_behind(const Checker& c, const AccessRecord& access) {
  const std::vector<RecordMark>* records = nullptr;
  const auto stream = c.stream_of.find(access.component);
  if (stream != c.stream_of.end() && stream->second != nullptr) {
    const auto view = c.streams.find(stream->second);
    if (view != c.streams.end() && view->second.component == access.component) records = &view->second.records;
  }
  for (const auto& [component, ended] : c.ended_streams) {
    if (component == access.component) records = &ended;
  }
  if (records == nullptr) return nullptr;
  for (const RecordMark& mark : *records) {
    if (mark.epoch >= access.epoch) return &mark;
  }
  return nullptr;
}

void report(Checker& c, const AccessPtr& earlier, const AccessPtr& later, std::uintptr_t begin, std::uintptr_t end) {
  if (!c.reported.emplace(earlier->serial, later->serial).second) return;
  ++c.finding_count;
  if (c.findings.size() == kKeptFindings) return;
  Finding finding;
  finding.earlier = earlier;
  finding.later = later;
  finding.begin = begin;
  finding.end = end;
  finding.earlier_stream = stream_name(c, *earlier);
  finding.later_stream = stream_name(c, *later);
  finding.text = "no path from " + describe(c, *earlier) + " to " + describe(c, *later) + ": ";
  if (c.stream_of.count(earlier->component) != 0) {
    const RecordMark* mark = record_behind(c, *earlier);
    if (mark != nullptr) {
      finding.missing_event = mark->event;
      finding.missing_name = name_of(c, mark->event);
      finding.text += "nothing before the latter waits for " + finding.missing_name + ", recorded after the former";
    } else {
      finding.text += "no event was recorded after the former";
    }
  } else {
    finding.text += "no hand-over or submission by thread " + earlier->thread + " after the former leads there";
  }
  c.findings.push_back(std::move(finding));
}

void enter(Checker& c, AccessRecord access, const VectorClock& clock) {
  if (access.begin == access.end) return;
  const MemoryRange range = describe_range(reinterpret_cast<const void*>(access.begin));
  if (range.kind == MemoryKind::Pageable) return;
  access.serial = ++c.serial;
  access.thread = thread_role();
  const auto shared = std::make_shared<const AccessRecord>(std::move(access));
  c.shadows[range.base].enter(shared, clock,
                              [&](const AccessPtr& earlier, std::uintptr_t begin, std::uintptr_t end) {
                                report(c, earlier, shared, begin, end);
                              });
}

AccessRecord access_to(const char* operation, const void* address, std::size_t bytes, bool write) {
  AccessRecord access;
  access.operation = operation;
  access.begin = reinterpret_cast<std::uintptr_t>(address);
  access.end = access.begin + bytes;
  access.write = write;
  for (int i = 0; i < 3; ++i) access.label[i] = t_thread.label[i];
  return access;
}

void enter_of_stream(Checker& c, const StreamView& view, const void* handle, AccessRecord access) {
  access.stream = handle;
  access.component = view.component;
  access.epoch = view.clock.at(view.component);
  enter(c, std::move(access), view.clock);
}

// By direction.
constexpr const char* kCopyReads[] = {"H2H read", "H2D read", "D2H read", "D2D read"};
constexpr const char* kCopyWrites[] = {"H2H write", "H2D write", "D2H write", "D2D write"};

// The host function that this thread runs, if the checker saw it submitted.
Actor* acting(const Checker& c) {
  auto* actor = static_cast<Actor*>(t_thread.actor);
  return actor != nullptr && actor->session == c.session ? actor : nullptr;
}

}  // namespace

ActorScope::ActorScope(const std::shared_ptr<Actor>& actor) noexcept {
  t_thread.actor = actor.get();
  if (!actor) return;
  for (int i = 0; i < 3; ++i) t_thread.label[i] = actor->label[i];
}

ActorScope::~ActorScope() {
  if (t_thread.actor == nullptr) return;
  t_thread.actor = nullptr;
  for (std::int64_t& part : t_thread.label) part = -1;
}

void checker_start() {
  Checker& c = checker();
  std::lock_guard<std::mutex> lock(c.mutex);
  ++c.session;
  c.components = 0;
  c.serial = 0;
  c.streams.clear();
  c.stream_of.clear();
  c.events.clear();
  c.threads.clear();
  c.tokens.clear();
  c.shadows.clear();
  c.ended_streams.clear();
  c.findings.clear();
  c.reported.clear();
  c.finding_count = 0;
  set_mode(kModeChecker, true);
}

void checker_stop() { set_mode(kModeChecker, false); }

void checker_stream_made(Stream& stream) {
  Checker& c = checker();
  std::lock_guard<std::mutex> lock(c.mutex);
  const auto found = c.streams.find(&stream);
  if (found == c.streams.end()) return;
  c.stream_of[found->second.component] = nullptr;
  c.ended_streams.emplace_back(found->second.component, std::move(found->second.records));
  c.streams.erase(found);
}

void checker_event_made(Event& event) {
  Checker& c = checker();
  std::lock_guard<std::mutex> lock(c.mutex);
  c.events.erase(&event);
}

void checker_copy(Stream& stream, const void* handle, const Op& op) {
  Checker& c = checker();
  std::lock_guard<std::mutex> lock(c.mutex);
  const StreamView& view = submitted(c, stream);
  const auto direction = static_cast<std::size_t>(op.direction);
  enter_of_stream(c, view, handle, access_to(kCopyReads[direction], op.source, op.bytes, false));
  enter_of_stream(c, view, handle, access_to(kCopyWrites[direction], op.target, op.bytes, true));
}

void checker_memset(Stream& stream, const void* handle, const Op& op) {
  Checker& c = checker();
  std::lock_guard<std::mutex> lock(c.mutex);
  const StreamView& view = submitted(c, stream);
  enter_of_stream(c, view, handle, access_to("memset write", op.target, op.bytes, true));
}

void checker_host_function(Stream& stream, const void* handle, Op& op) {
  Checker& c = checker();
  std::lock_guard<std::mutex> lock(c.mutex);
  const StreamView& view = submitted(c, stream);
  op.actor = std::make_shared<Actor>();
  op.actor->stream = &stream;
  op.actor->handle = handle;
  op.actor->session = c.session;
  op.actor->component = view.component;
  op.actor->epoch = view.clock.at(view.component);
  op.actor->clock = view.clock;
  for (int i = 0; i < 3; ++i) op.actor->label[i] = t_thread.label[i];
  ThreadView& thread = this_thread(c);
  for (const AnnouncedAccess& access : thread.next_host_function) {
    const char* name = access.write ? "host function write" : "host function read";
    enter_of_stream(c, view, handle, access_to(name, access.address, access.bytes, access.write));
  }
  thread.next_host_function.clear();
}

void checker_record(Stream& stream, Event& event, const void* event_handle) {
  Checker& c = checker();
  std::lock_guard<std::mutex> lock(c.mutex);
  StreamView& view = submitted(c, stream);
  view.records.push_back({view.clock.at(view.component), event_handle});
  c.events[&event] = std::make_shared<const VectorClock>(view.clock);
}

void checker_wait(Stream& stream, Event& event) {
  Checker& c = checker();
  std::lock_guard<std::mutex> lock(c.mutex);
  StreamView& view = submitted(c, stream);
  const auto found = c.events.find(&event);
  if (found != c.events.end()) view.clock.join(*found->second);
}

Captured checker_capture(Event& event) {
  Checker& c = checker();
  std::lock_guard<std::mutex> lock(c.mutex);
  const auto found = c.events.find(&event);
  return found == c.events.end() ? nullptr : found->second;
}

Captured checker_capture(Stream& stream) {
  Checker& c = checker();
  std::lock_guard<std::mutex> lock(c.mutex);
  auto clock = std::make_shared<VectorClock>();
  join_view(c, *clock, stream);
  if (stream.null_stream) join_blocking_streams(c, *clock, stream);
  return clock;
}

Captured checker_capture_device(int device) {
  Checker& c = checker();
  std::lock_guard<std::mutex> lock(c.mutex);
  auto clock = std::make_shared<VectorClock>();
  every_stream([&](Stream& stream) {
    if (device < 0 || stream.device == device) join_view(c, *clock, stream);
  });
  return clock;
}

void checker_join(const Captured& captured) {
  if (!captured) return;
  Checker& c = checker();
  std::lock_guard<std::mutex> lock(c.mutex);
  this_thread(c).clock.join(*captured);
}

void checker_free(const void* address) {
  Checker& c = checker();
  std::lock_guard<std::mutex> lock(c.mutex);
  const MemoryRange range = describe_range(address);
  ThreadView& thread = this_thread(c);
  AccessRecord access = access_to("free", address, range.end - range.base, true);
  access.component = thread.component;
  access.epoch = thread.clock.at(thread.component);
  enter(c, std::move(access), thread.clock);
  c.shadows.erase(range.base);
}

void checker_free_in_stream(Stream& stream, const void* handle, const Op& op) {
  Checker& c = checker();
  std::lock_guard<std::mutex> lock(c.mutex);
  const StreamView& view = submitted(c, stream);
  enter_of_stream(c, view, handle, access_to("free", op.target, op.bytes, true));
}

void checker_forget(const void* base) {
  Checker& c = checker();
  std::lock_guard<std::mutex> lock(c.mutex);
  c.shadows.erase(reinterpret_cast<std::uintptr_t>(base));
}

void checker_host_access(const void* address, std::size_t bytes, bool write) {
  Checker& c = checker();
  std::lock_guard<std::mutex> lock(c.mutex);
  if (Actor* actor = acting(c)) {
    const char* name = write ? "host function write" : "host function read";
    AccessRecord access = access_to(name, address, bytes, write);
    access.stream = actor->handle;
    access.component = actor->component;
    access.epoch = actor->epoch;
    return enter(c, std::move(access), actor->clock);
  }
  ThreadView& thread = this_thread(c);
  AccessRecord access = access_to(write ? "host write" : "host read", address, bytes, write);
  access.component = thread.component;
  access.epoch = thread.clock.at(thread.component);
  enter(c, std::move(access), thread.clock);
}

void checker_hand_over(const void* token) {
  Checker& c = checker();
  std::lock_guard<std::mutex> lock(c.mutex);
  if (const Actor* actor = acting(c)) {
    c.tokens[token].join(actor->clock);
    return;
  }
  ThreadView& thread = this_thread(c);
  c.tokens[token].join(thread.clock);
  thread.clock.set(thread.component, thread.clock.at(thread.component) + 1);
}

void checker_take_over(const void* token) {
  Checker& c = checker();
  std::lock_guard<std::mutex> lock(c.mutex);
  const auto found = c.tokens.find(token);
  if (found == c.tokens.end()) return;
  if (Actor* actor = acting(c)) {
    actor->clock.join(found->second);
    view_of(c, *actor->stream).clock.join(found->second);  // what is submitted from now comes after
    return;
  }
  this_thread(c).clock.join(found->second);
}

void checker_next_host_function(std::vector<AnnouncedAccess> accesses) {
  Checker& c = checker();
  std::lock_guard<std::mutex> lock(c.mutex);
  this_thread(c).next_host_function = std::move(accesses);
}

void checker_name(const void* handle, std::string name) {
  Checker& c = checker();
  std::lock_guard<std::mutex> lock(c.mutex);
  c.names[handle] = std::move(name);
}

std::vector<Finding> findings() {
  std::lock_guard<std::mutex> lock(checker().mutex);
  return checker().findings;
}

std::uint64_t finding_count() {
  std::lock_guard<std::mutex> lock(checker().mutex);
  return checker().finding_count;
}

std::uint64_t checked_accesses() {
  std::lock_guard<std::mutex> lock(checker().mutex);
  return checker().serial;
}

void clear_findings() {
  std::lock_guard<std::mutex> lock(checker().mutex);
  checker().findings.clear();
  checker().finding_count = 0;
}

}  // namespace strata::software
