// Compare: how many elements of an output differ in any bit from what is right, and the first of them.
//
// Right outputs repeat themselves: the program has one Piece for each stretch that does, and the rank's input holds
// what they repeat. Each lane of the launch writes what it found into the rank's staging: a Vector, how many and which.
// No lane waits for another, and the elements of a piece are shared among all of them. Plan: none. One rank.
#include "primitives.cuh"

namespace ccb {

// Elements [begin, begin + count) of the output; right are the `period` of the input from `source` on, over and over.
struct Piece {
    i64 begin;
    i64 count;
    i64 source;
    i64 period;
};

CCB_DEVICE bool compare(const Arguments& arguments) {
    const Block block = this_block(arguments);
    const Piece* const pieces = (const Piece*)arguments.program;
    const i32 number = arguments.program_words / (i32)(sizeof(Piece) / sizeof(i32));
    const i32 size = block.arithmetic.element_bytes;
    const i64 lanes = (i64)block.lanes * arguments.channels;
    const i64 lane = (i64)block.lanes * block.channel + block.lane;
    Vector found{0, ~0ull >> 1};  // none, and behind every element
#pragma unroll 1
    for (i32 i = 0; i < number; ++i) {
        const Piece piece = pieces[i];
        const u8* const output = at(block.self.output, block, piece.begin);
        const u8* const right = at(block.self.input, block, piece.source);
        const i64 step = lanes % piece.period;
        i64 place = lane % piece.period;
#pragma unroll 4
        for (i64 element = lane; element < piece.count; element += lanes) {
            if (load_element(output + element * size, size) != load_element(right + place * size, size)) {
                ++found.low;
                found.high = (u64)smaller((i64)found.high, piece.begin + element);
            }
            place += step;
            if (place >= piece.period) place -= piece.period;
        }
    }
    store_vector(block.self.staging + lane * sizeof(Vector), found);
    return true;
}

}  // namespace ccb

CCB_ENTRY(compare, COPIES)
