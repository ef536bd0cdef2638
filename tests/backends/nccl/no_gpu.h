// Stands for cuda.h, cuda_runtime.h, nccl.h and dlfcn.h, as far as benchmarks/nccl_fidelity.cu asks for them.
//
// Nothing runs; but what is enqueued while a stream waits for a word of the host is counted, and more than a
// stream takes (about 1000 launches) ends the program, where the host would wait for ever.
#pragma once

#include <cstdio>
#include <cstdlib>

constexpr int MOST_QUEUED = 1000;

struct Stream {
    const unsigned* word = nullptr;
    unsigned goal = 0;
    int queued = 0;
    int captured = -1;

    bool held() const { return word && *word < goal; }
    void launch(int launches) {
        if (captured >= 0) { captured += launches; return; }
        queued = held() ? queued + launches : 0;
        if (queued > MOST_QUEUED) end("the host waits for a stream that waits for the host");
    }
    static void end(const char* why) { std::fprintf(stderr, "%s\n", why); std::exit(3); }
};

using CUresult = int;
using cudaError_t = int;
using ncclResult_t = int;
using CUdeviceptr = unsigned long long;
using cudaStream_t = Stream*;
using cudaEvent_t = Stream*;
using cudaGraph_t = int;
using cudaGraphExec_t = int;
using ncclComm_t = int;
enum { CUDA_SUCCESS, CU_STREAM_WAIT_VALUE_GEQ = 0, cudaSuccess = 0, ncclSuccess = 0, ncclFloat32 = 7, ncclSum = 0 };
enum { cudaStreamNonBlocking = 1, cudaStreamCaptureModeThreadLocal = 1, RTLD_NOW = 2 };
enum { cudaHostAllocPortable = 1, cudaHostAllocMapped = 2 };

inline CUresult cuStreamWaitValue32(cudaStream_t stream, CUdeviceptr word, unsigned goal, unsigned) {
    stream->word = reinterpret_cast<const unsigned*>(word);
    stream->goal = goal;
    return 0;
}
inline void* dlopen(const char*, int) { return stderr; }
inline void* dlsym(void*, const char*) { return reinterpret_cast<void*>(&cuStreamWaitValue32); }
inline const char* dlerror() { return ""; }

inline const char* cudaGetErrorString(int) { return ""; }
inline int cudaSetDevice(int) { return 0; }
inline int cudaStreamCreateWithFlags(cudaStream_t* made, int) { *made = new Stream; return 0; }
inline int cudaStreamSynchronize(cudaStream_t stream) {
    if (stream->held()) Stream::end("nobody opens");
    return 0;
}
inline int cudaEventCreate(cudaEvent_t* made) { *made = nullptr; return 0; }
inline int cudaEventRecord(cudaEvent_t& event, cudaStream_t stream) { event = stream; return 0; }
inline int cudaEventSynchronize(cudaEvent_t event) { return cudaStreamSynchronize(event); }
inline int cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) { *milliseconds = 1; return 0; }
inline int cudaMalloc(float** made, size_t) { *made = nullptr; return 0; }
inline int cudaMemset(void*, int, size_t) { return 0; }
inline int cudaHostAlloc(unsigned** made, size_t, int) { *made = new unsigned; return 0; }
inline int cudaStreamBeginCapture(cudaStream_t stream, int) { stream->captured = 0; return 0; }
inline int cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* made) {
    *made = stream->captured;
    stream->captured = -1;
    return 0;
}
inline int cudaGraphInstantiateWithFlags(cudaGraphExec_t* made, cudaGraph_t graph, int) { *made = graph; return 0; }
inline int cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return 0; }
inline int cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) { stream->launch(graph); return 0; }
inline int cudaGraphDestroy(cudaGraph_t) { return 0; }
inline int cudaGraphExecDestroy(cudaGraphExec_t) { return 0; }

inline const char* ncclGetErrorString(int) { return ""; }
inline int ncclCommInitAll(ncclComm_t*, int, const int*) { return 0; }
inline int ncclCommDestroy(ncclComm_t) { return 0; }
inline int ncclGroupStart() { return 0; }
inline int ncclGroupEnd() { return 0; }
inline int ncclAllReduce(float*, float*, size_t, int, int, ncclComm_t, cudaStream_t stream) {
    stream->launch(1);
    return 0;
}
