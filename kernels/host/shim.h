// What a kernel finds on the host in place of CUDA's built-ins. Included by system.cuh only.
#pragma once

struct ccb_host_index {
    unsigned x;
};

// The calling lane's place; filled by the engine.
struct ccb_host_place {
    ccb_host_index thread_index, block_index, block_size, grid_size;
    char* shared;  // CCB_HOST_SHARED_BYTES of the block
};

constexpr unsigned CCB_HOST_SHARED_BYTES = 32768;
constexpr unsigned CCB_HOST_SHARED_SLOT = 2048;

extern "C" {
const ccb_host_place* ccb_host_here();
int ccb_host_barrier(int vote);  // waits for the whole block; whether any lane voted
void ccb_host_progress();        // memory changed in a way that a spinning lane may be waiting for
void ccb_host_stall(int code, int rank, int peer, int channel, unsigned long long goal, unsigned long long seen);
unsigned long long ccb_host_timer();
}

#define threadIdx (ccb_host_here()->thread_index)
#define blockIdx (ccb_host_here()->block_index)
#define blockDim (ccb_host_here()->block_size)
#define gridDim (ccb_host_here()->grid_size)
#define __syncthreads() ((void)ccb_host_barrier(0))
#define __syncthreads_or(vote) (ccb_host_barrier(vote))

template <unsigned NUMBER, typename T>
inline T& ccb_host_shared() {
    static_assert(sizeof(T) <= CCB_HOST_SHARED_SLOT, "a shared variable is too large for the shim");
    static_assert((NUMBER + 1) * CCB_HOST_SHARED_SLOT <= CCB_HOST_SHARED_BYTES, "too many shared variables");
    return *reinterpret_cast<T*>(ccb_host_here()->shared + NUMBER * CCB_HOST_SHARED_SLOT);
}
