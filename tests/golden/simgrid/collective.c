/* One collective under SMPI; prints the simulated seconds until the last rank has finished.
 *
 * No barrier comes before it: all ranks leave MPI_Init at simulated time zero, and a barrier would let them
 * start at different times. argv: collective, bytes in the sense of nccl-tests (the largest buffer of a rank).
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  int rank, ranks;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const char *what = argv[1];
  int count = atoi(argv[2]), block = count / ranks;
  char *in = calloc(count, 1), *out = calloc(count, 1);
  int *counts = malloc(ranks * sizeof(int)); /* not every algorithm can combine bytes */
  for (int each = 0; each < ranks; each++)
    counts[each] = block / 4;
  double start = MPI_Wtime();
  if (!strcmp(what, "all_reduce"))
    MPI_Allreduce(in, out, count / 4, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  else if (!strcmp(what, "all_gather"))
    MPI_Allgather(in, block, MPI_CHAR, out, block, MPI_CHAR, MPI_COMM_WORLD);
  else if (!strcmp(what, "all_to_all"))
    MPI_Alltoall(in, block, MPI_CHAR, out, block, MPI_CHAR, MPI_COMM_WORLD);
  else if (!strcmp(what, "reduce_scatter"))
    MPI_Reduce_scatter(in, out, counts, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  else if (!strcmp(what, "broadcast"))
    MPI_Bcast(in, count, MPI_CHAR, 0, MPI_COMM_WORLD);
  else if (!strcmp(what, "reduce"))
    MPI_Reduce(in, out, count / 4, MPI_INT, MPI_MAX, 0, MPI_COMM_WORLD);
  else if (!strcmp(what, "gather"))
    MPI_Gather(in, block, MPI_CHAR, out, block, MPI_CHAR, 0, MPI_COMM_WORLD);
  else if (!strcmp(what, "scatter"))
    MPI_Scatter(in, block, MPI_CHAR, out, block, MPI_CHAR, 0, MPI_COMM_WORLD);
  else if (!strcmp(what, "send_recv"))
    MPI_Sendrecv(in, count, MPI_CHAR, (rank + 1) % ranks, 0, out, count, MPI_CHAR, (rank - 1 + ranks) % ranks,
                 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  else
    MPI_Abort(MPI_COMM_WORLD, 2);
  printf("seconds %.15g\n", MPI_Wtime() - start);
  MPI_Finalize();
  return 0;
}
