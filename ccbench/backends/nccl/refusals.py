"""What must be right before NCCL starts, because NCCL would hang or speak in riddles where it is not."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ccbench.backends.nccl.calls import version_text
from ccbench.errors import BackendUnavailable

SHARED_GPU_VERSION = 23_000
"""From NCCL 2.30 on ranks may share a GPU, where NCCL_MULTI_RANK_GPU_ENABLE=1 says so (NCCL user guide,
"Environment Variables")."""

SAME_EVERYWHERE = (
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_MIN_NCHANNELS",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_CTAS",
    "NCCL_MAX_CTAS",
    "NCCL_BUFFSIZE",
    "NCCL_NVLS_ENABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_SHM_DISABLE",
)
"""Settings by which ranks agree on how data move; ranks that differ wait for each other forever."""


@dataclass(frozen=True)
class RankFacts:
    """What every rank tells the others before a communicator is made.

    rank, ranks: as the launcher told this process. gpu: PCI bus id and UUID, for MIG the instance's.
    apart: NCCL_HOSTID, by which NCCL takes ranks of one host for ranks of several.
    shares: NCCL_MULTI_RANK_GPU_ENABLE is set. settings: those of SAME_EVERYWHERE that are set.
    """

    rank: int
    ranks: int
    host: str
    gpu: str
    nccl_version: int
    apart: str = ""
    shares: bool = False
    settings: tuple[tuple[str, str], ...] = ()

    def as_bytes(self) -> bytes:
        """For an exchange."""
        return json.dumps(asdict(self)).encode()


def facts_from_bytes(text: bytes) -> RankFacts:
    """What ``as_bytes`` made."""
    values = json.loads(text)
    values["settings"] = tuple((name, value) for name, value in values["settings"])
    return RankFacts(**values)


def refuse(all_facts: Sequence[RankFacts]) -> None:
    """BackendUnavailable for what cannot end well; every rank comes to the same answer."""
    for find in (_lonely, _miscounted, _versions, _settings, _shared_gpus):
        problem = find(all_facts)
        if problem:
            raise BackendUnavailable(f"nccl: {problem}")


def _named(facts: RankFacts) -> str:
    return f"rank {facts.rank} on {facts.host}"


def _lonely(all_facts: Sequence[RankFacts]) -> str:
    if len(all_facts) > 1 and all(one.rank == 0 for one in all_facts):
        return (
            f"all {len(all_facts)} processes believe to be rank 0 of {all_facts[0].ranks}: what the launcher "
            "numbers them by does not reach them; start them with the launcher that --launch names (mpirun, "
            "srun or torchrun)"
        )
    return ""


def _miscounted(all_facts: Sequence[RankFacts]) -> str:
    wrong = [one for one in all_facts if one.ranks != len(all_facts)]
    if wrong:
        return (
            f"{_named(wrong[0])} expects {wrong[0].ranks} ranks and there are {len(all_facts)}; "
            "start as many processes as the suite's ranks"
        )
    if sorted(one.rank for one in all_facts) != list(range(len(all_facts))):
        seen = ", ".join(str(one.rank) for one in all_facts)
        return f"ranks are numbered {seen}; every number from 0 to {len(all_facts) - 1} must occur once"
    return ""


def _versions(all_facts: Sequence[RankFacts]) -> str:
    by_version: dict[int, list[RankFacts]] = defaultdict(list)
    for one in all_facts:
        by_version[one.nccl_version].append(one)
    if len(by_version) < 2:
        return ""
    (least, few), *_, (other, _) = sorted(by_version.items(), key=lambda item: (len(item[1]), item[0]))
    return (
        f"{_named(few[0])} has NCCL {version_text(least)}, others have {version_text(other)}; "
        "install one version of nvidia-nccl on all hosts (NCCL does not mix versions)"
    )


def _settings(all_facts: Sequence[RankFacts]) -> str:
    first = dict(all_facts[0].settings)
    for one in all_facts[1:]:
        for name in SAME_EVERYWHERE:
            here, there = first.get(name), dict(one.settings).get(name)
            if here != there:
                return (
                    f"{name} is {here or 'not set'} for {_named(all_facts[0])} and {there or 'not set'} for "
                    f"{_named(one)}; ranks that differ wait for each other forever: set it alike everywhere"
                )
    return ""


def _shared_gpus(all_facts: Sequence[RankFacts]) -> str:
    owners: dict[tuple[str, str, str], RankFacts] = {}
    for one in all_facts:
        # NCCL too tells GPUs apart by host and UUID, and hosts by NCCL_HOSTID where it is set.
        earlier = owners.setdefault((one.host, one.apart, one.gpu), one)
        if earlier is one:
            continue
        if one.nccl_version >= SHARED_GPU_VERSION and one.shares:
            continue
        cure = "start as many ranks as there are GPUs, or look at CUDA_VISIBLE_DEVICES"
        if one.nccl_version >= SHARED_GPU_VERSION:
            cure += "; NCCL_MULTI_RANK_GPU_ENABLE=1 lets processes share a GPU"
        else:
            cure += "; NCCL shares GPUs from 2.30 on, or as ranks that talk over the network: nccl-processes "
            cure += "with 'transport: network'"
        return f"ranks {earlier.rank} and {one.rank} on {one.host} have the same GPU {one.gpu}; {cure}"
    return ""
