// Put: every rank stores straight into the output of the rank numbered one higher, around the end.
//
// A rank opens its output to its left neighbour, waits until the right one has opened its own, copies its input there,
// and signals behind the data (release at system scope); its own output is complete with the left neighbour's signal.
// Against ring_send_recv, which goes through message slots: no copy out of a slot, and two flags for each launch and
// channel however much they carry, where the ring needs two for each message. The price: a permission has to come
// before the first byte may go, which a slot that is free does not need. With two ranks both signals are between the
// same two: every rank opens first and puts then, so that their order says which is which.
//
// Out of place only: a rank's output is open before its input has been read. Plan: none.
#include "primitives.cuh"

namespace ccb {

CCB_DEVICE bool put_send_recv(const Arguments& arguments) {
    const Block block = this_block(arguments);
    const Span part = channel_part(block, arguments.count);
    if (arguments.ranks == 1) {
        copy_elements(block, block.self.input, block.self.output, part);
        return true;
    }
    const i32 left = (block.rank + arguments.ranks - 1) % arguments.ranks;
    const i32 right = (block.rank + 1) % arguments.ranks;
    open_output(block, left);
    if (!wait_open(block, right)) return false;
    copy_elements(block, block.self.input, arguments.views[right].output, part);
    __syncthreads();
    signal(block, right);
    return wait_signal(block, WAITED_FOR_DATA, left);
}

}  // namespace ccb

CCB_ENTRY(put_send_recv, COPIES)
