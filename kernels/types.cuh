// Element types and how two elements become one, bit for bit the same on GPU and host.
//
// All arithmetic is on 64-bit words that hold 1, 2, 4 or 8 elements. Narrow floats are combined as float and rounded
// to nearest even: once for two elements (Word), and once for any number of them that one lane adds up (Adder).
// Formats: IEEE 754-2019 for float16, the upper half of a float for bfloat16, and for 8 bits "FP8 Formats for Deep
// Learning" (arXiv 2209.05433): e4m3 has no infinity, e5m2 has.
#pragma once

#include "abi.cuh"

namespace ccb {

// How one element looks inside a word, and as what it is computed.
template <i32 TYPE>
struct Format;

template <typename VALUE, i32 BYTES>
struct WholeFormat {
    typedef VALUE Value;
    static constexpr i32 bytes = BYTES;
    static constexpr bool whole = true;
    CCB_MEMBER static Value decode(u64 bits) { return (Value)bits; }
    CCB_MEMBER static u64 encode(Value value) { return (u64)value; }
};

template <> struct Format<INT8> : WholeFormat<i8, 1> {};
template <> struct Format<INT16> : WholeFormat<i16, 2> {};
template <> struct Format<INT32> : WholeFormat<i32, 4> {};
template <> struct Format<INT64> : WholeFormat<i64, 8> {};
template <> struct Format<UINT8> : WholeFormat<u8, 1> {};
template <> struct Format<UINT16> : WholeFormat<u16, 2> {};
template <> struct Format<UINT32> : WholeFormat<u32, 4> {};
template <> struct Format<UINT64> : WholeFormat<u64, 8> {};

template <> struct Format<FLOAT32> {
    typedef float Value;
    static constexpr i32 bytes = 4;
    static constexpr bool whole = false;
    CCB_MEMBER static float decode(u64 bits) { return float_of_bits((u32)bits); }
    CCB_MEMBER static u64 encode(float value) { return bits_of_float(value); }
};

template <> struct Format<FLOAT64> {
    typedef double Value;
    static constexpr i32 bytes = 8;
    static constexpr bool whole = false;
    CCB_MEMBER static double decode(u64 bits) { return double_of_bits(bits); }
    CCB_MEMBER static u64 encode(double value) { return bits_of_double(value); }
};

template <> struct Format<FLOAT16> {
    typedef float Value;
    static constexpr i32 bytes = 2;
    static constexpr bool whole = false;
    CCB_MEMBER static float decode(u64 bits) { return float_of_half((u32)bits); }
    CCB_MEMBER static u64 encode(float value) { return half_of_float(value); }
};

template <> struct Format<BFLOAT16> {
    typedef float Value;
    static constexpr i32 bytes = 2;
    static constexpr bool whole = false;
    CCB_MEMBER static float decode(u64 bits) { return float_of_bits((u32)bits << 16); }
    CCB_MEMBER static u64 encode(float value) {
        const u32 bits = bits_of_float(value);
        if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fffu;
        return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    }
};

// Magnitude of a float in a format of 1 + (7 - FRACTION) + FRACTION bits, exponent bias BIAS, rounded to even;
// larger than the format's largest where it overflows. Not for NaN.
template <i32 FRACTION, i32 BIAS>
CCB_DEVICE u32 narrow_magnitude(u32 magnitude) {
    constexpr u32 dropped = 23 - FRACTION;
    constexpr u32 smallest_normal = (u32)(127 - BIAS + 1) << 23;
    if (magnitude < smallest_normal) {
        // Adding a power of two whose last place is the subnormals' unit, 2^(1 - BIAS - FRACTION), rounds.
        constexpr u32 unit_maker = (u32)(127 + 1 - BIAS - FRACTION + 23) << 23;
        return bits_of_float(float_of_bits(magnitude) + float_of_bits(unit_maker)) - unit_maker;
    }
    const u32 rounded = magnitude + (1u << (dropped - 1)) - 1u + (magnitude >> dropped & 1u);
    return (rounded >> dropped) - ((u32)(127 - BIAS) << FRACTION);
}

template <> struct Format<FLOAT8_E4M3> {
    typedef float Value;
    static constexpr i32 bytes = 1;
    static constexpr bool whole = false;
    CCB_MEMBER static float decode(u64 word) {
        const u32 bits = (u32)word, magnitude = bits & 0x7fu;
        if (magnitude == 0x7fu) return float_of_bits(0x7fc00000u);
        // As float16 it is 256 times too small: seven bits of exponent bias 15 instead of 7.
        return float_of_half((bits & 0x80u) << 8 | magnitude << 7) * 256.0f;
    }
    CCB_MEMBER static u64 encode(float value) {
        const u32 bits = bits_of_float(value), magnitude = bits & 0x7fffffffu;
        if (magnitude > 0x7f800000u) return 0x7fu;
        const u32 narrow = narrow_magnitude<3, 7>(magnitude);
        return (bits >> 24 & 0x80u) | (narrow < 0x7fu ? narrow : 0x7fu);
    }
};

template <> struct Format<FLOAT8_E5M2> {
    typedef float Value;
    static constexpr i32 bytes = 1;
    static constexpr bool whole = false;
    CCB_MEMBER static float decode(u64 bits) { return float_of_half(((u32)bits & 0xffu) << 8); }
    CCB_MEMBER static u64 encode(float value) {
        const u32 bits = bits_of_float(value), magnitude = bits & 0x7fffffffu;
        if (magnitude > 0x7f800000u) return 0x7eu;
        const u32 narrow = narrow_magnitude<2, 15>(magnitude);
        return (bits >> 24 & 0x80u) | (narrow < 0x7cu ? narrow : 0x7cu);
    }
};

// Whole numbers wrap, computed as u64 because signed overflow is undefined.
template <typename FORMAT, i32 OP, bool WHOLE>
struct Pair;

template <typename FORMAT, i32 OP>
struct Pair<FORMAT, OP, true> {
    CCB_MEMBER static u64 of(u64 first, u64 second) {
        typedef typename FORMAT::Value Value;
        const Value a = FORMAT::decode(first), b = FORMAT::decode(second);
        if (OP == PROD) return (u64)a * (u64)b;
        if (OP == MIN) return FORMAT::encode(a < b ? a : b);
        if (OP == MAX) return FORMAT::encode(a > b ? a : b);
        return (u64)a + (u64)b;
    }
    CCB_MEMBER static u64 divided(u64 total, i32 ranks) {
        typedef typename FORMAT::Value Value;
        const Value value = FORMAT::decode(total);
        if ((Value)-1 < (Value)0) return (u64)((i64)value / (i64)ranks);
        return (u64)value / (u64)ranks;
    }
};

template <typename FORMAT, i32 OP>
struct Pair<FORMAT, OP, false> {
    CCB_MEMBER static u64 of(u64 first, u64 second) {
        typedef typename FORMAT::Value Value;
        const Value a = FORMAT::decode(first), b = FORMAT::decode(second);
        return FORMAT::encode(of_values(a, b));
    }
    CCB_MEMBER static typename FORMAT::Value of_values(typename FORMAT::Value a, typename FORMAT::Value b) {
        if (OP == PROD) return a * b;
        if (OP == MIN) return a < b || a != a ? a : b;
        if (OP == MAX) return a > b || a != a ? a : b;
        return a + b;
    }
    CCB_MEMBER static u64 divided(u64 total, i32 ranks) {
        typedef typename FORMAT::Value Value;
        return FORMAT::encode(FORMAT::decode(total) / (Value)ranks);
    }
};

// One word of elements: combined, or (WORD_FINISH) an average's total divided.
template <i32 TYPE, i32 OP>
struct Word {
    typedef Format<TYPE> Elements;
    typedef Pair<Elements, OP, Elements::whole> Both;
    static constexpr i32 bits = 8 * Elements::bytes;
    static constexpr u64 mask = bits == 64 ? ~0ull : (1ull << (bits % 64)) - 1;

    CCB_MEMBER static u64 combine(u64 received, u64 own) {
        u64 result = 0;
#pragma unroll
        for (i32 shift = 0; shift < 64; shift += bits) {
            result |= (Both::of(received >> shift & mask, own >> shift & mask) & mask) << shift;
        }
        return result;
    }
    CCB_MEMBER static u64 finish(u64 total, i32 ranks) {
        if (OP != AVG) return total;
        u64 result = 0;
#pragma unroll 1  // a division is long: eight of them side by side do not fit into the registers
        for (i32 shift = 0; shift < 64; shift += bits) {
            result |= (Both::divided(total >> shift & mask, ranks) & mask) << shift;
        }
        return result;
    }
};

// One word of elements while a lane adds up any number of them: `value` of narrow floats, else `word`.
struct Running {
    u64 word;
    float value[8];
};

template <i32 TYPE, i32 OP, bool NARROW = !Format<TYPE>::whole && Format<TYPE>::bytes < 4>
struct Adder {
    CCB_MEMBER static void begin(Running& total, u64 first) { total.word = first; }
    CCB_MEMBER static void add(Running& total, u64 own) { total.word = Word<TYPE, OP>::combine(total.word, own); }
    CCB_MEMBER static void round(Running&) {}
    CCB_MEMBER static u64 end(const Running& total, i32 ranks, bool finishes) {
        return finishes ? Word<TYPE, OP>::finish(total.word, ranks) : total.word;
    }
};

template <i32 TYPE, i32 OP>
struct Adder<TYPE, OP, true> {
    typedef Format<TYPE> Elements;
    typedef Word<TYPE, OP> Whole;
    static constexpr i32 count = 64 / Whole::bits;

    CCB_MEMBER static float element(u64 word, i32 i) { return Elements::decode(word >> i * Whole::bits & Whole::mask); }
    CCB_MEMBER static void begin(Running& total, u64 first) {
#pragma unroll
        for (i32 i = 0; i < count; ++i) total.value[i] = element(first, i);
    }
    CCB_MEMBER static void add(Running& total, u64 own) {
#pragma unroll
        for (i32 i = 0; i < count; ++i) {
            total.value[i] = Pair<Elements, OP, false>::of_values(total.value[i], element(own, i));
        }
    }
    CCB_MEMBER static void round(Running& total) {
#pragma unroll
        for (i32 i = 0; i < count; ++i) {
            total.value[i] = Elements::decode(Elements::encode(total.value[i]) & Whole::mask);
        }
    }
    CCB_MEMBER static u64 end(const Running& total, i32 ranks, bool finishes) {
        u64 result = 0;
#pragma unroll
        for (i32 i = 0; i < count; ++i) {
            const float value = OP == AVG && finishes ? total.value[i] / (float)ranks : total.value[i];
            result |= (Elements::encode(value) & Whole::mask) << i * Whole::bits;
        }
        return result;
    }
};

struct RunningVector {
    Running low;
    Running high;
};

// The arithmetic of one launch. On a GPU everything is known when it is compiled; on the host the type and op
// come from the arguments, so that one build serves them all.
struct Arithmetic {
#if CCB_GPU
    static constexpr i32 element_bytes = Format<CCB_TYPE>::bytes;
    // Conversions of 8-bit floats are long: unrolled, they cost seconds of compilation and gain nothing.
    static constexpr bool costly = element_bytes == 1 && !Format<CCB_TYPE>::whole;
    static constexpr bool narrow = element_bytes < 4 && !Format<CCB_TYPE>::whole;
    // Vectors that a lane combines side by side: of eight or sixteen whole numbers each, only two fit into registers.
    static constexpr i32 vectors_at_once = costly ? 1 : Format<CCB_TYPE>::whole && element_bytes <= 2 ? 2 : 4;
    CCB_MEMBER u64 combine_word(u64 received, u64 own) const {
        return Word<CCB_TYPE, CCB_OP>::combine(received, own);
    }
    CCB_MEMBER u64 finish_word(u64 total, i32 ranks) const { return Word<CCB_TYPE, CCB_OP>::finish(total, ranks); }
    CCB_MEMBER void begin(Running& total, u64 first) const { Adder<CCB_TYPE, CCB_OP>::begin(total, first); }
    CCB_MEMBER void add(Running& total, u64 own) const { Adder<CCB_TYPE, CCB_OP>::add(total, own); }
    CCB_MEMBER void round(Running& total) const { Adder<CCB_TYPE, CCB_OP>::round(total); }
    CCB_MEMBER u64 end(const Running& total, i32 ranks, bool finishes) const {
        return Adder<CCB_TYPE, CCB_OP>::end(total, ranks, finishes);
    }
#else
    static constexpr bool costly = false;
    static constexpr bool narrow = false;
    static constexpr i32 vectors_at_once = 4;
    i32 element_bytes;
    u64 (*combine_function)(u64, u64);
    u64 (*finish_function)(u64, i32);
    void (*begin)(Running&, u64);
    void (*add)(Running&, u64);
    void (*round)(Running&);
    u64 (*end)(const Running&, i32, bool);
    u64 combine_word(u64 received, u64 own) const { return combine_function(received, own); }
    u64 finish_word(u64 total, i32 ranks) const { return finish_function(total, ranks); }
#endif
    CCB_MEMBER void begin_vector(RunningVector& total, Vector first) const {
        begin(total.low, first.low);
        begin(total.high, first.high);
    }
    CCB_MEMBER void add_vector(RunningVector& total, Vector own) const {
        add(total.low, own.low);
        add(total.high, own.high);
    }
    CCB_MEMBER void round_vector(RunningVector& total) const {
        round(total.low);
        round(total.high);
    }
    CCB_MEMBER Vector end_vector(const RunningVector& total, i32 ranks, bool finishes) const {
        return Vector{end(total.low, ranks, finishes), end(total.high, ranks, finishes)};
    }
};

#if CCB_GPU
CCB_DEVICE Arithmetic arithmetic_of(const Arguments&) { return Arithmetic{}; }
#else
}  // namespace ccb
extern "C" void ccb_host_arithmetic(int type, int op, ccb::Arithmetic* arithmetic);  // host/arithmetic.cpp
namespace ccb {
CCB_DEVICE Arithmetic arithmetic_of(const Arguments& arguments) {
    Arithmetic arithmetic;
    ccb_host_arithmetic(arguments.type, arguments.op, &arithmetic);
    return arithmetic;
}
#endif

}  // namespace ccb
