"""Every flag that a row of a run may carry: what sets it, what to do about it, and what it puts in doubt."""

from __future__ import annotations

from enum import Enum


class About(Enum):
    """Subject of a flag; it decides what the flag puts in doubt."""

    LOAD = "other load on the host; judged over all rounds of a case"
    RUN = "the measurement itself"
    PLACEMENT = "where ranks ran; comparable with a run that placed them alike"
    DEVICE_STATE = "clocks and limits of a device"
    DEVICE_FAULT = "a device, link or cooling at fault"
    FIGURES = "printed figures of an imported log that are missing or contradict each other"
    NOTATION = "how an imported log counts; comparable with a log that counts alike"


class Flag(str, Enum):
    """A word of the column ``flags``. meaning: when a row has it. advice: what to do about it."""

    about: About
    meaning: str
    advice: str

    def __new__(cls, word: str, about: About, meaning: str, advice: str) -> Flag:
        """A member is its word, so that rows, JSON and messages hold plain text."""
        flag = str.__new__(cls, word)
        flag._value_ = word
        flag.about, flag.meaning, flag.advice = about, meaning, advice
        return flag

    OTHER_LOAD = (
        "other_load",
        About.LOAD,
        "other programs took more than 10 % of the processors' time",
        "stop other programs, or ask the scheduler for whole nodes, and measure again",
    )
    STEAL = (
        "steal",
        About.LOAD,
        "the hypervisor took more than 5 % of the processors' time",
        "the hypervisor gave the time to others; measure on a machine that is not shared",
    )
    CPU_CONTENTION = (
        "cpu_contention",
        About.LOAD,
        "others took so much of the processors' time that most launches were disturbed",
        "stop other programs, or ask the scheduler for whole nodes, and measure again",
    )
    CORE_DISTANCE_CHANGED = (
        "core_distance_changed",
        About.RUN,
        "the time of a flag between two cores changed by a factor of two",
        "the hypervisor moved a core meanwhile; measure on dedicated cores",
    )
    CLOCK_WRONG = (
        "clock_wrong",
        About.RUN,
        "the clock of samples ran more than 10 % off the kernel's uptime, or the date is wrong",
        "set the date, and look what changes clocks (libfaketime, a virtual machine's): times or dates are "
        "wrong",
    )
    SHARED_CORE = (
        "shared_core",
        About.PLACEMENT,
        "two ranks were bound to hardware threads of one core",
        "two ranks shared one core's units; use one rank a core",
    )
    OVERSUBSCRIBED = (
        "oversubscribed",
        About.PLACEMENT,
        "more ranks computed at once than there are cores, on any of the hosts",
        "use no more ranks than processors or devices; ranks took turns",
    )
    THROTTLED = (
        "throttled",
        About.DEVICE_FAULT,
        "clocks were held back by heat, power brake or hardware: at a look, or more than 1 % of the time",
        "cool the device, look for dust, failed fans and power brakes, then measure again; 'nvidia-smi -q "
        "-d PERFORMANCE' prints the reason",
    )
    POWER_CAPPED = (
        "power_capped",
        About.DEVICE_STATE,
        "clocks were held back by the power limit or the board's, by the same rule",
        "raise the power limit, or lock clocks below it, so that runs can be compared",
    )
    CLOCK_DROPPED = (
        "clock_dropped",
        About.DEVICE_STATE,
        "a clock was more than 5 % lower after the case than before, though the device did not rest",
        "lock the clocks (nvidia-smi -lgc) or let the device cool, then measure again",
    )
    CLOCK_LOW = (
        "clock_low",
        About.DEVICE_STATE,
        "the processors' clock was more than 10 % below the device's highest under load",
        "'nvidia-smi -q -d PERFORMANCE' prints what holds clocks back; lock them, measure again",
    )
    ECC_ERRORS = (
        "ecc_errors",
        About.DEVICE_FAULT,
        "memory errors were counted, corrected ones too",
        "read the error counters; retire the device when they keep rising",
    )
    LINK_ERRORS = (
        "link_errors",
        About.DEVICE_FAULT,
        "errors of an NVLink or PCIe packets sent again, an NVLink down, or PCIe lanes lost",
        "reseat or replace the cable or card of that link; its errors cost retransmissions",
    )
    DEVICE_ERRORS = (
        "device_errors",
        About.DEVICE_FAULT,
        "the driver reported an Xid; the numbers are in xids",
        "look up the Xid in the kernel's log before trusting any figure of that device",
    )
    DEVICE_LOST = (
        "device_lost",
        About.DEVICE_FAULT,
        "a device no longer answers",
        "the device fell off its bus: reset the machine and read the kernel's log",
    )
    LOOPBACK = (
        "loopback",
        About.PLACEMENT,
        "several ranks shared a device: no link was measured",
        "give each rank a device of its own; no link was measured",
    )
    EMULATION = (
        "emulation",
        About.RUN,
        "the device was emulated: times say nothing about any device",
        "read the results as correct or wrong, never as fast or slow",
    )
    COMPARED_WRONG = (
        "compared_wrong",
        About.RUN,
        "a GPU's kernel that compares results disagreed with the host, whose word counts",
        "the device compares wrongly what the host compares right: test its memory",
    )
    FAULT_INJECTED = (
        "fault_injected",
        About.RUN,
        "a fault was injected on purpose",
        "CCBENCH_FAULT made ranks misbehave; unset it to measure the machine",
    )
    ALGBW_CONTRADICTS_TIME = (
        "algbw_contradicts_time",
        About.FIGURES,
        "an imported row whose time x algbw is not the size, beyond rounding",
        "find out which figure is wrong: see the line in the imported file",
    )
    BUSBW_CONTRADICTS_ALGBW = (
        "busbw_contradicts_algbw",
        About.FIGURES,
        "an imported row whose busbw is not algbw x the collective's factor",
        "check the number of ranks and the collective that the import assumed",
    )
    ALGBW_PER_RANK = (
        "algbw_per_rank",
        About.NOTATION,
        "an imported row whose algbw counts one rank's bytes (old all_gather); the size is of all ranks",
        "compare it only with rows that count alike, or measure again with a newer tool",
    )
    SIZE_PER_RANK = (
        "size_per_rank",
        About.NOTATION,
        "an imported row whose printed bytes are one rank's; size_bytes is of all ranks",
        "compare it only with rows that count alike, or measure again with a newer tool",
    )
    SIZE_OF_ONE_BLOCK = (
        "size_of_one_block",
        About.FIGURES,
        "an imported row whose size_bytes is one rank's block: the log states no ranks",
        "import it again with --machine, which states the number of ranks",
    )
    CPU_TIME = (
        "cpu_time",
        About.FIGURES,
        "an imported row whose time is the processor's for launching (nccl-tests' -C)",
        "measure again without -C",
    )
    INCOMPLETE = (
        "incomplete",
        About.NOTATION,
        "an imported row whose line ends early; only whole placements were taken",
        "import the whole log where there is one",
    )
    SURPLUS_COLUMNS = (
        "surplus_columns",
        About.NOTATION,
        "an imported row with more columns than its header; the named ones were taken",
        "check that the header is the table's own",
    )
    IN_A_JOB = (
        "in_a_job",
        About.NOTATION,
        "an imported case of a recorded job: its times are those beside other work",
        "'ccbench replay' of the same traces says where the time went",
    )

    __str__ = str.__str__

    @property
    def arrangement(self) -> bool:
        """True for what two runs may have in common: it is doubtful only where one of them lacks it."""
        return self.about in (About.PLACEMENT, About.NOTATION)


NO_LINK_FLAGS = frozenset((Flag.EMULATION, Flag.LOOPBACK))
"""Measurements with one of these say nothing about links."""

LOAD_FLAGS = tuple(flag for flag in Flag if flag.about is About.LOAD)
DEVICE_FAULTS = tuple(flag for flag in Flag if flag.about is About.DEVICE_FAULT)
DEVICE_FLAGS = tuple(
    flag for flag in Flag if flag.about in (About.DEVICE_STATE, About.DEVICE_FAULT)
)
"""They say something about a device and put no measurement in doubt."""


def advice_on(word: str) -> str:
    """Return what to do about a flag."""
    # A run of another version may hold a word that this one does not know.
    advice = {flag.value: flag.advice for flag in Flag}
    return advice.get(word, "measure these cases again when the machine is quiet")
