// A block's place in a launch, and its share of the data.
#pragma once

#include "types.cuh"

namespace ccb {

// Lanes that a block of any device may have.
constexpr i32 MOST_LANES = 1024;

// One block's place in a launch. `self` is the rank's own memory.
struct Block {
    const Arguments& arguments;
    const RankView& self;
    Arithmetic arithmetic;
    i32 rank;
    i32 channel;
    i32 lane;
    i32 lanes;
};

CCB_DEVICE Block this_block(const Arguments& arguments) {
    const i32 index = (i32)blockIdx.x;
    const i32 rank = arguments.first_rank + index % arguments.ranks_here;
    return Block{arguments, arguments.views[rank],       arithmetic_of(arguments), rank,
                 index / arguments.ranks_here, (i32)threadIdx.x, (i32)blockDim.x};
}

CCB_DEVICE const i32* plan_of(const Block& block) {
    return block.arguments.plan + (i64)block.channel * block.arguments.plan_words;
}

CCB_DEVICE i64 smaller(i64 a, i64 b) { return a < b ? a : b; }
CCB_DEVICE i64 rounded_up(i64 value, i64 unit) { return (value + unit - 1) / unit * unit; }

// ---- partition ----

// Elements [begin, end).
struct Span {
    i64 begin;
    i64 end;
};

// Elements in 16 bytes: parts are whole multiples of it, so that vectors stay aligned.
CCB_DEVICE i64 granule_of(const Block& block) { return 16 / block.arithmetic.element_bytes; }

// A channel's share of count elements; the first channels get one granule more where it does not divide.
CCB_DEVICE Span channel_part(const Block& block, i64 count) {
    const i64 granule = granule_of(block), granules = (count + granule - 1) / granule;
    const i64 each = granules / block.arguments.channels, more = granules % block.arguments.channels;
    const i64 channel = block.channel;
    const i64 begin = channel * each + smaller(channel, more);
    const i64 end = begin + each + (channel < more ? 1 : 0);
    return Span{smaller(begin * granule, count), smaller(end * granule, count)};
}

// Part `index` of the parts of `size` elements that `whole` is cut into; empty behind its end.
CCB_DEVICE Span part_of(Span whole, i64 index, i64 size) {
    const i64 begin = smaller(whole.begin + index * size, whole.end);
    return Span{begin, smaller(begin + size, whole.end)};
}

// Elements that one message carries.
CCB_DEVICE i64 slot_elements(const Block& block) {
    return block.arguments.slot_bytes / block.arithmetic.element_bytes;
}

CCB_DEVICE u8* at(u8* buffer, const Block& block, i64 element) {
    return buffer + element * block.arithmetic.element_bytes;
}

}  // namespace ccb
