// What translated PTX is written in: registers are words of their size, and an instruction reads and writes them as
// its own types (PTX ISA, chapter "Instruction Operands": a wider register may hold a narrower value).
#pragma GCC optimize("O1")  // compiling takes longer than running
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "abi.cuh"

extern "C" int ccb_host_register(const char* name, void (*run)(const ccb::Arguments&));

namespace {

template <class To, class From>
inline To same_bits(From from) {
    static_assert(sizeof(To) == sizeof(From), "bits of one size");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

template <class Value, class Register>
inline Value in(Register bits) {
    if constexpr (std::is_floating_point_v<Value>) return same_bits<Value>(bits);
    else return (Value)bits;
}

// Extends a narrower value by its own sign.
template <class Register, class Value>
inline void out(Register& bits, Value value) {
    if constexpr (std::is_floating_point_v<Value>) bits = same_bits<Register>(value);
    else bits = (Register)value;
}

template <class Value>
inline Value load(uint64_t address) {
    Value value;
    memcpy(&value, (const void*)address, sizeof value);
    return value;
}

template <class Value>
inline void store(uint64_t address, Value value) {
    memcpy((void*)address, &value, sizeof value);
}

template <class Value>
inline Value load_flag(uint64_t address) {
    return __atomic_load_n((const Value*)address, __ATOMIC_ACQUIRE);
}

// Flags and packets are what other lanes wait for.
template <class Value>
inline void store_flag(uint64_t address, Value value) {
    __atomic_store_n((Value*)address, value, __ATOMIC_RELEASE);
    ccb_host_progress();
}

// A division by zero gives a value that is not specified, and no trap.
template <class Value>
inline Value quotient(Value left, Value right) {
    if constexpr (std::is_floating_point_v<Value>) return left / right;
    else return right == 0 ? (Value)-1 : (Value)(left / right);
}

template <class Value>
inline Value rest(Value left, Value right) {
    return right == 0 ? left : (Value)(left % right);
}

// Amounts of 32 bits, and no less than the width shifts everything out.
template <class Value>
inline Value left_shift(Value value, uint32_t amount) {
    return amount < 8 * sizeof value ? (Value)(value << amount) : 0;
}

template <class Value>
inline Value right_shift(Value value, uint32_t amount) {
    const uint32_t most = 8 * sizeof value - 1;
    if (amount <= most) return (Value)(value >> amount);
    return std::is_signed_v<Value> && value < 0 ? (Value)-1 : 0;
}

template <class Value>
inline Value field(Value value, uint32_t position, uint32_t length) {
    typedef std::make_unsigned_t<Value> Bits;
    const uint32_t unused = 8 * sizeof value - length;
    return (Value)((Value)((Bits)value << (unused - position)) >> unused);
}

template <class Value>
inline Value with_field(Value insert, Value base, uint32_t position, uint32_t length) {
    const Value mask = (Value)(((((Value)1 << (length - 1)) - 1) << 1 | 1) << position);
    return (Value)((base & ~mask) | ((insert << position) & mask));
}

inline float float_of_half(uint16_t bits) { return (float)same_bits<_Float16>(bits); }

inline uint16_t half_of_float(float value) {
    return std::isnan(value) ? 0x7fff : same_bits<uint16_t>((_Float16)value);  // a GPU has one NaN
}

}  // namespace
