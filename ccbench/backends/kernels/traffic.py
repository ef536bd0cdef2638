"""Bytes that a launch moves, the blocks that follow from them, and the time expected on GPUs behind NVSwitches.

Times are for choosing between kernels of small sizes only, and were never compared with GPUs behind switches.
Base times and rates are those by which NCCL 2.30 chooses between its own kernels of the same kinds on Hopper
(src/sym_kernels.cc, ``queryModel_lsa``).
"""

from __future__ import annotations

from dataclasses import dataclass

from ccbench.backends.kernels.layout import CHANNEL_BYTES, MOST_CHANNELS, lanes_for, tuning

PACKET_CHANNELS = 16
"""Channels that have boxes, as in ll.cu."""

PACKET_CHANNEL_BYTES = 16 << 10
"""A channel more for every so many bytes of packets that a rank sends: two stores of 16 bytes of each of 512
lanes. A quarter of CHANNEL_BYTES, because a lane of a packet kernel waits for what it has sent. Settled: over
8 ranks of an H100, ll of 1, 4, 16 and 64 KiB took 4.4, 5.6, 13.9 and 46 us on one channel, 4.8, 5.0, 5.9 and
15 on four, 4.8, 5.1, 4.6 and 6.8 on sixteen."""

PACKETS_SECONDS = 4.5e-6
"""A launch and one exchange of packets (NCCL)."""

BARRIERS_SECONDS = 7.8e-6
"""A launch and two barriers between ranks (NCCL)."""

ROUND_SECONDS = 3.4e-6
"""One more exchange of packets: over 8 ranks of one H100 ll_two_shot of 16 B to 1 KiB took 7.7 to 8.4 us, ll
4.4 to 5.1, and two-shot, with its two barriers, 6.2 to 7.1 (results/reference/nvidia-h100-80gb-hbm3/settle,
1, 4 and 16 channels)."""

BYTES_PER_SECOND = 320 * 2**30
"""Most that a rank's kernels of loads and stores move (NCCL)."""

SUMMED_BYTES_PER_SECOND = 65 * 2**30
"""Most that one block of an all_reduce moves (NCCL)."""

MOVED_BYTES_PER_SECOND = 44 * 2**30
"""Most that one block of any other collective moves (NCCL)."""

PACKET_COST = 4.5
"""Times as long as plain bytes take that packets' take: NCCL counts 9 for a byte of data, two here."""


@dataclass(frozen=True)
class Traffic:
    """Bytes that one rank sends, or fetches, in a launch.

    sent_bytes: in all, with the flags of packets. stretch_bytes: that the lanes of all channels share.
    rounds: exchanges of packets that follow each other; 0: no packets.
    """

    sent_bytes: int
    stretch_bytes: int
    rounds: int


@dataclass(frozen=True)
class Blocks:
    """A rank's blocks and their lanes."""

    channels: int
    lanes: int


def traffic_of(algorithm: str, collective_name: str, ranks: int, size_bytes: int) -> Traffic:
    """Traffic of a kernel; size_bytes: nccl-tests' size. What is said of no kernel moves its size once.

    put, too: it has two flags for each channel besides, where ring's send_recv has two for each message; but the
    first of its two has to come before the data may go.
    """
    peers = ranks - 1
    if not peers:
        return Traffic(size_bytes, size_bytes, 0)  # every kernel copies
    match algorithm:
        case "ll" if collective_name in ("all_gather", "reduce_scatter"):
            block = size_bytes // ranks
            return Traffic(2 * peers * block, 2 * block, 1)
        case "ll":
            return Traffic(2 * peers * size_bytes, 2 * size_bytes, 1)
        case "ll_two_shot":
            piece = -(-size_bytes // ranks)
            return Traffic(4 * peers * piece, 2 * piece, 2)
        case "mesh_one_shot" | "mesh_pull":
            return Traffic(peers * size_bytes, size_bytes, 0)
        case "mesh_two_shot":
            return Traffic(2 * peers * size_bytes // ranks, size_bytes, 0)
        case "mesh" if (
            collective_name == "broadcast"
        ):  # from the root to everybody's piece, and on to all
            return Traffic(2 * peers * size_bytes // ranks, size_bytes, 0)
    return Traffic(size_bytes, size_bytes, 0)


def blocks_for(traffic: Traffic, most: int) -> Blocks:
    """Blocks for ``traffic``, as the environment asks, else by its bytes; 1 to ``most`` channels."""
    if traffic.rounds:
        usual = min(PACKET_CHANNELS, -(-traffic.sent_bytes // PACKET_CHANNEL_BYTES))
    else:
        usual = -(-max(traffic.sent_bytes, traffic.stretch_bytes) // CHANNEL_BYTES)
    channels = max(1, min(most, tuning().channels or usual))
    # Channels without boxes have nothing to do.
    busy = min(channels, PACKET_CHANNELS) if traffic.rounds else channels
    return Blocks(channels, lanes_for(-(-traffic.stretch_bytes // busy)))


def expected_seconds(
    algorithm: str, collective_name: str, ranks: int, size_bytes: int
) -> float:
    """About how long packets, or a mesh between barriers, take on Hopper behind NVSwitches."""
    traffic = traffic_of(algorithm, collective_name, ranks, size_bytes)
    of_block = (
        SUMMED_BYTES_PER_SECOND if collective_name == "all_reduce" else MOVED_BYTES_PER_SECOND
    )
    rate = min(blocks_for(traffic, MOST_CHANNELS).channels * of_block, BYTES_PER_SECOND)
    if traffic.rounds:
        base = PACKETS_SECONDS + ROUND_SECONDS * (traffic.rounds - 1)
        # NCCL counts all ranks, the own one too, whose data take a lane as long as a packet.
        return base + PACKET_COST * traffic.sent_bytes * ranks / (ranks - 1) / rate
    return BARRIERS_SECONDS + traffic.sent_bytes / rate
