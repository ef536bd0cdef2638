/* All-reduce of float sums by the rule of ccbench: a barrier, then so many launches in a row; a sample lasts from
 * the first rank's start to the last rank's end. argv: bytes launches samples, then rank 0's processor, rank
 * 1's and so on. Rank 0 prints one line per sample, in nanoseconds per launch. Exit 1 where a result is wrong,
 * 2 where the arguments are. */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#define PAGE ((size_t)4096)
#define STAGGER ((size_t)1088)
#define HUGE_PAGE ((size_t)2 << 20)
#define WARM_UP_SECONDS 0.01

/* As ccbench places its buffers: the one with number n begins n staggers behind a page's begin. From 2 MiB on
 * that is a huge page's, in memory that fills whole ones and asks for them as NumPy does. */
static float *buffer(size_t bytes, int number) {
    size_t align = bytes >= HUGE_PAGE ? HUGE_PAGE : PAGE, offset = number * STAGGER;
    size_t used = (offset + bytes + align - 1) / align * align;
    char *memory = malloc(used + align);
    if (!memory) return NULL;
    memory += -(size_t)memory % align;
    if (align == HUGE_PAGE) madvise(memory, used, MADV_HUGEPAGE);
    return (float *)(memory + offset);
}

static void pin(int processor) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(processor, &one);
    sched_setaffinity(0, sizeof one, &one);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + 1e-9 * t.tv_nsec;
}

static int wrong(const float *result, int count, int ranks) {
    for (int i = 0; i < count; i++) {
        /* rank r holds r + i % 7: small whole numbers, so sums are exact */
        if (result[i] != ranks * (ranks - 1) / 2 + ranks * (i % 7)) return 1;
    }
    return 0;
}

int main(int argc, char **argv) {
    int provided, rank, ranks;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc < 4 || atol(argv[1]) < 4 || atol(argv[2]) < 1 || atol(argv[3]) < 1) {
        if (rank == 0) fprintf(stderr, "usage: mpi_fidelity BYTES LAUNCHES SAMPLES [PROCESSOR...]\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    if (argc > 4 + rank) pin(atoi(argv[4 + rank]));
    int count = atol(argv[1]) / sizeof(float), launches = atol(argv[2]), samples = atol(argv[3]);
    float *send = buffer(count * sizeof(float), 0), *result = buffer(count * sizeof(float), 1);
    MPI_Comm all;
    MPI_Comm_dup(MPI_COMM_WORLD, &all);
    double *mine = malloc(samples * 2 * sizeof(double)), *first = malloc(samples * sizeof(double));
    double *last = malloc(samples * sizeof(double));
    for (int i = 0; i < count; i++) {
        send[i] = rank + i % 7;
        result[i] = -1;
    }
    int go_on = 1;
    for (double began = now(); go_on; go_on = now() - began < WARM_UP_SECONDS, MPI_Bcast(&go_on, 1, MPI_INT, 0, all))
        for (int i = 0; i < launches; i++)
            MPI_Allreduce(send, result, count, MPI_FLOAT, MPI_SUM, all);
    for (int sample = 0; sample < samples; sample++) {
        MPI_Barrier(all);
        mine[sample] = now();
        for (int i = 0; i < launches; i++)
            MPI_Allreduce(send, result, count, MPI_FLOAT, MPI_SUM, all);
        mine[samples + sample] = now();
    }
    /* One host, one clock: from the first rank's start to the last rank's end. */
    MPI_Reduce(mine, first, samples, MPI_DOUBLE, MPI_MIN, 0, MPI_COMM_WORLD);
    MPI_Reduce(mine + samples, last, samples, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    int bad = wrong(result, count, ranks), any = 0;
    MPI_Reduce(&bad, &any, 1, MPI_INT, MPI_MAX, 0, MPI_COMM_WORLD);
    if (rank == 0 && any) {
        fprintf(stderr, "mpi_fidelity: wrong result\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    for (int sample = 0; rank == 0 && sample < samples; sample++)
        printf("%.1f\n", 1e9 * (last[sample] - first[sample]) / launches);
    MPI_Comm_free(&all);
    MPI_Finalize();
    return 0;
}
