// Every lane a fiber on one thread: a seeded choice of who runs next, and exact reports of deadlock.
//
// A lane gives way at barriers, in waits and sometimes after a post. One that waits is not run again before some flag
// has been stored since it looked: so when no lane can run, none ever will, and that is a deadlock (or, with a
// limit, the moment when time passes).
#include <sys/mman.h>
#include <ucontext.h>

#include <cstdlib>
#include <deque>
#include <memory>
#include <new>
#include <utility>

#include "engine.h"

#ifdef CCB_TSAN
extern "C" {
void* __tsan_create_fiber(unsigned flags);
void* __tsan_get_current_fiber();
void __tsan_destroy_fiber(void* fiber);
void __tsan_switch_to_fiber(void* fiber, unsigned flags);
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}
#else
static void* __tsan_create_fiber(unsigned) { return nullptr; }
static void* __tsan_get_current_fiber() { return nullptr; }
static void __tsan_destroy_fiber(void*) {}
static void __tsan_switch_to_fiber(void*, unsigned) {}
static void __tsan_acquire(void*) {}
static void __tsan_release(void*) {}
#endif

namespace ccb_host {
namespace {

constexpr size_t STACK_BYTES = 128 * 1024;
constexpr unsigned WITHOUT_SYNCHRONISATION = 1;  // __tsan_switch_to_fiber's flag: a switch orders nothing
constexpr unsigned long long STEPS_PER_LIMIT = 4;
constexpr size_t REPORTED_BLOCKS = 16;

struct Group;

struct Lane {
    ccb_host_place place;
    Group* group;
    ucontext_t context;
    char* stack;
    void* fiber;
    ccb::Waiting waiting;
    bool is_waiting;
};

// The lanes of one block.
struct Group {
    Launch* launch;
    char* start_token;  // the end token of the device's launch before, or nullptr
    std::deque<Lane> lanes;
    std::unique_ptr<char[]> shared{new char[CCB_HOST_SHARED_BYTES]()};
    int arrived = 0;
    int live = 0;
    int votes = 0;
    int outcome = 0;
    unsigned barriers = 0;
    unsigned long long barrier_tokens[2] = {};  // for the thread sanitizer: what a barrier orders
};

// The launches of one device, in order.
struct Device {
    std::vector<Launch*> queue;
    size_t current = 0;
    int next_block = 0;
    int running = 0;
};

class FiberEngine : public Engine {
  public:
    explicit FiberEngine(const Options& options) : options_(options), random_(options.seed * 2 + 1) {}
    ~FiberEngine() override;
    int barrier(int vote) override;
    void progress() override;
    void stall(const ccb::Waiting& waiting) override;
    unsigned long long timer() override { return now_; }
    Result run(std::vector<Launch>& launches, std::string& report) override;

  private:
    static void lane_main(unsigned high, unsigned low);
    unsigned draw();
    void admit();
    void start_block(Device& device, Launch* launch);
    void start_lane(Group& group, int index);
    void resume(Lane* lane);
    void give_way();
    void retire(Group& group);
    bool let_time_pass();
    void wake_stalled();
    void reserve();
    std::string deadlock_report() const;

    Options options_;
    unsigned long long random_;
    unsigned long long now_ = 1;
    std::vector<Device> devices_;
    std::deque<Group> groups_;
    std::vector<Lane*> runnable_;
    std::vector<Lane*> stalled_;
    std::vector<char*> free_stacks_;
    std::vector<char*> stacks_;
    ucontext_t scheduler_;
    void* scheduler_fiber_ = nullptr;
    Lane* current_ = nullptr;
    int live_groups_ = 0;
};

FiberEngine::~FiberEngine() {
    for (Group& group : groups_) {
        for (Lane& lane : group.lanes) {
            if (lane.fiber != nullptr) __tsan_destroy_fiber(lane.fiber);
        }
    }
    for (char* stack : stacks_) munmap(stack, STACK_BYTES);
}

// A new stack, at `place` if that is not null.
char* mapped_stack(char* place) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | (place != nullptr ? MAP_FIXED : 0);
    void* const memory = mmap(place, STACK_BYTES, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    return static_cast<char*>(memory);
}

// A linear congruential generator (Knuth's MMIX constants); the high bits are the good ones.
unsigned FiberEngine::draw() {
    random_ = random_ * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<unsigned>(random_ >> 33);
}

void FiberEngine::lane_main(unsigned high, unsigned low) {
    auto* const engine = reinterpret_cast<FiberEngine*>(static_cast<unsigned long long>(high) << 32 | low);
    Lane* const lane = engine->current_;
    Group* const group = lane->group;
    if (group->start_token != nullptr) __tsan_acquire(group->start_token);
    group->launch->run(*group->launch->arguments);
    __tsan_release(&group->launch->end_token);
    --group->live;
    engine->give_way();
    abort();  // a lane that has ended is never resumed
}

void FiberEngine::start_lane(Group& group, int index) {
    group.lanes.emplace_back();
    Lane& lane = group.lanes.back();
    lane.group = &group;
    lane.is_waiting = false;
    if (free_stacks_.empty()) {
        stacks_.push_back(mapped_stack(nullptr));
        free_stacks_.push_back(stacks_.back());
    }
    lane.stack = free_stacks_.back();
    free_stacks_.pop_back();
#ifdef CCB_TSAN
    // Mapped anew, so that the sanitizer forgets who had it before: that may have been a lane of another device, which
    // nothing orders before this one. Ordering them by hand would hide races of the kernels.
    mapped_stack(lane.stack);
#endif
    lane.fiber = __tsan_create_fiber(0);
    lane.place.thread_index.x = static_cast<unsigned>(index);
    lane.place.block_size.x = static_cast<unsigned>(options_.lanes);
    lane.place.grid_size.x = static_cast<unsigned>(group.launch->grid);
    lane.place.shared = group.shared.get();
    getcontext(&lane.context);
    lane.context.uc_stack.ss_sp = lane.stack;
    lane.context.uc_stack.ss_size = STACK_BYTES;
    lane.context.uc_link = nullptr;
    const auto self = reinterpret_cast<unsigned long long>(this);
    makecontext(&lane.context, reinterpret_cast<void (*)()>(lane_main), 2, static_cast<unsigned>(self >> 32),
                static_cast<unsigned>(self));
    runnable_.push_back(&lane);
}

void FiberEngine::start_block(Device& device, Launch* launch) {
    groups_.emplace_back();
    Group& group = groups_.back();
    group.launch = launch;
    group.start_token = device.current > 0 ? &device.queue[device.current - 1]->end_token : nullptr;
    group.live = options_.lanes;
    for (int i = 0; i < options_.lanes; ++i) {
        start_lane(group, i);
        group.lanes.back().place.block_index.x = static_cast<unsigned>(device.next_block);
    }
    ++device.next_block;
    ++device.running;
    ++live_groups_;
}

// Starts blocks in the order of their index, as many as there is room for.
void FiberEngine::admit() {
    for (Device& device : devices_) {
        while (device.current < device.queue.size()) {
            Launch* const launch = device.queue[device.current];
            if (device.next_block < launch->grid) {
                if (options_.resident > 0 && device.running >= options_.resident) break;
                start_block(device, launch);
            } else if (device.running == 0) {
                ++device.current;
                device.next_block = 0;
            } else {
                break;
            }
        }
    }
}

void FiberEngine::retire(Group& group) {
    for (Lane& lane : group.lanes) {
        if (lane.fiber != nullptr) __tsan_destroy_fiber(lane.fiber);
        lane.fiber = nullptr;
        free_stacks_.push_back(lane.stack);
    }
    --devices_[static_cast<size_t>(group.launch->device)].running;
    --live_groups_;
    admit();
}

void FiberEngine::resume(Lane* lane) {
    current_ = lane;
    here = &lane->place;
    lane->is_waiting = false;
    __tsan_switch_to_fiber(lane->fiber, WITHOUT_SYNCHRONISATION);
    swapcontext(&scheduler_, &lane->context);
    here = nullptr;
}

void FiberEngine::give_way() {
    Lane* const lane = current_;
    __tsan_switch_to_fiber(scheduler_fiber_, WITHOUT_SYNCHRONISATION);
    swapcontext(&lane->context, &scheduler_);
}

int FiberEngine::barrier(int vote) {
    Lane* const lane = current_;
    Group& group = *lane->group;
    // Two tokens in turn: a lane that comes late out of one barrier must not be taken to know what the others have
    // done since and released at the next one.
    void* const token = &group.barrier_tokens[group.barriers % 2];
    __tsan_release(token);
    group.votes |= vote;
    if (++group.arrived == options_.lanes) {
        ++group.barriers;
        group.arrived = 0;
        group.outcome = group.votes;
        group.votes = 0;
        for (Lane& other : group.lanes) runnable_.push_back(&other);
    }
    give_way();
    __tsan_acquire(token);
    return group.outcome;
}

void FiberEngine::wake_stalled() {
    for (Lane* lane : stalled_) runnable_.push_back(lane);
    stalled_.clear();
}

void FiberEngine::progress() {
    wake_stalled();
    if (draw() % 4 == 0) {
        runnable_.push_back(current_);
        give_way();
    }
}

void FiberEngine::stall(const ccb::Waiting& waiting) {
    current_->waiting = waiting;
    current_->is_waiting = true;
    stalled_.push_back(current_);
    give_way();
}

bool FiberEngine::let_time_pass() {
    unsigned long long limit = 0;
    for (const Lane* lane : stalled_) {
        const unsigned long long own = lane->group->launch->arguments->limit_nanoseconds;
        if (own > 0 && (limit == 0 || own < limit)) limit = own;
    }
    if (limit == 0) return false;
    now_ += limit / STEPS_PER_LIMIT + 1;
    wake_stalled();
    return true;
}

std::string lane_report(const Lane& lane) {
    static const char* const known[] = {"for nothing from",     "for data from",  "for credit from",
                                        "for the output of",    "at a barrier for", "for a packet from"};
    const ccb::Waiting& waiting = lane.waiting;
    const char* const what = waiting.code >= 0 && waiting.code <= 5 ? known[waiting.code] : "for something of";
    return "rank " + std::to_string(waiting.rank) + " block " + std::to_string(waiting.channel) + " waits " + what +
           " rank " + std::to_string(waiting.peer) + " (step " + std::to_string(waiting.goal) + ", seen " +
           std::to_string(waiting.seen) + ")";
}

std::string group_report(const Group& group) {
    for (const Lane& lane : group.lanes) {
        if (lane.is_waiting) return lane_report(lane);
    }
    const ccb::Arguments& arguments = *group.launch->arguments;
    const int index = static_cast<int>(group.lanes.front().place.block_index.x);
    return "rank " + std::to_string(arguments.first_rank + index % arguments.ranks_here) + " block " +
           std::to_string(index / arguments.ranks_here) + " has " + std::to_string(group.arrived) + " of " +
           std::to_string(group.lanes.size()) + " lanes at __syncthreads";
}

std::string FiberEngine::deadlock_report() const {
    std::string text = "deadlock: ";
    size_t reported = 0, unreported = 0;
    for (const Group& group : groups_) {
        if (group.live == 0) continue;
        if (reported == REPORTED_BLOCKS) {
            ++unreported;
            continue;
        }
        text += (reported++ > 0 ? "; " : "") + group_report(group);
    }
    if (unreported > 0) text += "; and " + std::to_string(unreported) + " blocks more";
    int outside = 0;
    for (const Device& device : devices_) {
        if (device.current < device.queue.size()) outside += device.queue[device.current]->grid - device.next_block;
    }
    if (outside > 0) {
        text += "; " + std::to_string(outside) + " blocks never started, as only " + std::to_string(options_.resident) +
                " may run at once";
    }
    return text;
}

// Lists grow here only: the sanitizer sees what lanes allocate, copy in bulk and free, even in code that it does not
// instrument, and would call it a race. For the same reason groups live until the engine does not.
void FiberEngine::reserve() {
    size_t lanes = 0;
    for (const Device& device : devices_) {
        int widest = 0;
        for (const Launch* launch : device.queue) widest = launch->grid > widest ? launch->grid : widest;
        lanes += static_cast<size_t>(widest) * static_cast<size_t>(options_.lanes);
    }
    runnable_.reserve(lanes);
    stalled_.reserve(lanes);
}

Result FiberEngine::run(std::vector<Launch>& launches, std::string& report) {
    scheduler_fiber_ = __tsan_get_current_fiber();
    for (Launch& launch : launches) {
        const auto device = static_cast<size_t>(launch.device);
        if (devices_.size() <= device) devices_.resize(device + 1);
        devices_[device].queue.push_back(&launch);
    }
    reserve();
    admit();
    while (live_groups_ > 0) {
        if (runnable_.empty() && !let_time_pass()) {
            report = deadlock_report();
            return DEADLOCK;
        }
        std::swap(runnable_[draw() % runnable_.size()], runnable_.back());
        Lane* const lane = runnable_.back();
        runnable_.pop_back();
        resume(lane);
        if (lane->group->live == 0) retire(*lane->group);
    }
    for (Launch& launch : launches) __tsan_acquire(&launch.end_token);
    return FINE;
}

}  // namespace

Engine* fiber_engine(const Options& options) { return new FiberEngine(options); }

}  // namespace ccb_host
