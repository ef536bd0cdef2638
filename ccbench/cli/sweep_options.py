"""Options of ``ccbench run`` that stand for a suite or narrow one: nccl-tests' letters and ccbench's names."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from ccbench.cli.naming import ALGORITHM, COLLECTIVE, DTYPE
from ccbench.errors import UsageError

if TYPE_CHECKING:
    from ccbench.suite.model import Suite

Command = TypeVar("Command", bound=Callable[..., Any])

FIRST_SIZE, LAST_SIZE = "8", "128M"
"""Ends of the sizes where only one of -b and -e is there: the usual ones of nccl-tests' users."""

_AT_LEAST_0, _AT_LEAST_1 = click.IntRange(min=0), click.IntRange(min=1)

OPTIONS: Mapping[str, Any] = {
    "collectives": (
        "--collective",
        {"multiple": True, "type": COLLECTIVE, "help": "Only this one; may be repeated."},
    ),
    "sizes": (
        "--sizes",
        {"metavar": "SIZES", "help": "FROM:TO:FACTOR, or sizes with commas between."},
    ),
    "first": ("-b", {"metavar": "SIZE", "help": "First size, such as 8."}),
    "last": ("-e", {"metavar": "SIZE", "help": "Last size, such as 128M."}),
    "factor": ("-f", {"metavar": "N", "help": "Factor between sizes, usually 2."}),
    "step": ("-i", {"metavar": "SIZE", "help": "Step between sizes instead of a factor."}),
    "gpus": ("-g", {"type": _AT_LEAST_1, "help": "Ranks of a process, times -t."}),
    "threads": ("-t", {"type": _AT_LEAST_1, "help": "Threads; ranks are -t times -g."}),
    "dtype": (
        "-d,--dtype",
        {"multiple": True, "type": DTYPE, "help": "Element type: float, half, all ..."},
    ),
    "op": ("--op", {"multiple": True, "help": "Reduction; '-o sum' says it, too."}),
    "root": ("-r,--root", {"metavar": "RANK", "help": "Root, or 'all'."}),
    "algorithm": (
        "--algorithm",
        {"multiple": True, "type": ALGORITHM, "help": "Algorithm; may be repeated."},
    ),
    "rounds": ("--rounds", {"type": _AT_LEAST_1, "help": "Rounds of every case."}),
    "samples": ("-n", {"type": _AT_LEAST_1, "help": "Samples of every case."}),
    "warmup": ("-w", {"type": _AT_LEAST_0, "help": "0: no warm-up; else it lasts a time."}),
    "check": ("-c", {"type": _AT_LEAST_0, "help": "Accepted; data are always checked."}),
    "blocking": ("-z", {"type": _AT_LEAST_0, "help": "1: wait after every launch."}),
    "graph": ("-G", {"type": _AT_LEAST_0, "help": "1: launch CUDA graphs."}),
    "registered": (
        "-R",
        {"type": click.IntRange(0, 2), "help": "1: register buffers, 2: symmetric."},
    ),
}
"""By the parameter's name: the option as typed, and what click is told of it."""


def sweep_options(command: Command) -> Command:
    """Add OPTIONS to a command."""
    options = [
        click.option(*words.split(","), name, **settings)
        for name, (words, settings) in OPTIONS.items()
    ]
    return reduce(lambda wrapped, option: option(wrapped), reversed(options), command)


def suite_of(name: str, settings: dict[str, Any], save: Path | None) -> tuple[Suite, list[str]]:
    """Suite that the arguments of a run stand for, and notes about options that mean something else here.

    settings: of the run; the options of this module are taken out, the ranks of -g and -t put in.
    """
    from ccbench.suite.model import load_suite
    from ccbench.suite.narrowing import Narrowing, narrowed, sweep_of

    options = {key: settings.pop(key) for key in OPTIONS}
    collective = collective_of(name)
    if collective:
        _take_op(settings, options)
    _take_ranks(settings, options)
    narrowing = Narrowing(_collectives(options), _sweep_keys(options), _sampling_keys(options))
    suite = (
        sweep_of(collective, narrowing) if collective else narrowed(load_suite(name), narrowing)
    )
    if save is not None:
        _save(suite, settings, save)
    notes = ["-c 0: data are checked all the same, outside the timed launches"] * (
        options["check"] == 0
    )
    if options["warmup"]:
        seconds = suite.sampling_rules.warmup
        notes.append(f"-w {options['warmup']}: warm-up lasts a time here, {seconds:g} s a case")
    return suite, notes


def collective_of(name: str) -> str:
    """Collective that ``name`` stands for where no suite has that name: all_reduce, alltoall_perf; else ''."""
    from ccbench.collectives import COLLECTIVES
    from ccbench.readers.benchmarks.words import collective_name
    from ccbench.suite.model import shipped_suites

    if name in shipped_suites() or Path(name).is_file():
        return ""
    collective = collective_name(name.removesuffix("_perf"))
    return collective if collective in COLLECTIVES else ""


def _take_op(settings: dict[str, Any], options: dict[str, Any]) -> None:
    """Read ``-o sum`` as nccl-tests does: the folder of a run has another name than a reduction."""
    from ccbench.cases.axes import AXIS

    if str(settings.get("output")) in (*AXIS["op"].values, "mulsum", "all"):
        options["op"] = (*options["op"], str(settings["output"]))
        settings["output"] = None
        # The line to go on with says it as --op.
        context = click.get_current_context()
        context.params["op"] = options["op"]
        context.set_parameter_source("op", ParameterSource.COMMANDLINE)


def _take_ranks(settings: dict[str, Any], options: Mapping[str, Any]) -> None:
    if not (options["gpus"] or options["threads"]):
        return
    ranks = (options["gpus"] or 1) * (options["threads"] or 1)
    if settings["ranks"] not in (None, ranks):
        raise UsageError(
            f"-g, -t: {ranks} ranks, and --ranks {settings['ranks']}; leave one of them out"
        )
    settings["ranks"] = ranks


def _collectives(options: Mapping[str, Any]) -> tuple[str, ...]:
    from ccbench.readers.benchmarks.words import collective_name

    return tuple(map(collective_name, options["collectives"]))


def _sweep_keys(options: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of a sweep, as a suite's file has them."""
    from ccbench.cases.axes import REGISTRATIONS
    from ccbench.readers.benchmarks.words import dtype_name

    keys: dict[str, Any] = {}
    ends = [options[end] for end in ("first", "last", "factor", "step")]
    if any(ends):
        if options["sizes"]:
            raise UsageError("--sizes: -b, -e, -f and -i say the sizes, too; leave one out")
        keys["size"] = _range(*ends)
    elif options["sizes"]:
        keys["size"] = [size.strip() for size in options["sizes"].split(",")]
    if options["dtype"]:
        keys["dtype"] = [dtype_name(word) for word in _words(options["dtype"])]
    if options["op"]:
        keys["op"] = [{"mulsum": "premulsum"}.get(word, word) for word in _words(options["op"])]
    if options["algorithm"]:
        keys["algorithm"] = _words(options["algorithm"])
    if options["root"] is not None:
        text = options["root"]
        # nccl-tests takes -1 for all of them.
        keys["root"] = "all" if text == "-1" else int(text) if text.isdecimal() else text
    if options["registered"] is not None:
        keys["registration"] = REGISTRATIONS[options["registered"]]
    modes = [("isolated", options["blocking"]), ("graph", options["graph"])]
    if chosen := [mode for mode, said in modes if said]:
        keys["mode"] = chosen
    return keys


def _range(first: str | None, last: str | None, factor: str | None, step: str | None) -> Any:
    if factor and step:
        raise UsageError("-f, -i: sizes grow by a factor or by a step; leave one of them out")
    ends = {"from": first or FIRST_SIZE, "to": last or LAST_SIZE}
    if step:
        return {**ends, "step": step}
    return ":".join([*ends.values(), factor or "2"])


def _words(texts: tuple[str, ...]) -> list[str]:
    return [word.strip() for text in texts for word in text.split(",")]


def _sampling_keys(options: Mapping[str, Any]) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    if options["rounds"]:
        keys["rounds"] = options["rounds"]
    if options["samples"]:
        keys |= {"minimum_samples": options["samples"], "maximum_samples": options["samples"]}
    return keys | ({"warmup": "0 s"} if options["warmup"] == 0 else {})


def _save(suite: Suite, settings: Mapping[str, Any], file: Path) -> None:
    """Write ``suite`` with the ranks and backends of the command line, a comment above it."""
    import sys

    from ccbench.cli.output import check_writable, leave
    from ccbench.documents import yaml_text
    from ccbench.suite.narrowing import as_written

    check_writable(file, "--save")
    document = as_written(suite)
    if settings["backends"]:
        document = {"backends": list(settings["backends"]), **document}
    own = {"ranks": settings["ranks"]} if settings["ranks"] else {}
    # People write one value without a list.
    document["sweep"] = [
        {
            key: value[0] if isinstance(value, list) and len(value) == 1 else value
            for key, value in (sweep | own).items()
        }
        for sweep in document["sweep"]
    ]
    command = shlex.join(["ccbench", *sys.argv[1:]])
    leave(file, f"# {command}\n{yaml_text(document)}")
