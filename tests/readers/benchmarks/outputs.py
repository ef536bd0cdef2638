"""Small outputs of each tool in its own layout, with figures made up here so that they hang together."""

from __future__ import annotations

OSU_ALL_REDUCE = """\
$ mpirun -np 8 --map-by ppr:4:node ./osu_allreduce -f
# OSU MPI-CUDA Allreduce Latency Test v7.4
# Datatype: MPI_FLOAT.
# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations
4                       9.10              8.20             10.30        1000
1048576               310.55            300.10            325.00         100
"""

OSU_ALL_GATHER = """\
mpirun -np 4 ./osu_allgather
# OSU MPI Allgather Latency Test v7.4
# Datatype: MPI_CHAR.
# Size       Avg Latency(us)
1                       3.50
1024                    8.25
"""

OSU_BARRIER = """\
# OSU MPI Barrier Latency Test v5.8
# Avg Latency(us)
             8.32
"""

OSU_BANDWIDTH = """\
# OSU MPI Bandwidth Test v7.4
# Size      Bandwidth (MB/s)
1                       2.50
4194304             24500.25
"""

OSU_NON_BLOCKING = """\
# OSU MPI Non-blocking Allreduce Latency Test v5.6.3
# Overall = Coll. Init + Compute + MPI_Test + MPI_Wait

# Size           Overall(us)       Compute(us)    Pure Comm.(us)        Overlap(%)
4                       9.00              5.00              4.50             11.11
"""

IMB_HEADER = """\
#----------------------------------------------------------------
#    Intel(R) MPI Benchmarks 2021.7, MPI-1 part
#----------------------------------------------------------------
# MPI Version           : 3.1
# MPI_Datatype                   :   MPI_BYTE
# MPI_Datatype for reductions    :   MPI_FLOAT
# MPI_Op                         :   MPI_SUM
"""

IMB_SWEEP = """\
#----------------------------------------------------------------
# Benchmarking Allreduce
# #processes = 2
# ( 2 additional processes waiting in MPI_Barrier)
#----------------------------------------------------------------
       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]
            0         1000         0.03         0.05         0.04
         4096         1000        12.00        14.50        13.25

#----------------------------------------------------------------
# Benchmarking Alltoall
# #processes = 4
#----------------------------------------------------------------
       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]
         1024         1000        20.00        22.00        21.00
     33554432 time-out.; Time limit (secs_per_sample * msg_sizes_list_len) is over; use "-time X"

#-----------------------------------------------------------------------------
# Benchmarking Sendrecv
# #processes = 4
#-----------------------------------------------------------------------------
       #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]   Mbytes/sec
      1048576           40       100.00       104.86       102.00     20000.00

#---------------------------------------------------
# Benchmarking Barrier
# #processes = 4
#---------------------------------------------------
 #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]
         1000         1.10         1.30         1.20
"""

IMB = IMB_HEADER + IMB_SWEEP + "\n\n# All processes entering MPI_Finalize\n"

NCCOM = """\
nccom-test -r 32 -N 2 --minbytes 512kb --maxbytes 64mb --datatype bf16 allr
      size(B)    count(elems)    type    time:avg(us)    algbw(GB/s)    busbw(GB/s)
       524288          262144    bf16          438.20           1.20           2.32
     67108864        33554432    bf16         3521.00          19.06          36.93
Avg bus bandwidth:    19.6250GB/s
"""

NCCOM_BINARY = """\
nccom-test -r 2 allg
      size(B)    count(elems)     type    time(us)    algbw(GB/s)    busbw(GB/s)
     33554432        33554432    uint8         768          40.69          20.34
Avg bus bandwidth:      20.3450GB/s
"""

HCCL = """\
mpirun -n 16 -ppn 8 ./bin/all_gather_test -p 8 -b 8K -e 64M -d fp32 -o sum -c 1
the minbytes is 8192, maxbytes is 67108864, iters is 20, warmup_iters is 5
data_size(Bytes): | aveg_time(us): | alg_bandwidth(GB/s): | check_result:
8192              | 12.50          | 0.65536              | success
16384             | 13.00          | 1.26031              | failed
67108864          | 2630.20        | 25.51473             | NULL
"""

PARAM_OLD = (
    "mpirun -np 4 python comms.py --collective all_reduce\n"
    "\tCOMMS-RES\tsize (B)\t num-elements\t Latency(us):p50\tp75\t\tp95\tmin\tmax"
    "\t algBW(GB/s)\t busBW(GB/s)\n"
    "\tCOMMS-RES\t     1048576\t      262144\t       100.0\t       101.0\t       102.0"
    "\t        99.0\t       103.0\t      10.486\t      15.729\n"
)

PARAM_NEW = (
    "mpirun -np 8 python comms.py --collective all_gather\n"
    "\tCOMMS-RES                 size (B)   nElementsPerRank   Latency(us):p50         p75         p95"
    "         Min         Max    AlgBW(GB/s) BusBW(GB/s) TotalLatency(us):p50\n"
    "\tCOMMS-RES-all_gather-float32           1048576             32768             100.0       101.0"
    "       102.0        99.0       103.0         10.486       9.175\n"
)

GLOO = """\
Device:      tcp, pci=, iface=eth0, speed=-1, addr=[192.0.2.1]
Algorithm:   allreduce_halving_doubling
Options:     processes=8, inputs=1, threads=1

   elements   min (us)   p50 (us)   p99 (us)   max (us)   avg (GB/s)    samples
        100        205        265        351        414        0.001       3889
    1048576       3000       3907       4400       5000        1.000        500
"""

GLOO_NANOSECONDS = """\
Algorithm:   new_allgather_ring
Options:     processes=4, inputs=1

  elements minL (ns) p50L (ns) p99L (ns) maxL (ns) minBW (GB/s) p50BW (GB/s) p99BW (GB/s) maxBW (GB/s) samples
   1048576   1000000   2000000   3000000   4000000        0.977        1.953        2.930        3.906     100
"""

UCC_HEADER = """\
$ mpirun -np 4 ucc_perftest -c {word} -m cuda -F
Collective:             {name}
Memory type:            cuda
Datatype:               float32
Reduction:              {op}
Inplace:                0
Warmup:
  small                 100
  large                 20
Iterations:
  small                 1000
  large                 200

       Count        Size                Time, us                           Bandwidth, GB/s
                                 avg         min         max         avg         max         min
"""

UCC_ALL_TO_ALL = (
    UCC_HEADER.format(word="alltoall", name="Alltoall", op="N/A")
    + """\
       65536      262144       80.00       78.00       82.00        9.83       10.08        9.59
      131072      524288      120.00      118.00      121.00       13.11       13.33       13.00
"""
)

UCC_ALL_REDUCE = (
    UCC_HEADER.format(word="allreduce", name="Allreduce", op="sum")
    + """\
      262144     1048576      100.00       99.00      101.00       15.73       15.89       15.57
"""
)

UCC_BARRIER = (
    UCC_HEADER.format(word="barrier", name="Barrier", op="N/A")
    + """\
         N/A         N/A        5.25        5.10        5.50         N/A         N/A         N/A
"""
)

TORCH_PARAGRAPH = """\
[host-1:0]:The average bandwidth of all_reduce with a 4.0GB payload (5 trials, 16 ranks):
[host-1:0]: algbw: 45.000 GBps (360.0 Gbps)
[host-1:0]: busbw: 84.375 GBps (675.0 Gbps)
"""

TORCH_SWEEP = """\
The average bandwidth of all_reduce over 8 ranks (5 warmups / 20 trials):

| payload |    busbw   |    algbw   |
| ------: | ---------: | ---------: |
|   32KiB |   1.75GBps |   1.00GBps |
|    1GiB | 350.00GBps | 200.00GBps |
"""

MSCCLPP = (
    '{"name":"allreduce", "kernel":6, "ranks":8, "ranksPerNode":8, "algBw":4.096, "busBw":7.168, '
    '"size":24576, "time":6.00, "target":"latency"}\n'
    '{"name":"allreduce", "kernel":6, "ranks":16, "ranksPerNode":8, "algBw":2.048, "busBw":3.84, '
    '"size":24576, "time":12.00, "target":"latency"}\n'
)

EVERY_OUTPUT: dict[str, str] = {
    "OSU all-reduce": OSU_ALL_REDUCE,
    "OSU all-gather": OSU_ALL_GATHER,
    "OSU barrier": OSU_BARRIER,
    "OSU bandwidth": OSU_BANDWIDTH,
    "OSU non-blocking": OSU_NON_BLOCKING,
    "IMB": IMB,
    "nccom-test": NCCOM,
    "nccom-test, binary rates": NCCOM_BINARY,
    "hccl_test": HCCL,
    "PARAM, old": PARAM_OLD,
    "PARAM, new": PARAM_NEW,
    "Gloo": GLOO,
    "Gloo, nanoseconds": GLOO_NANOSECONDS,
    "UCC all-to-all": UCC_ALL_TO_ALL,
    "UCC all-reduce": UCC_ALL_REDUCE,
    "UCC barrier": UCC_BARRIER,
    "torch paragraph": TORCH_PARAGRAPH,
    "torch sweep": TORCH_SWEEP,
    "mscclpp": MSCCLPP,
}
"""Name of the form -> its text."""
