// Everything that speaks to the machine: the one file with inline PTX, each function with a host branch.
//
// Memory model (PTX ISA, chapter "Memory Consistency Model"): data before a flag needs a release, a flag before
// data an acquire, both at system scope because the other side may be another GPU. A release is one
// fence.acq_rel.sys followed by relaxed stores, so that one fence serves two flags. A wait polls with relaxed
// loads and acquires once at the end: an acquiring load in the loop would drop the L1 cache at every poll.
// On the host a release is two __ATOMIC_RELEASE stores, because the thread sanitizer does not see fences.
#pragma once

#if defined(__CUDACC__) || defined(__CUDACC_RTC__)
#define CCB_GPU 1
#define CCB_DEVICE static __device__ __forceinline__
#define CCB_MEMBER __device__ __forceinline__
#define CCB_SHARED(type, name) __shared__ type name
#else
#define CCB_GPU 0
#define CCB_DEVICE static inline
#define CCB_MEMBER inline
#include "host/shim.h"
#define CCB_SHARED(type, name) type& name = ccb_host_shared<__COUNTER__, type>()
#endif

namespace ccb {

// Own names: NVRTC has no <cstdint>.
typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// Sixteen bytes, the widest access.
struct alignas(16) Vector {
    u64 low;
    u64 high;
};

// What a spinning lane waits for: the error word and the host engine's deadlock report name it.
struct Waiting {
    i32 code;  // one of WaitCode in abi.cuh
    i32 rank;
    i32 peer;
    i32 channel;
    u64 goal;
    u64 seen;
};

#if CCB_GPU

CCB_DEVICE u64 load_relaxed(const u64* address) {
    u64 value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
    return value;
}

CCB_DEVICE u64 load_acquire(const u64* address) {
    u64 value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
    return value;
}

CCB_DEVICE void store_relaxed(u64* address, u64 value) {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(address), "l"(value) : "memory");
}

CCB_DEVICE void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

// Everything this block wrote before its last __syncthreads() is visible to whoever acquires the flag.
CCB_DEVICE void post(u64* flag, u64 value) {
    fence_system();
    store_relaxed(flag, value);
}

CCB_DEVICE void post_two(u64* first, u64 first_value, u64* second, u64 second_value) {
    fence_system();
    store_relaxed(first, first_value);
    store_relaxed(second, second_value);
}

// Volatile: never served from an L1 cache that a peer's writes do not reach.
CCB_DEVICE Vector load_vector(const void* address) {
    Vector value;
    asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(value.low), "=l"(value.high)
                 : "l"(address)
                 : "memory");
    return value;
}

CCB_DEVICE void store_vector(void* address, Vector value) {
    asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" ::"l"(address), "l"(value.low), "l"(value.high)
                 : "memory");
}

// A packet is one 8-byte word: 32 bits of data below, a 32-bit flag above. Two of them lie side by side, aligned to 16
// bytes, and go by one instruction; each is an element of the access, and so never torn.
CCB_DEVICE Vector load_packets(const u64* address) {
    Vector packets;
    asm volatile("ld.relaxed.sys.global.v2.u64 {%0, %1}, [%2];"
                 : "=l"(packets.low), "=l"(packets.high)
                 : "l"(address)
                 : "memory");
    return packets;
}

CCB_DEVICE void store_packets(u64* address, Vector packets) {
    asm volatile("st.relaxed.sys.global.v2.u64 [%0], {%1, %2};" ::"l"(address), "l"(packets.low), "l"(packets.high)
                 : "memory");
}

CCB_DEVICE u64 timer_nanoseconds() {
    u64 now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

// Called between two polls of a flag.
CCB_DEVICE void back_off(u32 polls, const Waiting&) {
    if (polls > 4096u) asm volatile("nanosleep.u32 100;");
}

constexpr u32 POLLS_PER_TIMER_READ = 64;

CCB_DEVICE float float_of_half(u32 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((u16)bits));
    return value;
}

CCB_DEVICE u32 half_of_float(float value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

CCB_DEVICE u32 bits_of_float(float value) { return __float_as_uint(value); }
CCB_DEVICE float float_of_bits(u32 bits) { return __uint_as_float(bits); }
CCB_DEVICE u64 bits_of_double(double value) { return (u64)__double_as_longlong(value); }
CCB_DEVICE double double_of_bits(u64 bits) { return __longlong_as_double((long long)bits); }

#else  // the host: plain data accesses, which the thread sanitizer sees, and atomic flags

CCB_DEVICE u64 load_relaxed(const u64* address) { return __atomic_load_n(address, __ATOMIC_RELAXED); }

CCB_DEVICE u64 load_acquire(const u64* address) { return __atomic_load_n(address, __ATOMIC_ACQUIRE); }

CCB_DEVICE void post(u64* flag, u64 value) {
    __atomic_store_n(flag, value, __ATOMIC_RELEASE);
    ccb_host_progress();
}

CCB_DEVICE void post_two(u64* first, u64 first_value, u64* second, u64 second_value) {
    __atomic_store_n(first, first_value, __ATOMIC_RELEASE);
    __atomic_store_n(second, second_value, __ATOMIC_RELEASE);
    ccb_host_progress();
}

CCB_DEVICE Vector load_vector(const void* address) { return *static_cast<const Vector*>(address); }

CCB_DEVICE void store_vector(void* address, Vector value) { *static_cast<Vector*>(address) = value; }

CCB_DEVICE Vector load_packets(const u64* address) {
    return Vector{__atomic_load_n(address, __ATOMIC_RELAXED), __atomic_load_n(address + 1, __ATOMIC_RELAXED)};
}

// Elements of a vector access have no order: of every other pair the second packet is seen first.
CCB_DEVICE void store_packets(u64* address, Vector packets) {
    const int first = (u64)address >> 4 & 1;
    __atomic_store_n(address + first, first ? packets.high : packets.low, __ATOMIC_RELAXED);
    ccb_host_progress();
    __atomic_store_n(address + 1 - first, first ? packets.low : packets.high, __ATOMIC_RELAXED);
    ccb_host_progress();
}

CCB_DEVICE u64 timer_nanoseconds() { return ccb_host_timer(); }

CCB_DEVICE void back_off(u32, const Waiting& waiting) {
    ccb_host_stall(waiting.code, waiting.rank, waiting.peer, waiting.channel, waiting.goal, waiting.seen);
}

constexpr u32 POLLS_PER_TIMER_READ = 1;

CCB_DEVICE u32 bits_of_float(float value) {
    u32 bits;
    __builtin_memcpy(&bits, &value, 4);
    return bits;
}

CCB_DEVICE float float_of_bits(u32 bits) {
    float value;
    __builtin_memcpy(&value, &bits, 4);
    return value;
}

CCB_DEVICE u64 bits_of_double(double value) {
    u64 bits;
    __builtin_memcpy(&bits, &value, 8);
    return bits;
}

CCB_DEVICE double double_of_bits(u64 bits) {
    double value;
    __builtin_memcpy(&value, &bits, 8);
    return value;
}

CCB_DEVICE float float_of_half(u32 bits) {
    const u32 sign = (bits & 0x8000u) << 16, magnitude = bits & 0x7fffu;
    if (magnitude >= 0x7c00u) return float_of_bits(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    if (magnitude < 0x400u) {  // subnormal: a whole number of 2^-24
        const float value = (float)magnitude * (1.0f / 16777216.0f);
        return float_of_bits(sign | bits_of_float(value));
    }
    return float_of_bits(sign | ((magnitude << 13) + (112u << 23)));
}

CCB_DEVICE u32 half_of_float(float value) {
    const u32 bits = bits_of_float(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return 0x7fffu;  // the GPU's one NaN
    if (magnitude >= 0x477ff000u) return sign | 0x7c00u;
    if (magnitude < 0x38800000u) {  // below 2^-14: adding 1/2 leaves units of 2^-24, rounded to even
        return sign | (bits_of_float(float_of_bits(magnitude) + 0.5f) - 0x3f000000u);
    }
    return sign | ((magnitude + 0xfffu + (magnitude >> 13 & 1u) - (112u << 23)) >> 13);
}

#endif

// Counts polls of one wait; the clock is read only now and then.
struct SpinLimit {
    u64 limit_nanoseconds;  // 0: none
    u64 began = 0;
    u32 polls = 0;
};

// True once the wait has lasted longer than its limit. Call it once per poll.
CCB_DEVICE bool exhausted(SpinLimit& spin) {
    if (++spin.polls % POLLS_PER_TIMER_READ != 0 || spin.limit_nanoseconds == 0) return false;
    const u64 now = timer_nanoseconds();
    if (spin.began == 0) spin.began = now;
    return now - spin.began > spin.limit_nanoseconds;
}

// One element of 1, 2, 4 or 8 bytes in the low bits of a word. Volatile on the GPU for the same reason as vectors.
CCB_DEVICE u64 load_element(const void* address, i32 element_bytes) {
#if CCB_GPU
#define CCB_VOLATILE volatile
#else
#define CCB_VOLATILE
#endif
    switch (element_bytes) {
        case 1: return *(const CCB_VOLATILE u8*)address;
        case 2: return *(const CCB_VOLATILE u16*)address;
        case 4: return *(const CCB_VOLATILE u32*)address;
        default: return *(const CCB_VOLATILE u64*)address;
    }
}

CCB_DEVICE void store_element(void* address, u64 value, i32 element_bytes) {
    switch (element_bytes) {
        case 1: *(CCB_VOLATILE u8*)address = (u8)value; break;
        case 2: *(CCB_VOLATILE u16*)address = (u16)value; break;
        case 4: *(CCB_VOLATILE u32*)address = (u32)value; break;
        default: *(CCB_VOLATILE u64*)address = value; break;
    }
#undef CCB_VOLATILE
}

}  // namespace ccb
