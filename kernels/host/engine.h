// The engine's insides: launches, and the two ways to run their blocks. Never built with a sanitizer itself.
#pragma once

#include <string>
#include <vector>

#include "../abi.cuh"

namespace ccb_host {

typedef void (*RunFunction)(const ccb::Arguments&);

// One launch of one kernel; those of one device run one after another, those of different devices at once.
struct Record {
    char entry[64];
    ccb::Arguments arguments;
    ccb::i32 device;
    ccb::i32 free_0;
};

enum EngineKind : ccb::i32 { FIBERS = 0, THREADS = 1 };

struct Options {
    ccb::u64 seed;
    ccb::i32 engine;
    ccb::i32 lanes;
    ccb::i32 resident;  // blocks of one device that run at once (fibers only); 0: all
    ccb::i32 free_0;
};

enum Result : int { FINE = 0, DEADLOCK = 3, UNKNOWN_ENTRY = 4, BAD_OPTIONS = 5 };

// A launch that is ready to run.
struct Launch {
    RunFunction run;
    const ccb::Arguments* arguments;
    int device;
    int grid;
    char end_token;  // what lanes that end release and those of the device's next launch acquire
};

// What the calls of a kernel are turned into; one for each engine.
class Engine {
  public:
    virtual ~Engine() = default;
    virtual int barrier(int vote) = 0;
    virtual void progress() = 0;
    virtual void stall(const ccb::Waiting& waiting) = 0;
    virtual unsigned long long timer() = 0;
    virtual Result run(std::vector<Launch>& launches, std::string& report) = 0;
};

extern thread_local const ccb_host_place* here;

Engine* fiber_engine(const Options& options);
Engine* thread_engine(const Options& options);

}  // namespace ccb_host
