// Schedule: interprets any schedule of ccbench, so that every algorithm that there is a schedule for runs.
//
// Program (Arguments.program; written by backends/kernels/programs.py, whose docstring gives the words): for each
// rank a list of units. A unit waits for messages from some peers and for room at others, moves pieces between the
// rank's input, output, work places and messages, and then tells all these peers: one synchronisation. What is
// received and only handed on is never stored. Which message of a connection a unit deals with is known beforehand:
// nothing that lanes share moves on from unit to unit.
//
// One pass of the program carries one chunk of every piece. A channel's share of the count is dealt out to pieces as
// by the ring: all pieces of a pass are equal except the last ones; where every rank has a block a piece is a chunk of
// a whole block. Work places lie in the staging area, one chunk each: they belong to this rank's block alone and
// outlive no pass. Slots must hold 16 bytes of each piece of the longest message. Where there is no root, all ranks
// are in place or none is. Plan: not looked at.
#include "fold.cuh"

namespace ccb {

enum Header : i32 {
    FORMAT = 0,
    RANKS,
    PIECES,
    SHAPE,
    MESSAGE_PIECES,
    WORK_PLACES,
    ROW_WORDS,
    WORK_PLACES_IN_PLACE,
    HEADER_WORDS
};
enum Shape : i32 { BLOCKED = 1, MOVES_DATA = 2 };
enum Row : i32 { INPUT_PIECE = 0, OUTPUT_PIECE, UNITS, FIRST_WORDS, UNITS_IN_PLACE, WORDS_IN_PLACE, PER_PASS = 8 };
enum Kind : i32 { INPUT = 0, OUTPUT = 1, WORK = 2, MESSAGE = 3 };

constexpr i32 KNOWN_FORMAT = 1;
constexpr i32 UNIT_WORDS = 256;
constexpr i32 UNIT_HEADER_WORDS = 3;

// The unit that is at work, and the next one. One place, so that no load can be of both: compute-sanitizer saw nvcc's
// code read the wrong one of two places, which another lane was writing, and throw it away.
struct UnitWords {
    i32 word[2][UNIT_WORDS];
};

// Where every connection stood before the launch, and how many messages a pass adds.
struct Counts {
    u64 before[MOST_PEERS];
};
struct PerPass {
    i32 sent[MOST_PEERS];
    i32 received[MOST_PEERS];
};

// Addresses that would otherwise be fetched from global memory in every unit: flags of this channel that I write at a
// peer and that it writes here, and message slots alike. Of the first kind of flag; see flag_at.
struct PeerFlags {
    u64* theirs[MOST_PEERS];
    u64* mine[MOST_PEERS];
};
struct PeerSlots {
    u8* theirs[MOST_PEERS];
    u8* mine[MOST_PEERS];
};

struct Shared {
    UnitWords& units;
    Places& places;
    Counts& sent;
    Counts& received;
    PerPass& per_pass;
    PeerFlags& flags;
    PeerSlots& slots;
};

// Which elements one pass deals with.
struct Pass {
    i64 begin;   // of piece 0
    i64 end;     // of all that is left
    i64 size;    // of one piece
    i64 stride;  // from one piece to the next
    i64 number;
};

struct Interpreter {
    const Block& block;
    const Shared& shared;
    u8* input;
    u8* output;
    u8* work;
    i64 chunk_bytes;
    bool blocked;
};

CCB_DEVICE u64 message_number(const Counts& counts, const i32* per_pass, const Pass& pass, i32 connection) {
    const i32 peer = connection & 0xff;
    return counts.before[peer] + (u64)(pass.number * per_pass[peer] + (connection >> 8));
}

CCB_DEVICE u64 received_before(const Interpreter& run, const Pass& pass, i32 connection) {
    return message_number(run.shared.received, run.shared.per_pass.received, pass, connection);
}

CCB_DEVICE u64 sent_before(const Interpreter& run, const Pass& pass, i32 connection) {
    return message_number(run.shared.sent, run.shared.per_pass.sent, pass, connection);
}

// A unit's words, read out of shared memory where they are needed.
struct Unit {
    const i32* words;
    CCB_MEMBER i32 own_words() const { return words[0] & 0xffff; }
    CCB_MEMBER i32 next_words() const { return words[0] >> 16; }
    CCB_MEMBER i32 receives() const { return words[1] & 0xff; }
    CCB_MEMBER i32 sends() const { return words[1] >> 8 & 0xff; }
    CCB_MEMBER i32 moves() const { return words[1] >> 16 & 0xff; }
    CCB_MEMBER bool last() const { return words[1] >> 24 != 0; }
    CCB_MEMBER i32 sources() const { return words[2] & 0xff; }
    CCB_MEMBER i32 targets() const { return words[2] >> 8; }
    CCB_MEMBER i32 connection(i32 index) const { return words[UNIT_HEADER_WORDS + index]; }
    CCB_MEMBER const i32* move_words() const { return words + UNIT_HEADER_WORDS + receives() + sends(); }
};

CCB_DEVICE i64 piece_begin(const Interpreter& run, const Pass& pass, i32 piece) {
    return (pass.begin + piece * pass.stride) * run.block.arithmetic.element_bytes;
}

CCB_DEVICE i32 piece_bytes(const Interpreter& run, const Pass& pass, i32 piece) {
    const i64 left = run.blocked ? pass.end - pass.begin : pass.end - pass.begin - piece * pass.size;
    return left <= 0 ? 0 : (i32)smaller(pass.size, left) * run.block.arithmetic.element_bytes;
}

// The slot of a message of this unit.
CCB_DEVICE u8* slot_of(const Interpreter& run, const Unit& unit, const Pass& pass, i32 index) {
    const Arguments& arguments = run.block.arguments;
    const i32 connection = unit.connection(index), peer = connection & 0xff;
    const bool receives = index < unit.receives();
    const u64 number = receives ? received_before(run, pass, connection) : sent_before(run, pass, connection);
    u8* const slots = receives ? run.shared.slots.mine[peer] : run.shared.slots.theirs[peer];
    return slots + (i64)((i32)number & (arguments.slots - 1)) * arguments.slot_bytes;
}

CCB_DEVICE u64* flag_at(const Block& block, u64* first, FlagKind kind) {
    return first + kind * block.arguments.ranks * FLAG_STRIDE_WORDS;
}

CCB_DEVICE u8* place_of(const Interpreter& run, const Unit& unit, const Pass& pass, i32 reference) {
    const i32 kind = reference >> 28;
    if (kind == MESSAGE) {
        return slot_of(run, unit, pass, reference >> 16 & 0xff) + (reference & 0xffff) * run.chunk_bytes;
    }
    const i32 index = reference & 0xfffffff;
    if (kind == WORK) return run.work + index * run.chunk_bytes;
    return (kind == INPUT ? run.input : run.output) + piece_begin(run, pass, index);
}

// Lanes share the work of finding the addresses of a unit's places.
CCB_DEVICE void find_places(const Interpreter& run, const Unit& unit, const Pass& pass) {
    const i32 sources = unit.sources(), all = sources + unit.targets();
    const i32* const references = unit.move_words() + unit.moves();
#pragma unroll 1
    for (i32 i = run.block.lane; i < all; i += run.block.lanes) {
        u8* const place = place_of(run, unit, pass, references[i]);
        if (i < sources) {
            run.shared.places.source[i] = place;
        } else {
            run.shared.places.target[i - sources] = place;
        }
    }
}

// Lanes share the work of waiting, too.
CCB_DEVICE bool wait_for_peers(const Interpreter& run, const Unit& unit, const Pass& pass) {
    const Block& block = run.block;
    const u64 slots = (u64)block.arguments.slots;
    const i32 receives = unit.receives(), all = receives + unit.sends();
    bool ok = true;
    Waiting waiting = waiting_for(block, NO_ERROR, block.rank, 0);
#pragma unroll 1
    for (i32 i = block.lane; i < all && ok; i += block.lanes) {
        const i32 connection = unit.connection(i), peer = connection & 0xff;
        const bool arrival = i < receives;
        const u64 sent = arrival ? 0 : sent_before(run, pass, connection);
        const u64 goal = arrival ? received_before(run, pass, connection) + 1 : sent < slots ? 0 : sent + 1 - slots;
        waiting = waiting_for(block, arrival ? WAITED_FOR_DATA : WAITED_FOR_CREDIT, peer, goal);
        ok = poll_flag(block, flag_at(block, run.shared.flags.mine[peer], arrival ? FLAG_ARRIVED : FLAG_CREDIT),
                       waiting);
    }
    return none_gave_up(block, ok, waiting);
}

// After all lanes are done.
CCB_DEVICE void tell_peers(const Interpreter& run, const Unit& unit, const Pass& pass) {
    const Block& block = run.block;
    const i32 receives = unit.receives(), all = receives + unit.sends();
#pragma unroll 1
    for (i32 i = block.lane; i < all; i += block.lanes) {
        const i32 connection = unit.connection(i), peer = connection & 0xff;
        const bool taken = i < receives;
        const u64 number = taken ? received_before(run, pass, connection) : sent_before(run, pass, connection);
        post(flag_at(block, run.shared.flags.theirs[peer], taken ? FLAG_CREDIT : FLAG_ARRIVED), number + 1);
    }
}

template <bool COMBINES, bool FINISHES>
CCB_DEVICE void move_narrow(const Interpreter& run, const Move& move) {
    if (move.forward != nullptr) {
        move_all<COMBINES, FINISHES, true>(run.block, move);
    } else {
        move_all<COMBINES, FINISHES, false>(run.block, move);
    }
}

#if CCB_GPU
constexpr bool MAY_FINISH = CCB_OP == AVG;
#else
constexpr bool MAY_FINISH = true;
#endif

// A unit's only move, of or to any number of places.
CCB_DEVICE void move_wide(const Interpreter& run, i32 sources, i32 targets, i32 bytes, bool finishes) {
    bool vectors = true;
    for (i32 i = 0; i < sources; ++i) vectors = vectors && aligned(run.shared.places.source[i]);
    for (i32 i = 0; i < targets; ++i) vectors = vectors && aligned(run.shared.places.target[i]);
    const Fold fold{run.shared.places, sources, targets, bytes, vectors, finishes && MAY_FINISH};
    if (sources > 1) {
        fold_all<true, ROUNDED_EACH_TIME, SIDE_BY_SIDE>(run.block, fold);
    } else {
        fold_all<false>(run.block, fold);
    }
}

CCB_DEVICE void move_pieces(const Interpreter& run, const Unit& unit, const Pass& pass) {
    const i32* const words = unit.move_words();
    const i32 moves = unit.moves();
    i32 source = 0, target = 0;
#pragma unroll 1
    for (i32 i = 0; i < moves; ++i) {
        const i32 word = words[i], sources = word >> 16 & 0x7f, targets = word >> 23 & 0x7f;
        const bool finishes = (word >> 30 & 1) != 0;
        const i32 bytes = piece_bytes(run, pass, word & 0xffff);
        if (sources > 2 || targets > 2) {
            move_wide(run, sources, targets, bytes, finishes);
            return;
        }
        const Places& places = run.shared.places;
        const Move move{places.source[source], sources > 1 ? places.source[source + 1] : nullptr,
                        places.target[target], targets > 1 ? places.target[target + 1] : nullptr, bytes};
        if (sources == 1) {
            move_narrow<false, false>(run, move);
        } else if (MAY_FINISH && finishes) {
            move_narrow<true, true>(run, move);
        } else {
            move_narrow<true, false>(run, move);
        }
        source += sources;
        target += targets;
    }
}

// Words of a unit into shared memory. Half of the work is begun early: each lane's first word is in a register.
CCB_DEVICE i32 fetched_early(const Block& block, const i32* from, i32 words) {
    return block.lane < words ? from[block.lane] : 0;
}

CCB_DEVICE void fetch_rest(const Block& block, i32* into, const i32* from, i32 words, i32 early) {
    if (block.lane < words) into[block.lane] = early;
#pragma unroll 1
    for (i32 i = block.lane + block.lanes; i < words; i += block.lanes) into[i] = from[i];
}

// One pass. `half` says which words the first unit's are, and then which the next pass's first unit's are.
CCB_DEVICE bool run_pass(const Interpreter& run, const Pass& pass, const i32* program, i32& half) {
    const i32* position = program;
    for (;;) {
        const Unit unit{run.shared.units.word[half]};
        half = 1 - half;
        const bool last = unit.last();
        const i32 next_words = unit.next_words();
        position = last ? program : position + unit.own_words();
        const i32 early = fetched_early(run.block, position, next_words);
        find_places(run, unit, pass);
        if (!wait_for_peers(run, unit, pass)) return false;
        move_pieces(run, unit, pass);
        fetch_rest(run.block, run.shared.units.word[half], position, next_words, early);
        __syncthreads();
        tell_peers(run, unit, pass);
        if (last) return true;
    }
}

CCB_DEVICE void open_connections(const Block& block, const Shared& shared, const i32* row) {
    const Arguments& arguments = block.arguments;
    const i32 ranks = arguments.ranks, channel = block.channel;
    for (i32 peer = block.lane; peer < ranks; peer += block.lanes) {
        const RankView& theirs = arguments.views[peer];
        shared.flags.theirs[peer] = flag_of(theirs, arguments, channel, FLAG_ARRIVED, block.rank);
        shared.flags.mine[peer] = flag_of(block.self, arguments, channel, FLAG_ARRIVED, peer);
        shared.slots.theirs[peer] = fifo_of(theirs, arguments, channel, block.rank);
        shared.slots.mine[peer] = fifo_of(block.self, arguments, channel, peer);
        shared.sent.before[peer] = *state_of(block.self, arguments, channel, STATE_SENT, peer);
        shared.received.before[peer] = *state_of(block.self, arguments, channel, STATE_RECEIVED, peer);
        shared.per_pass.sent[peer] = row[PER_PASS + peer];
        shared.per_pass.received[peer] = row[PER_PASS + ranks + peer];
    }
}

CCB_DEVICE void close_connections(const Block& block, const Shared& shared, i64 passes) {
    for (i32 peer = block.lane; peer < block.arguments.ranks; peer += block.lanes) {
        *state_of(block.self, block.arguments, block.channel, STATE_SENT, peer) =
            shared.sent.before[peer] + (u64)(passes * shared.per_pass.sent[peer]);
        *state_of(block.self, block.arguments, block.channel, STATE_RECEIVED, peer) =
            shared.received.before[peer] + (u64)(passes * shared.per_pass.received[peer]);
    }
}

// Bytes of a piece in one pass: what fits into a message beside its other pieces, and into a work place. Schedules may
// have chains.
CCB_DEVICE i64 chunk_of(const Arguments& arguments, i32 work_places) {
    i64 bytes = smaller(arguments.slot_bytes, CHAIN_BYTES) / arguments.program[MESSAGE_PIECES];
    const i64 all = (i64)work_places * arguments.channels;
    if (all > 0) bytes = smaller(bytes, arguments.staging_bytes / all);
    return bytes & ~(i64)15;
}

// Whether the rank's input is its part of its output, or the other way around.
CCB_DEVICE bool lies_in_place(const Block& block, const i32* row, i64 block_bytes) {
    if (row[INPUT_PIECE] < 0 || row[OUTPUT_PIECE] < 0) return false;
    return block.self.input - row[INPUT_PIECE] * block_bytes == block.self.output - row[OUTPUT_PIECE] * block_bytes;
}

CCB_DEVICE i64 run_passes(const Interpreter& run, const i32* units, bool& ok) {
    const Block& block = run.block;
    const i32* const header = block.arguments.program;
    const i64 pieces = header[PIECES], chunk = run.chunk_bytes / block.arithmetic.element_bytes;
    const bool moves_data = (header[SHAPE] & MOVES_DATA) != 0;
    const Span part = channel_part(block, moves_data ? block.arguments.count : 0);
    Pass pass{part.begin, part.end, 0, 0, 0};
    i32 half = 0;
    ok = true;
    while (ok && (pass.begin < pass.end || (!moves_data && pass.number == 0))) {
        const i64 left = pass.end - pass.begin;
        const i64 each = run.blocked ? left : rounded_up((left + pieces - 1) / pieces, granule_of(block));
        pass.size = smaller(chunk, each);
        pass.stride = run.blocked ? block.arguments.count : pass.size;
        ok = run_pass(run, pass, units, half);
        pass.begin += run.blocked ? pass.size : pass.size * pieces;
        ++pass.number;
    }
    return pass.number;
}

CCB_DEVICE bool schedule(const Arguments& arguments) {
    const Block block = this_block(arguments);
    CCB_SHARED(UnitWords, words_of_units);
    CCB_SHARED(Places, places);
    CCB_SHARED(Counts, sent);
    CCB_SHARED(Counts, received);
    CCB_SHARED(PerPass, per_pass);
    CCB_SHARED(PeerFlags, flags);
    CCB_SHARED(PeerSlots, slots);
    const Shared shared{words_of_units, places, sent, received, per_pass, flags, slots};
    const i32* const header = arguments.program;
    if (header[FORMAT] != KNOWN_FORMAT || header[RANKS] != arguments.ranks || arguments.ranks > MOST_PEERS) {
        return refuse(block, block.rank);
    }
    const bool blocked = (header[SHAPE] & BLOCKED) != 0;
    const i32* const row = header + HEADER_WORDS + block.rank * header[ROW_WORDS];
    const i64 block_bytes = blocked ? arguments.count * block.arithmetic.element_bytes : 0;
    const bool in_place = lies_in_place(block, row, block_bytes);
    const i32 work_places = header[in_place ? WORK_PLACES_IN_PLACE : WORK_PLACES];
    const i64 chunk_bytes = chunk_of(arguments, work_places);
    if (chunk_bytes < 16) return refuse(block, block.rank);
    const i32* const units = header + row[in_place ? UNITS_IN_PLACE : UNITS];
    const i32 words = row[in_place ? WORDS_IN_PLACE : FIRST_WORDS];
    if (words == 0) return true;
    u8* const output = block.self.output - (in_place ? row[OUTPUT_PIECE] * block_bytes : 0);
    u8* const work = block.self.staging + (i64)block.channel * work_places * chunk_bytes;
    const Interpreter run{block, shared, block.self.input, output, work, chunk_bytes, blocked};
    open_connections(block, shared, row);
    fetch_rest(block, words_of_units.word[0], units, words, fetched_early(block, units, words));
    __syncthreads();
    bool ok;
    const i64 passes = run_passes(run, units, ok);
    if (ok) close_connections(block, shared, passes);
    return ok;
}

}  // namespace ccb

CCB_ENTRY(schedule, REDUCES)
