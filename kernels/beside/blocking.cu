// Holds streams back until the host lets them go or a limit has passed: ccbench/backends/cuda/blocking_kernel.py.
#include "system.cuh"
struct Blocking {
    const ccb::u64* released;
    ccb::u64* timed_out;
    ccb::u64 goal;
    ccb::u64 limit_nanoseconds;
};
extern "C" __global__ void ccb_kernel(const __grid_constant__ Blocking blocking) {
    if (threadIdx.x != 0) return;
    const ccb::Waiting host{};
    ccb::SpinLimit spin{blocking.limit_nanoseconds};
    while (ccb::load_relaxed(blocking.released) < blocking.goal) {
        if (ccb::exhausted(spin)) {
            ccb::store_relaxed(blocking.timed_out, blocking.goal);
            return;
        }
        ccb::back_off(spin.polls, host);
    }
}
