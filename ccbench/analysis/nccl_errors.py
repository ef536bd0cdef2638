"""Errors that NCCL, RCCL, HCCL, CUDA, verbs and torch print, and what causes them: the first before its followers.

Forms are of NCCL's sources, 2.4 to 2.31 (socket.cc, net_ib, shm, init.cc, alloc.h), RCCL's and torch's; codes of CUDA
are those of cudaError_t, of verbs those of errno, of HCCL those of hiascend.com's list (maintenance reference,
atlaserrorcode). A code that is not here is quoted, and no part is blamed for it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ccbench.analysis.diagnosis import Diagnosis
from ccbench.readers.evidence import Evidence
from ccbench.readers.traces.hang import hang_of
from ccbench.units import plural

EXPLAINS, CAUSE, UNKNOWN, FOLLOWS, ECHO = range(5)
"""Of an error: it says what those before it come of; it may be the cause; it is not known here; a peer failed first;
it repeats in other words that something failed."""


@dataclass(frozen=True)
class KnownError:
    """An error by its form. place: in the order of likely causes, see above. {text}: what was printed."""

    kind: str
    form: str
    subject: str
    advice: str
    command: str = ""
    place: int = CAUSE


HCCL = (
    ("EI0001", "an environment variable is not valid", "correct the one that the line names"),
    (
        "EI0002",
        "a rank waited too long in an operation",
        "look for the rank that left first or did not start it; HCCL_EXEC_TIMEOUT is the limit",
    ),
    (
        "EI0003",
        "a parameter of a call is not valid",
        "the program's own: see the call that is named",
    ),
    (
        "EI0004",
        "the rank table is not valid",
        "compare the file of RANK_TABLE_FILE with the servers' devices",
    ),
    (
        "EI0005",
        "parameters differ between ranks",
        "let all ranks make the same call with the same sizes",
    ),
    (
        "EI0006",
        "sockets between ranks were not connected in time",
        "look for a rank that failed first or came late; for links that are down (hccn_tool -i 0 -link -g), for rails "
        "and TLS that differ; HCCL_CONNECT_TIMEOUT is the limit",
    ),
    (
        "EI0007",
        "a resource could not be allocated",
        "see the memory and the processes of this device: npu-smi info",
    ),
    ("EI0008", "ranks run different versions of HCCL", "use one image on every node"),
    (
        "EI0010",
        "devices of a server have no direct way to each other",
        "HCCL_INTRA_ROCE_ENABLE=1 takes RoCE between them",
    ),
    (
        "EI0011",
        "memory for queue pairs could not be allocated",
        "use fewer communicators or a smaller HCCL_BUFFSIZE",
    ),
    (
        "EI0012",
        "a copy between devices failed (SDMA)",
        "look for the rank that failed first, and at the memory errors of both devices: npu-smi info",
    ),
    (
        "EI0013",
        "a RoCE transfer failed or got no answer",
        "look at both ports (hccn_tool -i 0 -link_stat -g), at the network between them, and whether the peer failed",
    ),
    (
        "EI0014",
        "what ranks say of the cluster does not agree",
        "compare their rank tables, devices and versions",
    ),
    (
        "EI0015",
        "ranks did not meet at the communicator's start in time",
        "look for ranks that did not start, for HCCL_IF_IP, HCCL_SOCKET_IFNAME and the firewall",
    ),
)
"""Code, meaning, cure."""

KNOWN_ERRORS = (
    KnownError(
        "diagnostics",
        r"^ ?DIAG ",
        "NCCL's own check of the machine failed: {text}",
        "NCCL_DEBUG=INFO names the pairs; see their links (nvidia-smi nvlink -e), over PCIe ACS and IOMMU",
        "nvidia-smi topo -p2p n",
    ),
    KnownError(
        "imex",
        r"MNNVL \(cliqueSize \d+\) is available but not working",
        "IMEX does not let ranks use NVLink between nodes",
        "start nvidia-imex on every node with the same nodes_config.cfg (nvidia-imex-ctl -N), and give "
        "containers a channel of /dev/nvidia-caps-imex-channels; NCCL_MNNVL_ENABLE=0 runs without",
        "nvidia-imex-ctl -N",
        place=EXPLAINS,
    ),
    KnownError(
        "nvls_failed",
        r"NVLink SHARP \(NVLS\) Multicast|^transport/nvls",
        "NVLink SHARP (NVLS) could not set up its memory: the fabric manager or an NVSwitch is in a wrong state",
        "restart nvidia-fabricmanager of the driver's own version, then the GPUs; until then NCCL_NVLS_ENABLE=0",
        "NCCL_NVLS_ENABLE=0 ccbench run allreduce",
    ),
    KnownError(
        "shared_memory_full",
        r"failed to extend \S*/dev/shm|/dev/shm\S* .{0,80}No space left on device|posix_fallocate",
        "shared memory is too small: NCCL could not make its segment in /dev/shm",
        "start the container with --shm-size=1g (Docker) or an emptyDir of medium Memory (Kubernetes)",
    ),
    KnownError(
        "shared_memory_segment",
        r"shared memory segment|/dev/shm/nccl|misc/shmutils",
        "a segment of shared memory could not be made or joined",
        "see that /dev/shm has room (df -h /dev/shm); ranks of one host must share it and the IPC namespace "
        "(--ipc=host) and use one version of NCCL; "
        "NCCL_SHM_DISABLE=1 or NCCL_CUMEM_HOST_ENABLE=0 shows whether it is that",
    ),
    KnownError(
        "same_gpu_twice",
        r"Duplicate GPU detected",
        "two ranks use the same GPU",
        "set the device from the local rank: torch.cuda.set_device(int(os.environ['LOCAL_RANK']))",
    ),
    KnownError(
        "memory_lock",
        r"ibv_reg_mr\w* failed with error Cannot allocate memory|ibv_create_\w+ failed with error Cannot allocate",
        "the NIC may not lock memory: the limit of locked memory is too low",
        "ulimit -l unlimited in the job's shell, in Slurm's or the container's limits (--ulimit memlock=-1)",
    ),
    KnownError(
        "peer_memory",
        r"ibv_reg_mr\w* failed with error (?:Bad address|Invalid argument)",
        "the NIC cannot register memory of the GPU: GPUDirect RDMA is offered and does not work",
        "load nvidia-peermem (or use a driver with DMA-BUF); until then NCCL_NET_GDR_LEVEL=LOC",
    ),
    KnownError(
        "address_unreachable",
        r"ibv_modify_qp\w* failed with (?:error )?(?:110|101|113|Connection timed|Network is|No route)",
        "a GID (address) of another rank's NIC cannot be reached from this NIC",
        "see whether the two GIDs of the line are routed to each other. Rails that are not: NCCL_CROSS_NIC=0, and "
        "NCCL_IB_MERGE_NICS=0 where ports are joined; RoCE: an index with a routable address (show_gids, "
        "NCCL_IB_GID_INDEX)",
        "ib_write_bw between the two hosts, on these two NICs",
    ),
    KnownError(
        "network_timeout",
        r"Got completion (?:from peer|with).*(?:status=\S{0,40}12\b|with error 12\b|vendor.err\S* ?129)|"
        r"status=IBV_WC_RETRY_EXC_ERR",
        "an InfiniBand or RoCE transfer got no answer (retry exceeded, status 12)",
        "look at the port and cable of the NIC that the line names, at the GID index (RoCE: NCCL_IB_GID_INDEX) "
        "and at rails that cannot reach each other (NCCL_CROSS_NIC=0)",
        "ib_write_bw between the two hosts, on this NIC",
    ),
    KnownError(
        "network_protection",
        r"Got completion .*(?:status=\S{0,40}\b4\b|with error 4\b)|status=IBV_WC_LOC_PROT_ERR",
        "the NIC could not reach the GPU's memory (local protection error, status 4)",
        "mostly ACS on a bridge between NIC and GPU, or a virtual machine without ATS; NCCL_NET_GDR_LEVEL=LOC shows "
        "whether it is GPUDirect RDMA",
        "sudo lspci -vvv | grep ACSCtl",
    ),
    KnownError(
        "network_flushed",
        r"Got completion .*(?:status=\S{0,40}\b5\b|with error 5\b)",
        "a transfer was flushed because its connection had failed already",
        "look at the first error of the other rank",
        place=FOLLOWS,
    ),
    KnownError(
        "transfer_failed",
        r"Got completion (?:from peer|with)",
        "a transfer between two NICs failed: {text}",
        "look its status up (ibv_wc_status); see the ports of both NICs, and what the other rank said first",
    ),
    KnownError(
        "network_error",
        r"async fatal event|port error",
        "the NIC reported an error",
        "look at the port's state and counters: ibstat, perfquery; at 'dmesg' for the NIC",
    ),
    KnownError(
        "verbs_call",
        r"(?:ibv|mlx5dv)_\w+ failed",
        "a call of the verbs library failed: {text}",
        "look its error up; see ibv_devinfo inside the container, the GID index (show_gids, NCCL_IB_GID_INDEX), and "
        "'dmesg' of this host",
    ),
    KnownError(
        "no_interface",
        r"[Nn]o (?:usable |socket )?(?:listening )?interface found|no device found matching",
        "NCCL found no network interface for its connections",
        "check NCCL_SOCKET_IFNAME: it must name an interface that exists on every host",
    ),
    KnownError(
        "unreachable",
        r"[Cc]onnect to \S+ (?:failed|returned)|connection abort|Connection (?:refused|timed out)|No route to host",
        "a rank cannot reach another rank's address",
        "check that the interface which the address belongs to connects the hosts (NCCL_SOCKET_IFNAME), and "
        "that no firewall closes its ports",
    ),
    KnownError(
        "no_port",
        r"bind failed|Address already in use",
        "no TCP port is free for NCCL's connections",
        "look for processes that are left over (ss -tp), and at net.ipv4.ip_local_port_range",
    ),
    KnownError(
        "peer_gone",
        r"[Cc]onnection closed by remote peer|Connection reset by peer|Broken pipe|socket progress error|"
        r"remote process exited|peer \S+ (?:closed|exited)|Failed to execute operation .*retcode 6",
        "another rank went away",
        "the cause is in that rank's log, not here: look for its first error",
        place=FOLLOWS,
    ),
    KnownError(
        "gpu_memory",
        r"out of memory",
        "the GPU's memory is full: buffers could not be allocated",
        "leave a few hundred MB free, or shrink NCCL's: NCCL_BUFFSIZE, NCCL_MAX_NCHANNELS",
    ),
    KnownError(
        "driver_too_old",
        r"driver version is insufficient|CUDA Driver version found is",
        "the CUDA driver is older than NCCL was built for",
        "take an NCCL built for this driver's CUDA, or update the driver",
    ),
    KnownError(
        "peer_access_failed",
        r"peer access|cudaIpcOpenMemHandle|[Ii]nvalid (?:device context|resource handle)",
        "a GPU could not open another GPU's memory",
        "try NCCL_CUMEM_ENABLE=0, then NCCL_P2P_DISABLE=1; ranks in different containers need --ipc=host",
        "ccbench topo",
    ),
    KnownError(
        "not_permitted",
        r"failure 800\b|operation not permitted",
        "the driver does not permit a call (CUDA 800): a permission or an IMEX channel is lacking",
        "NVLink racks: start nvidia-imex, give the container /dev/nvidia-caps-imex-channels; elsewhere see what the "
        "container may do (its devices, --privileged for a trial); NCCL_MNNVL_ENABLE=0 or NCCL_CUMEM_ENABLE=0 shows "
        "which it is",
    ),
    KnownError(
        "not_supported",
        r"failure 801\b|operation not supported",
        "this system does not support a call that was made (CUDA 801)",
        "the file that warns names the feature: cuMem (NCCL_CUMEM_ENABLE=0), NVLS (NCCL_NVLS_ENABLE=0), peer access "
        "in virtual machines and MIG instances (NCCL_P2P_DISABLE=1)",
    ),
    KnownError(
        "fabric_not_ready",
        r"failure 802\b|system not yet initialized",
        "the NVSwitches are not ready (CUDA 802): the fabric manager does not run",
        "start nvidia-fabricmanager of the driver's own version on this host",
        "systemctl status nvidia-fabricmanager",
    ),
    KnownError(
        "illegal_address",
        r"failure 7(?:00|10|19)\b|illegal memory access|device-side assert|unspecified launch failure",
        "a kernel before this call failed (an illegal address or an assertion), which is not NCCL's: {text}",
        "run again with CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer; the line that warns is the first call after it",
    ),
    KnownError(
        "gpu_call",
        r"(?:[Ff]ailure|error).{0,20}(?:initialization error|no .{0,10}device|invalid device ordinal)",
        "this process cannot use the GPU: {text}",
        "see that the container sees the GPU (nvidia-smi), that ranks are no more than GPUs, and that no process was "
        "forked after it used the GPU",
    ),
    KnownError(
        "gpu_error",
        r"uncorrectable|Xid",
        "the GPU reported an error",
        "look at 'dmesg' for Xid and at 'nvidia-smi -q -d ECC' on this host",
    ),
    KnownError(
        "p2p_off_on_nvlink",
        r"P2P is disabled between NVLINK",
        "the driver gives no peer access between GPUs that NVLink joins",
        "a fault of links, switches or their manager (NVIDIA/nccl#2329): nvidia-smi nvlink -s, nvidia-smi topo -p2p n, "
        "nvidia-fabricmanager; reset these GPUs; NCCL_IGNORE_DISABLED_P2P=1 goes on without",
        "nvidia-smi topo -p2p n",
    ),
    KnownError(
        "fabric_health",
        r"healthMask",
        "a GPU's way into the NVLink fabric is not healthy: bandwidth degraded, a route "
        "broken or being repaired, or not yet joined",
        "see Fabric in 'nvidia-smi -q', then the fabric manager's log; reset the GPU",  # bits: nvml.h
        "nvidia-smi -q",
    ),
    KnownError(
        "algorithm_forced",
        r"[Nn]o algorithm/protocol .*was set",
        "a collective has no such algorithm or protocol as NCCL_ALGO or NCCL_PROTO force",
        "name the collective (NCCL_ALGO=allreduce:tree), or unset them",
    ),
    *(
        KnownError(f"hccl_{code.lower()}", code, f"HCCL: {subject} ({code})", advice)
        for code, subject, advice in HCCL
    ),
    KnownError(
        "version_mismatch",
        r"[Mm]ismatch(?:ed)? (?:.{0,40})?version|version mismatch|NCCL version .{0,60} differs",
        "ranks run different versions of NCCL",
        "use one image on every node",
    ),
    KnownError(
        "call_mismatch",
        r"mismatch in collective sizes|[Mm]essage truncated|differs? .{0,40}across ranks",
        "ranks called different collectives, or with different sizes",
        "the program's own fault: log every rank's calls (TORCH_DISTRIBUTED_DEBUG=DETAIL)",
    ),
    KnownError(
        "runtime_call",
        r"(?:Cuda|CUDA|HIP) (?:failure|error)",
        "a call of the GPU's runtime failed: {text}",
        "look the code up in the list of cudaError_t or hipError_t; lines before it may say more",
    ),
    KnownError(
        "operations_failed",
        r"operations have failed or timed out",
        "operations of NCCL failed or timed out",
        "look for the first error in the logs of all ranks; with TORCH_FR_BUFFER_SIZE=2000 their dumps say who stopped",
        place=ECHO,
    ),
    KnownError(
        "result_code",
        r"(?:Test \w+ failure|NCCL [Ee]rror).*(?:unhandled|internal error|invalid usage|remote process)",
        "NCCL gave up: {text}",
        "run again with NCCL_DEBUG=WARN, which prints the reason",
        place=ECHO,
    ),
)
"""In the order in which they are asked; what none knows is quoted as it is."""

_COMPILED = tuple((error, re.compile(error.form)) for error in KNOWN_ERRORS)

_HARMLESS = re.compile(
    r"^(?!.*\bEI\d{4}).*(?:NUMA auto balancing|iommu=pt|dlvsym|symbol|GDRCOPY|Could not find:|No plugin found|"
    r"HSA_FORCE_FINE_GRAIN|amd_iommu|open libibverbs|Attribute \w+ of node \w+ not found|MNNVL (?!\(cliqueSize|busId)|"
    r"environment variable|deprecated|ENV/Plugin)"
)

_UNKNOWN = KnownError(
    "nccl_warning",
    "",
    "NCCL warns: {text}",
    "this warning is not known here; search NCCL's issues for its words",
    place=UNKNOWN,
)


def first_error(evidence: Evidence) -> Iterator[Diagnosis]:
    """Yield the error that came first, with how many followed it; nothing where no warning is an error."""
    warnings = [
        statement
        for statement in evidence.of("warning")
        if not _HARMLESS.search(statement.quote)
        # NCCL's monitor of itself: a job goes on without it.
        and not statement.values.get("source", "").startswith("ras/")
    ]
    if not warnings:
        return
    errors = {
        line: next(
            (
                error
                for error, form in _COMPILED
                if form.search(f"{line.values.get('source', '')} {line.quote}")
            ),
            _UNKNOWN,
        )
        for line in warnings
    }
    # An error that tells of a peer that went away is an effect; of likely causes the first is taken.
    cause = min(warnings, key=lambda line: errors[line].place)
    error = errors[cause]
    if error.place == ECHO and evidence.trace is not None and hang_of(evidence.trace):
        return  # the calls say more
    subject = error.subject.replace("{text}", cause.values["text"][:160])
    followers = len(warnings) - 1
    behind = f"{plural(followers, 'more warning')} of NCCL in this text may follow from it"
    who = f" (says {cause.speaker})" if cause.speaker and error is not _UNKNOWN else ""
    yield Diagnosis(
        "problem",
        error.kind,
        f"{subject[:1].upper()}{subject[1:]}{who}",
        behind if followers else "",
        error.advice,
        error.command,
        [cause],
        len(warnings),
    )
