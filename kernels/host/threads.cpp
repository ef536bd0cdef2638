// Every lane a thread of the operating system: real time, real interleaving, no report of deadlock (set a limit).
#include <sched.h>
#include <time.h>

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "engine.h"

namespace ccb_host {
namespace {

// A barrier of one block's lanes that also gathers votes.
struct Meeting {
    std::mutex mutex;
    std::condition_variable released;
    int arrived = 0;
    int votes = 0;
    int outcome = 0;
    unsigned long long generation = 0;
    std::unique_ptr<char[]> shared{new char[CCB_HOST_SHARED_BYTES]()};
};

struct LanePlace {
    ccb_host_place place;  // first, so that `here` leads to the meeting
    Meeting* meeting;
};

class ThreadEngine : public Engine {
  public:
    explicit ThreadEngine(const Options& options) : options_(options) {}
    int barrier(int vote) override;
    void progress() override {}
    void stall(const ccb::Waiting&) override { sched_yield(); }
    unsigned long long timer() override;
    Result run(std::vector<Launch>& launches, std::string& report) override;

  private:
    void run_launch(Launch& launch);

    Options options_;
};

int ThreadEngine::barrier(int vote) {
    Meeting& meeting = *reinterpret_cast<const LanePlace*>(here)->meeting;
    std::unique_lock<std::mutex> lock(meeting.mutex);
    meeting.votes |= vote;
    if (++meeting.arrived == options_.lanes) {
        meeting.arrived = 0;
        meeting.outcome = meeting.votes;
        meeting.votes = 0;
        ++meeting.generation;
        meeting.released.notify_all();
    } else {
        const unsigned long long mine = meeting.generation;
        meeting.released.wait(lock, [&] { return meeting.generation != mine; });
    }
    return meeting.outcome;
}

unsigned long long ThreadEngine::timer() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<unsigned long long>(now.tv_sec) * 1000000000ull + static_cast<unsigned long long>(now.tv_nsec);
}

void ThreadEngine::run_launch(Launch& launch) {
    std::vector<std::unique_ptr<Meeting>> meetings;
    std::vector<std::thread> threads;
    for (int block = 0; block < launch.grid; ++block) meetings.push_back(std::make_unique<Meeting>());
    for (int block = 0; block < launch.grid; ++block) {
        Meeting* const meeting = meetings[static_cast<size_t>(block)].get();
        for (int lane = 0; lane < options_.lanes; ++lane) {
            threads.emplace_back([&launch, meeting, block, lane, this] {
                const auto index = [](int value) { return ccb_host_index{static_cast<unsigned>(value)}; };
                const LanePlace own{{index(lane), index(block), index(options_.lanes), index(launch.grid),
                                     meeting->shared.get()},
                                    meeting};
                here = &own.place;
                launch.run(*launch.arguments);
                here = nullptr;
            });
        }
    }
    for (std::thread& thread : threads) thread.join();
}

Result ThreadEngine::run(std::vector<Launch>& launches, std::string&) {
    std::map<int, std::vector<Launch*>> queues;
    for (Launch& launch : launches) queues[launch.device].push_back(&launch);
    std::vector<std::thread> devices;
    for (auto& entry : queues) {
        std::vector<Launch*>* const queue = &entry.second;
        devices.emplace_back([this, queue] {
            for (Launch* launch : *queue) run_launch(*launch);
        });
    }
    for (std::thread& device : devices) device.join();
    return FINE;
}

}  // namespace

Engine* thread_engine(const Options& options) { return new ThreadEngine(options); }

}  // namespace ccb_host
