// Low latency: every rank sends packets straight to all others and waits for nothing but packets. For small sizes.
//
// A packet is one word of 8 bytes: 4 of data and a flag, so that neither fence nor flag follows the data (NCCL's LL
// protocol, src/device/prims_ll.h, is of this kind). A rank has a box for every channel, half and sender. Rounds are
// counted from launch to launch in STATE_PACKET_EPOCH; a round's number makes its flag, and odd and even rounds use
// one half each.
//
// Why no fence is needed (PTX ISA, chapter "Memory Consistency Model"; D. Lustig, S. Sahasrabuddhe, O. Giroux, "A
// Formal Analysis of the NVIDIA PTX Memory Consistency Model", ASPLOS 2019). Fences order accesses to different
// places; data and flag are one place:
// - A packet is stored by one st.relaxed.sys.u64 and read by one ld.relaxed.sys.u64 of the same aligned address. Both
//   are strong, name a scope that holds both lanes wherever they run, and overlap completely: they are morally strong.
// - Axiom "Single-Copy Atomicity": where two such accesses meet, the read cannot take some bytes from the write and
//   others from a write before it. So whoever sees a flag has its data in the same register. That rule is about
//   scalars: a vector access is several accesses in no order, so v2.u32 {data, flag} would not do, and the test of
//   the compiled code looks for none. 64 bits are the widest scalar of sm_70.
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

constexpr i32 PACKET_CHANNELS = 4;
constexpr i32 PACKET_PEERS = 128;
constexpr i64 PAIR_BYTES = 8;  // of data: two packets

// Packets of so many senders are loaded at once, so that their latencies overlap.
constexpr i32 SENDERS_AT_ONCE = 4;

enum Exchange : i32 { EXCHANGE_ALL_REDUCE, EXCHANGE_ALL_GATHER, EXCHANGE_REDUCE_SCATTER, EXCHANGE_BROADCAST };

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
    store_packet(packets, packet_of(run, (u32)data));
    store_packet(packets + 1, packet_of(run, (u32)(data >> 32)));
}

// Polls, unless what was `seen` before is it already; the packet's data once it has come.
CCB_DEVICE u32 wait_packet(const Packets& run, i32 sender, const u64* address, u64 seen, Missing& missing) {
    const Block& block = run.block;
    SpinLimit spin{block.arguments.limit_nanoseconds};
    while ((u32)(seen >> 32) != run.flag && missing.peer < 0) {
        seen = load_packet(address);
        if ((u32)(seen >> 32) == run.flag) break;
        const Waiting waiting{WAITED_FOR_PACKET, block.rank, sender, block.channel, run.flag, seen >> 32};
        if (exhausted(spin)) missing = Missing{sender, (u32)(seen >> 32)};
        back_off(spin.polls, waiting);
    }
    return (u32)seen;
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

// Bytes [begin, end) of a buffer, or of each of its blocks of block_bytes, in one round.
struct Stretch {
    i64 begin;
    i64 end;
    i64 block_bytes;
};

CCB_DEVICE i64 pairs_of(const Stretch& stretch) { return (stretch.end - stretch.begin + PAIR_BYTES - 1) / PAIR_BYTES; }

template <Exchange KIND>
CCB_DEVICE bool reduces() {
    return KIND == EXCHANGE_ALL_REDUCE || KIND == EXCHANGE_REDUCE_SCATTER;
}

// What I contribute at `offset` to `peer`.
template <Exchange KIND>
CCB_DEVICE u64 own_pair(const Block& block, const Stretch& stretch, i32 peer, i64 offset) {
    const i64 begin = offset + (KIND == EXCHANGE_REDUCE_SCATTER ? peer * stretch.block_bytes : 0);
    return load_pair(block, block.self.input + begin, stretch.end - offset);
}

template <Exchange KIND>
CCB_DEVICE void send_all(const Packets& run, const Stretch& stretch) {
    const Block& block = run.block;
    const i32 ranks = block.arguments.ranks;
    for (i64 pair = block.lane; pair < pairs_of(stretch); pair += block.lanes) {
        const i64 offset = stretch.begin + pair * PAIR_BYTES;
        u64 data = own_pair<KIND>(block, stretch, 0, offset);
#pragma unroll 1
        for (i32 step = 1; step < ranks; ++step) {
            const i32 peer = block.rank + step < ranks ? block.rank + step : block.rank + step - ranks;
            if (KIND == EXCHANGE_REDUCE_SCATTER) data = own_pair<KIND>(block, stretch, peer, offset);
            send_pair(run, peer, pair, data);
        }
    }
}

// What `sender` contributes to pair number `pair`; its packets have been looked at once already.
template <Exchange KIND>
CCB_DEVICE u64 pair_from(const Packets& run, const Stretch& stretch, i32 sender, i64 pair, const u64* packets, u64 low,
                         u64 high, Missing& missing) {
    const Block& block = run.block;
    if (sender == block.rank) return own_pair<KIND>(block, stretch, block.rank, stretch.begin + pair * PAIR_BYTES);
    const u32 first = wait_packet(run, sender, packets, low, missing);
    const u32 second = wait_packet(run, sender, packets + 1, high, missing);
    return (u64)second << 32 | first;
}

// One pair of every rank, in the order of ranks: combined, or each to its place.
template <Exchange KIND>
CCB_DEVICE void take_pair(const Packets& run, const Stretch& stretch, i64 pair, Missing& missing) {
    const Block& block = run.block;
    const i32 ranks = block.arguments.ranks;
    const i64 offset = stretch.begin + pair * PAIR_BYTES, bytes = stretch.end - offset;
    const u64* const boxes = first_box(run, block.self, 0) + half_of(run) + 2 * pair;
    u64 total = 0;
#pragma unroll 1
    for (i32 first = 0; first < ranks; first += SENDERS_AT_ONCE) {
        u64 low[SENDERS_AT_ONCE], high[SENDERS_AT_ONCE];
#pragma unroll
        for (i32 i = 0; i < SENDERS_AT_ONCE; ++i) {
            const bool comes = first + i < ranks && first + i != block.rank;
            const u64* const packets = boxes + (first + i) * run.box_packets;
            low[i] = comes ? load_packet(packets) : 0;
            high[i] = comes ? load_packet(packets + 1) : 0;
        }
#pragma unroll
        for (i32 i = 0; i < SENDERS_AT_ONCE; ++i) {
            const i32 sender = first + i;
            if (sender >= ranks) break;
            const u64* const packets = boxes + sender * run.box_packets;
            const u64 data = pair_from<KIND>(run, stretch, sender, pair, packets, low[i], high[i], missing);
            if (missing.peer >= 0) return;
            if (reduces<KIND>()) {
                total = sender == 0 ? data : block.arithmetic.combine_word(total, data);
            } else {
                store_pair(block, block.self.output + sender * stretch.block_bytes + offset, bytes, data);
            }
        }
    }
    if (reduces<KIND>()) {
        store_pair(block, block.self.output + offset, bytes, block.arithmetic.finish_word(total, ranks));
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
        if (peer != block.rank) store_packet(run.boxes.mine[peer] + half_of(run), packet_of(run, 0));
    }
#pragma unroll 1
    for (i32 peer = block.lane; peer < ranks && missing.peer < 0; peer += block.lanes) {
        if (peer == block.rank || peer == root) continue;
        const u64* const token = first_box(run, block.self, peer) + half_of(run);
        (void)wait_packet(run, peer, token, load_packet(token), missing);
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
        const u64 low = load_packet(packets), high = load_packet(packets + 1);
        const u64 data = pair_from<EXCHANGE_BROADCAST>(run, stretch, root, pair, packets, low, high, missing);
        if (missing.peer < 0) store_pair(block, block.self.output + offset, stretch.end - offset, data);
    }
}

// channel_part among as many channels as there are boxes for.
CCB_DEVICE Span packet_part(const Block& block, i64 count) {
    const i64 granule = granule_of(block), granules = (count + granule - 1) / granule;
    const i64 channels = smaller(block.arguments.channels, PACKET_CHANNELS), channel = block.channel;
    const i64 each = granules / channels, more = granules % channels;
    const i64 begin = channel * each + smaller(channel, more);
    const i64 end = begin + each + (channel < more ? 1 : 0);
    return Span{smaller(begin * granule, count), smaller(end * granule, count)};
}

template <Exchange KIND>
CCB_DEVICE bool exchange_rounds(Packets& run, Span part) {
    const Block& block = run.block;
    const i64 size = block.arithmetic.element_bytes, end = part.end * size;
    const i64 round_bytes = run.box_packets / 2 * PAIR_BYTES;
    const bool blocked = KIND == EXCHANGE_ALL_GATHER || KIND == EXCHANGE_REDUCE_SCATTER;
    Missing missing{-1, 0};
    for (i64 begin = part.begin * size; begin < end; begin += round_bytes) {
        next_round(run);
        const Stretch stretch{begin, smaller(begin + round_bytes, end), blocked ? block.arguments.count * size : 0};
        if (KIND == EXCHANGE_BROADCAST) {
            broadcast_round(run, stretch, missing);
        } else {
            send_all<KIND>(run, stretch);
            take_all<KIND>(run, stretch, missing);
        }
        if (!none_missing(run, missing)) return false;
    }
    return true;
}

template <Exchange KIND>
CCB_DEVICE bool exchange(const Arguments& arguments) {
    const Block block = this_block(arguments);
    if (block.channel >= PACKET_CHANNELS) return true;
    const Span part = packet_part(block, arguments.count);
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
    if (!exchange_rounds<KIND>(run, part)) return false;
    if (block.lane == 0) *state = run.epoch;  // all have read it: the rounds end with a barrier
    return true;
}

CCB_DEVICE bool ll_all_reduce(const Arguments& arguments) { return exchange<EXCHANGE_ALL_REDUCE>(arguments); }
CCB_DEVICE bool ll_all_gather(const Arguments& arguments) { return exchange<EXCHANGE_ALL_GATHER>(arguments); }
CCB_DEVICE bool ll_reduce_scatter(const Arguments& arguments) { return exchange<EXCHANGE_REDUCE_SCATTER>(arguments); }
CCB_DEVICE bool ll_broadcast(const Arguments& arguments) { return exchange<EXCHANGE_BROADCAST>(arguments); }

}  // namespace ccb

CCB_ENTRY(ll_all_reduce, REDUCES)
CCB_ENTRY(ll_all_gather, COPIES)
CCB_ENTRY(ll_reduce_scatter, REDUCES)
CCB_ENTRY(ll_broadcast, COPIES)
