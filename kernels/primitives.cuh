// What every algorithm is made of: waits, connections, and steps that move messages.
#pragma once

#include "block.cuh"

#ifndef CCB_MAX_LANES
#define CCB_MAX_LANES 512
#endif

namespace ccb {

// Independent loads of 16 bytes that a lane has in flight when it copies: with 512 lanes 64 KiB per block.
constexpr i32 COPIES_AT_ONCE = 8;

// One move counts its bytes in 32 bits, which saves registers; slot_bytes may not be larger.
constexpr i64 LARGEST_MOVE_BYTES = 1 << 30;

// ---- waits ----

// All lanes learn whether every lane succeeded; what any acquired is then visible to all of them.
CCB_DEVICE bool all_agree(bool ok) { return __syncthreads_or(ok ? 0 : 1) == 0; }

// By one lane of the block only: an error word is whole because nobody else writes it. (Claiming it by an atomic
// compare-and-swap would do as well, but atomics do not reach host memory behind every PCIe root port, and nothing
// else here needs them.)
CCB_DEVICE void record_error(const Block& block, const Waiting& waiting) {
    ErrorWord* error = block.self.errors + block.channel;
    error->rank = waiting.rank;
    error->peer = waiting.peer;
    error->channel = waiting.channel;
    error->goal = waiting.goal;
    error->seen = waiting.seen;
    error->code = waiting.code;
}

// All lanes: true in the lowest of those that stand, in no other. One bit of its number after another, by barriers
// that gather votes: lanes that stand may be any, so that a word that each of them wrote would be a race of its own.
CCB_DEVICE bool elected(const Block& block, bool stands) {
#pragma unroll 1
    for (i32 bit = MOST_LANES / 2; bit > 0; bit /= 2) {
        const bool lower = stands && (block.lane & bit) == 0;
        if (!all_agree(!lower)) stands = lower;
    }
    return stands;
}

// All lanes, each having waited for peers of its own: whether none gave up. Several may have, for different peers;
// one of them writes the error word.
CCB_DEVICE bool none_gave_up(const Block& block, bool ok, const Waiting& waiting) {
    if (all_agree(ok)) return true;
    if (elected(block, !ok)) record_error(block, waiting);
    return false;
}

CCB_DEVICE Waiting waiting_for(const Block& block, WaitCode code, i32 peer, u64 goal) {
    return Waiting{code, block.rank, peer, block.channel, goal, 0};
}

// Waits until *flag >= waiting.goal; false when the limit passed, waiting.seen being what was there last.
CCB_DEVICE bool poll_flag(const Block& block, const u64* flag, Waiting& waiting) {
    waiting.seen = load_relaxed(flag);
    SpinLimit spin{block.arguments.limit_nanoseconds};
    while (waiting.seen < waiting.goal) {
        if (exhausted(spin)) return false;
        back_off(spin.polls, waiting);
        waiting.seen = load_relaxed(flag);
    }
    (void)load_acquire(flag);
    return true;
}

// The same for a lane that waits on behalf of its block: the error word says what it gave up.
CCB_DEVICE bool wait_flag(const Block& block, WaitCode code, i32 peer, const u64* flag, u64 goal) {
    Waiting waiting = waiting_for(block, code, peer, goal);
    if (poll_flag(block, flag, waiting)) return true;
    record_error(block, waiting);
    return false;
}

// ---- moving data ----

CCB_DEVICE bool aligned(const void* address) { return ((u64)address & 15u) == 0; }

// A place where one message's elements lie; nullptr: not used.
struct Move {
    const u8* received;  // the first operand
    const u8* own;       // the second operand, combined with it
    u8* output;
    u8* forward;
    i32 bytes;
};

template <bool COMBINES, bool FINISHES>
CCB_DEVICE u64 moved_word(const Block& block, u64 received, u64 own) {
    u64 value = COMBINES ? block.arithmetic.combine_word(received, own) : received;
    return FINISHES ? block.arithmetic.finish_word(value, block.arguments.ranks) : value;
}

template <bool COMBINES, bool FINISHES, bool TWICE>
CCB_DEVICE void move_elements(const Block& block, const Move& move, i32 begin) {
    const i32 size = block.arithmetic.element_bytes;
    for (i32 offset = begin + block.lane * size; offset < move.bytes; offset += block.lanes * size) {
        const u64 received = load_element(move.received + offset, size);
        const u64 own = COMBINES ? load_element(move.own + offset, size) : 0;
        const u64 value = moved_word<COMBINES, FINISHES>(block, received, own);
        store_element(move.output + offset, value, size);
        if (TWICE) store_element(move.forward + offset, value, size);
    }
}

template <bool COMBINES, bool FINISHES, bool TWICE>
CCB_DEVICE void move_vector(const Block& block, const Move& move, i32 offset, Vector received, Vector own) {
    const Vector value{moved_word<COMBINES, FINISHES>(block, received.low, own.low),
                       moved_word<COMBINES, FINISHES>(block, received.high, own.high)};
    store_vector(move.output + offset, value);
    if (TWICE) store_vector(move.forward + offset, value);
}

// output (and forward, if TWICE) = received (combined with own, if COMBINES; then finished, if FINISHES). All
// lanes take part; an element is read and written by the same lane, so buffers may be the same.
template <bool COMBINES, bool FINISHES, bool TWICE>
CCB_DEVICE void move_all(const Block& block, const Move& move) {
    const bool vectors = aligned(move.received) && aligned(move.output) && (!COMBINES || aligned(move.own)) &&
                         (!TWICE || aligned(move.forward));
    const i32 vector_bytes = vectors ? move.bytes & ~15 : 0;
    const i32 stride = block.lanes * 16;
    i32 offset = block.lane * 16;
    constexpr i32 UNROLL = COMBINES ? Arithmetic::vectors_at_once : COPIES_AT_ONCE;
    for (; UNROLL > 1 && offset + (UNROLL - 1) * stride < vector_bytes; offset += UNROLL * stride) {
        Vector received[UNROLL], own[UNROLL];
#pragma unroll
        for (i32 i = 0; i < UNROLL; ++i) {
            received[i] = load_vector(move.received + offset + i * stride);
            own[i] = COMBINES ? load_vector(move.own + offset + i * stride) : Vector{0, 0};
        }
#pragma unroll
        for (i32 i = 0; i < UNROLL; ++i) {
            move_vector<COMBINES, FINISHES, TWICE>(block, move, offset + i * stride, received[i], own[i]);
        }
    }
    for (; offset < vector_bytes; offset += stride) {
        const Vector received = load_vector(move.received + offset);
        const Vector own = COMBINES ? load_vector(move.own + offset) : Vector{0, 0};
        move_vector<COMBINES, FINISHES, TWICE>(block, move, offset, received, own);
    }
    move_elements<COMBINES, FINISHES, TWICE>(block, move, vector_bytes);
}

// Copies elements [span) from one of the rank's buffers to another; nothing where they are the same.
CCB_DEVICE void copy_elements(const Block& block, const u8* source, u8* target, Span span) {
    const i64 size = block.arithmetic.element_bytes, end = span.end * size;
    if (source == target) return;
    for (i64 begin = span.begin * size; begin < end; begin += LARGEST_MOVE_BYTES) {
        const i32 bytes = (i32)smaller(LARGEST_MOVE_BYTES, end - begin);
        move_all<false, false, false>(block, Move{source + begin, nullptr, target + begin, nullptr, bytes});
    }
}

// ---- connections ----

// My end of the connection to a peer. All lanes hold the same values.
struct Sender {
    u8* fifo;           // in the peer's memory
    u64* arrived;       // the peer's flag
    const u64* credit;  // my flag
    u64 sent;
    i32 peer;
};

// My end of the connection from a peer.
struct Receiver {
    const u8* fifo;  // in my memory
    const u64* arrived;
    u64* credit;     // the peer's flag
    u64 received;
    i32 peer;
};

CCB_DEVICE Sender open_sender(const Block& block, i32 peer) {
    const Arguments& arguments = block.arguments;
    const RankView& theirs = arguments.views[peer];
    return Sender{fifo_of(theirs, arguments, block.channel, block.rank),
                  flag_of(theirs, arguments, block.channel, FLAG_ARRIVED, block.rank),
                  flag_of(block.self, arguments, block.channel, FLAG_CREDIT, peer),
                  *state_of(block.self, arguments, block.channel, STATE_SENT, peer), peer};
}

CCB_DEVICE Receiver open_receiver(const Block& block, i32 peer) {
    const Arguments& arguments = block.arguments;
    return Receiver{fifo_of(block.self, arguments, block.channel, peer),
                    flag_of(block.self, arguments, block.channel, FLAG_ARRIVED, peer),
                    flag_of(arguments.views[peer], arguments, block.channel, FLAG_CREDIT, block.rank),
                    *state_of(block.self, arguments, block.channel, STATE_RECEIVED, peer), peer};
}

// Remembers the counters for the next launch. Every opened connection must be closed.
CCB_DEVICE void close(const Block& block, const Sender& to) {
    __syncthreads();  // all lanes have read the old value
    if (block.lane == 0) *state_of(block.self, block.arguments, block.channel, STATE_SENT, to.peer) = to.sent;
}

CCB_DEVICE void close(const Block& block, const Receiver& from) {
    __syncthreads();
    if (block.lane == 0) {
        *state_of(block.self, block.arguments, block.channel, STATE_RECEIVED, from.peer) = from.received;
    }
}

CCB_DEVICE u8* slot_to(const Block& block, const Sender& to) {
    return to.fifo + (i64)((i32)to.sent & (block.arguments.slots - 1)) * block.arguments.slot_bytes;
}

CCB_DEVICE const u8* slot_from(const Block& block, const Receiver& from) {
    return from.fifo + (i64)((i32)from.received & (block.arguments.slots - 1)) * block.arguments.slot_bytes;
}

CCB_DEVICE bool wait_arrival(const Block& block, const Receiver& from) {
    return wait_flag(block, WAITED_FOR_DATA, from.peer, from.arrived, from.received + 1);
}

CCB_DEVICE bool wait_credit(const Block& block, const Sender& to) {
    const u64 slots = (u64)block.arguments.slots;
    if (to.sent < slots) return true;
    return wait_flag(block, WAITED_FOR_CREDIT, to.peer, to.credit, to.sent + 1 - slots);
}

// The last part of a step: all lanes are done, lane 0 tells both neighbours with one fence.
CCB_DEVICE void finish_step(const Block& block, Receiver& from, Sender& to) {
    __syncthreads();
    ++from.received;
    ++to.sent;
    if (block.lane == 0) post_two(to.arrived, to.sent, from.credit, from.received);
}

CCB_DEVICE void finish_step(const Block& block, Sender& to) {
    __syncthreads();
    ++to.sent;
    if (block.lane == 0) post(to.arrived, to.sent);
}

CCB_DEVICE void finish_step(const Block& block, Receiver& from) {
    __syncthreads();
    ++from.received;
    if (block.lane == 0) post(from.credit, from.received);
}

CCB_DEVICE bool begin_send(const Block& block, const Sender& to) {
    return all_agree(block.lane != 0 || wait_credit(block, to));
}

CCB_DEVICE bool begin_receive(const Block& block, const Receiver& from) {
    return all_agree(block.lane != 0 || wait_arrival(block, from));
}

CCB_DEVICE bool begin_both(const Block& block, const Receiver& from, const Sender& to) {
    return all_agree(block.lane != 0 || (wait_arrival(block, from) && wait_credit(block, to)));
}

// ---- steps: each moves one message of at most slot_bytes; false when a wait was given up ----

// own -> peer's fifo
CCB_DEVICE bool send(const Block& block, Sender& to, const u8* own, i32 bytes) {
    if (!begin_send(block, to)) return false;
    move_all<false, false, false>(block, Move{own, nullptr, slot_to(block, to), nullptr, bytes});
    finish_step(block, to);
    return true;
}

// own -> target in the peer's memory, and -> output unless that is own itself. No credit needed: see README.
CCB_DEVICE bool send_direct(const Block& block, Sender& to, const u8* own, u8* target, u8* output, i32 bytes) {
    if (output == own) {
        move_all<false, false, false>(block, Move{own, nullptr, target, nullptr, bytes});
    } else {
        move_all<false, false, true>(block, Move{own, nullptr, target, output, bytes});
    }
    finish_step(block, to);
    return true;
}

// fifo -> output
CCB_DEVICE bool receive(const Block& block, Receiver& from, u8* output, i32 bytes) {
    if (!begin_receive(block, from)) return false;
    move_all<false, false, false>(block, Move{slot_from(block, from), nullptr, output, nullptr, bytes});
    finish_step(block, from);
    return true;
}

// The sender has put it where it belongs already.
CCB_DEVICE bool receive_direct(const Block& block, Receiver& from) {
    if (!begin_receive(block, from)) return false;
    finish_step(block, from);
    return true;
}

// fifo + own -> peer's fifo
CCB_DEVICE bool receive_reduce_send(const Block& block, Receiver& from, Sender& to, const u8* own, i32 bytes) {
    if (!begin_both(block, from, to)) return false;
    move_all<true, false, false>(block, Move{slot_from(block, from), own, slot_to(block, to), nullptr, bytes});
    finish_step(block, from, to);
    return true;
}

// fifo + own -> output: the last contribution, so averages are divided here
CCB_DEVICE bool receive_reduce_copy(const Block& block, Receiver& from, const u8* own, u8* output, i32 bytes) {
    if (!begin_receive(block, from)) return false;
    move_all<true, true, false>(block, Move{slot_from(block, from), own, output, nullptr, bytes});
    finish_step(block, from);
    return true;
}

// fifo + own, finished -> output and -> peer's fifo
CCB_DEVICE bool receive_reduce_copy_send(const Block& block, Receiver& from, Sender& to, const u8* own, u8* output,
                                         i32 bytes) {
    if (!begin_both(block, from, to)) return false;
    move_all<true, true, true>(block, Move{slot_from(block, from), own, output, slot_to(block, to), bytes});
    finish_step(block, from, to);
    return true;
}

// fifo + own, finished -> output and -> target in the peer's memory
CCB_DEVICE bool receive_reduce_copy_send_direct(const Block& block, Receiver& from, Sender& to, const u8* own,
                                                u8* output, u8* target, i32 bytes) {
    if (!begin_receive(block, from)) return false;
    move_all<true, true, true>(block, Move{slot_from(block, from), own, output, target, bytes});
    finish_step(block, from, to);
    return true;
}

// fifo -> output and -> peer's fifo
CCB_DEVICE bool receive_copy_send(const Block& block, Receiver& from, Sender& to, u8* output, i32 bytes) {
    if (!begin_both(block, from, to)) return false;
    move_all<false, false, true>(block, Move{slot_from(block, from), nullptr, output, slot_to(block, to), bytes});
    finish_step(block, from, to);
    return true;
}

// own output, where it was put -> target in the peer's memory
CCB_DEVICE bool receive_copy_send_direct(const Block& block, Receiver& from, Sender& to, const u8* output, u8* target,
                                         i32 bytes) {
    if (!begin_receive(block, from)) return false;
    move_all<false, false, false>(block, Move{output, nullptr, target, nullptr, bytes});
    finish_step(block, from, to);
    return true;
}

// ---- signals between two ranks, and the barrier of one channel's blocks ----

// Tells peer that what was agreed on is so: both ends count alike what the one tells the other. By lane 0, of what all
// lanes did before the last __syncthreads.
CCB_DEVICE void signal(const Block& block, i32 peer) {
    if (block.lane != 0) return;
    u64* const count = state_of(block.self, block.arguments, block.channel, STATE_READY_SENT, peer);
    *count += 1;
    post(flag_of(block.arguments.views[peer], block.arguments, block.channel, FLAG_READY, block.rank), *count);
}

// Waits for the next signal from peer.
CCB_DEVICE bool wait_signal(const Block& block, WaitCode code, i32 peer) {
    bool ok = true;
    if (block.lane == 0) {
        u64* const count = state_of(block.self, block.arguments, block.channel, STATE_READY_SEEN, peer);
        *count += 1;
        ok = wait_flag(block, code, peer,
                       flag_of(block.self, block.arguments, block.channel, FLAG_READY, peer), *count);
    }
    return all_agree(ok);
}

// From now on peer may write into my output, until its messages, or its put, of this launch are through.
CCB_DEVICE void open_output(const Block& block, i32 peer) { signal(block, peer); }

// Waits until peer has opened its output to me in this launch.
CCB_DEVICE bool wait_open(const Block& block, i32 peer) { return wait_signal(block, WAITED_FOR_READY, peer); }

// All ranks' blocks of this channel: what any of them did before is visible to all of them afterwards. Lanes
// share the work of telling and polling.
CCB_DEVICE bool rank_barrier(const Block& block) {
    const Arguments& arguments = block.arguments;
    u64* const state = state_of(block.self, arguments, block.channel, STATE_BARRIER, 0);
    const u64 epoch = *state + 1;
    __syncthreads();
    if (block.lane == 0) *state = epoch;
#pragma unroll 1
    for (i32 peer = block.lane; peer < arguments.ranks; peer += block.lanes) {
        if (peer == block.rank) continue;
        post(flag_of(arguments.views[peer], arguments, block.channel, FLAG_BARRIER, block.rank), epoch);
    }
    bool ok = true;
    Waiting waiting = waiting_for(block, WAITED_FOR_BARRIER, block.rank, epoch);
#pragma unroll 1
    for (i32 peer = block.lane; peer < arguments.ranks && ok; peer += block.lanes) {
        if (peer == block.rank) continue;
        waiting.peer = peer;
        ok = poll_flag(block, flag_of(block.self, arguments, block.channel, FLAG_BARRIER, peer), waiting);
    }
    return none_gave_up(block, ok, waiting);
}

// ---- entry ----

typedef bool (*Entry)(const Arguments&);

// The body of every __global__ function: iterations of one collective, none where an error stands.
template <Entry ENTRY>
CCB_DEVICE void run_entry(const Arguments& arguments) {
    const i32 index = (i32)blockIdx.x;
    const RankView& self = arguments.views[arguments.first_rank + index % arguments.ranks_here];
    const bool failed = self.errors[index / arguments.ranks_here].code != NO_ERROR;
    __syncthreads();  // nobody records an error before all lanes have looked
    if (failed) return;
    for (i32 i = 0; i < arguments.iterations; ++i) {
        if (!ENTRY(arguments)) return;
        __syncthreads();
    }
}

}  // namespace ccb

// CCB_ENTRY(name, REDUCES or COPIES) makes a device function launchable; backends/kernels/sources.py reads it too.
#if CCB_GPU
#define CCB_ENTRY(name, kind)
#define CCB_GLOBAL(name)                                                                 \
    extern "C" __global__ void __launch_bounds__(CCB_MAX_LANES, 1)                       \
        ccb_kernel(const __grid_constant__ ccb::Arguments arguments) {                   \
        ccb::run_entry<ccb::name>(arguments);                                            \
    }
#else
extern "C" int ccb_host_register(const char* name, void (*run)(const ccb::Arguments&));
#define CCB_ENTRY(name, kind) \
    static const int ccb_registered_##name = ccb_host_register(#name, ccb::run_entry<ccb::name>);
#endif
