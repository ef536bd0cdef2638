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

// The rank `steps` after this one, around the end: taken in this order, not all ranks load one link first.
// steps: at most as many as there are ranks.
CCB_DEVICE i32 peer_after(const Block& block, i32 steps) {
    const i32 rank = block.rank + steps, ranks = block.arguments.ranks;
    return rank < ranks ? rank : rank - ranks;
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

// A channel's share of count elements among `channels`; the first ones get one granule more where it does not divide.
CCB_DEVICE Span part_among(const Block& block, i64 channels, i64 count) {
    const i64 granule = granule_of(block), granules = (count + granule - 1) / granule;
    const i64 each = granules / channels, more = granules % channels, channel = block.channel;
    const i64 begin = channel * each + smaller(channel, more);
    const i64 end = begin + each + (channel < more ? 1 : 0);
    return Span{smaller(begin * granule, count), smaller(end * granule, count)};
}

CCB_DEVICE Span channel_part(const Block& block, i64 count) {
    return part_among(block, block.arguments.channels, count);
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

// Of a chain, whose last rank has nothing to do until the first messages have come all the way: (m / c + h)(c / r + t)
// for m bytes over h more links of r bytes/s, at t seconds a step, is least at c = sqrt(m r t / h), 0.2 MB for 8 MiB,
// 6, 14 GB/s and 2 us, and flat there.
constexpr i64 CHAIN_BYTES = 128 << 10;

CCB_DEVICE i64 chain_elements(const Block& block) {
    return smaller(block.arguments.slot_bytes, CHAIN_BYTES) / block.arithmetic.element_bytes;
}

CCB_DEVICE u8* at(u8* buffer, const Block& block, i64 element) {
    return buffer + element * block.arithmetic.element_bytes;
}

}  // namespace ccb
