// Any number of sources folded into one value, which goes to any number of targets; and a block's links to many
// peers at once. Mesh and tree are made of these two.
//
// What a fold works on lies in shared memory: lanes share the work of finding addresses, which would otherwise cost
// every lane registers and trips to global memory.
#pragma once

#include "primitives.cuh"

namespace ccb {

// Peers that one block may have links to.
constexpr i32 MOST_PEERS = 64;

// Where sources and targets begin, in the order of folding and of writing.
struct Places {
    const u8* source[MOST_PEERS];
    u8* target[MOST_PEERS];
};

// value = ((source[0] + source[1]) + ...), finished where it says so, to every target.
struct Fold {
    const Places& places;
    i32 sources;  // at least 1
    i32 targets;
    i64 bytes;
    bool vectors;   // all places are aligned to 16 bytes
    bool finishes;  // the last contribution is among the sources
};

// In the bulk a lane loads several vectors of one source at once; two sources' would not fit into the registers. Near
// the end, and where there are few bytes, it loads one vector of each of several sources: few trips to memory.
constexpr i32 SMALL_DEPTH = Arithmetic::vectors_at_once;

// What trees and schedules keep in registers besides leaves no room for four vectors of floats.
constexpr i32 SIDE_BY_SIDE = Arithmetic::narrow && !Arithmetic::costly ? 2 : Arithmetic::vectors_at_once;

// A warp's vectors lie side by side, so that a lane's next one has a fixed distance, which costs no register.
constexpr i32 GROUP = CCB_GPU ? 32 : 1;
constexpr i32 GROUP_BYTES = GROUP * 16;

// When sums of narrow floats are rounded: at the end, or after every addition. A schedule's bits must not depend on
// which of its steps are joined into one fold.
enum Rounding { ROUNDED_AT_THE_END, ROUNDED_EACH_TIME };

// Adds to `result`, the vectors of the first source, those of all others.
template <Rounding ROUNDING, i32 WIDTH, i32 DEPTH>
CCB_DEVICE void add_up(const Block& block, const Fold& fold, i64 offset, Vector (&result)[WIDTH]) {
    RunningVector total[WIDTH];
#pragma unroll
    for (i32 i = 0; i < WIDTH; ++i) block.arithmetic.begin_vector(total[i], result[i]);
#pragma unroll 1
    for (i32 first = 1; first < fold.sources; first += DEPTH) {
        Vector batch[DEPTH][WIDTH];
#pragma unroll
        for (i32 d = 0; d < DEPTH; ++d) {
            const bool there = first + d < fold.sources;
            const u8* const source = fold.places.source[there ? first + d : 0] + offset;
#pragma unroll
            for (i32 i = 0; i < WIDTH; ++i) batch[d][i] = there ? load_vector(source + i * GROUP_BYTES) : Vector{0, 0};
        }
#pragma unroll
        for (i32 d = 0; d < DEPTH; ++d) {
            if (first + d >= fold.sources) break;
#pragma unroll
            for (i32 i = 0; i < WIDTH; ++i) {
                block.arithmetic.add_vector(total[i], batch[d][i]);
                if (ROUNDING == ROUNDED_EACH_TIME) block.arithmetic.round_vector(total[i]);
            }
        }
    }
#pragma unroll
    for (i32 i = 0; i < WIDTH; ++i) {
        result[i] = block.arithmetic.end_vector(total[i], block.arguments.ranks, fold.finishes);
    }
}

// WIDTH vectors, GROUP_BYTES apart, from `offset` on.
template <bool COMBINES, Rounding ROUNDING, i32 WIDTH, i32 DEPTH>
CCB_DEVICE void fold_vectors(const Block& block, const Fold& fold, i64 offset) {
    Vector result[WIDTH];
#pragma unroll
    for (i32 i = 0; i < WIDTH; ++i) result[i] = load_vector(fold.places.source[0] + offset + i * GROUP_BYTES);
    if (COMBINES) add_up<ROUNDING, WIDTH, DEPTH>(block, fold, offset, result);
#pragma unroll 1
    for (i32 target = 0; target < fold.targets; ++target) {
        u8* const output = fold.places.target[target] + offset;
#pragma unroll
        for (i32 i = 0; i < WIDTH; ++i) store_vector(output + i * GROUP_BYTES, result[i]);
    }
}

template <bool COMBINES, Rounding ROUNDING>
CCB_DEVICE void fold_elements(const Block& block, const Fold& fold, i64 begin) {
    const i32 size = block.arithmetic.element_bytes;
#pragma unroll 1
    for (i64 offset = begin + block.lane * size; offset < fold.bytes; offset += block.lanes * size) {
        u64 result = load_element(fold.places.source[0] + offset, size);
        if (COMBINES) {
            Running total;
            block.arithmetic.begin(total, result);
#pragma unroll 1
            for (i32 source = 1; source < fold.sources; ++source) {
                block.arithmetic.add(total, load_element(fold.places.source[source] + offset, size));
                if (ROUNDING == ROUNDED_EACH_TIME) block.arithmetic.round(total);
            }
            result = block.arithmetic.end(total, block.arguments.ranks, fold.finishes);
        }
#pragma unroll 1
        for (i32 target = 0; target < fold.targets; ++target) {
            store_element(fold.places.target[target] + offset, result, size);
        }
    }
}

// All lanes take part. An element is read from all sources and written to all targets by one lane, in this order: a
// target may be the same as any source.
template <bool COMBINES, Rounding ROUNDING = ROUNDED_AT_THE_END, i32 MOST_WIDTH = Arithmetic::vectors_at_once>
CCB_DEVICE void fold_all(const Block& block, const Fold& fold) {
    constexpr i32 WIDTH = COMBINES ? MOST_WIDTH : COPIES_AT_ONCE;
    constexpr i64 tile = WIDTH * GROUP_BYTES;
    const i64 vector_bytes = fold.vectors ? fold.bytes & ~(i64)15 : 0;
    i64 done = 0;
    if (vector_bytes >= block.lanes * WIDTH * 16) {
        const i64 step = block.lanes / GROUP * tile;
#pragma unroll 1
        for (i64 begin = block.lane / GROUP * tile; begin + tile <= vector_bytes; begin += step) {
            fold_vectors<COMBINES, ROUNDING, WIDTH, 1>(block, fold, begin + block.lane % GROUP * 16);
        }
        done = vector_bytes / tile * tile;
    }
#pragma unroll 1
    for (i64 offset = done + block.lane * 16; offset < vector_bytes; offset += block.lanes * 16) {
        fold_vectors<COMBINES, ROUNDING, 1, COMBINES ? SMALL_DEPTH : 1>(block, fold, offset);
    }
    fold_elements<COMBINES, ROUNDING>(block, fold, vector_bytes);
}

// ---- loads in turn ----

// Ranks of which a lane holds a vector each at once; of fewer than LEAST_TURNED fold_all has as many loads under way.
constexpr i32 LEAST_TURNED = 5, MOST_TURNED = 8;

// Loads a vector of each source from `begin` to `end`. Registers have no index that is computed, so every source has
// its own place.
CCB_DEVICE void load_some(const Fold& fold, i64 offset, i32 begin, i32 end, Vector (&batch)[MOST_TURNED]) {
#pragma unroll
    for (i32 source = 0; source < MOST_TURNED; ++source) {
        if (source >= begin && source < end) batch[source] = load_vector(fold.places.source[source] + offset);
    }
}

// One vector: loaded from the own rank's source on, and around; added up in the order of ranks.
CCB_DEVICE void fold_vector_turned(const Block& block, const Fold& fold, i64 offset) {
    Vector batch[MOST_TURNED];
    load_some(fold, offset, block.rank, fold.sources, batch);
    load_some(fold, offset, 0, block.rank, batch);
    RunningVector total;
    block.arithmetic.begin_vector(total, batch[0]);
#pragma unroll
    for (i32 source = 1; source < MOST_TURNED; ++source) {
        if (source < fold.sources) block.arithmetic.add_vector(total, batch[source]);
    }
    const Vector result = block.arithmetic.end_vector(total, block.arguments.ranks, fold.finishes);
#pragma unroll 1
    for (i32 target = 0; target < fold.targets; ++target) store_vector(fold.places.target[target] + offset, result);
}

// As fold_all<true>, with one source of every rank, in their order.
CCB_DEVICE void fold_turned(const Block& block, const Fold& fold) {
    if (Arithmetic::costly || fold.sources < LEAST_TURNED || fold.sources > MOST_TURNED) {
        return fold_all<true>(block, fold);
    }
    const i64 vector_bytes = fold.vectors ? fold.bytes & ~(i64)15 : 0;
#pragma unroll 1
    for (i64 offset = block.lane * 16; offset < vector_bytes; offset += block.lanes * 16) {
        fold_vector_turned(block, fold, offset);
    }
    fold_elements<true, ROUNDED_AT_THE_END>(block, fold, vector_bytes);
}

// ---- links: connections to several peers, whose flags lanes share the work of polling and posting ----

// Of each link, by its index. Lane `index % lanes` is the only one that touches it.
struct LinkCounters {
    u64 sent[MOST_PEERS];
    u64 received[MOST_PEERS];
};

struct LinkPeers {
    i32 rank[MOST_PEERS];
};

struct Links {
    LinkCounters& counters;
    LinkPeers& peers;
    i32 count;
};

// Which links a step sends on and receives on; a bit each.
struct Step {
    u64 receives;
    u64 sends;
    bool by_fifo;  // what it sends lies in the peers' slots, so that credit is needed
};

CCB_DEVICE bool on_link(u64 links, i32 link) { return (links >> link & 1) != 0; }

CCB_DEVICE u64 all_links(i32 count) { return count >= 64 ? ~0ull : (1ull << count) - 1; }

// After links.peers is filled (each entry by its own lane).
CCB_DEVICE void open_links(const Block& block, const Links& links) {
#pragma unroll 1
    for (i32 link = block.lane; link < links.count; link += block.lanes) {
        const i32 peer = links.peers.rank[link];
        links.counters.sent[link] = *state_of(block.self, block.arguments, block.channel, STATE_SENT, peer);
        links.counters.received[link] = *state_of(block.self, block.arguments, block.channel, STATE_RECEIVED, peer);
    }
}

// Remembers the counters for the next launch.
CCB_DEVICE void close_links(const Block& block, const Links& links) {
#pragma unroll 1
    for (i32 link = block.lane; link < links.count; link += block.lanes) {
        const i32 peer = links.peers.rank[link];
        *state_of(block.self, block.arguments, block.channel, STATE_SENT, peer) = links.counters.sent[link];
        *state_of(block.self, block.arguments, block.channel, STATE_RECEIVED, peer) = links.counters.received[link];
    }
}

// Where the next message on a link goes; asked by the link's own lane.
CCB_DEVICE u8* slot_to(const Block& block, const Links& links, i32 link) {
    const Arguments& arguments = block.arguments;
    u8* const fifo = fifo_of(arguments.views[links.peers.rank[link]], arguments, block.channel, block.rank);
    return fifo + ((i32)links.counters.sent[link] & (arguments.slots - 1)) * arguments.slot_bytes;
}

// Where the next message of a link comes.
CCB_DEVICE const u8* slot_from(const Block& block, const Links& links, i32 link) {
    const Arguments& arguments = block.arguments;
    const u8* const fifo = fifo_of(block.self, arguments, block.channel, links.peers.rank[link]);
    return fifo + ((i32)links.counters.received[link] & (arguments.slots - 1)) * arguments.slot_bytes;
}

// Of one link; where it gives up, `waiting` says what for.
CCB_DEVICE bool wait_link(const Block& block, const Links& links, const Step& step, i32 link, Waiting& waiting) {
    const Arguments& arguments = block.arguments;
    const i32 peer = links.peers.rank[link];
    if (on_link(step.receives, link)) {
        const u64* const arrived = flag_of(block.self, arguments, block.channel, FLAG_ARRIVED, peer);
        waiting = waiting_for(block, WAITED_FOR_DATA, peer, links.counters.received[link] + 1);
        if (!poll_flag(block, arrived, waiting)) return false;
    }
    const u64 slots = (u64)arguments.slots, sent = links.counters.sent[link];
    if (!step.by_fifo || !on_link(step.sends, link) || sent < slots) return true;
    const u64* const credit = flag_of(block.self, arguments, block.channel, FLAG_CREDIT, peer);
    waiting = waiting_for(block, WAITED_FOR_CREDIT, peer, sent + 1 - slots);
    return poll_flag(block, credit, waiting);
}

// Waits until all that the step needs is there. What lanes wrote to shared memory before is visible to all afterwards.
CCB_DEVICE bool begin_step(const Block& block, const Links& links, const Step& step) {
    bool ok = true;
    Waiting waiting = waiting_for(block, NO_ERROR, block.rank, 0);
#pragma unroll 1
    for (i32 link = block.lane; link < links.count && ok; link += block.lanes) {
        ok = wait_link(block, links, step, link, waiting);
    }
    return none_gave_up(block, ok, waiting);
}

// All lanes are done; every link's lane tells its peer.
CCB_DEVICE void end_step(const Block& block, const Links& links, const Step& step) {
    __syncthreads();
#pragma unroll 1
    for (i32 link = block.lane; link < links.count; link += block.lanes) {
        const bool receives = on_link(step.receives, link), sends = on_link(step.sends, link);
        if (!receives && !sends) continue;
        const i32 peer = links.peers.rank[link];
        const RankView& theirs = block.arguments.views[peer];
        u64* const arrived = flag_of(theirs, block.arguments, block.channel, FLAG_ARRIVED, block.rank);
        u64* const credit = flag_of(theirs, block.arguments, block.channel, FLAG_CREDIT, block.rank);
        const u64 sent = links.counters.sent[link] += sends ? 1 : 0;
        const u64 received = links.counters.received[link] += receives ? 1 : 0;
        if (receives && sends) {
            post_two(arrived, sent, credit, received);
        } else {
            post(sends ? arrived : credit, sends ? sent : received);
        }
    }
}

// A launch that these kernels cannot run, as the error word says. All lanes return false.
CCB_DEVICE bool refuse(const Block& block, i32 peer) {
    if (block.lane == 0) record_error(block, Waiting{BAD_PLAN, block.rank, peer, block.channel, 0, 0});
    return false;
}

}  // namespace ccb
