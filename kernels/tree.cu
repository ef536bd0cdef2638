// Tree: up to the root, added on the way, and down from it. A channel has one tree; where there are several channels,
// every second one has a tree in which other ranks are inner, so that together they load all ranks alike (P. Sanders,
// J. Speck and J. L. Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009).
//
// A channel's part goes in chunks, one behind the other. Up, a rank adds its children's chunks to its own,
// (first child + own) + second child, and puts the sum into its parent's slot; the root divides averages. Down, chunks
// are written straight into the children's outputs. In all_reduce a rank goes on climbing with later chunks while the
// first ones are on their way to the root and back: its lag says how many. With a lag that never falls on the way
// from the root to a leaf nobody waits for a later step of somebody who waits for him.
//
// Plan, per channel: parent[ranks], first_child[ranks], second_child[ranks] (-1: none; a second one only
// behind a first one), lag[ranks]. The root of broadcast and reduce has to be the tree's.
#include "fold.cuh"

namespace ccb {

// A part is cut into so many chunks at least, where they do not become too small to keep all lanes busy.
constexpr i64 LEAST_CHUNKS = 8;

// Links: children first, then the parent.
struct Tree {
    Places& places;
    Links links;
    i32 children;
    i32 parent;  // -1 at the root
    i32 lag;
    bool vectors;  // inputs and outputs in use here are aligned to 16 bytes
    u64 to_children;
    u64 to_parent;
};

CCB_DEVICE Tree open_tree(const Block& block) {
    CCB_SHARED(Places, places);
    CCB_SHARED(LinkCounters, counters);
    CCB_SHARED(LinkPeers, peers);
    const i32 ranks = block.arguments.ranks, rank = block.rank;
    const i32* const plan = plan_of(block);
    const i32 parent = plan[rank], first = plan[ranks + rank], second = plan[2 * ranks + rank];
    const i32 children = first < 0 ? 0 : second < 0 ? 1 : 2;
    const Links links{counters, peers, children + (parent < 0 ? 0 : 1)};
    bool vectors = aligned(block.self.input) && aligned(block.self.output);
#pragma unroll 1
    for (i32 link = block.lane; link < links.count; link += block.lanes) {
        peers.rank[link] = link == children ? parent : link == 0 ? first : second;
        if (link < children) vectors = vectors && aligned(block.arguments.views[peers.rank[link]].output);
    }
    open_links(block, links);
    return Tree{places, links, children, parent, plan[3 * ranks + rank], all_agree(vectors), all_links(children),
                parent < 0 ? 0 : 1ull << children};
}

// Whether the plan has a tree with this root; the root of all_reduce is any.
CCB_DEVICE bool has_root(const Block& block, i32 root) {
    return block.arguments.plan_words == 4 * block.arguments.ranks && plan_of(block)[root] < 0;
}

CCB_DEVICE i64 chunk_elements(const Block& block, Span part) {
    const i64 lanes_full = (i64)block.lanes * Arithmetic::vectors_at_once * granule_of(block);
    const i64 wanted = rounded_up((part.end - part.begin + LEAST_CHUNKS - 1) / LEAST_CHUNKS, granule_of(block));
    return smaller(slot_elements(block), wanted > lanes_full ? wanted : lanes_full);
}

CCB_DEVICE i64 bytes_of(const Block& block, Span span) {
    return (span.end - span.begin) * block.arithmetic.element_bytes;
}

// children's slots and own input -> parent's slot; at the root -> output and, if it spreads, -> children's outputs
CCB_DEVICE bool climb(const Block& block, const Tree& tree, Span chunk, bool spreads) {
    const bool root = tree.parent < 0, goes_down = root && spreads;
    const Step step{tree.to_children, goes_down ? tree.to_children : tree.to_parent, !root};
#pragma unroll 1
    for (i32 link = block.lane; link < tree.links.count; link += block.lanes) {
        if (link == tree.children) {
            tree.places.target[0] = slot_to(block, tree.links, link);
            continue;
        }
        tree.places.source[2 * link] = slot_from(block, tree.links, link);
        if (goes_down) {
            const RankView& child = block.arguments.views[tree.links.peers.rank[link]];
            tree.places.target[1 + link] = at(child.output, block, chunk.begin);
        }
    }
    if (block.lane == 0) {
        tree.places.source[tree.children == 0 ? 0 : 1] = at(block.self.input, block, chunk.begin);
        if (root) tree.places.target[0] = at(block.self.output, block, chunk.begin);
    }
    if (!begin_step(block, tree.links, step)) return false;
    const i32 targets = goes_down ? 1 + tree.children : 1;
    const Fold fold{tree.places, 1 + tree.children, targets, bytes_of(block, chunk), tree.vectors, root};
    fold_all<true, ROUNDED_AT_THE_END, SIDE_BY_SIDE>(block, fold);
    end_step(block, tree.links, step);
    return true;
}

// own output, where the parent has put it -> children's outputs; at the root input -> output and children's outputs
CCB_DEVICE bool descend(const Block& block, const Tree& tree, Span chunk) {
    const bool root = tree.parent < 0, keeps = root && block.self.input != block.self.output;
    const Step step{tree.to_parent, tree.to_children, false};
#pragma unroll 1
    for (i32 link = block.lane; link < tree.children; link += block.lanes) {
        const RankView& child = block.arguments.views[tree.links.peers.rank[link]];
        tree.places.target[link] = at(child.output, block, chunk.begin);
    }
    if (block.lane == 0) {
        tree.places.source[0] = at(root ? block.self.input : block.self.output, block, chunk.begin);
        if (keeps) tree.places.target[tree.children] = at(block.self.output, block, chunk.begin);
    }
    if (!begin_step(block, tree.links, step)) return false;
    const i32 targets = tree.children + (keeps ? 1 : 0);
    if (targets > 0) {
        fold_all<false>(block, Fold{tree.places, 1, targets, bytes_of(block, chunk), tree.vectors, false});
    }
    end_step(block, tree.links, step);
    return true;
}

CCB_DEVICE bool tree_all_reduce(const Arguments& arguments) {
    const Block block = this_block(arguments);
    const Span part = channel_part(block, arguments.count);
    if (arguments.ranks == 1) {
        copy_elements(block, block.self.input, block.self.output, part);
        return true;
    }
    if (arguments.plan_words != 4 * arguments.ranks) return refuse(block, arguments.ranks);
    const Tree tree = open_tree(block);
    const i64 size = chunk_elements(block, part);
    const i64 chunks = (part.end - part.begin + size - 1) / size;
    const i64 lag = tree.parent < 0 ? 0 : smaller(tree.lag, chunks);
#pragma unroll 1
    for (i64 step = 0; step < chunks + lag; ++step) {
        // Children contributed to what the root sends down, so they have read it: their outputs are free.
        if (step < chunks && !climb(block, tree, part_of(part, step, size), true)) return false;
        if (step < lag || tree.parent < 0) continue;
        if (!descend(block, tree, part_of(part, step - lag, size))) return false;
    }
    close_links(block, tree.links);
    return true;
}

CCB_DEVICE bool tree_reduce(const Arguments& arguments) {
    const Block block = this_block(arguments);
    const Span part = channel_part(block, arguments.count);
    if (arguments.ranks == 1) {
        copy_elements(block, block.self.input, block.self.output, part);
        return true;
    }
    if (!has_root(block, arguments.root)) return refuse(block, arguments.root);
    const Tree tree = open_tree(block);
    const i64 size = chunk_elements(block, part);
#pragma unroll 1
    for (i64 begin = part.begin; begin < part.end; begin += size) {
        if (!climb(block, tree, part_of(Span{begin, part.end}, 0, size), false)) return false;
    }
    close_links(block, tree.links);
    return true;
}

CCB_DEVICE bool tree_broadcast(const Arguments& arguments) {
    const Block block = this_block(arguments);
    const Span part = channel_part(block, arguments.count);
    if (arguments.ranks == 1) {
        copy_elements(block, block.self.input, block.self.output, part);
        return true;
    }
    if (!has_root(block, arguments.root)) return refuse(block, arguments.root);
    const Tree tree = open_tree(block);
    if (tree.parent >= 0) open_output(block, tree.parent);
#pragma unroll 1
    for (i32 child = 0; child < tree.children; ++child) {
        if (!wait_open(block, tree.links.peers.rank[child])) return false;
    }
    const i64 size = chunk_elements(block, part);
#pragma unroll 1
    for (i64 begin = part.begin; begin < part.end; begin += size) {
        if (!descend(block, tree, part_of(Span{begin, part.end}, 0, size))) return false;
    }
    close_links(block, tree.links);
    return true;
}

}  // namespace ccb

CCB_ENTRY(tree_all_reduce, REDUCES)
CCB_ENTRY(tree_broadcast, COPIES)
CCB_ENTRY(tree_reduce, REDUCES)
