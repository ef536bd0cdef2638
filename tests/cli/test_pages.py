"""What a page shows can be pasted, and what it says ccbench prints is what ccbench prints today.

Blocks without a language hold commands, or what ccbench prints. Printed text is a console session (``$ COMMAND``
above it), or carries a comment on the line before its fence: ``<!-- sample: COMMAND -->`` names the command that
prints it, ``<!-- measured: DATE, WHERE -->`` says that it was measured and can be no more than that,
``<!-- checked: FILE -->`` names the test or the golden that holds it.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Container, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from ccbench.cli import commands
from ccbench.cli.sweep_options import collective_of
from ccbench.errors import CcbenchError
from ccbench.machine.detection import load_topology
from ccbench.plan.document import shipped_plans
from ccbench.results.loading import load_published
from ccbench.suite.model import shipped_suites
from ccbench.topology.node_nics import parse_network
from tests.cli.conftest import Command
from tests.pages import BLOCKS, CHECKOUT, PAGES, Block, blocks_of

SHELL = ("", "sh")

YOURS = {
    "README.md": {
        "all_reduce.log",
        "dumps",
        "logs",
        "nccl.log",
        "star.py",
        "suites/allreduce.yaml",
    },
    "check.md": {"job.log", "dumps"},
    "kernels.md": {"star.py", "allreduce.json"},
    "fleet.md": {"/data/fleet/20??-??-??"},
    "model.md": {"kineto-*.json", "flight_recorder-*.json", "traces"},
    "tour.md": {"all_reduce.log"},
    "tuning.md": {"suites/mine.yaml"},
    "verdicts.md": {"all_reduce.log", "logs"},
}
"""Files of the reader, by page; words in capitals (RUN, BASE) stand for the reader's in any of them."""

PRINTED = re.compile(r"(sample|measured|checked): (.+)")


def is_console(block: Block) -> bool:
    return not block.language and block.lines[0].startswith("$ ")


def is_printed(block: Block) -> bool:
    """True for text that ccbench or another program printed."""
    return bool(PRINTED.fullmatch(block.mark)) or in_measured_part(block)


def in_measured_part(block: Block) -> bool:
    """True inside a part of a page that says at its head when it was measured."""
    lines = block.page.read_text(encoding="utf-8").splitlines()[: block.number]
    begin, end = "<!-- sample output: begin -->", "<!-- sample output: end -->"
    marks = [place for place, line in enumerate(lines) if line in (begin, end)]
    return bool(
        marks
        and lines[marks[-1]] == begin
        and re.search(r"20\d\d-\d\d", " ".join(lines[marks[-1] :]))
    )


def commands_in(block: Block) -> list[list[str]]:
    """Words of the simple commands of a block: lines joined at a backslash, comments and redirections left out."""
    if is_console(block):
        return [shlex.split(block.lines[0][2:])]
    if block.language not in SHELL or is_printed(block):
        return []
    commands: list[list[str]] = []
    for line in re.sub(r"\\\n *", "", block.text).splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in lexer:
            if re.fullmatch(r"[;|&()]+", word):
                commands.append(words)
                words = []
            else:
                words.append(word)
        commands.append([*words])
    return [words for words in commands if words]


def own_words(words: Sequence[str]) -> list[str] | None:
    """The words behind ``ccbench`` where a command starts it: by itself, by its path, or behind a launcher."""
    for place, word in enumerate(words):
        if Path(word).name == "ccbench" and words[place - 1 : place] != ["pip"]:
            end = next((at for at, other in enumerate(words) if re.match(r"[<>]", other)), None)
            return list(words[place + 1 : end])
    return None


def texts_under(keys: Container[str], value: Any) -> Iterator[Any]:
    """Yield what stands under ``keys`` anywhere in a document."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in keys:
                yield inner
            yield from texts_under(keys, inner)
    elif isinstance(value, list):
        for inner in value:
            yield from texts_under(keys, inner)


def scripts_in(block: Block) -> Iterator[Block]:
    """Yield the shell scripts in a YAML block: steps of CI systems, commands of containers."""
    if block.language != "yaml":
        return
    document = yaml.safe_load(block.text)
    steps = texts_under(("run", "script"), document)
    lines = [line for step in steps for line in ([step] if isinstance(step, str) else step)]
    starts: list[list[str]] = list(texts_under(("command",), document))
    arguments: list[list[str]] = list(texts_under(("args",), document))
    for command, more in zip_longest(starts, arguments, fillvalue=list[str]()):
        lines.append(shlex.join([*command, *more]))
    if lines:
        yield replace(block, language="sh", mark="", lines=tuple(lines))


SCRIPTS = [script for block in BLOCKS for script in scripts_in(block)]

CALLS = [
    (block, words)
    for block in [*BLOCKS, *SCRIPTS]
    for command in commands_in(block)
    if (words := own_words(command)) is not None
]


@pytest.fixture
def _without_schedule_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parse ``--schedule star.py`` without the file that the reader writes."""
    for name in ("open_schedule_files", "use_schedule_files"):
        monkeypatch.setattr(f"ccbench.readers.schedules.{name}", lambda _: ())


def parsed(words: Sequence[str]) -> click.Context:
    """The context of a command line, parsed as ccbench does. Raises ClickException or KeyError."""
    # click keeps a command's help option as the first context names it.
    whole = click.Context(commands, **commands.context_settings)
    command = commands.commands[words[0]]
    try:
        return command.make_context(words[0], list(words[1:]), parent=whole)
    except click.exceptions.Exit:  # as --explain, which says what it has to and ends
        return click.Context(command, parent=whole)


def call_id(call: tuple[Block, list[str]]) -> str:
    return f"{call[0]} {shlex.join(call[1])}"


@pytest.mark.usefixtures("_without_schedule_files")
@pytest.mark.parametrize("call", CALLS, ids=call_id)
def test_every_command_line_is_parsed_by_the_command(call: tuple[Block, list[str]]) -> None:
    try:
        context = parsed(call[1])
    except click.ClickException as error:
        pytest.fail(f"{call[0]}: {error.format_message()}")
    values = [word for value in context.params.values() for word in as_texts(value)]
    # Prose behind a command would become its last arguments.
    assert not [word for word in values if word in ("a", "the", "of", "and", "or", "...")]


def as_texts(value: object) -> list[str]:
    if isinstance(value, tuple):
        return [text for item in value for text in as_texts(item)]
    return [str(value)] if isinstance(value, str | Path) else []


OUTPUTS = ("-o", "--output", "--draw", "--export", "--save")


def is_there(parameter: str, text: str) -> bool:
    """True where a command finds what ``text`` names without a file of the reader."""
    try:
        match parameter:
            case "machine":
                return text == "detect" or bool(load_topology(text))
            case "network":
                return bool(parse_network(text))
            case "suite":
                return text in shipped_suites() or bool(collective_of(text))
            case "plan_file":
                return text in shipped_plans()
    except CcbenchError:
        return False
    if text.startswith("published:"):
        return bool(load_published(text.removeprefix("published:")))
    return text in ("model", "published") or (CHECKOUT / text).exists()


NAMING = {
    *("machine", "network", "suite", "plan_file", "runs", "folders", "files", "traces"),
    *("baseline", "resume", "measured", "rows", "run"),
}
"""Parameters that name something that must exist."""


@pytest.mark.usefixtures("_without_schedule_files")
@pytest.mark.parametrize(
    "page", sorted({block.page for block, _ in CALLS}), ids=lambda page: page.name
)
def test_what_a_command_line_names_exists_or_is_made_above_it(page: Path) -> None:
    made = set(YOURS.get(page.name, ()))
    for block, words in CALLS:
        if block.page != page:
            continue
        context = parsed(words)
        for parameter in context.command.params:
            name = parameter.name or ""
            if name not in NAMING:
                continue
            for text in as_texts(context.params.get(name)):
                stands_for_one = re.fullmatch(r"[A-Z0-9]+|.*\$.*", text)
                assert stands_for_one or text in made or is_there(name, text), (
                    str(block),
                    text,
                )
        made |= {word for before, word in pairwise(words) if before in OUTPUTS}


def test_every_run_on_the_page_of_backends_can_be_planned(
    ccbench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(CHECKOUT)
    page = (CHECKOUT / "docs/backends.md").read_text(encoding="utf-8")
    runs = re.findall(r"`ccbench (run [^`\n]+)`", page)
    assert runs
    for line in runs:
        assert "cases, at most" in ccbench(*shlex.split(line), "--plan").done.out


TARGETS = re.findall(r"^([\w-]+):", (CHECKOUT / "Makefile").read_text(), flags=re.MULTILINE)
EXTRAS = re.findall(
    r"^([\w-]+) = \[$|^([\w-]+) = \[\"",
    (CHECKOUT / "pyproject.toml").read_text(),
    flags=re.MULTILINE,
)


def missing(words: Sequence[str], page: str) -> list[str]:
    """Files of the checkout, targets of make and extras that a command names and that are not there."""
    folders = r"(?:tests|benchmarks|constraints|suites|docs|man|kernels|\.ci)/[\w./-]+"
    files = [
        word
        for word in words
        if re.fullmatch(folders, word)
        and word not in YOURS.get(page, ())
        and not (CHECKOUT / word).exists()
    ]
    targets = [word for word in words[1:] if words[0] == "make" and word not in TARGETS]
    named = [extra for word in words for extra in re.findall(r"\.\[([\w-]+)\]", word)]
    extras = {name for pair in EXTRAS for name in pair}
    return [*files, *targets, *(extra for extra in named if extra not in extras)]


def test_what_other_commands_name_exists() -> None:
    other = [(block, words) for block in [*BLOCKS, *SCRIPTS] for words in commands_in(block)]
    assert [(str(b), gone) for b, words in other for gone in missing(words, b.page.name)] == []
    assert len(other) > len(CALLS)
    assert missing(["pytest", "tests/test_no.py", "tests/tiers.py"], "") == ["tests/test_no.py"]
    assert missing(["make", "install", "instal"], "") == ["instal"]
    assert missing(["pip", "install", ".[cuda13]", ".[cuda1]"], "") == ["cuda1"]


def test_every_file_of_the_reader_is_still_named() -> None:
    for name, files in YOURS.items():
        words = {
            word.rstrip("/")
            for block, line in CALLS
            for word in line
            if block.page.name == name
        }
        assert files <= words, name


TYPED = [
    block
    for block in [*BLOCKS, *SCRIPTS]
    if block.language in SHELL and not (is_printed(block) or is_console(block))
]


def test_every_block_of_commands_is_shell(tmp_path: Path) -> None:
    for number, block in enumerate(TYPED):
        (tmp_path / f"{number}.sh").write_text(block.text)
    every = 'for file in *.sh; do bash -n "$file" || exit 1; done'
    ended = subprocess.run(["bash", "-c", every], cwd=tmp_path, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_a_block_that_no_command_begins_says_what_printed_it() -> None:
    for block in TYPED:
        text = "" if block.language else re.sub(r"\\\n *", "", block.text)
        for line in text.splitlines():
            assert re.match(PROGRAMS_SHOWN, line), f"{block}: {line}: mark the block"
            # Columns of prose would be taken for arguments.
            assert not re.search(r"\S {3,}[^#& ]", line.partition(" #")[0]), line


PROGRAMS_SHOWN = re.compile(
    r"$|#| +#|\. \S+ +#|export |[A-Z_]+=\S+ +#|(?:[A-Z_]+=\S+ +)*"
    r"(?:[\w./]+/)?(?:ccbench|python3?(?:\.\d+)?|pip|pipx|uv|pytest|make|mpirun|srun|sbatch|torchrun|git|docker|apptainer|twine|rm|cd|eval)\b(?!:)"
)


@pytest.mark.parametrize("block", [b for b in BLOCKS if b.language == "python"], ids=str)
def test_every_program_of_a_page_compiles(block: Block) -> None:
    compile(block.text, str(block), "exec")


SAMPLES = [
    (
        block,
        shlex.split(
            block.lines[0][2:] if is_console(block) else PRINTED.sub(r"\2", block.mark)
        ),
    )
    for block in BLOCKS
    if is_console(block) or block.mark.startswith("sample: ")
]


def test_marks_are_of_the_three_kinds() -> None:
    assert len(SAMPLES) >= 2
    for block in BLOCKS:
        kind, _, rest = block.mark.partition(": ")
        if block.mark:
            assert kind in ("sample", "measured", "checked"), block
        if kind == "measured":
            assert re.match(r"20\d\d-\d\d-\d\d, \w", rest), f"{block}: date, and of what"
        if kind == "checked":
            text = (CHECKOUT / rest).read_text(encoding="utf-8")
            # A test names its page; a golden has the lines, behind the file's name.
            tails = [line.partition(":")[2] for line in block.lines]
            assert block.page.name in text or all(f"=> {tail}\n" in text for tail in tails)


def equal(shown: str, printed: str) -> bool:
    """True for equal words, and for numbers that differ by a last digit of four."""
    numbers = re.compile(r"\d[\d,]*\.?\d*")
    if numbers.sub("0", shown) != numbers.sub("0", printed):
        return False
    pairs = zip(numbers.findall(shown), numbers.findall(printed), strict=True)
    values = ((float(a.replace(",", "")), float(b.replace(",", ""))) for a, b in pairs)
    return all(abs(a - b) <= 1e-3 * abs(b) for a, b in values)


def matches(shown: str, printed: str) -> bool:
    """Whether a shown line is a printed one; ``...`` at its end leaves out the rest of it."""
    mine, theirs = shown.split(), printed.split()
    if shown.endswith(" ..."):
        mine, theirs = mine[:-1], theirs[: len(mine) - 1]
    return len(mine) == len(theirs) and all(map(equal, mine, theirs))


def difference(shown: Sequence[str], printed: Sequence[str]) -> str:
    """The first shown line that was not printed there, or ''; a line ``...`` stands for any number of lines."""
    rest = iter(printed)
    skips = False
    for line in shown:
        if line == "...":
            skips = True
            continue
        there = next(rest, None)
        while skips and there is not None and not matches(line, there):
            there = next(rest, None)
        if there is None or not matches(line, there):
            return f"{line!r} is shown, {there!r} is printed"
        skips = False
    more = [] if skips else [line for line in rest if line]
    return f"{more[0]!r} is printed and not shown" if more else ""


@pytest.mark.parametrize("sample", SAMPLES, ids=call_id)
def test_a_sample_is_what_the_command_prints_today(
    sample: tuple[Block, list[str]], ccbench: Command
) -> None:
    block, (program, *words) = sample
    assert program == "ccbench"
    shown = block.lines[is_console(block) :]
    assert difference(shown, ccbench(*words).done.out.splitlines()) == ""


def of_page(name: str, comment: str) -> Any:
    """The document of the YAML block of a page that begins with a comment."""
    (block,) = (b for b in BLOCKS if b.page.name == name and b.lines[0] == comment)
    return yaml.safe_load(block.text)


def test_the_workflow_has_the_form_that_github_requires() -> None:
    """Keys of "Workflow syntax for GitHub Actions" in GitHub's documentation."""
    workflow = of_page("compare.md", "# .github/workflows/collectives.yml")
    # YAML 1.1 reads a key called on as true.
    assert set(workflow) == {"name", True, "concurrency", "jobs"}
    assert set(workflow[True]) == {"workflow_dispatch", "schedule"}
    for job in workflow["jobs"].values():
        assert set(job) <= {"runs-on", "timeout-minutes", "container", "steps"}
        assert {"runs-on", "steps"} <= set(job)
        for step in job["steps"]:
            assert set(step) <= {"name", "if", "run", "uses", "with"}
            assert ("run" in step) != ("uses" in step)
            assert "with" not in step or "uses" in step


def test_the_pipeline_has_the_form_that_gitlab_requires() -> None:
    """Keywords of a job in "CI/CD YAML syntax reference" of GitLab's documentation."""
    jobs = of_page("compare.md", "# .gitlab-ci.yml")
    keywords = {
        "image",
        "tags",
        "timeout",
        "resource_group",
        "script",
        "allow_failure",
        "artifacts",
    }
    for job in jobs.values():
        assert {"script"} <= set(job) <= keywords
        assert set(job["allow_failure"]) == {"exit_codes"}
        assert set(job["artifacts"]) <= {"when", "paths", "reports"}
        assert job["artifacts"]["when"] in ("on_success", "on_failure", "always")
        (report,) = job["artifacts"]["reports"].items()
        assert report[0] == "junit"
        assert any(report[1] in line for line in job["script"])


def test_scripts_of_yaml_are_read() -> None:
    text = "```yaml\na:\n  run: ccbench topo\n  command: [ccbench, run]\n  args: [quick]\n```\n"
    (block,) = blocks_of(CHECKOUT / "README.md", text)
    (script,) = scripts_in(block)
    assert commands_in(script) == [["ccbench", "topo"], ["ccbench", "run", "quick"]]


LONG_CELL = re.compile(r"^\|(?:.*\|)? ([^|\n]{120,}\S) *\|", re.MULTILINE)
"""A cell of a table of more than 120 characters, which nobody reads."""

NO_PROSE = r"(?ms)^<!-- tables: begin -->$.*?^<!-- tables: end -->$|^ *```.*?^ *```$"
"""Tables made by a program, and blocks of code."""


def test_cells_of_tables_are_short() -> None:
    pages = ["| a | " + 121 * "b" + " |\n"]
    pages += [page.read_text(encoding="utf-8") for page in PAGES if page.parent.name == "docs"]
    texts = [re.sub(NO_PROSE, "", page) for page in pages]
    assert [cell[:1] for text in texts for cell in LONG_CELL.findall(text)] == ["b"]
