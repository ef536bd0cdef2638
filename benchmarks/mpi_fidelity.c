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

#define HUGE_PAGE ((size_t)2 << 20)

/* As NumPy allocates: from 4 MiB on it asks for huge pages. */
static float *buffer(size_t bytes) {
    size_t room = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    float *memory = aligned_alloc(HUGE_PAGE, room);
    if (memory && bytes >= 2 * HUGE_PAGE) madvise(memory, room, MADV_HUGEPAGE);
    return memory;
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
    MPI_Init_thread(&argc, &argv, MPI_THREAD_SINGLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc < 4 || atol(argv[1]) < 4 || atol(argv[2]) < 1 || atol(argv[3]) < 1) {
        if (rank == 0) fprintf(stderr, "usage: mpi_fidelity BYTES LAUNCHES SAMPLES [PROCESSOR...]\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    if (argc > 4 + rank) pin(atoi(argv[4 + rank]));
    int count = atol(argv[1]) / sizeof(float), launches = atol(argv[2]), samples = atol(argv[3]);
    float *send = buffer(count * sizeof(float)), *result = buffer(count * sizeof(float));
    double *mine = malloc(samples * 2 * sizeof(double)), *first = malloc(samples * sizeof(double));
    double *last = malloc(samples * sizeof(double));
    for (int i = 0; i < count; i++) {
        send[i] = rank + i % 7;
        result[i] = -1;
    }
    for (int i = 0; i < 2 * launches; i++)
        MPI_Allreduce(send, result, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    for (int sample = 0; sample < samples; sample++) {
        MPI_Barrier(MPI_COMM_WORLD);
        mine[sample] = now();
        for (int i = 0; i < launches; i++)
            MPI_Allreduce(send, result, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
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
    free(send), free(result), free(mine), free(first), free(last);
    MPI_Finalize();
    return 0;
}
