// CUDA C++ on a processor without CUDA: what a generated kernel may use, for the tests.
//
// Blocks run one after another. The threads of a block are fibers that take turns: one runs until
// it waits at a barrier or for its warp, so a run is the same every time, and a barrier that not
// all threads reach, or a shuffle from an absent lane, is an error instead of a hang or a chance
// value. Kernels that never wait run in a plain loop.

#pragma once

#include <math.h>
#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <mutex>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __grid_constant__
#define __shared__ static
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_assume(x)
#define __CUDA_ARCH__ 900
#define CUDART_INF HUGE_VAL
#define CUDART_NAN (__builtin_nan(""))
#define CUDART_INF_F HUGE_VALF
#define CUDART_NAN_F (__builtin_nanf(""))
#define CUDART_PI 3.1415926535897931e+0
#define CUDART_L2E 1.4426950408889634e+0
#define CUDART_LN2 6.9314718055994531e-1
#undef assert
#define assert(x) ((x) ? void() : throw std::runtime_error("assertion failed: " #x))
#define __syncthreads() cuda_host::barrier(__LINE__, 0)
#define __syncthreads_count(x) cuda_host::barrier(__LINE__, (x) != 0)
#define __syncthreads_or(x) (cuda_host::barrier(__LINE__, (x) != 0) != 0)
#define __syncthreads_and(x) (cuda_host::barrier(__LINE__, (x) == 0) == 0)

// Vector types --------------------------------------------------------------------------------

#define CUDA_HOST_VECTORS(T, name, a2, a4)                                                      \
    struct name##1 { T x; };                                                                    \
    struct __attribute__((aligned(a2))) name##2 { T x, y; };                                    \
    struct name##3 { T x, y, z; };                                                              \
    struct __attribute__((aligned(a4))) name##4 { T x, y, z, w; };                              \
    static inline name##1 make_##name##1(T x) { return {x}; }                                   \
    static inline name##2 make_##name##2(T x, T y) { return {x, y}; }                           \
    static inline name##3 make_##name##3(T x, T y, T z) { return {x, y, z}; }                   \
    static inline name##4 make_##name##4(T x, T y, T z, T w) { return {x, y, z, w}; }
CUDA_HOST_VECTORS(char, char, 2, 4)
CUDA_HOST_VECTORS(unsigned char, uchar, 2, 4)
CUDA_HOST_VECTORS(short, short, 4, 8)
CUDA_HOST_VECTORS(unsigned short, ushort, 4, 8)
CUDA_HOST_VECTORS(int, int, 8, 16)
CUDA_HOST_VECTORS(unsigned, uint, 8, 16)
CUDA_HOST_VECTORS(long long, longlong, 16, 16)
CUDA_HOST_VECTORS(unsigned long long, ulonglong, 16, 16)
CUDA_HOST_VECTORS(float, float, 8, 16)
CUDA_HOST_VECTORS(double, double, 16, 16)

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

static uint3 threadIdx, blockIdx;
static dim3 blockDim, gridDim;
static const int warpSize = 32;

// Threads -------------------------------------------------------------------------------------

namespace cuda_host {

const size_t stack_bytes = 256 << 10, most_threads = 1024, most_shared = 227 << 10;

enum State { none, ready, in_barrier, in_warp, in_census, done };

struct Fiber {
    State state = none;
    uint3 index;
    int line = 0;                             // of the barrier it waits at
    unsigned vote = 0, barrier_result = 0;
    unsigned mask = 0, source = 0;            // of the warp operation it waits in
    uint64_t value = 0, result = 0;
    int slot = -1;                            // its stack; -1 before it first runs
};

struct Stack {
    jmp_buf place;
    ucontext_t first;
    bool begun = false;
    Fiber* fiber = nullptr;
};

alignas(1024) static unsigned char dynamic_shared[most_shared];
static Fiber fibers[most_threads];
static Stack stacks[most_threads];
static int idle_stacks[most_threads], n_idle, n_stacks;
static int n_fibers;
static Fiber* current;
static jmp_buf scheduler;
static ucontext_t scheduler_first;
static void (*body)(void*);
static void* body_argument;
static std::string failure;
static std::mutex one_launch;

[[noreturn]] static void fail(const std::string& message) { throw std::runtime_error(message); }

static unsigned lane() { return unsigned(current - fibers) % 32; }

static unsigned live_lanes() {
    unsigned live = 0;
    int first = int(current - fibers) / 32 * 32;
    for (int i = first; i < first + 32 && i < n_fibers; i++)
        if (fibers[i].state != done) live |= 1u << (i - first);
    return live;
}

__attribute__((noinline)) static void wait_in(State state) {
    Stack& stack = stacks[current->slot];
    current->state = state;
    if (!_setjmp(stack.place)) _longjmp(scheduler, 1);
}

// How many of the block's live threads vote with 1, once all of them have come.
static unsigned barrier(int line, unsigned vote) {
    current->line = line;
    current->vote = vote;
    wait_in(in_barrier);
    return current->barrier_result;
}

// Results for all lanes of the mask, by the last of them to come. `votes`: which lanes brought a
// value that is not 0; otherwise each lane gets the value of its source lane.
static uint64_t exchange(unsigned mask, uint64_t value, unsigned source, bool votes) {
    if (!(mask >> lane() & 1)) fail("a thread calls a warp operation whose mask leaves it out");
    if (mask & ~live_lanes()) fail("the mask of a warp operation names lanes that do not exist");
    current->mask = mask;
    current->value = value;
    current->source = source;
    Fiber* warp = current - lane();
    for (unsigned i = 0; i < 32; i++)
        if (mask >> i & 1 && &warp[i] != current && warp[i].state != in_warp) {
            wait_in(in_warp);
            return current->result;
        }
    uint64_t ballot = 0;
    for (unsigned i = 0; i < 32; i++)
        if (mask >> i & 1) {
            if (warp[i].mask != mask) fail("the lanes of a warp operation differ in their masks");
            ballot |= uint64_t(warp[i].value != 0) << i;
        }
    for (unsigned i = 0; i < 32; i++)
        if (mask >> i & 1) {
            if (!votes && !(mask >> warp[i].source & 1))
                fail("a shuffle reads lane " + std::to_string(warp[i].source) +
                     ", which its mask leaves out");
            warp[i].result = votes ? ballot : warp[warp[i].source].value;
        }
    for (unsigned i = 0; i < 32; i++)
        if (mask >> i & 1) warp[i].state = ready;
    return current->result;
}

// A stack runs one fiber after another, so a context is made once only.
static void run_fibers() {
    for (;;) {
        Stack* stack = &stacks[current->slot];
        stack->fiber = current;
        try {
            body(body_argument);
        } catch (const std::exception& error) {
            failure = error.what();
        }
        current->state = done;
        idle_stacks[n_idle++] = current->slot;
        if (!_setjmp(stack->place)) _longjmp(scheduler, 1);
    }
}

__attribute__((noinline)) static void resume(Fiber& fiber) {
    current = &fiber;
    threadIdx = fiber.index;
    if (fiber.slot < 0) fiber.slot = n_idle ? idle_stacks[--n_idle] : n_stacks++;
    Stack& stack = stacks[fiber.slot];
    if (_setjmp(scheduler)) return;
    if (stack.begun) _longjmp(stack.place, 1);
    stack.begun = true;
    void* memory = mmap(nullptr, stack_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail("no memory for the stack of a thread");
    getcontext(&stack.first);
    stack.first.uc_stack.ss_sp = memory;
    stack.first.uc_stack.ss_size = stack_bytes;
    stack.first.uc_link = nullptr;
    makecontext(&stack.first, run_fibers, 0);
    swapcontext(&scheduler_first, &stack.first);
}

static bool release_barrier() {
    int live = 0, waiting = 0, line = 0;
    unsigned votes = 0;
    for (int i = 0; i < n_fibers; i++) {
        if (fibers[i].state == done) continue;
        live++;
        if (fibers[i].state != in_barrier) continue;
        if (waiting++ && fibers[i].line != line)
            fail("threads of a block wait at different barriers, in lines " +
                 std::to_string(line) + " and " + std::to_string(fibers[i].line));
        line = fibers[i].line;
        votes += fibers[i].vote;
    }
    if (!live) return false;
    if (waiting != live) {
        std::string others = std::to_string(live - waiting) +
                             " threads of a block wait for lanes of their warp that never come";
        fail(waiting ? others + ", the rest at the barrier in line " + std::to_string(line)
                     : others);
    }
    for (int i = 0; i < n_fibers; i++)
        if (fibers[i].state == in_barrier) {
            fibers[i].barrier_result = votes;
            fibers[i].state = ready;
        }
    return true;
}

// Which lanes have come to __activemask once none of the warp can go on without an answer.
static bool take_census(int warp) {
    unsigned here = 0;
    for (int i = warp; i < warp + 32 && i < n_fibers; i++)
        if (fibers[i].state == in_census) here |= 1u << (i - warp);
    for (int i = 0; i < 32; i++)
        if (here >> i & 1) {
            fibers[warp + i].result = here;
            fibers[warp + i].state = ready;
        }
    return here != 0;
}

static void run_block() {
    do {
        for (int warp = 0; warp < n_fibers; warp += 32)
            for (bool went = true; went;) {
                went = false;
                for (int i = warp; i < warp + 32 && i < n_fibers; i++)
                    while (fibers[i].state == ready) {
                        resume(fibers[i]);
                        went = true;
                        if (!failure.empty()) fail(failure);
                    }
                if (!went) went = take_census(warp);
            }
    } while (release_barrier());
}

static const char* run(const unsigned* shape, size_t shared_bytes, bool waits,
                       void (*function)(void*), void* argument) {
    std::lock_guard<std::mutex> lock(one_launch);
    static std::string message;
    gridDim = dim3(shape[0], shape[1], shape[2]);
    blockDim = dim3(shape[3], shape[4], shape[5]);
    body = function;
    body_argument = argument;
    failure.clear();
    try {
        for (blockIdx.z = 0; blockIdx.z < gridDim.z; blockIdx.z++)
        for (blockIdx.y = 0; blockIdx.y < gridDim.y; blockIdx.y++)
        for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x++) {
            memset(dynamic_shared, 0xff, shared_bytes);
            n_fibers = 0;
            for (unsigned z = 0; z < blockDim.z; z++)
            for (unsigned y = 0; y < blockDim.y; y++)
            for (unsigned x = 0; x < blockDim.x; x++) {
                threadIdx = {x, y, z};
                if (!waits) {
                    body(body_argument);
                    continue;
                }
                fibers[n_fibers] = Fiber();
                fibers[n_fibers].state = ready;
                fibers[n_fibers++].index = threadIdx;
            }
            if (waits) run_block();
        }
    } catch (const std::exception& error) {
        message = error.what();
        message += ", block (" + std::to_string(blockIdx.x) + ", " + std::to_string(blockIdx.y) +
                   ", " + std::to_string(blockIdx.z) + "), thread (" +
                   std::to_string(threadIdx.x) + ", " + std::to_string(threadIdx.y) + ", " +
                   std::to_string(threadIdx.z) + ")";
        for (int i = 0; i < n_stacks; i++) stacks[i].begun = false;  // their fibers are lost
        n_stacks = n_idle = 0;
        return message.c_str();
    }
    return nullptr;
}

// Arguments by the kernel's own signature -----------------------------------------------------

template <class T> std::string described() {
    using U = std::remove_cv_t<T>;
    if (std::is_same<U, bool>::value) return "b1";
    std::string size = std::to_string(sizeof(U));
    if (std::is_floating_point<U>::value) return "f" + size;
    if (std::is_integral<U>::value) return (std::is_signed<U>::value ? "i" : "u") + size;
    return "V" + size;
}

template <class T> struct Described {
    static std::string text() { return described<T>(); }
};
template <class T> struct Described<T*> {
    static std::string text() {
        return (std::is_const<T>::value ? "c*" : "*") + described<T>();
    }
};
template <> struct Described<void*> {
    static std::string text() { return "*V0"; }
};
template <> struct Described<const void*> {
    static std::string text() { return "c*V0"; }
};

template <class... P> const char* signature(void (*)(P...)) {
    static std::string text;
    text.clear();
    (void)std::initializer_list<int>{(text += Described<std::remove_cv_t<P>>::text() + " ", 0)...};
    return text.c_str();
}

template <class... P> struct Call {
    void (*kernel)(P...);
    void** arguments;

    template <size_t... I> void apply(std::index_sequence<I...>) {
        kernel(*static_cast<std::remove_cv_t<P>*>(arguments[I])...);
    }
    static void run(void* call) {
        static_cast<Call*>(call)->apply(std::index_sequence_for<P...>());
    }
};

template <class... P>
const char* launch(void (*kernel)(P...), const unsigned* shape, size_t shared_bytes, bool waits,
                   void** arguments) {
    Call<P...> call{kernel, arguments};
    return run(shape, shared_bytes, waits, &Call<P...>::run, &call);
}

template <class To, class From> To bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "sizes differ");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

template <class T> uint64_t packed(T value) {
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "a shuffle moves 4 or 8 bytes");
    uint64_t out = 0;
    memcpy(&out, &value, sizeof value);
    return out;
}

template <class T> T unpacked(uint64_t word) {
    T value;
    memcpy(&value, &word, sizeof value);
    return value;
}

}  // namespace cuda_host

// Warps ---------------------------------------------------------------------------------------

static inline void __syncwarp(unsigned mask = 0xffffffffu) {
    // a warp that is not full may name its absent lanes here
    cuda_host::exchange(mask & cuda_host::live_lanes(), 0, 0, true);
}
static inline unsigned __activemask() {
    cuda_host::wait_in(cuda_host::in_census);
    return unsigned(cuda_host::current->result);
}
static inline unsigned __ballot_sync(unsigned mask, int vote) {
    return unsigned(cuda_host::exchange(mask, vote != 0, 0, true));
}
static inline int __any_sync(unsigned mask, int vote) { return __ballot_sync(mask, vote) != 0; }
static inline int __all_sync(unsigned mask, int vote) { return __ballot_sync(mask, vote) == mask; }
template <class T> T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
    unsigned first = cuda_host::lane() & ~unsigned(width - 1);
    return cuda_host::unpacked<T>(cuda_host::exchange(
        mask, cuda_host::packed(value), first | (unsigned(source) & unsigned(width - 1)), false));
}
template <class T> T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    unsigned me = cuda_host::lane(), within = me & unsigned(width - 1);
    return cuda_host::unpacked<T>(cuda_host::exchange(
        mask, cuda_host::packed(value), within >= delta ? me - delta : me, false));
}
template <class T> T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
    unsigned me = cuda_host::lane(), within = me & unsigned(width - 1);
    return cuda_host::unpacked<T>(cuda_host::exchange(
        mask, cuda_host::packed(value), within + delta < unsigned(width) ? me + delta : me, false));
}
template <class T> T __shfl_xor_sync(unsigned mask, T value, int flip, int width = 32) {
    unsigned me = cuda_host::lane(), other = me ^ unsigned(flip);
    // as on a device, a lane may not look into a later group of `width` lanes
    if (other >= (me & ~unsigned(width - 1)) + unsigned(width)) other = me;
    return cuda_host::unpacked<T>(
        cuda_host::exchange(mask, cuda_host::packed(value), other, false));
}

// Atomics: one thread runs at a time ----------------------------------------------------------

#define CUDA_HOST_ATOMIC(name, T, changed)                                                      \
    static inline T name(T* place, std::common_type<T>::type value) {                           \
        T old = *place;                                                                         \
        *place = changed;                                                                       \
        return old;                                                                             \
    }
#define CUDA_HOST_ATOMICS(T)                                                                    \
    CUDA_HOST_ATOMIC(atomicAdd, T, old + value)                                                 \
    CUDA_HOST_ATOMIC(atomicMin, T, value < old ? value : old)                                   \
    CUDA_HOST_ATOMIC(atomicMax, T, value > old ? value : old)                                   \
    CUDA_HOST_ATOMIC(atomicExch, T, value)                                                      \
    CUDA_HOST_ATOMIC(atomicOr, T, old | value)                                                  \
    CUDA_HOST_ATOMIC(atomicAnd, T, old & value)                                                 \
    CUDA_HOST_ATOMIC(atomicXor, T, old ^ value)                                                 \
    static inline T atomicCAS(T* place, std::common_type<T>::type expected,                     \
                              std::common_type<T>::type value) {                                \
        T old = *place;                                                                         \
        if (old == expected) *place = value;                                                    \
        return old;                                                                             \
    }
CUDA_HOST_ATOMICS(int)
CUDA_HOST_ATOMICS(unsigned)
CUDA_HOST_ATOMICS(unsigned long long)
CUDA_HOST_ATOMIC(atomicMin, long long, value < old ? value : old)
CUDA_HOST_ATOMIC(atomicMax, long long, value > old ? value : old)
CUDA_HOST_ATOMIC(atomicAdd, float, old + value)
CUDA_HOST_ATOMIC(atomicAdd, double, old + value)
CUDA_HOST_ATOMIC(atomicExch, float, value)
static inline unsigned atomicInc(unsigned* place, unsigned most) {
    unsigned old = *place;
    *place = old >= most ? 0 : old + 1;
    return old;
}
static inline int atomicSub(int* place, int value) { return atomicAdd(place, -value); }
static inline unsigned atomicSub(unsigned* place, unsigned value) {
    return atomicAdd(place, 0u - value);
}
static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline void __threadfence_system() {}
static inline void __nanosleep(unsigned) {}
static inline void __trap() { cuda_host::fail("__trap()"); }
template <class T> T __ldg(const T* place) { return *place; }
template <class T> T __ldcg(const T* place) { return *place; }
template <class T> T __ldca(const T* place) { return *place; }
template <class T> T __ldcs(const T* place) { return *place; }
template <class T> void __stcg(T* place, T value) { *place = value; }
template <class T> void __stcs(T* place, T value) { *place = value; }
template <class T> void __stwt(T* place, T value) { *place = value; }
static inline long long clock64() { static long long ticks; return ++ticks; }

// Arithmetic ----------------------------------------------------------------------------------

template <class A, class B>
std::enable_if_t<std::is_arithmetic<A>::value && std::is_arithmetic<B>::value,
                 std::common_type_t<A, B>> min(A a, B b) {
    using T = std::common_type_t<A, B>;
    T x = a, y = b;
    return x != x ? y : (y < x ? y : x);  // a number wins over NaN, as with fmin
}
template <class A, class B>
std::enable_if_t<std::is_arithmetic<A>::value && std::is_arithmetic<B>::value,
                 std::common_type_t<A, B>> max(A a, B b) {
    using T = std::common_type_t<A, B>;
    T x = a, y = b;
    return x != x ? y : (x < y ? y : x);
}

static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline float rsqrt(float x) { return rsqrtf(x); }
static inline double rcbrt(double x) { return 1.0 / cbrt(x); }
// glibc has functions of these names already
#define __expf expf
#define __logf logf
#define __log2f log2f
#define __log10f log10f
#define __sinf sinf
#define __cosf cosf
#define __powf powf
#define __exp10f exp10f
static inline float __fdividef(float x, float y) { return x / y; }
static inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; }
static inline float __frcp_rn(float x) { return 1.0f / x; }
static inline float __fsqrt_rn(float x) { return sqrtf(x); }
static inline float __frsqrt_rn(float x) { return float(1.0 / sqrt(double(x))); }
static inline float __fadd_rn(float x, float y) { return x + y; }
static inline float __fsub_rn(float x, float y) { return x - y; }
static inline float __fmul_rn(float x, float y) { return x * y; }
static inline float __fdiv_rn(float x, float y) { return x / y; }
static inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
static inline double __drcp_rn(double x) { return 1.0 / x; }
static inline double __dsqrt_rn(double x) { return sqrt(x); }
static inline double __dadd_rn(double x, double y) { return x + y; }
static inline double __dsub_rn(double x, double y) { return x - y; }
static inline double __dmul_rn(double x, double y) { return x * y; }
static inline double __ddiv_rn(double x, double y) { return x / y; }
static inline double __fma_rn(double x, double y, double z) { return fma(x, y, z); }

static inline long long __double_as_longlong(double x) { return cuda_host::bits<long long>(x); }
static inline double __longlong_as_double(long long x) { return cuda_host::bits<double>(x); }
static inline int __float_as_int(float x) { return cuda_host::bits<int>(x); }
static inline unsigned __float_as_uint(float x) { return cuda_host::bits<unsigned>(x); }
static inline float __int_as_float(int x) { return cuda_host::bits<float>(x); }
static inline float __uint_as_float(unsigned x) { return cuda_host::bits<float>(x); }
static inline int __double2hiint(double x) { return int(__double_as_longlong(x) >> 32); }
static inline int __double2loint(double x) { return int(__double_as_longlong(x)); }
static inline double __hiloint2double(int high, int low) {
    return __longlong_as_double((long long)((uint64_t(unsigned(high)) << 32) | unsigned(low)));
}
static inline int __double2int_rn(double x) { return int(nearbyint(x)); }
static inline int __double2int_rz(double x) { return int(trunc(x)); }
static inline int __double2int_rd(double x) { return int(floor(x)); }
static inline int __double2int_ru(double x) { return int(ceil(x)); }
static inline int __float2int_rn(float x) { return int(nearbyintf(x)); }
static inline int __float2int_rz(float x) { return int(truncf(x)); }
static inline int __float2int_rd(float x) { return int(floorf(x)); }
static inline long long __double2ll_rn(double x) { return (long long)nearbyint(x); }
static inline float __double2float_rn(double x) { return float(x); }
static inline double __int2double_rn(int x) { return double(x); }
static inline float __int2float_rn(int x) { return float(x); }
static inline double __uint2double_rn(unsigned x) { return double(x); }
static inline float __uint2float_rn(unsigned x) { return float(x); }
static inline double __ll2double_rn(long long x) { return double(x); }
static inline double __ull2double_rn(unsigned long long x) { return double(x); }

static inline unsigned __umulhi(unsigned x, unsigned y) {
    return unsigned((uint64_t(x) * y) >> 32);
}
static inline int __mulhi(int x, int y) { return int((int64_t(x) * y) >> 32); }
static inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
    return (unsigned long long)(((unsigned __int128)x * y) >> 64);
}
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
static inline int __clzll(long long x) {
    return x ? __builtin_clzll((unsigned long long)x) : 64;
}
static inline unsigned __brev(unsigned x) {
    unsigned out = 0;
    for (int i = 0; i < 32; i++) out |= (x >> i & 1u) << (31 - i);
    return out;
}
