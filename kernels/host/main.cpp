// Runs launches from a file, for builds that cannot be loaded into Python (the thread sanitizer).
//
// The file: Header, Options, records, fixups, arena. Addresses in it are offsets into the arena, 0 meaning none; a
// fixup is the arena offset of a word to turn into an address. The arena is written back when all went well.
// Exit code: the Result, or the sanitizer's own.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "engine.h"

extern "C" int ccb_host_launch(const ccb_host::Record*, int, const ccb_host::Options*, char*, int);

namespace {

struct Header {
    ccb::u64 arena_bytes;
    ccb::u64 records;
    ccb::u64 fixups;
};

constexpr int BAD_FILE = 6;

bool get(FILE* file, void* target, size_t bytes) { return fread(target, 1, bytes, file) == bytes; }

template <typename T>
void relocate(T*& address, char* arena) {
    if (address != nullptr) address = reinterpret_cast<T*>(arena + reinterpret_cast<ccb::u64>(address));
}

}  // namespace

int main(int count, char** words) {
    if (count != 2) {
        fprintf(stderr, "usage: %s FILE\n", words[0]);
        return BAD_FILE;
    }
    FILE* const file = fopen(words[1], "r+b");
    Header header;
    ccb_host::Options options;
    if (file == nullptr || !get(file, &header, sizeof header) || !get(file, &options, sizeof options)) {
        fprintf(stderr, "%s: not a file of launches\n", words[1]);
        return BAD_FILE;
    }
    std::vector<ccb_host::Record> records(header.records);
    std::vector<ccb::u64> fixups(header.fixups);
    char* const arena = static_cast<char*>(aligned_alloc(4096, (header.arena_bytes + 4095) / 4096 * 4096));
    if (arena == nullptr || !get(file, records.data(), records.size() * sizeof(ccb_host::Record)) ||
        !get(file, fixups.data(), fixups.size() * sizeof(ccb::u64))) {
        fprintf(stderr, "%s: cut short\n", words[1]);
        return BAD_FILE;
    }
    const long place = ftell(file);
    if (!get(file, arena, header.arena_bytes)) {
        fprintf(stderr, "%s: cut short\n", words[1]);
        return BAD_FILE;
    }
    for (ccb::u64 fixup : fixups) relocate(*reinterpret_cast<char**>(arena + fixup), arena);
    for (ccb_host::Record& record : records) {
        relocate(record.arguments.views, arena);
        relocate(record.arguments.plan, arena);
        relocate(record.arguments.program, arena);
    }
    char report[8192] = "";
    const int result =
        ccb_host_launch(records.data(), static_cast<int>(records.size()), &options, report, sizeof report);
    if (result != ccb_host::FINE) {
        fprintf(stderr, "%s\n", report);
        _exit(result);  // lanes that never ended may still own memory: freeing it would be called a race
    }
    fseek(file, place, SEEK_SET);
    fwrite(arena, 1, header.arena_bytes, file);
    fclose(file);
    free(arena);
    return ccb_host::FINE;
}
