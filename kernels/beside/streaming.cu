// Reads one buffer and writes another while a collective runs: ccbench/backends/nccl/overlap.py.
struct __align__(16) Four { float x, y, z, w; };
struct Streams {
    const Four* source;
    Four* target;
    unsigned long long count;
};
extern "C" __global__ void ccb_kernel(const __grid_constant__ Streams streams) {
    const unsigned long long stride = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
    for (unsigned long long i = static_cast<unsigned long long>(blockIdx.x) * blockDim.x + threadIdx.x;
         i < streams.count; i += stride) {
        Four value = streams.source[i];
        value.x += 1.0f;
        value.y += 1.0f;
        value.z += 1.0f;
        value.w += 1.0f;
        streams.target[i] = value;
    }
}
