"""Foreign declarations of strata/include/strata/threads.hpp: native threads and what they wait on; how one is started."""
from libc.stdint cimport int64_t, uint64_t
from libcpp.atomic cimport atomic


cdef extern from "strata/threads.hpp" namespace "strata" nogil:
    const int64_t kForever

    int64_t now_ns() noexcept
    int64_t time_waited(int64_t began, int64_t asked) noexcept
    void cpu_relax() noexcept

    cdef cppclass Watermark:
        int64_t get() noexcept
        void reset(int64_t value) noexcept
        void advance(int64_t value) noexcept
        void wake() noexcept
        bint wait(int64_t target, const atomic[int]& stop, int64_t timeout_ns) noexcept

    cdef cppclass Condition:
        uint64_t prepare() noexcept
        void cancel() noexcept
        bint wait(uint64_t seen, int64_t timeout_ns) noexcept
        void notify() noexcept

    cdef cppclass ThreadName:
        char[16] text

    cdef cppclass Thread:
        bint start(void (*run)(void*) noexcept nogil, void* argument, const ThreadName& name) noexcept
        void join() noexcept
        void detach() noexcept

    T* make[T]() noexcept
    T* make_array[T](size_t n) noexcept
    void destroy[T](T* p) noexcept
    void destroy_array[T](T* p) noexcept


cdef bint thread_start(Thread* thread, const char* kind, int index, void (*run)(void*) noexcept nogil,
                       void* argument) noexcept nogil
