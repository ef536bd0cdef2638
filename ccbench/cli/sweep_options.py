"""Options of ``ccbench run`` that stand for a suite or narrow one: nccl-tests' letters and ccbench's names."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from ccbench.cli.naming import ALGORITHM, COLLECTIVE, DTYPE
from ccbench.cli.varying import FEWEST_ROUNDS, Varied, varied_of
from ccbench.errors import UsageError

if TYPE_CHECKING:
    from ccbench.suite.model import Suite
    from ccbench.suite.narrowing import Narrowing

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
    "callables": (
        "--call",
        {
            "multiple": True,
            "metavar": "FILE.py:FUNCTION",
            "help": "Measure a function (tensor, group) of yours; may be repeated.",
        },
    ),
    "accuracy": (
        "--accuracy",
        {"metavar": "DATA", "help": "Errors and bits of sums: bits, cancelling, gradients ..."},
    ),
    "vary": (
        "--vary",
        {
            "multiple": True,
            "metavar": "NAME=VALUE",
            "help": "Compare in turns: algorithm=default,ring, backend=A,B, library=A,B; a variable by repetition, "
            "NCCL_ALGO=Ring and NCCL_ALGO=Tree (empty: unset).",
        },
    ),
    "rounds": ("--rounds", {"type": _AT_LEAST_1, "help": "Rounds of every case."}),
    "aggregated": ("-m", {"type": _AT_LEAST_1, "help": "Collectives in one group call."}),
    # Of nccl-tests; what they ask for is so, or never: accepted, and not in the help.
    "averaged": ("-a", {"type": _AT_LEAST_0, "hidden": True}),
    "parallel": ("-p", {"type": _AT_LEAST_0, "hidden": True}),
    "cpu_time": ("-C", {"type": _AT_LEAST_0, "hidden": True}),
    "samples": ("-n", {"type": _AT_LEAST_1, "help": "Samples of every case."}),
    "warmup": ("-w", {"type": _AT_LEAST_0, "help": "0: no warm-up; else it lasts a time."}),
    "check": ("-c", {"type": _AT_LEAST_0, "hidden": True}),
    "blocking": ("-z", {"type": click.IntRange(0, 1), "help": "1: wait after every launch."}),
    "graph": ("-G", {"type": click.IntRange(0, 1), "help": "1: launch CUDA graphs."}),
    "registered": (
        "-R",
        {"type": click.IntRange(0, 2), "help": "1: register buffers, 2: symmetric."},
    ),
}
"""By the parameter's name: the option as typed, and what click is told of it."""


class GroupedCommand(click.Command):
    """A command whose help shows its options in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write GROUPS with their options, then the rest."""
        options = (each for each in self.get_params(ctx) if isinstance(each, click.Option))
        rows = {each.name: row for each in options if (row := each.get_help_record(ctx))}
        for title, names in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([rows.pop(name) for name in names.split() if name in rows])
        with formatter.section("Other options"):
            formatter.write_dl(list(rows.values()))


GROUPS = {
    "What to measure": "backends collectives sizes first last factor step dtype op root algorithm callables accuracy "
    "only vary schedule_files registered graph blocking aggregated",
    "On what": "ranks oversubscribe gpus threads processes machine launch racks",
    "How long": "rounds samples warmup time_limit_seconds",
    "Where to, and what to show": "output resume save plan no_report quiet verbose gate every as_json",
}
"""Options of ``run`` by the parameter's name."""


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
    from ccbench.cases.axes import AXIS
    from ccbench.suite.functions import normal_word
    from ccbench.suite.model import load_suite
    from ccbench.suite.narrowing import narrowed, sweep_of

    options = {key: settings.pop(key) for key in OPTIONS}
    collective = collective_of(name)
    # nccl-tests' -o: the folder of a run has another name than a reduction.
    if collective and str(settings["output"]) in (*AXIS["op"].values, "mulsum", "all"):
        options["op"] = (*options["op"], str(settings["output"]))
        settings["output"] = None
        # The line to go on with says it as --op.
        context = click.get_current_context()
        context.params["op"] = options["op"]
        context.set_parameter_source("op", ParameterSource.COMMANDLINE)
    if options["gpus"] or options["threads"]:
        ranks = (options["gpus"] or 1) * (options["threads"] or 1)
        if settings["ranks"] not in (None, ranks):
            raise UsageError(
                f"-g, -t: {ranks} ranks, and --ranks {settings['ranks']}; leave one of them out"
            )
        settings["ranks"] = ranks
    varied = varied_of(options["vary"])
    if varied is not None:
        settings["backends"] = varied.backends or settings["backends"]
    calls = options["callables"] = tuple(map(normal_word, options["callables"]))
    if calls:
        _add_callables(options, settings, not collective)
    narrowing = replace(narrowing_of(options), functions=calls)
    if varied is not None:
        narrowing = _varied(narrowing, varied)
        settings["vary"] = f"{varied.axis}={varied.base}"
        # Whoever names a library on the command line lets ranks load it.
        settings["allow_libraries"] |= bool(varied.variants)
    # Whoever names a function on the command line lets ranks run it.
    named = narrowing.sweep.get("algorithm", ())
    settings["callables"] = (*calls, *named)
    suite = (
        sweep_of(collective, narrowing) if collective else narrowed(load_suite(name), narrowing)
    )
    if save is not None:
        save_suite(suite, settings, save)
    notes = []
    if options["check"] == 0:
        notes.append("-c 0: data are checked all the same, outside the timed launches")
    if options["cpu_time"]:
        notes.append("-C: times are from launch to end, as without it")
    if options["warmup"]:
        seconds = suite.sampling_rules.warmup
        notes.append(f"-w {options['warmup']}: warm-up lasts a time here, {seconds:g} s a case")
    return suite, notes


def _add_callables(options: dict[str, Any], settings: dict[str, Any], in_suite: bool) -> None:
    """Measure callables: alone, beside what a suite has, or beside the algorithms and backends that are named."""
    from ccbench.suite.functions import backend_of

    takers = map(backend_of, options["callables"])
    if named := settings["backends"]:
        settings["backends"] = tuple(dict.fromkeys((*named, *takers)))
        options["algorithm"] = options["algorithm"] or (("default",) if not in_suite else ())
    elif not in_suite and not options["algorithm"]:
        settings["backends"] = tuple(dict.fromkeys(takers))


def _varied(narrowing: Narrowing, varied: Varied) -> Narrowing:
    """``narrowing`` with what is varied, and as many rounds, of ranks started anew, as a comparison needs."""
    rounds = max(FEWEST_ROUNDS, int(narrowing.sampling.get("rounds", 0)))
    return replace(
        narrowing,
        sweep={**narrowing.sweep, **varied.sweep},
        sampling={**narrowing.sampling, "rounds": rounds, "start_ranks": "each_round"},
        variants=varied.variants,
    )


def collective_of(name: str) -> str:
    """Collective that ``name`` stands for where no suite has that name: all_reduce, alltoall_perf; else ''."""
    from ccbench.collectives import COLLECTIVES
    from ccbench.readers.benchmarks.words import collective_name
    from ccbench.suite.model import shipped_suites

    if name in shipped_suites() or Path(name).is_file():
        return ""
    collective = collective_name(name.removesuffix("_perf"))
    return collective if collective in COLLECTIVES else ""


def narrowing_of(options: Mapping[str, Any]) -> Narrowing:
    """Keys of a sweep and of its sampling, as a suite's file has them, of this module's options."""
    from ccbench.cases.axes import REGISTRATIONS
    from ccbench.readers.benchmarks.words import collective_name, dtype_name
    from ccbench.suite.functions import normal_word
    from ccbench.suite.narrowing import Narrowing

    def words(name: str) -> list[str]:
        return [word.strip() for text in options[name] for word in text.split(",")]

    first, last, factor, step = (options[end] for end in ("first", "last", "factor", "step"))
    sizes: Any = [size.strip() for size in (options["sizes"] or "").split(",") if size.strip()]
    if first or last or factor or step:
        if sizes:
            raise UsageError("--sizes: -b, -e, -f and -i say the sizes, too; leave one out")
        if factor and step:
            raise UsageError(
                "-f, -i: sizes grow by a factor or by a step; leave one of them out"
            )
        ends = {"from": first or FIRST_SIZE, "to": last or LAST_SIZE}
        sizes = {**ends, "step": step} if step else ":".join([*ends.values(), factor or "2"])
    # nccl-tests takes -1 for every root.
    root = "all" if options["root"] == "-1" else options["root"]
    modes = {"isolated": options["blocking"], "graph": options["graph"]}
    keys = {
        "size": sizes,
        "dtype": list(map(dtype_name, words("dtype"))),
        "op": ["premulsum" if word == "mulsum" else word for word in words("op")],
        "algorithm": [*map(normal_word, words("algorithm"))],
        "root": int(root) if root and root.isdecimal() else root,
        "registration": (
            [REGISTRATIONS[options["registered"] or 0]]
            if options["registered"] is not None
            else []
        ),
        "mode": [mode for mode, chosen in modes.items() if chosen],
        "aggregation": options["aggregated"],
        "accuracy": options["accuracy"],
    }
    sampling = {
        "rounds": options["rounds"],
        "minimum_samples": options["samples"],
        "maximum_samples": options["samples"],
        "warmup": "0 s" if options["warmup"] == 0 else None,
    }
    return Narrowing(
        tuple(map(collective_name, options["collectives"])),
        {key: value for key, value in keys.items() if value not in (None, [])},
        {key: value for key, value in sampling.items() if value},
    )


def save_suite(suite: Suite, settings: Mapping[str, Any], file: Path) -> None:
    """Write ``suite`` with the ranks and backends of the command line, the command in a comment above it."""
    from ccbench.cli.output import check_writable, leave, say
    from ccbench.documents import yaml_text
    from ccbench.suite.functions import normal_word
    from ccbench.suite.narrowing import as_written

    check_writable(file, "--save")
    document = as_written(suite)
    if settings["backends"]:
        document = {"backends": list(settings["backends"]), **document}
    own = {"ranks": settings["ranks"]} if settings["ranks"] else {}
    # Files of functions are found from the suite's folder on.
    up = Path(os.path.relpath(".", file.parent))
    for sweep in document["sweep"]:
        if words := sweep.get("algorithm"):
            sweep["algorithm"] = [normal_word(word, up) for word in words]
    # People write one value without a list.
    document["sweep"] = [
        {
            key: value[0] if isinstance(value, list) and len(value) == 1 else value
            for key, value in (sweep | own).items()
        }
        for sweep in document["sweep"]
    ]
    # A suite has no machine: who runs it on another's model says so again.
    stated = [
        f"--{name} {settings[name]}"
        for name in ("machine", "nodes", "network")
        if settings[name]
    ]
    if stated:
        say(f"note: {file} holds no machine; run it with {' '.join(stated)}")
    leave(file, f"# {shlex.join(['ccbench', *sys.argv[1:]])}\n{yaml_text(document)}")
