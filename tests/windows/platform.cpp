// What the software runtime asks of the operating system (platform.hpp), by itself.
#include "platform.hpp"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

using namespace strata::software;

namespace {

#define WANT(condition)                                                   \
  do {                                                                    \
    if (!(condition)) {                                                   \
      std::printf("line %d: %s is not so\n", __LINE__, #condition);       \
      std::exit(1);                                                       \
    }                                                                     \
  } while (0)

std::atomic<int> order{0}, first{0}, second{0}, ended{0};

void thread(void*) {
  char name[48];
  thread_name(name, sizeof name);
  WANT(std::strcmp(name, "strata-sw-test") == 0);
  char few[5];
  thread_name(few, sizeof few);
  WANT(few[4] == '\0');
  WANT(at_thread_end([](void* place) { static_cast<std::atomic<int>*>(place)->store(++order); ++ended; }, &second));
  WANT(at_thread_end([](void* place) { static_cast<std::atomic<int>*>(place)->store(++order); }, &first));
}

}  // namespace

int main() {
  auto* pages = static_cast<unsigned char*>(allocate_pages(std::size_t{1} << 24));
  WANT(pages != nullptr);
  for (std::size_t k = 0; k < (std::size_t{1} << 24); k += 4096) WANT(pages[k] == 0);
  std::memset(pages, 255, std::size_t{1} << 24);
  WANT(pages_exist(pages + 100, (std::size_t{1} << 24) - 100));
  free_pages(pages, std::size_t{1} << 24);
  WANT(!pages_exist(pages, 1) && !pages_exist(reinterpret_cast<void*>(1 << 12), 1));
  for (std::size_t bytes : {1, 255, 1000, 60000}) {
    void* memory = allocate_aligned(256, bytes);
    WANT(memory != nullptr && reinterpret_cast<std::uintptr_t>(memory) % 256 == 0);
    std::memset(memory, 1, bytes);
    free_aligned(memory);
  }
  WANT(start_thread(thread, nullptr, "strata-sw-test"));
  while (ended.load() == 0) sleep_until_ns(now_ns() + 100'000);
  WANT(first.load() == 1 && second.load() == 2);
  for (std::int64_t wanted : {0, 50'000, 1'000'000, 5'000'000, 30'000'000}) {
    const std::int64_t deadline = now_ns() + wanted;
    sleep_until_ns(deadline);
    WANT(now_ns() >= deadline);
  }
  WANT(thread_number() != 0);
  keep_library_mapped();
  std::printf("pages, aligned memory, a thread's name and end, sleeps\n");
  return 0;
}
