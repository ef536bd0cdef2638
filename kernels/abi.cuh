// What the host hands to every kernel. ccbench/backends/kernels/abi.py mirrors it; a test compares every offset.
#pragma once

#include "system.cuh"

namespace ccb {

enum Type : i32 {
    FLOAT16 = 0,
    BFLOAT16 = 1,
    FLOAT8_E4M3 = 2,
    FLOAT8_E5M2 = 3,
    FLOAT32 = 4,
    FLOAT64 = 5,
    INT8 = 6,
    INT16 = 7,
    INT32 = 8,
    INT64 = 9,
    UINT8 = 10,
    UINT16 = 11,
    UINT32 = 12,
    UINT64 = 13,
    TYPES = 14
};

enum Op : i32 { SUM = 0, PROD = 1, MIN = 2, MAX = 3, AVG = 4, OPS = 5 };

// Why a wait was given up: what the peer did not do in time.
enum WaitCode : i32 {
    NO_ERROR = 0,
    WAITED_FOR_DATA = 1,     // the peer did not send
    WAITED_FOR_CREDIT = 2,   // the peer did not take what was sent
    WAITED_FOR_READY = 3,    // the peer did not say that its output may be written
    WAITED_FOR_BARRIER = 4,  // the peer did not arrive
    WAITED_FOR_PACKET = 5,   // the peer's packet (low latency protocol) did not come
    BAD_PLAN = 6             // the plan does not fit these ranks
};

// A rank's flags: 64-bit, only ever counting up, written by peers, polled by the rank. One word per
// (channel, kind, peer), each alone in 128 bytes.
enum FlagKind : i32 {
    FLAG_ARRIVED = 0,  // messages that peer has sent me
    FLAG_CREDIT = 1,   // messages from me that peer has taken
    FLAG_READY = 2,    // signals from peer: its output is open to me, or it has put data into mine
    FLAG_BARRIER = 3,  // barriers that peer has reached
    FLAG_KINDS = 4
};
constexpr i64 FLAG_STRIDE_WORDS = 16;

// A rank's state: what it must remember between launches; only its own block of the channel touches it. One
// word per (channel, kind, peer), or peer 0 where there is one per channel only.
enum StateKind : i32 {
    STATE_SENT = 0,         // messages sent to peer
    STATE_RECEIVED = 1,     // messages taken from peer
    STATE_READY_SENT = 2,   // signals to peer
    STATE_READY_SEEN = 3,   // signals from peer that I waited for
    STATE_BARRIER = 4,      // barriers I have been in (per channel)
    STATE_PACKET_EPOCH = 5, // rounds of the low latency protocol (per channel)
    STATE_FREE_6 = 6,
    STATE_FREE_7 = 7,
    STATE_KINDS = 8
};

// One per (rank, channel), written by one lane of its block, at most once until the host zeroes it. By plain stores:
// the host may read it once the launch has ended.
struct ErrorWord {
    i32 code;
    i32 rank;
    i32 peer;
    i32 channel;
    u64 goal;  // the step that was waited for
    u64 seen;  // the last one seen
};

// A rank's memory, as the executing device addresses it.
struct RankView {
    u8* input;
    u8* output;
    u8* fifo;     // [channel][peer][slot] of slot_bytes: where peers put messages for this rank
    u64* packets; // low latency packets, zero before the first launch
    u8* staging;  // work places of interpreted schedules
    u64* flags;   // [channel][FlagKind][peer], FLAG_STRIDE_WORDS apart
    u64* state;   // [channel][StateKind][peer]
    ErrorWord* errors;  // [channel]
};

// Passed by value. Grid: channels * ranks_here blocks; block b runs channel b / ranks_here of rank
// first_rank + b % ranks_here.
struct Arguments {
    const RankView* views;  // [ranks], in the executing device's memory
    const i32* plan;        // [channel][plan_words], what the kernel's header comment says
    const i32* program;     // [program_words], the interpreted schedule
    u64 limit_nanoseconds;  // of one wait; 0: none
    i64 count;              // elements, as ccbench counts: of one block where the collective is blocked
    i64 slot_bytes;         // of one message; a multiple of 16, at most 1 GiB
    i64 packets_bytes;      // of RankView.packets
    i64 staging_bytes;      // of RankView.staging
    i32 ranks;
    i32 first_rank;
    i32 ranks_here;
    i32 channels;
    i32 root;
    i32 type;
    i32 op;
    i32 slots;          // messages in flight per connection; a power of two, at least 2
    i32 plan_words;     // per channel
    i32 program_words;
    i32 iterations;     // how often the collective runs in this launch
    i32 free_0;
};

CCB_DEVICE u64* flag_of(const RankView& view, const Arguments& arguments, i32 channel, FlagKind kind, i32 peer) {
    return view.flags + (((i64)channel * FLAG_KINDS + kind) * arguments.ranks + peer) * FLAG_STRIDE_WORDS;
}

CCB_DEVICE u64* state_of(const RankView& view, const Arguments& arguments, i32 channel, StateKind kind, i32 peer) {
    return view.state + ((i64)channel * STATE_KINDS + kind) * arguments.ranks + peer;
}

// Where `sender`'s messages to the owner of `view` lie: slots * slot_bytes from here.
CCB_DEVICE u8* fifo_of(const RankView& view, const Arguments& arguments, i32 channel, i32 sender) {
    return view.fifo + ((i64)channel * arguments.ranks + sender) * arguments.slots * arguments.slot_bytes;
}

}  // namespace ccb
