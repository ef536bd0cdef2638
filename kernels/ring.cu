// Ring: every rank sends to its right neighbour and receives from its left one.
//
// A channel's share of the count goes around in rounds. A round of the collectives whose work is spread over the
// ranks has one piece per place in the ring; a piece fits one message. Places count from 0 in the channel's order.
// Piece k starts at place k + 1, gathers every place's contribution on its way to the right, and is complete at place
// k: so an element's order of summation is ((x[k+1] + x[k+2]) + ...) + x[k]. From there it travels on,
// written straight into each next rank's output. (P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce
// algorithms for clusters of workstations", 2009.)
//
// Plan, per channel: order[ranks] (the rank at each place), then place[ranks] (the place of each rank).
#include "primitives.cuh"

namespace ccb {

struct Ring {
    const i32* order;
    i32 place;
    i32 left;
    i32 right;
};

CCB_DEVICE Ring ring_of(const Block& block) {
    const i32 ranks = block.arguments.ranks;
    const i32* const order = plan_of(block);
    const i32 place = order[ranks + block.rank];
    return Ring{order, place, order[(place + ranks - 1) % ranks], order[(place + 1) % ranks]};
}

// `place` moved by `steps`, which is between -ranks and ranks.
CCB_DEVICE i32 moved(const Block& block, i32 place, i32 steps) {
    const i32 ranks = block.arguments.ranks;
    return (place + steps + ranks) % ranks;
}

CCB_DEVICE i32 bytes_of(const Block& block, Span span) {
    return (i32)(span.end - span.begin) * block.arithmetic.element_bytes;
}

// Elements of one piece when `left` elements remain: all ranks' pieces are equal except the last ones, and none is
// larger than a message.
CCB_DEVICE i64 piece_elements(const Block& block, i64 left) {
    const i64 ranks = block.arguments.ranks;
    return smaller(slot_elements(block), rounded_up((left + ranks - 1) / ranks, granule_of(block)));
}

CCB_DEVICE bool all_reduce_round(const Block& block, const Ring& ring, Receiver& from, Sender& to, Span rest,
                                 i64 size) {
    const i32 ranks = block.arguments.ranks;
    u8* const input = block.self.input;
    u8* const output = block.self.output;
    u8* const next_output = block.arguments.views[ring.right].output;
    Span piece = part_of(rest, moved(block, ring.place, -1), size);
    if (!send(block, to, at(input, block, piece.begin), bytes_of(block, piece))) return false;
    for (i32 step = 2; step < ranks; ++step) {
        piece = part_of(rest, moved(block, ring.place, -step), size);
        if (!receive_reduce_send(block, from, to, at(input, block, piece.begin), bytes_of(block, piece))) return false;
    }
    // The right neighbour contributed to this piece, so it has started and has read it: its output is free.
    piece = part_of(rest, ring.place, size);
    if (!receive_reduce_copy_send_direct(block, from, to, at(input, block, piece.begin),
                                         at(output, block, piece.begin), at(next_output, block, piece.begin),
                                         bytes_of(block, piece))) {
        return false;
    }
    for (i32 step = 1; step < ranks - 1; ++step) {
        piece = part_of(rest, moved(block, ring.place, -step), size);
        if (!receive_copy_send_direct(block, from, to, at(output, block, piece.begin),
                                      at(next_output, block, piece.begin), bytes_of(block, piece))) {
            return false;
        }
    }
    return receive_direct(block, from);
}

CCB_DEVICE bool ring_all_reduce(const Arguments& arguments) {
    const Block block = this_block(arguments);
    const Span part = channel_part(block, arguments.count);
    if (arguments.ranks == 1) {
        copy_elements(block, block.self.input, block.self.output, part);
        return true;
    }
    const Ring ring = ring_of(block);
    Receiver from = open_receiver(block, ring.left);
    Sender to = open_sender(block, ring.right);
    for (i64 begin = part.begin; begin < part.end;) {
        const i64 size = piece_elements(block, part.end - begin);
        if (!all_reduce_round(block, ring, from, to, Span{begin, part.end}, size)) return false;
        begin += size * arguments.ranks;
    }
    close(block, from);
    close(block, to);
    return true;
}

// One chunk of every block: block k starts at place k + 1 and is complete at place k.
CCB_DEVICE bool reduce_scatter_round(const Block& block, const Ring& ring, Receiver& from, Sender& to, Span chunk) {
    const i32 ranks = block.arguments.ranks;
    const i64 count = block.arguments.count;
    const i32 bytes = bytes_of(block, chunk);
    u8* const input = block.self.input;
    for (i32 step = 1; step < ranks; ++step) {
        const i32 owner = ring.order[moved(block, ring.place, -step)];
        const u8* const own = at(input, block, owner * count + chunk.begin);
        if (!(step == 1 ? send(block, to, own, bytes) : receive_reduce_send(block, from, to, own, bytes))) return false;
    }
    return receive_reduce_copy(block, from, at(input, block, block.rank * count + chunk.begin),
                               at(block.self.output, block, chunk.begin), bytes);
}

CCB_DEVICE bool ring_reduce_scatter(const Arguments& arguments) {
    const Block block = this_block(arguments);
    const Span part = channel_part(block, arguments.count);
    if (arguments.ranks == 1) {
        copy_elements(block, block.self.input, block.self.output, part);
        return true;
    }
    const Ring ring = ring_of(block);
    Receiver from = open_receiver(block, ring.left);
    Sender to = open_sender(block, ring.right);
    const i64 size = slot_elements(block);
    for (i64 begin = part.begin; begin < part.end; begin += size) {
        if (!reduce_scatter_round(block, ring, from, to, part_of(Span{begin, part.end}, 0, size))) return false;
    }
    close(block, from);
    close(block, to);
    return true;
}

// One chunk of every block, each handed on from its owner's place.
CCB_DEVICE bool all_gather_round(const Block& block, const Ring& ring, Receiver& from, Sender& to, Span chunk) {
    const i32 ranks = block.arguments.ranks;
    const i64 count = block.arguments.count;
    const i32 bytes = bytes_of(block, chunk);
    u8* const output = block.self.output;
    u8* const next_output = block.arguments.views[ring.right].output;
    const i64 mine = block.rank * count + chunk.begin;
    send_direct(block, to, at(block.self.input, block, chunk.begin), at(next_output, block, mine),
                at(output, block, mine), bytes);
    for (i32 step = 1; step < ranks - 1; ++step) {
        const i64 begin = ring.order[moved(block, ring.place, -step)] * count + chunk.begin;
        if (!receive_copy_send_direct(block, from, to, at(output, block, begin), at(next_output, block, begin),
                                      bytes)) {
            return false;
        }
    }
    return receive_direct(block, from);
}

CCB_DEVICE bool ring_all_gather(const Arguments& arguments) {
    const Block block = this_block(arguments);
    const Span part = channel_part(block, arguments.count);
    if (arguments.ranks == 1) {
        copy_elements(block, block.self.input, block.self.output, part);
        return true;
    }
    const Ring ring = ring_of(block);
    open_output(block, ring.left);
    if (!wait_open(block, ring.right)) return false;
    Receiver from = open_receiver(block, ring.left);
    Sender to = open_sender(block, ring.right);
    const i64 size = slot_elements(block);
    for (i64 begin = part.begin; begin < part.end; begin += size) {
        if (!all_gather_round(block, ring, from, to, part_of(Span{begin, part.end}, 0, size))) return false;
    }
    close(block, from);
    close(block, to);
    return true;
}

// A chain from the root to the right, ending at its left neighbour; every rank writes into the next one's output.
CCB_DEVICE bool ring_broadcast(const Arguments& arguments) {
    const Block block = this_block(arguments);
    const Span part = channel_part(block, arguments.count);
    if (arguments.ranks == 1) {
        copy_elements(block, block.self.input, block.self.output, part);
        return true;
    }
    const Ring ring = ring_of(block);
    const bool first = block.rank == arguments.root, last = ring.right == arguments.root;
    if (!first) open_output(block, ring.left);
    if (!last && !wait_open(block, ring.right)) return false;
    Receiver from = open_receiver(block, ring.left);
    Sender to = open_sender(block, ring.right);
    u8* const next_output = arguments.views[ring.right].output;
    const i64 size = chain_elements(block);
    bool ok = true;
    for (i64 begin = part.begin; begin < part.end && ok; begin += size) {
        const Span chunk = part_of(Span{begin, part.end}, 0, size);
        u8* const output = at(block.self.output, block, begin);
        u8* const target = at(next_output, block, begin);
        const i32 bytes = bytes_of(block, chunk);
        if (first) {
            ok = send_direct(block, to, at(block.self.input, block, begin), target, output, bytes);
        } else if (last) {
            ok = receive_direct(block, from);
        } else {
            ok = receive_copy_send_direct(block, from, to, output, target, bytes);
        }
    }
    if (!ok) return false;
    close(block, from);
    close(block, to);
    return true;
}

// A chain that starts at the root's right neighbour and ends at the root.
CCB_DEVICE bool ring_reduce(const Arguments& arguments) {
    const Block block = this_block(arguments);
    const Span part = channel_part(block, arguments.count);
    if (arguments.ranks == 1) {
        copy_elements(block, block.self.input, block.self.output, part);
        return true;
    }
    const Ring ring = ring_of(block);
    const bool first = ring.left == arguments.root, last = block.rank == arguments.root;
    Receiver from = open_receiver(block, ring.left);
    Sender to = open_sender(block, ring.right);
    const i64 size = chain_elements(block);
    bool ok = true;
    for (i64 begin = part.begin; begin < part.end && ok; begin += size) {
        const i32 bytes = bytes_of(block, part_of(Span{begin, part.end}, 0, size));
        const u8* const own = at(block.self.input, block, begin);
        if (first) {
            ok = send(block, to, own, bytes);
        } else if (last) {
            ok = receive_reduce_copy(block, from, own, at(block.self.output, block, begin), bytes);
        } else {
            ok = receive_reduce_send(block, from, to, own, bytes);
        }
    }
    if (!ok) return false;
    close(block, from);
    close(block, to);
    return true;
}

// Every rank sends to the rank numbered one higher, around the end. Through the fifo, and each chunk is sent before the
// same chunk is received, so that it works in place. Plan: not looked at.
CCB_DEVICE bool ring_send_recv(const Arguments& arguments) {
    const Block block = this_block(arguments);
    const Span part = channel_part(block, arguments.count);
    if (arguments.ranks == 1) {
        copy_elements(block, block.self.input, block.self.output, part);
        return true;
    }
    Receiver from = open_receiver(block, moved(block, block.rank, -1));
    Sender to = open_sender(block, moved(block, block.rank, 1));
    const i64 size = chain_elements(block);
    for (i64 begin = part.begin; begin < part.end; begin += size) {
        const i32 bytes = bytes_of(block, part_of(Span{begin, part.end}, 0, size));
        if (!send(block, to, at(block.self.input, block, begin), bytes)) return false;
        if (!receive(block, from, at(block.self.output, block, begin), bytes)) return false;
    }
    close(block, from);
    close(block, to);
    return true;
}

}  // namespace ccb

CCB_ENTRY(ring_all_reduce, REDUCES)
CCB_ENTRY(ring_all_gather, COPIES)
CCB_ENTRY(ring_reduce_scatter, REDUCES)
CCB_ENTRY(ring_broadcast, COPIES)
CCB_ENTRY(ring_reduce, REDUCES)
CCB_ENTRY(ring_send_recv, COPIES)
