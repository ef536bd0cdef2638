"""What people paste, whole, and what must be said of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ccbench.analysis.diagnose import Answer, Outcome, answer_of
from ccbench.readers.benchmarks.log import StatedSystem
from ccbench.readers.evidence import read_evidence
from tests.analysis.nccl_logs import FORMS, OLD, V218, V227, Form, log
from tests.readers.benchmarks.nccl_tests_outputs import output, row

NOTHING_STATED = StatedSystem("", None, None, "")


def answer(tmp_path: Path, text: str, name: str = "job.log") -> Answer:
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    return answer_of(read_evidence([file]), NOTHING_STATED)


def kinds(given: Answer) -> set[str]:
    return {diagnosis.kind for diagnosis in given.diagnoses}


@pytest.mark.parametrize("form", FORMS, ids=[form.version for form in FORMS])
@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_a_healthy_log_of_any_release_has_nothing_wrong(
    form: Form, nodes: int, tmp_path: Path
) -> None:
    given = answer(tmp_path, log(form, nodes))
    assert given.outcome is Outcome.NOTHING_WRONG, given.sentence
    assert not given.diagnoses
    assert given.sentence.startswith("NOTHING WRONG is visible: ")
    assert f"NCCL {form.version}" in given.sentence


@pytest.mark.parametrize("form", FORMS, ids=[form.version for form in FORMS])
def test_sockets_between_nodes_are_a_problem_and_the_reason_is_told(
    form: Form, tmp_path: Path
) -> None:
    given = answer(
        tmp_path,
        log(
            form, between="NET/Socket/0", network="Socket", lines=["NET/IB : No device found."]
        ),
    )
    assert given.outcome is Outcome.PROBLEM
    assert "TCP sockets: NCCL saw no InfiniBand or RoCE device" in given.sentence
    quotes = [quote.quote for quote in given.diagnoses[0].quotes]
    assert "NET/IB : No device found." in quotes
    assert any("NET/Socket" in quote for quote in quotes)


def test_a_variable_that_forbids_infiniband_is_the_reason(tmp_path: Path) -> None:
    text = log(
        between="NET/Socket/0",
        network="Socket",
        lines=["NCCL_IB_DISABLE set by environment to 1."],
    )
    assert "because NCCL_IB_DISABLE=1 is set" in answer(tmp_path, text).sentence


def test_sockets_on_one_node_are_no_finding(tmp_path: Path) -> None:
    torn = "".join(
        f"{host}:1:2 [0] NCCL INFO Using network Socket\n" for host in ("n1", "0n1", "n1")
    )
    for text in (log(nodes=1, network="Socket"), torn):
        assert not answer(tmp_path, text).diagnoses


@pytest.mark.parametrize(
    "line",
    [
        "NET/OFI Unable to find a protocol that worked.  Failing initialization.",
        "NET/OFI No active provider found",
        "Failed to initialize any NET plugin",
    ],
)
def test_a_plugin_without_a_provider_is_told_with_what_came_instead(
    line: str, tmp_path: Path
) -> None:
    given = answer(tmp_path, log(between="NET/Socket/0", network="Socket", lines=[line]))
    assert (
        "plug-in found no provider that works; NCCL took TCP sockets instead" in given.sentence
    )


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'", ""),
        (
            "NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0' (no module)",
            "nvidia-peermem is not loaded",
        ),
        (
            "GPU Direct RDMA Disabled for GPU 1b000 / HCA 0 (distance 5 > 4)",
            "farther from the GPU",
        ),
        ("GPU Direct RDMA Disabled for GPU 3[3] / HCA 0", "farther from the GPU"),
    ],
)
@pytest.mark.parametrize("form", [OLD, V218, V227])
def test_no_gpudirect_rdma_is_told_with_its_reason(
    form: Form, line: str, reason: str, tmp_path: Path
) -> None:
    given = answer(tmp_path, log(form, between="NET/IB/0", lines=[line]))
    assert given.sentence.startswith("PROBLEM: GPUDirect RDMA is off")
    assert reason in given.sentence


def test_a_nic_without_gpudirect_that_no_channel_takes_is_no_finding(tmp_path: Path) -> None:
    text = log(lines=["NET/IB : GPU Direct RDMA Disabled for HCA 1 'mlx5_bond_0'"])
    assert answer(tmp_path, text).outcome is Outcome.NOTHING_WRONG


@pytest.mark.parametrize("form", FORMS, ids=[form.version for form in FORMS])
def test_host_memory_inside_a_node_is_a_doubt_until_the_gpus_are_known(
    form: Form, tmp_path: Path
) -> None:
    via = "direct shared memory" if form is OLD else "SHM/direct/direct"
    text = log(form, nodes=1, local_ranks=4, inside=via)
    given = answer(tmp_path, text)
    assert kinds(given) == {"host_memory_transport"}
    assert given.outcome is Outcome.CANNOT_SAY
    off = answer(
        tmp_path, text + "n:1:1 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1.\n"
    )
    assert off.outcome is Outcome.PROBLEM
    assert "because NCCL_P2P_DISABLE=1 is set" in off.sentence


def test_ranks_of_one_node_over_the_network_are_a_problem(tmp_path: Path) -> None:
    given = answer(
        tmp_path, log(nodes=1, local_ranks=2, inside="NET/Socket/0", network="Socket")
    )
    assert "Ranks of one node talk over the network" in given.sentence


FOLLOWERS = [
    "NET/IB : Got completion from peer 10.0.0.2<1> with status=5 opcode=0 len=0 vendor err 244",
    "socketProgress: Connection closed by remote peer node1<39201>",
]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (
            "NET/IB : Got completion from peer 10.0.0.2<4> with status=12 opcode=129 len=0 vendor err 129",
            "network_timeout",
        ),
        (
            "Error while creating shared memory segment /dev/shm/nccl-aB3 (size 9637888), error: No space left on "
            "device (28)",
            "shared_memory_full",
        ),
        ("Call to ibv_reg_mr_iova2 failed with error Cannot allocate memory", "memory_lock"),
        ("Call to ibv_reg_mr failed with error Bad address", "peer_memory"),
        ("Bootstrap : no socket interface found", "no_interface"),
        (
            "socketStartConnect: Connect to 10.0.0.2<41001> failed : Connection refused",
            "unreachable",
        ),
        ("Call to connect returned Connection refused, retrying", "unreachable"),
        ("Cuda failure 2 'out of memory'", "gpu_memory"),
    ],
)
def test_the_first_error_comes_before_what_followed_it(
    line: str, kind: str, tmp_path: Path
) -> None:
    warnings = [*FOLLOWERS, line, FOLLOWERS[1]]
    lines = [
        f"node{rank % 2}:{1000 + rank}:{2000 + rank} [{rank % 8}] transport/net_ib.cc:795 NCCL WARN {text}\n"
        for rank, text in enumerate(warnings)
    ]
    given = answer(tmp_path, log() + "".join(lines))
    assert given.outcome is Outcome.PROBLEM
    assert given.diagnoses[0].kind == kind
    assert [quote.quote for quote in given.diagnoses[0].quotes] == [re.sub(r"  +", " ", line)]
    assert "3 more warnings" in given.diagnoses[0].meaning


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (
            "Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401 'the operation "
            "cannot be performed in the present state'.",
            "nvls_failed",
        ),
        (
            "NET/IB: NCCL Dev 0 IbDev 0 Port 1 qpn 7 mtu 5 GID 3 (0/401FEA9FFFF0000) fifoRkey=0x1",
            "link_local_gid",
        ),
        ("NUMA auto balancing enabled which can lead to variability", "numa_balancing"),
        ('Missing "iommu=pt" from kernel command line', "iommu"),
    ],
)
def test_warnings_with_a_rule_of_their_own_are_told_by_it_alone(
    text: str, kind: str, tmp_path: Path
) -> None:
    given = answer(tmp_path, log() + f"n:1:1 [0] init.cc:1 NCCL WARN {text}\n")
    assert kinds(given) == {kind}


def test_processes_without_mpi_are_told(tmp_path: Path) -> None:
    header = (
        "# nThread 1 nGpus 1 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 20\n# Using devices\n"
        "#  Rank  0 Group  0 Pid  {pid} on  node0 device  0 [0x1b] NVIDIA A100-SXM4-40GB\n"
    )
    given = answer(tmp_path, header.format(pid=4) + header.format(pid=5))
    assert "2 processes ran alone, each as rank 0 of 1" in given.sentence


def test_text_of_another_kind_is_not_recognised(tmp_path: Path) -> None:
    given = answer(tmp_path, "Dear all,\nthe cluster is slow. Can you help?\n")
    assert given.outcome is Outcome.CANNOT_SAY


def test_lines_around_a_log_are_named_as_not_read(tmp_path: Path) -> None:
    text = log(nodes=1, local_ranks=2)
    count = text.count("\n")
    given = answer(tmp_path, f"My log:\n\n{text}\nAny idea?\n")
    assert [(part.first, part.last) for part in given.evidence.unread] == [
        (1, 1),
        (count + 4, count + 4),
    ]


def test_gpudirect_rdma_on_one_host_alone_is_a_problem_there(tmp_path: Path) -> None:
    text = log(V218, local_ranks=1)
    given = answer(
        tmp_path,
        text.replace(
            "1[0] -> 0[0] [receive] via NET/IB/0/GDRDMA", "1[0] -> 0[0] [receive] via NET/IB/0"
        ),
    )
    assert given.sentence == "PROBLEM: GPUDirect RDMA is off on node1, while others have it"


def test_staged_channels_without_a_word_on_gpudirect_are_a_doubt(tmp_path: Path) -> None:
    given = answer(tmp_path, log(between="NET/IB/0"))
    assert [(finding.kind, finding.severity) for finding in given.diagnoses] == [
        ("gpudirect_off", "doubt")
    ]


def test_a_cure_is_of_the_network_that_is_there(tmp_path: Path) -> None:
    text = log(
        between="NET/AWS Libfabric/0",
        network="AWS Libfabric",
        lines=["NET/OFI cxi: GDR not supported"],
    )
    (given,) = answer(tmp_path, text).diagnoses
    assert given.kind == "gpudirect_off"
    assert "modprobe" not in given.advice


@pytest.mark.parametrize("via", ["NET/IB/0n12", "NET/Sockn1:5:7 [1] NCCL INFO x", "SHMn12"])
def test_half_of_another_line_is_no_transport(via: str, tmp_path: Path) -> None:
    text = log() + f"n1:5:7 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via {via}\n"
    assert answer(tmp_path, text).outcome is Outcome.NOTHING_WRONG


def test_nodes_with_unlike_numbers_of_nics_are_noted(tmp_path: Path) -> None:
    before, nic, after = log(local_ranks=1).rpartition("[0]mlx5_0:1/IB")
    given = answer(tmp_path, f"{before}{nic} [1]mlx5_1:1/IB{after}")
    assert "Nodes are not alike: 1 and 2 NICs a node" in given.sentence


def test_a_plugin_that_does_not_say_how_data_go_is_no_finding(tmp_path: Path) -> None:
    for via in ("FasTrak/0(8)", "AWS Libfabric/0/GDRDMA"):
        text = log(between=f"NET/{via}", network=via.partition("/")[0])
        assert answer(tmp_path, text).outcome is Outcome.NOTHING_WRONG


TORCH = (
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1275, {kind}, NCCL version 2.21.5\n"
    "{name}: what it usually means.\nLast error:\n{error}\n"
)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (
            "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
            "same_gpu_twice",
        ),
        (
            "Error: failed to extend /dev/shm/nccl-Nb5Abw to 33030532 bytes",
            "shared_memory_full",
        ),
        ("socketProgress: Connection closed by remote peer node7<43210>", "peer_gone"),
    ],
)
def test_pytorchs_own_message_of_a_crash_is_read(error: str, kind: str, tmp_path: Path) -> None:
    text = TORCH.format(kind="invalid usage", name="ncclInvalidUsage", error=error)
    tagged = "".join(f"[rank0]: {line}\n" for line in text.splitlines())
    assert answer(tmp_path, text).diagnoses[0].kind == kind
    assert answer(tmp_path, tagged).diagnoses[0].kind == kind


@pytest.mark.parametrize(
    ("source", "warning", "kind"),
    [
        (
            "misc/shmutils.cc:87",
            "Error while attaching to shared memory segment /dev/shm/nccl- (size 1928), error: No such file",
            "shared_memory_segment",
        ),
        (
            "transport/net_ib.cc:1192",
            "NET/IB : Got completion from peer 10.0.0.2<6> with error 4, opcode 32704, len 0, vendor err 81",
            "network_protection",
        ),
        ("misc/socket.cc:312", "Call to bind failed: Address already in use", "no_port"),
        ("init.cc:12", "Cuda failure 3 'initialization error'", "gpu_call"),
    ],
)
def test_an_error_is_named_by_its_words_and_by_who_warns(
    source: str, warning: str, kind: str, tmp_path: Path
) -> None:
    given = answer(tmp_path, log() + f"node0:1:2 [0] {source} NCCL WARN {warning}\n")
    assert given.diagnoses[0].kind == kind


PROGRAMS = (
    (
        "n3:7:9 [2] NCCL WARN Call to ibv_modify_qp failed with 113 No route to host, on dev roce4, local GID index 3, "
        "local GID ::ffff:10.8.1.4, remote GID ::ffff:10.9.1.4",
        "A GID (address) of another rank's NIC cannot be reached from this NIC (says n3:7:9[2])",
    ),
    (
        "n3:7:9 [2] NCCL WARN Cuda failure 800 'operation not permitted'\nn3:7:9 [2] mnnvl.cc:6 NCCL WARN MNNVL "
        "(cliqueSize 4) is available but not working on this system.",
        "IMEX does not let ranks use NVLink",
    ),
    ("n3: Test CUDA failure reduce.cu:31 'an illegal memory access'", "A kernel before this"),
    ("n3:7:9 [2] NCCL WARN Cuda failure 909 'odd'", "A call of the GPU's runtime failed: Cuda"),
    (
        "n3:7:9 [2] NCCL WARN Call to ibv_create_ah failed",
        "A call of the verbs library failed:",
    ),
    (
        "n3:7:9 [2] NCCL WARN P2P is disabled between NVLINK connected GPUs 2 and 0.",
        "The driver",
    ),
    (
        "n3:7:9 [2] NCCL INFO MNNVL busId 0x9 cliqueId 0x1 state 3 healthMask 0x1a6",
        "A GPU's way",
    ),
    (
        "NCCL DIAG [INFO] p2p: only 11/12 GPU-to-GPU peer accesses passed",
        "NCCL's own check of the machine failed: DIAG [INFO] p2p: only 11/12",
    ),
    (
        "n3:7:9 [2] enqueue.cc:9 NCCL WARN Error : no algorithm/protocol for Gather. NCCL_PROTO was set to LL.",
        "A collective has no such algorithm or protocol as NCCL_ALGO or NCCL_PROTO force",
    ),
    ("RuntimeError: EI0015: [PID: 8] rank 3 waited for rank 1", "HCCL: ranks did not meet at"),
    (
        "[Rank 5] Some NCCL operations have failed or timed out.",
        "Operations of NCCL failed or timed out (says rank 5)",
    ),
    (
        "n3: Test NCCL failure reduce.cu:9 'unhandled system error / '\nn3:7:9 [2] NCCL WARN Some new words",
        "NCCL warns: Some new words",
    ),
    (
        "No room in socket pool\nLast error:\nncclSystemError: usual\nTraceback",
        "NCCL warns: No room in",
    ),
)


@pytest.mark.parametrize(("text", "words"), PROGRAMS)
def test_a_crash_is_a_problem_by_its_own_reason(text: str, words: str, tmp_path: Path) -> None:
    given = answer(tmp_path, f"step 9\n{text}\n")
    assert given.sentence.startswith(f"PROBLEM: {words}")
    assert [part.first for part in given.evidence.unread][:1] == [1]


@pytest.mark.parametrize("mask", ["0x0", "0xaa", "0x1aa", "0x80"])
def test_a_healthy_fabric_is_no_finding(mask: str, tmp_path: Path) -> None:
    text = log(
        lines=[f"MNNVL busId 0x9000 fabric UUID 1.2 cliqueId 0x1 state 3 healthMask {mask}"]
    )
    healthy = "NCCL DIAG [OK]   p2p: verified P2P access in both directions\n"
    assert answer(tmp_path, text).outcome is Outcome.NOTHING_WRONG
    assert answer(tmp_path, healthy).outcome is Outcome.NOTHING_WRONG


@pytest.mark.parametrize(
    "line",
    [
        "misc/ibvwrap.cc:98 NCCL WARN dlvsym failed on mlx5dv_reg_dmabuf_mr",
        "ras/client_support.cc:160 NCCL WARN Call to bind failed: Address already in use",
    ],
)
def test_harmless_warnings_are_no_error(line: str, tmp_path: Path) -> None:
    assert answer(tmp_path, f"{log()}n:1:2 [0] {line}\n").outcome is Outcome.NOTHING_WRONG


def test_hosts_with_jobs_of_their_own_send_nothing_over_sockets(tmp_path: Path) -> None:
    text = log(OLD, nodes=1, local_ranks=2, network="Socket", without=["nNodes"])
    given = answer(tmp_path, text + text.replace("node0", "node1"))
    assert given.outcome is Outcome.NOTHING_WRONG


def test_a_bus_bandwidth_of_nothing_is_a_rank_alone(tmp_path: Path) -> None:
    row = "   {size}  33554432  float  sum  -1    631.9  212.41    0.00      0    631.9  212.41    0.00      0\n"
    header = (
        "#       size   count   type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong\n"
        "#        (B)  (elements)                        (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)\n"
    )
    text = header + "".join(row.format(size=size) for size in (134217728, 268435456))
    assert "each process ran alone" in answer(tmp_path, text).sentence


def test_a_normal_collective_speaks_for_no_other(tmp_path: Path) -> None:
    known = output([row(1 << 30, time=3960.0)])
    unknown = known.replace("NVIDIA H100 80GB HBM3", "Quantum 9")
    files = [tmp_path / "known.txt", tmp_path / "unknown.txt"]
    for file, text in zip(files, (known, unknown), strict=True):
        file.write_text(text, encoding="utf-8")
    given = answer_of(read_evidence(files), NOTHING_STATED)
    assert {verdict.word.value for verdict in given.verdicts} == {"NORMAL", "CANNOT SAY"}
    assert given.outcome is Outcome.CANNOT_SAY
    assert given.sentence.startswith("CANNOT SAY: ")
