// Every type with every op, chosen at run time.
#include "../types.cuh"

namespace {

template <int TYPE, int OP>
void fill(ccb::Arithmetic* arithmetic) {
    typedef ccb::Word<TYPE, OP> Word;
    typedef ccb::Adder<TYPE, OP> Adder;
    *arithmetic = ccb::Arithmetic{ccb::Format<TYPE>::bytes, Word::combine, Word::finish,
                                  Adder::begin,             Adder::add,    Adder::round,  Adder::end};
}

typedef void (*Fill)(ccb::Arithmetic*);

template <int TYPE>
void fill_op(int op, ccb::Arithmetic* arithmetic) {
    static const Fill fills[ccb::OPS] = {fill<TYPE, 0>, fill<TYPE, 1>, fill<TYPE, 2>, fill<TYPE, 3>, fill<TYPE, 4>};
    fills[op](arithmetic);
}

}  // namespace

extern "C" void ccb_host_arithmetic(int type, int op, ccb::Arithmetic* arithmetic) {
    static void (*const fills[ccb::TYPES])(int, ccb::Arithmetic*) = {
        fill_op<0>, fill_op<1>, fill_op<2>, fill_op<3>,  fill_op<4>,  fill_op<5>,  fill_op<6>,
        fill_op<7>, fill_op<8>, fill_op<9>, fill_op<10>, fill_op<11>, fill_op<12>, fill_op<13>};
    fills[type](op, arithmetic);
}

// For tests of the arithmetic alone: words of elements, combined or (own == nullptr) finished.
extern "C" void ccb_host_words(int type, int op, int ranks, long long words, const ccb::u64* received,
                               const ccb::u64* own, ccb::u64* result) {
    ccb::Arithmetic arithmetic;
    ccb_host_arithmetic(type, op, &arithmetic);
    for (long long i = 0; i < words; ++i) {
        result[i] = own ? arithmetic.combine_word(received[i], own[i]) : arithmetic.finish_word(received[i], ranks);
    }
}
