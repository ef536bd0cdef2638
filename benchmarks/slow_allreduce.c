/* MPI_Allreduce that takes longer than the library's own, for LD_PRELOAD; benchmarks/variants.py compiles it.
 *
 * LIBRARY: the file of the MPI, which Python has loaded where RTLD_NEXT does not look. LATE_SECONDS: added to
 * each call. LATE_SHARE: of the time of a call of FROM_COUNT elements or more, added to it. Handles are passed
 * on as they come: pointers (Open MPI) or numbers (MPICH) in registers, of x86-64 and aarch64. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

typedef int (*allreduce)(const void *, void *, int, void *, void *, void *);

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + 1e-9 * time.tv_nsec;
}

int MPI_Allreduce(const void *from, void *to, int count, void *type, void *op, void *communicator) {
    static allreduce library;
    if (!library) {
        void *loaded = dlopen(LIBRARY, RTLD_LAZY | RTLD_NOLOAD);
        library = loaded ? (allreduce)dlsym(loaded, "PMPI_Allreduce") : NULL;
        if (!library) abort();
    }
    double began = now();
    int code = library(from, to, count, type, op, communicator);
    double ended = now();
    double until = ended + LATE_SECONDS + (count >= FROM_COUNT ? LATE_SHARE * (ended - began) : 0);
    while (now() < until) {
    }
    return code;
}
