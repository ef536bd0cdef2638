// Low latency: every rank sends packets straight to all others and waits for nothing but packets. For small sizes.
//
// Two kinds of all_reduce. In ll_all_reduce everybody sends all it has to everybody: one round, ranks - 1 times the
// data. In ll_two_shot_all_reduce everybody sends to each rank that rank's piece, and then its own piece's total to
// everybody: two rounds, 2 (ranks - 1) / ranks times the data.
//
// A packet is one word of 8 bytes: 4 of data and a flag, so that neither fence nor flag follows the data (NCCL's LL
// protocol, src/device/prims_ll.h, is of this kind). A rank has a box for every channel, half and sender. Rounds are
// counted from launch to launch in STATE_PACKET_EPOCH; a round's number makes its flag, and odd and even rounds use
// one half each.
//
// Why no fence is needed (PTX ISA, chapter "Memory Consistency Model"; D. Lustig, S. Sahasrabuddhe, O. Giroux, "A
// Formal Analysis of the NVIDIA PTX Memory Consistency Model", ASPLOS 2019). Fences order accesses to different
// places; data and flag are one place:
// - Packets go in pairs, by st.relaxed.sys.v2.u64 and ld.relaxed.sys.v2.u64 of the same aligned address. A vector
//   access is several scalar accesses in no order, so v2.u32 {data, flag} would not do; here each scalar of 64 bits
//   is a whole packet with a flag of its own, and a pair has come when both flags have.
// - The accesses of a packet are strong, name a scope that holds both lanes wherever they run, and overlap completely:
//   they are morally strong.
// - Axiom "Single-Copy Atomicity": where two such accesses meet, the read cannot take some bytes from the write and
//   others from a write before it. So whoever sees a flag has its data in the same register.
// - Nothing else is handed over: no lane reads, because of a packet, memory that another rank has written.
//
// What happens from round to round. Let round e + 2 overwrite the packet of round e:
// - No data are mistaken, whatever the order: a packet is taken only with its own round's flag, and every round that
//   can still be on its way has another one. The flag is the round's number modulo 2^32 - 1, plus one, so that none is
//   the zero of fresh memory; the same half meets the same flag again after 2 (2^32 - 1) rounds, hours of nothing else,
//   and only in a place of the box that no round between has used.
// - No packet is lost by being overwritten before it is read. In every round every rank hears from every other rank
//   (in a broadcast by a token, from those that have nothing to send). The sender stores for round e + 2 after it has
//   taken the receiver's packet of round e + 1, which the receiver has sent after it took the packet of round e: each
//   "after" is a branch on what was read, or the block's barrier between rounds, which makes it hold for all lanes. A
//   poll of round e that saw the store of round e + 2 would close a circle of reads-from and dependencies, which the
//   axiom "No Thin Air" forbids.
// - Two stores to one place are ordered by the program, the block's barrier or the end of a launch, and a place is
//   seen to change in that order by everyone (axioms "Coherence" and "SC-per-Location"): no old packet comes back.
//
// What does not fit into the boxes goes in several rounds, so any count works; a box holds
// packets_bytes / (16 * PACKET_CHANNELS * ranks) packets of 4 bytes of data each. Channels from PACKET_CHANNELS on
// have nothing to do: where boxes lie must not depend on how many channels a launch has. Contributions are combined
// in the order of ranks. Plan: none.
#include "primitives.cuh"

namespace ccb {

// A block of 512 lanes has a pair each under way to every peer: 4 KiB of data. Sixteen carry the sizes that packets are
// for in one trip each (NCCL's symmetric LL kernels run up to 64 blocks, mscclpp's 28 to 56).
constexpr i32 PACKET_CHANNELS = 16;
constexpr i32 PACKET_PEERS = 128;
constexpr i64 PAIR_BYTES = 8;  // of data: two packets

// What comes from, or goes to, so many peers is loaded at once, so that latencies overlap.
constexpr i32 PEERS_AT_ONCE = 4;

enum Exchange : i32 {
    EXCHANGE_ALL_REDUCE,
    EXCHANGE_TWO_SHOT,
    EXCHANGE_ALL_GATHER,
    EXCHANGE_REDUCE_SCATTER,
    EXCHANGE_BROADCAST
};

// Half 0 of my box at every peer.
struct Boxes {
    u64* mine[PACKET_PEERS];
};

struct Packets {
    const Block& block;
    Boxes& boxes;
    i64 box_packets;
    u64 epoch;
    u32 flag;
};

// Which packet a lane gave up waiting for.
struct Missing {
    i32 peer;  // -1: none
    u32 seen;
};

// The next round. Zero is what memory held at first, so no flag is zero.
CCB_DEVICE void next_round(Packets& run) {
    ++run.epoch;
    run.flag = (u32)(run.epoch % 0xffffffffu) + 1u;
}

CCB_DEVICE i64 half_of(const Packets& run) {
    return (i64)(run.epoch & 1) * run.block.arguments.ranks * run.box_packets;
}

CCB_DEVICE u64* first_box(const Packets& run, const RankView& view, i32 sender) {
    return view.packets + ((i64)run.block.channel * 2 * run.block.arguments.ranks + sender) * run.box_packets;
}

CCB_DEVICE u64 packet_of(const Packets& run, u32 data) { return (u64)run.flag << 32 | data; }

CCB_DEVICE void send_pair(const Packets& run, i32 peer, i64 pair, u64 data) {
    u64* const packets = run.boxes.mine[peer] + half_of(run) + 2 * pair;
    store_packets(packets, Vector{packet_of(run, (u32)data), packet_of(run, (u32)(data >> 32))});
}

CCB_DEVICE bool has_come(const Packets& run, u64 packet) { return (u32)(packet >> 32) == run.flag; }

// Polls, unless what was `seen` before is it already; the pair's data once both packets have come.
CCB_DEVICE u64 wait_pair(const Packets& run, i32 sender, const u64* address, Vector seen, Missing& missing) {
    const Block& block = run.block;
    SpinLimit spin{block.arguments.limit_nanoseconds};
    while (!(has_come(run, seen.low) && has_come(run, seen.high)) && missing.peer < 0) {
        seen = load_packets(address);
        if (has_come(run, seen.low) && has_come(run, seen.high)) break;
        const u64 late = (has_come(run, seen.low) ? seen.high : seen.low) >> 32;
        const Waiting waiting{WAITED_FOR_PACKET, block.rank, sender, block.channel, run.flag, late};
        if (exhausted(spin)) missing = Missing{sender, (u32)late};
        back_off(spin.polls, waiting);
    }
    return seen.high << 32 | (u32)seen.low;
}

// All lanes: whether none misses anything; else one of them says so in the error word.
CCB_DEVICE bool none_missing(const Packets& run, const Missing& missing) {
    Waiting waiting = waiting_for(run.block, WAITED_FOR_PACKET, missing.peer, run.flag);
    waiting.seen = missing.seen;
    return none_gave_up(run.block, missing.peer < 0, waiting);
}

// Up to 8 bytes of whole elements, zeros behind them.
CCB_DEVICE u64 load_pair(const Block& block, const u8* address, i64 bytes) {
    if (bytes >= PAIR_BYTES && ((u64)address & 7u) == 0) return load_element(address, 8);
    const i32 size = block.arithmetic.element_bytes;
    u64 data = 0;
#pragma unroll 1
    for (i32 offset = 0; offset < PAIR_BYTES && offset < bytes; offset += size) {
        data |= load_element(address + offset, size) << (8 * offset);
    }
    return data;
}

CCB_DEVICE void store_pair(const Block& block, u8* address, i64 bytes, u64 data) {
    if (bytes >= PAIR_BYTES && ((u64)address & 7u) == 0) {
        store_element(address, data, 8);
        return;
    }
    const i32 size = block.arithmetic.element_bytes;
#pragma unroll 1
    for (i32 offset = 0; offset < PAIR_BYTES && offset < bytes; offset += size) {
        store_element(address + offset, data >> (8 * offset), size);
    }
}

// Bytes [begin, end) of a buffer, or of each of its blocks of block_bytes, in one round; the blocks end at total_bytes.
struct Stretch {
    const u8* input;
    u8* output;
    i64 begin;
    i64 end;
    i64 block_bytes;
    i64 total_bytes;
};

CCB_DEVICE i64 pairs_of(const Stretch& stretch) { return (stretch.end - stretch.begin + PAIR_BYTES - 1) / PAIR_BYTES; }

// From `offset` on to the end of the stretch in the block of `owner`; none or less where the block ends before.
CCB_DEVICE i64 bytes_left(const Stretch& stretch, i32 owner, i64 offset) {
    return smaller(stretch.end, stretch.total_bytes - owner * stretch.block_bytes) - offset;
}

template <Exchange KIND>
CCB_DEVICE bool reduces() {
    return KIND == EXCHANGE_ALL_REDUCE || KIND == EXCHANGE_REDUCE_SCATTER;
}

// What I contribute at `offset` to `peer`.
template <Exchange KIND>
CCB_DEVICE u64 own_pair(const Block& block, const Stretch& stretch, i32 peer, i64 offset) {
    if (KIND != EXCHANGE_REDUCE_SCATTER) {
        return load_pair(block, stretch.input + offset, bytes_left(stretch, block.rank, offset));
    }
    return load_pair(block, stretch.input + peer * stretch.block_bytes + offset, bytes_left(stretch, peer, offset));
}

// My pair at `offset` to everybody, or to each rank what I contribute to its block: then several are loaded at once.
template <Exchange KIND>
CCB_DEVICE void send_to_all(const Packets& run, const Stretch& stretch, i64 pair) {
    constexpr bool DIFFERENT = KIND == EXCHANGE_REDUCE_SCATTER;
    const Block& block = run.block;
    const i32 ranks = block.arguments.ranks;
    const i64 offset = stretch.begin + pair * PAIR_BYTES;
    const u64 same = DIFFERENT ? 0 : own_pair<KIND>(block, stretch, 0, offset);
#pragma unroll 1
    for (i32 first = 1; first < ranks; first += PEERS_AT_ONCE) {
        u64 data[PEERS_AT_ONCE];
#pragma unroll
        for (i32 i = 0; i < PEERS_AT_ONCE; ++i) {
            const bool loads = DIFFERENT && first + i < ranks;
            data[i] = loads ? own_pair<KIND>(block, stretch, peer_after(block, first + i), offset) : same;
        }
#pragma unroll
        for (i32 i = 0; i < PEERS_AT_ONCE; ++i) {
            if (first + i < ranks) send_pair(run, peer_after(block, first + i), pair, data[i]);
        }
    }
}

template <Exchange KIND>
CCB_DEVICE void send_all(const Packets& run, const Stretch& stretch) {
    const Block& block = run.block;
    for (i64 pair = block.lane; pair < pairs_of(stretch); pair += block.lanes) send_to_all<KIND>(run, stretch, pair);
}

// One pair of every rank, in the order of ranks: combined, or each to its place.
template <Exchange KIND>
CCB_DEVICE void take_pair(const Packets& run, const Stretch& stretch, i64 pair, Missing& missing) {
    const Block& block = run.block;
    const i32 ranks = block.arguments.ranks;
    const i64 offset = stretch.begin + pair * PAIR_BYTES;
    const u64* const boxes = first_box(run, block.self, 0) + half_of(run) + 2 * pair;
    Running total;
    block.arithmetic.begin(total, 0);
#pragma unroll 1
    for (i32 first = 0; first < ranks; first += PEERS_AT_ONCE) {
        Vector looked_at[PEERS_AT_ONCE];
#pragma unroll
        for (i32 i = 0; i < PEERS_AT_ONCE; ++i) {
            const i32 sender = first + i;
            looked_at[i] = sender == block.rank ? Vector{own_pair<KIND>(block, stretch, sender, offset), 0}
                           : sender < ranks     ? load_packets(boxes + sender * run.box_packets)
                                                : Vector{0, 0};
        }
#pragma unroll
        for (i32 i = 0; i < PEERS_AT_ONCE; ++i) {
            const i32 sender = first + i;
            if (sender >= ranks) break;
            const u64 data = sender == block.rank
                                 ? looked_at[i].low
                                 : wait_pair(run, sender, boxes + sender * run.box_packets, looked_at[i], missing);
            if (missing.peer >= 0) return;
            if (reduces<KIND>() && sender == 0) {
                block.arithmetic.begin(total, data);
            } else if (reduces<KIND>()) {
                block.arithmetic.add(total, data);
            } else {
                u8* const output = stretch.output + sender * stretch.block_bytes + offset;
                store_pair(block, output, bytes_left(stretch, sender, offset), data);
            }
        }
    }
    if (reduces<KIND>()) {
        const u64 result = block.arithmetic.end(total, ranks, true);
        store_pair(block, stretch.output + offset, bytes_left(stretch, block.rank, offset), result);
    }
}

template <Exchange KIND>
CCB_DEVICE void take_all(const Packets& run, const Stretch& stretch, Missing& missing) {
    const Block& block = run.block;
    for (i64 pair = block.lane; pair < pairs_of(stretch) && missing.peer < 0; pair += block.lanes) {
        take_pair<KIND>(run, stretch, pair, missing);
    }
}

// Those who only receive tell all others that they have come this far, and everybody waits for them.
CCB_DEVICE void exchange_tokens(const Packets& run, Missing& missing) {
    const Block& block = run.block;
    const i32 ranks = block.arguments.ranks, root = block.arguments.root;
#pragma unroll 1
    for (i32 peer = block.lane; peer < ranks && block.rank != root; peer += block.lanes) {
        if (peer != block.rank) send_pair(run, peer, 0, 0);
    }
#pragma unroll 1
    for (i32 peer = block.lane; peer < ranks && missing.peer < 0; peer += block.lanes) {
        if (peer == block.rank || peer == root) continue;
        const u64* const token = first_box(run, block.self, peer) + half_of(run);
        (void)wait_pair(run, peer, token, load_packets(token), missing);
    }
}

CCB_DEVICE void broadcast_round(const Packets& run, const Stretch& stretch, Missing& missing) {
    const Block& block = run.block;
    const i32 root = block.arguments.root;
    if (block.rank == root) {
        send_all<EXCHANGE_BROADCAST>(run, stretch);
        const i64 size = block.arithmetic.element_bytes;
        copy_elements(block, block.self.input, block.self.output, Span{stretch.begin / size, stretch.end / size});
    }
    exchange_tokens(run, missing);
    for (i64 pair = block.lane; pair < pairs_of(stretch) && block.rank != root && missing.peer < 0;
         pair += block.lanes) {
        const i64 offset = stretch.begin + pair * PAIR_BYTES;
        const u64* const packets = first_box(run, block.self, root) + half_of(run) + 2 * pair;
        const u64 data = wait_pair(run, root, packets, load_packets(packets), missing);
        if (missing.peer < 0) store_pair(block, stretch.output + offset, stretch.end - offset, data);
    }
}

template <Exchange KIND>
CCB_DEVICE bool exchange_round(Packets& run, const Stretch& stretch) {
    Missing missing{-1, 0};
    next_round(run);
    if (KIND == EXCHANGE_BROADCAST) {
        broadcast_round(run, stretch, missing);
    } else {
        send_all<KIND>(run, stretch);
        take_all<KIND>(run, stretch, missing);
    }
    return none_missing(run, missing);
}

// Bytes of data that one box holds.
CCB_DEVICE i64 box_bytes(const Packets& run) { return run.box_packets / 2 * PAIR_BYTES; }

template <Exchange KIND>
CCB_DEVICE bool exchange_rounds(Packets& run, Span part) {
    const Block& block = run.block;
    const i64 size = block.arithmetic.element_bytes, end = part.end * size;
    const bool blocked = KIND == EXCHANGE_ALL_GATHER || KIND == EXCHANGE_REDUCE_SCATTER;
    const i64 block_bytes = blocked ? block.arguments.count * size : 0;
    const i64 total_bytes = blocked ? block.arguments.ranks * block_bytes : end;
    for (i64 begin = part.begin * size; begin < end; begin += box_bytes(run)) {
        const i64 round_end = smaller(begin + box_bytes(run), end);
        const Stretch stretch{block.self.input, block.self.output, begin, round_end, block_bytes, total_bytes};
        if (!exchange_round<KIND>(run, stretch)) return false;
    }
    return true;
}

// As many bytes as fit into the boxes of all ranks, in pieces of whole pairs, one for each rank; the last ones may be
// shorter, or empty. In place: my piece's total is written where only my own lanes still read, and the other pieces
// when all of mine have been sent.
CCB_DEVICE bool two_shot_rounds(Packets& run, Span part) {
    const Block& block = run.block;
    const i64 size = block.arithmetic.element_bytes, ranks = block.arguments.ranks, end = part.end * size;
    for (i64 begin = part.begin * size; begin < end; begin += ranks * box_bytes(run)) {
        const i64 bytes = smaller(ranks * box_bytes(run), end - begin);
        const i64 piece = rounded_up((bytes + ranks - 1) / ranks, PAIR_BYTES);
        const u8* const input = block.self.input + begin;
        u8* const output = block.self.output + begin;
        u8* const mine = output + block.rank * piece;
        if (!exchange_round<EXCHANGE_REDUCE_SCATTER>(run, Stretch{input, mine, 0, piece, piece, bytes})) return false;
        if (!exchange_round<EXCHANGE_ALL_GATHER>(run, Stretch{mine, output, 0, piece, piece, bytes})) return false;
    }
    return true;
}

template <Exchange KIND>
CCB_DEVICE bool exchange(const Arguments& arguments) {
    const Block block = this_block(arguments);
    if (block.channel >= PACKET_CHANNELS) return true;
    // Boxes are for so many channels.
    const Span part = part_among(block, smaller(arguments.channels, PACKET_CHANNELS), arguments.count);
    if (arguments.ranks == 1) {
        copy_elements(block, block.self.input, block.self.output, part);
        return true;
    }
    CCB_SHARED(Boxes, boxes);
    u64* const state = state_of(block.self, arguments, block.channel, STATE_PACKET_EPOCH, 0);
    const i64 box_packets = arguments.packets_bytes / (i64)(8 * 2 * PACKET_CHANNELS * arguments.ranks) & ~(i64)1;
    Packets run{block, boxes, box_packets, *state, 0};
    if (box_packets < 2 || arguments.ranks > PACKET_PEERS) {
        if (block.lane == 0) record_error(block, Waiting{BAD_PLAN, block.rank, block.rank, block.channel, 0, 0});
        return false;
    }
    for (i32 peer = block.lane; peer < arguments.ranks; peer += block.lanes) {
        boxes.mine[peer] = first_box(run, arguments.views[peer], block.rank);
    }
    __syncthreads();
    if (!(KIND == EXCHANGE_TWO_SHOT ? two_shot_rounds(run, part) : exchange_rounds<KIND>(run, part))) return false;
    if (block.lane == 0) *state = run.epoch;  // all have read it: the rounds end with a barrier
    return true;
}

CCB_DEVICE bool ll_all_reduce(const Arguments& arguments) { return exchange<EXCHANGE_ALL_REDUCE>(arguments); }
CCB_DEVICE bool ll_two_shot_all_reduce(const Arguments& arguments) { return exchange<EXCHANGE_TWO_SHOT>(arguments); }
CCB_DEVICE bool ll_all_gather(const Arguments& arguments) { return exchange<EXCHANGE_ALL_GATHER>(arguments); }
CCB_DEVICE bool ll_reduce_scatter(const Arguments& arguments) { return exchange<EXCHANGE_REDUCE_SCATTER>(arguments); }
CCB_DEVICE bool ll_broadcast(const Arguments& arguments) { return exchange<EXCHANGE_BROADCAST>(arguments); }

}  // namespace ccb

CCB_ENTRY(ll_all_reduce, REDUCES)
CCB_ENTRY(ll_two_shot_all_reduce, REDUCES)
CCB_ENTRY(ll_all_gather, COPIES)
CCB_ENTRY(ll_reduce_scatter, REDUCES)
CCB_ENTRY(ll_broadcast, COPIES)
