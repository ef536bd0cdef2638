// The C surface: registering kernels, launching them, and telling Python how the structures are laid out.
#include "engine.h"

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>

namespace ccb_host {

thread_local const ccb_host_place* here = nullptr;

namespace {

Engine* running = nullptr;

std::map<std::string, RunFunction>& entries() {
    static std::map<std::string, RunFunction> known;
    return known;
}

Result prepare(const Record* records, int count, std::vector<Launch>& launches, std::string& report) {
    for (int i = 0; i < count; ++i) {
        const auto found = entries().find(records[i].entry);
        if (found == entries().end()) {
            report = std::string("no kernel is called ") + records[i].entry + "; there are:";
            for (const auto& known : entries()) report += " " + known.first;
            return UNKNOWN_ENTRY;
        }
        const ccb::Arguments& arguments = records[i].arguments;
        const int grid = arguments.channels * arguments.ranks_here;
        launches.push_back({found->second, &arguments, records[i].device, grid, 0});
    }
    return FINE;
}

}  // namespace
}  // namespace ccb_host

using namespace ccb_host;

extern "C" {

int ccb_host_register(const char* name, RunFunction run) {
    entries()[name] = run;
    return 0;
}

// Not instrumented by the sanitizer and not inlined: a lane must look its place up again after every switch.
__attribute__((noinline)) const ccb_host_place* ccb_host_here() { return here; }
int ccb_host_barrier(int vote) { return running->barrier(vote); }
void ccb_host_progress() { running->progress(); }
void ccb_host_stall(int code, int rank, int peer, int channel, unsigned long long goal, unsigned long long seen) {
    running->stall(ccb::Waiting{code, rank, peer, channel, goal, seen});
}
unsigned long long ccb_host_timer() { return running->timer(); }

// Runs all records to their end; returns a Result and, where that is not FINE, says why in report. One call at a
// time per process.
int ccb_host_launch(const Record* records, int count, const Options* options, char* report, int report_bytes) {
    std::string text;
    std::vector<Launch> launches;
    Result result = BAD_OPTIONS;
    if (options->lanes < 1 || options->lanes > 1024) {
        text = "lanes must be between 1 and 1024";
    } else {
        result = prepare(records, count, launches, text);
    }
    if (result == FINE) {
        std::unique_ptr<Engine> engine(options->engine == THREADS ? thread_engine(*options) : fiber_engine(*options));
        running = engine.get();
        result = engine->run(launches, text);
        running = nullptr;
#ifdef CCB_TSAN
        // Lanes that will never run again cannot be waited for; to the sanitizer, freeing them would be a race.
        if (result == DEADLOCK) engine.release();
#endif
    }
    if (report_bytes > 0) snprintf(report, static_cast<size_t>(report_bytes), "%s", text.c_str());
    return result;
}

// Lines of "Structure size" and "Structure.field offset", for the test that compares them with abi.py.
const char* ccb_host_layout() {
    static const std::string layout = [] {
        std::string text;
        const auto line = [&text](const char* name, size_t value) {
            text += name + (" " + std::to_string(value) + "\n");
        };
#define CCB_SIZE(type) line(#type, sizeof(ccb::type))
#define CCB_FIELD(type, field) line(#type "." #field, offsetof(ccb::type, field))
        CCB_SIZE(Arguments);
        CCB_FIELD(Arguments, views);
        CCB_FIELD(Arguments, plan);
        CCB_FIELD(Arguments, program);
        CCB_FIELD(Arguments, limit_nanoseconds);
        CCB_FIELD(Arguments, count);
        CCB_FIELD(Arguments, slot_bytes);
        CCB_FIELD(Arguments, packets_bytes);
        CCB_FIELD(Arguments, staging_bytes);
        CCB_FIELD(Arguments, ranks);
        CCB_FIELD(Arguments, first_rank);
        CCB_FIELD(Arguments, ranks_here);
        CCB_FIELD(Arguments, channels);
        CCB_FIELD(Arguments, root);
        CCB_FIELD(Arguments, type);
        CCB_FIELD(Arguments, op);
        CCB_FIELD(Arguments, slots);
        CCB_FIELD(Arguments, plan_words);
        CCB_FIELD(Arguments, program_words);
        CCB_FIELD(Arguments, iterations);
        CCB_FIELD(Arguments, free_0);
        CCB_SIZE(RankView);
        CCB_FIELD(RankView, input);
        CCB_FIELD(RankView, output);
        CCB_FIELD(RankView, fifo);
        CCB_FIELD(RankView, packets);
        CCB_FIELD(RankView, staging);
        CCB_FIELD(RankView, flags);
        CCB_FIELD(RankView, state);
        CCB_FIELD(RankView, errors);
        CCB_SIZE(ErrorWord);
        CCB_FIELD(ErrorWord, code);
        CCB_FIELD(ErrorWord, rank);
        CCB_FIELD(ErrorWord, peer);
        CCB_FIELD(ErrorWord, channel);
        CCB_FIELD(ErrorWord, goal);
        CCB_FIELD(ErrorWord, seen);
        line("Record", sizeof(Record));
        line("Record.entry", offsetof(Record, entry));
        line("Record.arguments", offsetof(Record, arguments));
        line("Record.device", offsetof(Record, device));
        line("Record.free_0", offsetof(Record, free_0));
        line("Options", sizeof(Options));
        line("Options.seed", offsetof(Options, seed));
        line("Options.engine", offsetof(Options, engine));
        line("Options.lanes", offsetof(Options, lanes));
        line("Options.resident", offsetof(Options, resident));
        line("Options.free_0", offsetof(Options, free_0));
        line("FLAG_KINDS", ccb::FLAG_KINDS);
        line("FLAG_STRIDE_WORDS", ccb::FLAG_STRIDE_WORDS);
        line("STATE_KINDS", ccb::STATE_KINDS);
        line("TYPES", ccb::TYPES);
        line("OPS", ccb::OPS);
        return text;
    }();
    return layout.c_str();
}

}  // extern "C"
