// Mesh: every rank reaches every other one directly.
//
// Two kinds. mesh_one_shot_all_reduce pushes each chunk into a slot at every peer, and everybody adds up all ranks'
// chunks alone: one message of latency, ranks times the bytes; for small counts. All others work between two barriers
// of the channel's blocks: before the first, inputs and outputs may not be touched; after the second, all have been
// read and written. In mesh_pull_all_reduce (what vLLM and TensorRT-LLM call one-shot) every rank reads everybody's
// input there and writes its own output alone: nothing crosses a link after it, for ranks times the bytes of one input.
// It cannot work in place, where a peer may still read what its rank writes. The others move data exactly once: every
// element belongs to one lane of one rank, which reads it from everywhere and then writes it everywhere, so that
// they work in place, with nothing between reading and writing.
//
// Order of summation: ((x[0] + x[1]) + ...), whoever adds: a result's bits depend neither on its place nor on the size.
// Loads go round from the own rank on where registers hold all ranks' vectors (fold_turned), so that ranks do not
// all ask rank 0 first, whose link would be full while others wait. What that gains between GPUs was not measured.
//
// Plan: none.
#include "fold.cuh"

namespace ccb {

// A rank's piece of a channel's part.
CCB_DEVICE Span own_piece(const Block& block, Span part) {
    const i64 ranks = block.arguments.ranks;
    const i64 size = rounded_up((part.end - part.begin + ranks - 1) / ranks, granule_of(block));
    return part_of(part, block.rank, size);
}

CCB_DEVICE u8* input_at(const Block& block, i32 rank, i64 element) {
    return at(block.arguments.views[rank].input, block, element);
}

CCB_DEVICE u8* output_at(const Block& block, i32 rank, i64 element) {
    return at(block.arguments.views[rank].output, block, element);
}

// Whose inputs or outputs take part.
enum Who { EVERYBODY, ONE };

struct Side {
    Who who;
    i32 rank;     // if ONE
    i64 element;  // where it begins in each of the buffers
};

CCB_DEVICE i32 width_of(const Block& block, const Side& side) { return side.who == ONE ? 1 : block.arguments.ranks; }

// Fills the places of a fold; whether all of them are aligned to 16 bytes.
CCB_DEVICE bool find_places(const Block& block, Places& places, const Side& from, const Side& to) {
    bool vectors = true;
#pragma unroll 1
    for (i32 i = block.lane; i < width_of(block, from); i += block.lanes) {
        places.source[i] = input_at(block, from.who == ONE ? from.rank : i, from.element);
        vectors = vectors && aligned(places.source[i]);
    }
#pragma unroll 1
    for (i32 i = block.lane; i < width_of(block, to); i += block.lanes) {
        places.target[i] = output_at(block, to.who == ONE ? to.rank : peer_after(block, i + 1), to.element);
        vectors = vectors && aligned(places.target[i]);
    }
    return all_agree(vectors);
}

// This rank's elements, folded from one side to the other, between two barriers.
template <bool COMBINES>
CCB_DEVICE bool between_barriers(const Block& block, const Side& from, const Side& to, i64 elements) {
    if (block.arguments.ranks > MOST_PEERS) return refuse(block, block.arguments.ranks);
    CCB_SHARED(Places, places);
    const bool vectors = find_places(block, places, from, to);
    if (!rank_barrier(block)) return false;
    const i64 bytes = elements * block.arithmetic.element_bytes;
    const Fold fold{places, width_of(block, from), width_of(block, to), bytes, vectors, COMBINES};
    if (COMBINES) {
        fold_turned(block, fold);
    } else {
        fold_all<false>(block, fold);
    }
    return rank_barrier(block);
}

CCB_DEVICE bool mesh_two_shot_all_reduce(const Arguments& arguments) {
    const Block block = this_block(arguments);
    const Span part = channel_part(block, arguments.count);
    if (arguments.ranks == 1) {
        copy_elements(block, block.self.input, block.self.output, part);
        return true;
    }
    const Span piece = own_piece(block, part);
    return between_barriers<true>(block, Side{EVERYBODY, 0, piece.begin}, Side{EVERYBODY, 0, piece.begin},
                                  piece.end - piece.begin);
}

// Every rank adds up all of everybody's input for itself. Out of place only: peers read what it may not overwrite.
CCB_DEVICE bool mesh_pull_all_reduce(const Arguments& arguments) {
    const Block block = this_block(arguments);
    const Span part = channel_part(block, arguments.count);
    if (arguments.ranks == 1) {
        copy_elements(block, block.self.input, block.self.output, part);
        return true;
    }
    return between_barriers<true>(block, Side{EVERYBODY, 0, part.begin}, Side{ONE, block.rank, part.begin},
                                  part.end - part.begin);
}

// Every rank fetches a piece from the root and hands it to all: the root's links carry the data about twice, whatever
// the number of ranks.
CCB_DEVICE bool mesh_broadcast(const Arguments& arguments) {
    const Block block = this_block(arguments);
    const Span part = channel_part(block, arguments.count);
    if (arguments.ranks == 1) {
        copy_elements(block, block.self.input, block.self.output, part);
        return true;
    }
    const Span piece = own_piece(block, part);
    return between_barriers<false>(block, Side{ONE, arguments.root, piece.begin}, Side{EVERYBODY, 0, piece.begin},
                                   piece.end - piece.begin);
}

// Every rank adds up a piece and hands it to the root.
CCB_DEVICE bool mesh_reduce(const Arguments& arguments) {
    const Block block = this_block(arguments);
    const Span part = channel_part(block, arguments.count);
    if (arguments.ranks == 1) {
        copy_elements(block, block.self.input, block.self.output, part);
        return true;
    }
    const Span piece = own_piece(block, part);
    return between_barriers<true>(block, Side{EVERYBODY, 0, piece.begin}, Side{ONE, arguments.root, piece.begin},
                                  piece.end - piece.begin);
}

// Every rank adds up its block of everybody's input.
CCB_DEVICE bool mesh_reduce_scatter(const Arguments& arguments) {
    const Block block = this_block(arguments);
    const Span part = channel_part(block, arguments.count);
    if (arguments.ranks == 1) {
        copy_elements(block, block.self.input, block.self.output, part);
        return true;
    }
    return between_barriers<true>(block, Side{EVERYBODY, 0, block.rank * arguments.count + part.begin},
                                  Side{ONE, block.rank, part.begin}, part.end - part.begin);
}

// Every rank writes its input into everybody's output.
CCB_DEVICE bool mesh_all_gather(const Arguments& arguments) {
    const Block block = this_block(arguments);
    const Span part = channel_part(block, arguments.count);
    if (arguments.ranks == 1) {
        copy_elements(block, block.self.input, block.self.output, part);
        return true;
    }
    return between_barriers<false>(block, Side{ONE, block.rank, part.begin},
                                   Side{EVERYBODY, 0, block.rank * arguments.count + part.begin},
                                   part.end - part.begin);
}

// Every rank writes its input into the root's output.
CCB_DEVICE bool mesh_gather(const Arguments& arguments) {
    const Block block = this_block(arguments);
    const Span part = channel_part(block, arguments.count);
    if (arguments.ranks == 1) {
        copy_elements(block, block.self.input, block.self.output, part);
        return true;
    }
    return between_barriers<false>(block, Side{ONE, block.rank, part.begin},
                                   Side{ONE, arguments.root, block.rank * arguments.count + part.begin},
                                   part.end - part.begin);
}

// Every rank reads its block of the root's input: all ranks' lanes share the work.
CCB_DEVICE bool mesh_scatter(const Arguments& arguments) {
    const Block block = this_block(arguments);
    const Span part = channel_part(block, arguments.count);
    if (arguments.ranks == 1) {
        copy_elements(block, block.self.input, block.self.output, part);
        return true;
    }
    return between_barriers<false>(block, Side{ONE, arguments.root, block.rank * arguments.count + part.begin},
                                   Side{ONE, block.rank, part.begin}, part.end - part.begin);
}

// ---- all to all ----

// Two blocks that change places: mine for the peer, the peer's for me, and where they go.
struct Exchange {
    const u8* mine;
    const u8* theirs;
    u8* to_them;
    u8* to_me;
};

CCB_DEVICE Exchange exchange_with(const Block& block, i32 peer, i64 element) {
    const i64 count = block.arguments.count;
    const i64 my_place = peer * count + element, their_place = block.rank * count + element;
    return Exchange{input_at(block, block.rank, my_place), input_at(block, peer, their_place),
                    output_at(block, peer, their_place), output_at(block, block.rank, my_place)};
}

// Reads both before it writes either, so that each may lie where the other goes.
CCB_DEVICE void exchange_all(const Block& block, const Exchange& exchange, i64 bytes) {
    const bool vectors = aligned(exchange.mine) && aligned(exchange.theirs) && aligned(exchange.to_them) &&
                         aligned(exchange.to_me);
    const i64 vector_bytes = vectors ? bytes & ~(i64)15 : 0;
#pragma unroll 1
    for (i64 offset = block.lane * 16; offset < vector_bytes; offset += block.lanes * 16) {
        const Vector mine = load_vector(exchange.mine + offset), theirs = load_vector(exchange.theirs + offset);
        store_vector(exchange.to_them + offset, mine);
        store_vector(exchange.to_me + offset, theirs);
    }
    const i32 size = block.arithmetic.element_bytes;
#pragma unroll 1
    for (i64 offset = vector_bytes + block.lane * size; offset < bytes; offset += block.lanes * size) {
        const u64 mine = load_element(exchange.mine + offset, size);
        const u64 theirs = load_element(exchange.theirs + offset, size);
        store_element(exchange.to_them + offset, mine, size);
        store_element(exchange.to_me + offset, theirs, size);
    }
}

// Where any rank works in place, every two ranks exchange their blocks element by element: the one of the lower number
// does the first half of it, the other the second.
CCB_DEVICE void exchange_with_all(const Block& block, Span part) {
    const i64 own = block.rank * block.arguments.count;
    copy_elements(block, block.self.input, block.self.output, Span{own + part.begin, own + part.end});
    const i64 half = rounded_up((part.end - part.begin + 1) / 2, granule_of(block));
#pragma unroll 1
    for (i32 step = 1; step < block.arguments.ranks; ++step) {
        const i32 peer = peer_after(block, step);
        const Span mine = part_of(part, block.rank < peer ? 0 : 1, half);
        exchange_all(block, exchange_with(block, peer, mine.begin),
                     (mine.end - mine.begin) * block.arithmetic.element_bytes);
    }
}

constexpr i32 PUSH_DEPTH = 8;

// source[i] -> target[i] for as many as there are ranks, several of them at once.
CCB_DEVICE void push_all(const Block& block, const Places& places, i64 bytes, bool vectors) {
    const i64 vector_bytes = vectors ? bytes & ~(i64)15 : 0;
    const i32 ranks = block.arguments.ranks, size = block.arithmetic.element_bytes;
#pragma unroll 1
    for (i64 offset = block.lane * 16; offset < vector_bytes; offset += block.lanes * 16) {
#pragma unroll 1
        for (i32 first = 0; first < ranks; first += PUSH_DEPTH) {
            Vector values[PUSH_DEPTH];
#pragma unroll
            for (i32 i = 0; i < PUSH_DEPTH; ++i) {
                const i32 place = first + i < ranks ? first + i : 0;
                values[i] = first + i < ranks ? load_vector(places.source[place] + offset) : Vector{0, 0};
            }
#pragma unroll
            for (i32 i = 0; i < PUSH_DEPTH; ++i) {
                if (first + i < ranks) store_vector(places.target[first + i] + offset, values[i]);
            }
        }
    }
#pragma unroll 1
    for (i64 offset = vector_bytes + block.lane * size; offset < bytes; offset += block.lanes * size) {
#pragma unroll 1
        for (i32 i = 0; i < ranks; ++i) {
            store_element(places.target[i] + offset, load_element(places.source[i] + offset, size), size);
        }
    }
}

// My block for each peer, and its place in the peer's output; whether all are aligned to 16 bytes.
CCB_DEVICE bool find_pairs(const Block& block, Places& places, Span part) {
    const i64 count = block.arguments.count;
    bool vectors = true;
#pragma unroll 1
    for (i32 i = block.lane; i < block.arguments.ranks; i += block.lanes) {
        const i32 peer = peer_after(block, i);
        places.source[i] = input_at(block, block.rank, peer * count + part.begin);
        places.target[i] = output_at(block, peer, block.rank * count + part.begin);
        vectors = vectors && aligned(places.source[i]) && aligned(places.target[i]);
    }
    return all_agree(vectors);
}

// Whether any rank's input is its output too: all ranks see the same.
CCB_DEVICE bool any_in_place(const Block& block) {
    bool none = true;
#pragma unroll 1
    for (i32 rank = block.lane; rank < block.arguments.ranks; rank += block.lanes) {
        const RankView& view = block.arguments.views[rank];
        none = none && view.input != view.output;
    }
    return !all_agree(none);
}

CCB_DEVICE bool mesh_all_to_all(const Arguments& arguments) {
    const Block block = this_block(arguments);
    const Span part = channel_part(block, arguments.count);
    if (arguments.ranks == 1) {
        copy_elements(block, block.self.input, block.self.output, part);
        return true;
    }
    if (arguments.ranks > MOST_PEERS) return refuse(block, arguments.ranks);
    CCB_SHARED(Places, places);
    const bool vectors = find_pairs(block, places, part);
    const bool exchanges = any_in_place(block);
    if (!rank_barrier(block)) return false;
    if (exchanges) {
        exchange_with_all(block, part);
    } else {
        push_all(block, places, (part.end - part.begin) * block.arithmetic.element_bytes, vectors);
    }
    return rank_barrier(block);
}

// ---- one shot ----

// own chunk -> a slot at every peer
CCB_DEVICE bool push_chunk(const Block& block, Places& places, const Links& links, Span chunk) {
    const Step step{0, all_links(links.count), true};
    const u8* const own = at(block.self.input, block, chunk.begin);
#pragma unroll 1
    for (i32 link = block.lane; link < links.count; link += block.lanes) {
        places.target[link] = slot_to(block, links, link);
    }
    if (block.lane == 0) places.source[0] = own;
    if (!begin_step(block, links, step)) return false;
    const i64 bytes = (chunk.end - chunk.begin) * block.arithmetic.element_bytes;
    fold_all<false>(block, Fold{places, 1, links.count, bytes, aligned(own), false});
    end_step(block, links, step);
    return true;
}

// all ranks' chunks, by number -> own output
CCB_DEVICE bool take_chunk(const Block& block, Places& places, const Links& links, Span chunk) {
    const Step step{all_links(links.count), 0, true};
    const u8* const own = at(block.self.input, block, chunk.begin);
    u8* const output = at(block.self.output, block, chunk.begin);
#pragma unroll 1
    for (i32 link = block.lane; link < links.count; link += block.lanes) {
        places.source[links.peers.rank[link]] = slot_from(block, links, link);
    }
    if (block.lane == 0) {
        places.source[block.rank] = own;
        places.target[0] = output;
    }
    if (!begin_step(block, links, step)) return false;
    const i64 bytes = (chunk.end - chunk.begin) * block.arithmetic.element_bytes;
    const bool vectors = aligned(own) && aligned(output);
    fold_all<true>(block, Fold{places, block.arguments.ranks, 1, bytes, vectors, true});
    end_step(block, links, step);
    return true;
}

// In place: a chunk has been pushed from everywhere before anybody's chunk is overwritten by its own rank.
CCB_DEVICE bool mesh_one_shot_all_reduce(const Arguments& arguments) {
    const Block block = this_block(arguments);
    const Span part = channel_part(block, arguments.count);
    if (arguments.ranks == 1) {
        copy_elements(block, block.self.input, block.self.output, part);
        return true;
    }
    if (arguments.ranks > MOST_PEERS) return refuse(block, arguments.ranks);
    CCB_SHARED(Places, places);
    CCB_SHARED(LinkCounters, counters);
    CCB_SHARED(LinkPeers, peers);
    const Links links{counters, peers, arguments.ranks - 1};
#pragma unroll 1
    for (i32 link = block.lane; link < links.count; link += block.lanes) peers.rank[link] = peer_after(block, link + 1);
    open_links(block, links);
    const i64 size = slot_elements(block);
#pragma unroll 1
    for (i64 begin = part.begin; begin < part.end; begin += size) {
        const Span chunk = part_of(Span{begin, part.end}, 0, size);
        if (!push_chunk(block, places, links, chunk)) return false;
        if (!take_chunk(block, places, links, chunk)) return false;
    }
    close_links(block, links);
    return true;
}

}  // namespace ccb

CCB_ENTRY(mesh_one_shot_all_reduce, REDUCES)
CCB_ENTRY(mesh_two_shot_all_reduce, REDUCES)
CCB_ENTRY(mesh_pull_all_reduce, REDUCES)
CCB_ENTRY(mesh_all_gather, COPIES)
CCB_ENTRY(mesh_reduce_scatter, REDUCES)
CCB_ENTRY(mesh_broadcast, COPIES)
CCB_ENTRY(mesh_reduce, REDUCES)
CCB_ENTRY(mesh_gather, COPIES)
CCB_ENTRY(mesh_scatter, COPIES)
CCB_ENTRY(mesh_all_to_all, COPIES)
