// A plain loop around ncclAllReduce, as short as it can be: what ccbench's own times are laid beside.
//
// Usage: nccl_fidelity GPUS LARGEST_BYTES, then lines on stdin: "SIZE_BYTES LAUNCHES plain|graph".
// For each line it answers one: seconds per launch, by events, of the slowest GPU. All GPUs, one thread.
// The GPUs wait for one word of the host: plain, until the first launch is enqueued; graph, until 16 replays are.
// Host code only: nvcc compiles it, and so does g++ with CUDA's and NCCL's headers (-x c++).

#include <cuda.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <nccl.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define CUDA(call)                                                              \
    do {                                                                        \
        cudaError_t result = (call);                                            \
        if (result != cudaSuccess) {                                            \
            std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(result)); \
            std::exit(1);                                                       \
        }                                                                       \
    } while (0)

#define DRIVER(call)                                                            \
    do {                                                                        \
        CUresult result = (call);                                               \
        if (result != CUDA_SUCCESS) {                                           \
            std::fprintf(stderr, "%s: CUresult %d\n", #call, (int)result);      \
            std::exit(1);                                                       \
        }                                                                       \
    } while (0)

#define NCCL(call)                                                              \
    do {                                                                        \
        ncclResult_t result = (call);                                           \
        if (result != ncclSuccess) {                                            \
            std::fprintf(stderr, "%s: %s\n", #call, ncclGetErrorString(result)); \
            std::exit(1);                                                       \
        }                                                                       \
    } while (0)

constexpr int GRAPH_LAUNCHES = 32;
constexpr int GRAPHS_HELD = 16;  // as ccbench: a stream takes about 1000 launches, then the host waits

struct Gpu {
    int device;
    ncclComm_t comm;
    cudaStream_t stream;
    cudaEvent_t began, ended;
    float* source;
    float* target;
};

struct StreamWait {
    unsigned* word;
    unsigned goal;
};

// Looked up in the driver's library: not every toolkit has a libcuda.so to link with.
static decltype(&cuStreamWaitValue32) found_wait() {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    void* found = driver ? dlsym(driver, "cuStreamWaitValue32_v2") : nullptr;
    if (!found) {
        std::fprintf(stderr, "libcuda.so.1 has no cuStreamWaitValue32_v2: %s\n", dlerror());
        std::exit(1);
    }
    return reinterpret_cast<decltype(&cuStreamWaitValue32)>(found);
}

static void hold(std::vector<Gpu>& gpus, StreamWait& wait_word) {
    static const auto wait = found_wait();
    wait_word.goal++;
    for (Gpu& gpu : gpus) {
        CUDA(cudaSetDevice(gpu.device));
        CUdeviceptr word = reinterpret_cast<CUdeviceptr>(wait_word.word);
        DRIVER(wait(gpu.stream, word, wait_word.goal, CU_STREAM_WAIT_VALUE_GEQ));
    }
}

static void open(StreamWait& wait_word) { __atomic_store_n(wait_word.word, wait_word.goal, __ATOMIC_RELEASE); }

static void launch(std::vector<Gpu>& gpus, size_t count) {
    NCCL(ncclGroupStart());
    for (Gpu& gpu : gpus)
        NCCL(ncclAllReduce(gpu.source, gpu.target, count, ncclFloat32, ncclSum, gpu.comm, gpu.stream));
    NCCL(ncclGroupEnd());
}

static std::vector<cudaGraphExec_t> captured(std::vector<Gpu>& gpus, size_t count, int launches) {
    for (Gpu& gpu : gpus) {
        CUDA(cudaSetDevice(gpu.device));
        CUDA(cudaStreamBeginCapture(gpu.stream, cudaStreamCaptureModeThreadLocal));
    }
    for (int i = 0; i < launches; i++) launch(gpus, count);
    // A thread may make nothing executable while a stream of it captures: first all captures end.
    std::vector<cudaGraph_t> made(gpus.size());
    for (size_t g = 0; g < gpus.size(); g++) {
        CUDA(cudaSetDevice(gpus[g].device));
        CUDA(cudaStreamEndCapture(gpus[g].stream, &made[g]));
    }
    std::vector<cudaGraphExec_t> graphs(gpus.size());
    for (size_t g = 0; g < gpus.size(); g++) {
        CUDA(cudaSetDevice(gpus[g].device));
        CUDA(cudaGraphInstantiateWithFlags(&graphs[g], made[g], 0));
        CUDA(cudaGraphUpload(graphs[g], gpus[g].stream));
        CUDA(cudaGraphDestroy(made[g]));
    }
    return graphs;
}

static double timed(std::vector<Gpu>& gpus, StreamWait& wait_word, size_t count, int launches, bool graph) {
    launch(gpus, count);
    std::vector<cudaGraphExec_t> whole;
    int rounds = launches / GRAPH_LAUNCHES;
    if (graph) whole = captured(gpus, count, GRAPH_LAUNCHES);
    for (Gpu& gpu : gpus) {
        CUDA(cudaSetDevice(gpu.device));
        CUDA(cudaStreamSynchronize(gpu.stream));
    }
    hold(gpus, wait_word);
    for (Gpu& gpu : gpus) {
        CUDA(cudaSetDevice(gpu.device));
        CUDA(cudaEventRecord(gpu.began, gpu.stream));
    }
    for (int i = 0; i < (graph ? rounds : launches); i++) {
        if (!graph) launch(gpus, count);
        if (!graph && i == 0) open(wait_word);
        for (size_t g = 0; graph && g < gpus.size(); g++) {
            CUDA(cudaSetDevice(gpus[g].device));
            CUDA(cudaGraphLaunch(whole[g], gpus[g].stream));
        }
        if (graph && i + 1 == GRAPHS_HELD) open(wait_word);
    }
    float longest = 0;
    for (Gpu& gpu : gpus) {
        CUDA(cudaSetDevice(gpu.device));
        CUDA(cudaEventRecord(gpu.ended, gpu.stream));
    }
    open(wait_word);
    for (Gpu& gpu : gpus) {
        float milliseconds;
        CUDA(cudaEventSynchronize(gpu.ended));
        CUDA(cudaEventElapsedTime(&milliseconds, gpu.began, gpu.ended));
        if (milliseconds > longest) longest = milliseconds;
    }
    for (cudaGraphExec_t executable : whole) CUDA(cudaGraphExecDestroy(executable));
    return longest * 1e-3 / (graph ? rounds * GRAPH_LAUNCHES : launches);
}

int main(int argc, char** argv) {
    if (argc != 3) {
        std::fprintf(stderr, "usage: nccl_fidelity GPUS LARGEST_BYTES\n");
        return 2;
    }
    size_t largest = std::strtoull(argv[2], nullptr, 10);
    std::vector<Gpu> gpus(std::atoi(argv[1]));
    std::vector<ncclComm_t> comms(gpus.size());
    NCCL(ncclCommInitAll(comms.data(), static_cast<int>(gpus.size()), nullptr));
    for (size_t g = 0; g < gpus.size(); g++) {
        Gpu& gpu = gpus[g];
        gpu.device = static_cast<int>(g);
        gpu.comm = comms[g];
        CUDA(cudaSetDevice(gpu.device));
        CUDA(cudaStreamCreateWithFlags(&gpu.stream, cudaStreamNonBlocking));
        CUDA(cudaEventCreate(&gpu.began));
        CUDA(cudaEventCreate(&gpu.ended));
        CUDA(cudaMalloc(&gpu.source, largest));
        CUDA(cudaMalloc(&gpu.target, largest));
        CUDA(cudaMemset(gpu.source, 0, largest));
    }
    StreamWait wait_word{};
    CUDA(cudaHostAlloc(&wait_word.word, sizeof(unsigned), cudaHostAllocPortable | cudaHostAllocMapped));
    *wait_word.word = 0;
    size_t size;
    int launches;
    char mode[16];
    while (std::scanf("%zu %d %15s", &size, &launches, mode) == 3) {
        bool graph = std::strcmp(mode, "graph") == 0;
        bool sound = size <= largest && launches >= (graph ? GRAPH_LAUNCHES : 1);
        std::printf("%.9g\n", sound ? timed(gpus, wait_word, size / sizeof(float), launches, graph) : -1.0);
        std::fflush(stdout);
    }
    for (Gpu& gpu : gpus) NCCL(ncclCommDestroy(gpu.comm));
    return 0;
}
