"""Errors that NCCL and RCCL print, and what causes them: the first of a crash before its followers.

Forms are of NCCL's sources, 2.4 to 2.30 (socket.cc, net_ib, shm, init.cc, alloc.h), RCCL's and torch's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ccbench.analysis.diagnosis import Diagnosis, quoted
from ccbench.readers.evidence import Evidence
from ccbench.units import plural


@dataclass(frozen=True)
class KnownError:
    """An error by its form. follows: it tells of a peer that failed first, so it is never the cause.

    explains: it says what the errors before it come of.
    """

    kind: str
    form: str
    subject: str
    advice: str
    follows: bool = False
    command: str = ""
    explains: bool = False


KNOWN_ERRORS = (
    KnownError(
        "imex",
        r"MNNVL \(cliqueSize \d+\) is available but not working",
        "IMEX does not let ranks use NVLink between nodes",
        "start nvidia-imex on every node with the same nodes_config.cfg (nvidia-imex-ctl -N), and give "
        "containers a channel of /dev/nvidia-caps-imex-channels; NCCL_MNNVL_ENABLE=0 runs without",
        command="nvidia-imex-ctl -N",
        explains=True,
    ),
    KnownError(
        "nvls_failed",
        r"NVLink SHARP \(NVLS\) Multicast|^transport/nvls",
        "NVLink SHARP (NVLS) could not set up its memory: the fabric manager or an NVSwitch is in a wrong state",
        "restart nvidia-fabricmanager of the driver's own version, then the GPUs; until then NCCL_NVLS_ENABLE=0",
        command="NCCL_NVLS_ENABLE=0 ccbench run allreduce",
    ),
    KnownError(
        "shared_memory_full",
        r"failed to extend \S*/dev/shm|/dev/shm\S* .{0,80}No space left on device|posix_fallocate",
        "shared memory is too small: NCCL could not make its segment in /dev/shm",
        "start the container with --shm-size=1g (Docker) or an emptyDir of medium Memory (Kubernetes)",
        command="ccbench doctor",
    ),
    KnownError(
        "shared_memory_segment",
        r"shared memory segment|/dev/shm/nccl|misc/shmutils",
        "a segment of shared memory could not be made or joined (not for want of room)",
        "ranks of one host must share /dev/shm and the IPC namespace (--ipc=host) and use one version of NCCL; "
        "NCCL_SHM_DISABLE=1 or NCCL_CUMEM_HOST_ENABLE=0 shows whether it is that",
        command="ccbench doctor",
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
        command="ccbench doctor",
    ),
    KnownError(
        "peer_memory",
        r"ibv_reg_mr\w* failed with error (?:Bad address|Invalid argument)",
        "the NIC cannot register memory of the GPU: GPUDirect RDMA is offered and does not work",
        "load nvidia-peermem (or use a driver with DMA-BUF); until then NCCL_NET_GDR_LEVEL=LOC",
        command="ccbench doctor",
    ),
    KnownError(
        "network_timeout",
        r"Got completion (?:from peer|with).*(?:status=\S{0,40}12\b|with error 12\b|vendor.err\S* ?129)|"
        r"status=IBV_WC_RETRY_EXC_ERR",
        "an InfiniBand or RoCE transfer got no answer (retry exceeded, status 12)",
        "look at the port and cable of the NIC that the line names, at the GID index (RoCE: NCCL_IB_GID_INDEX) "
        "and at rails that cannot reach each other (NCCL_CROSS_NIC=0)",
        command="ib_write_bw between the two hosts, on this NIC",
    ),
    KnownError(
        "network_protection",
        r"Got completion .*(?:status=\S{0,40}\b4\b|with error 4\b)|status=IBV_WC_LOC_PROT_ERR",
        "the NIC could not reach the GPU's memory (local protection error, status 4)",
        "mostly ACS on a bridge between NIC and GPU, or a virtual machine without ATS; NCCL_NET_GDR_LEVEL=LOC shows "
        "whether it is GPUDirect RDMA",
        command="sudo lspci -vvv | grep ACSCtl",
    ),
    KnownError(
        "network_flushed",
        r"Got completion .*(?:status=\S{0,40}\b5\b|with error 5\b)",
        "a transfer was flushed because its connection had failed already",
        "look at the first error of the other rank",
        follows=True,
    ),
    KnownError(
        "network_error",
        r"Got completion (?:from peer|with)|async fatal event|port error|ibv_\w+ failed",
        "the NIC reported an error",
        "look at the port's state and counters: ibstat, perfquery; at 'dmesg' for the NIC",
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
        r"remote process exited|peer \S+ (?:closed|exited)",
        "another rank went away",
        "the cause is in that rank's log, not here: look for its first error",
        follows=True,
    ),
    KnownError(
        "gpu_memory",
        r"out of memory",
        "the GPU's memory is full: NCCL could not allocate its buffers",
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
        command="ccbench topo",
    ),
    KnownError(
        "gpu_call",
        r"(?:Cuda|HIP) failure.{0,20}(?:initialization|no .{0,10}device|invalid argument|not (?:supported|permitted))",
        "a call of the GPU's runtime failed",
        "see that the container sees the GPU (nvidia-smi) and may use it, that driver and library fit, and that no "
        "process was forked after it used the GPU",
        command="ccbench doctor",
    ),
    KnownError(
        "gpu_error",
        r"Cuda failure|CUDA error|HIP failure|illegal memory access|uncorrectable|Xid",
        "the GPU reported an error",
        "look at 'dmesg' for Xid and at 'nvidia-smi -q -d ECC' on this host; the faulty call may be the "
        "program's own",
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
)
"""In the order in which they are asked; what none knows is quoted as it is."""

_COMPILED = tuple((error, re.compile(error.form)) for error in KNOWN_ERRORS)

_HARMLESS = re.compile(
    r"P2P is disabled|NUMA auto balancing|iommu=pt|dlvsym|symbol|GDRCOPY|Could not find:|No plugin found|"
    r"HSA_FORCE_FINE_GRAIN|amd_iommu|Attribute \w+ of node \w+ not found|MNNVL (?!\(cliqueSize)|environment variable|"
    r"deprecated|ENV/Plugin"
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
    # An error that tells of a peer that went away is an effect; the cause is the first that does not.
    errors = {
        line: next(
            (
                error
                for error, form in _COMPILED
                if form.search(f"{line.values.get('source', '')} {line.quote}")
            ),
            None,
        )
        for line in warnings
    }
    causes = [line for line, error in errors.items() if error is not None and not error.follows]
    causes.sort(key=lambda line: not getattr(errors[line], "explains", False))
    causes += [line for line, error in errors.items() if error is None]
    cause = next(iter(causes), warnings[0])
    error = errors[cause] or KnownError(
        "nccl_warning",
        "",
        f"NCCL warns: {cause.values['text'][:160]}",
        "this warning is not known here; search NCCL's issues for its words",
    )
    followers = len(warnings) - 1
    behind = f"{plural(followers, 'more warning')} of NCCL in this text may follow from it"
    who = f" (says {cause.speaker})" if cause.speaker and error.form else ""
    yield Diagnosis(
        "problem",
        error.kind,
        f"{error.subject[:1].upper()}{error.subject[1:]}{who}",
        behind if followers else "",
        error.advice,
        error.command,
        quoted([cause]),
        len(warnings),
    )
