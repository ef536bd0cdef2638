// Barrier: on every channel, every rank tells every rank that it has come, and waits for all of them.
//
// Plan: none. One channel is enough.
#include "primitives.cuh"

namespace ccb {

CCB_DEVICE bool barrier(const Arguments& arguments) {
    const Block block = this_block(arguments);
    return rank_barrier(block);
}

}  // namespace ccb

CCB_ENTRY(barrier, COPIES)
