"""Texts as people have them: tags, quotes, cuts and other tools' lines change nothing but remarks."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ccbench.readers.evidence import OWNED_BY_MACHINES, Evidence, read_evidence
from ccbench.readers.machines import READERS
from tests.analysis.nccl_logs import log
from tests.analysis.test_hang_rules import RAS, stacks
from tests.analysis.test_machine_rules import DOWN, LSPCI, UP, ibstat, p2p_test

TEXTS = {
    "NCCL log": log(lines=["NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'"]),
    "ports of NICs": ibstat(DOWN, UP),
    "bandwidth of pairs": p2p_test("NVIDIA GeForce RTX 3090", 3.0),
    "kernel log": "NVRM: Xid (PCI:0000:1a:00): 79, pid=1, GPU has fallen off the bus.\n" * 2,
    "lspci": LSPCI.format(sign="+"),
    "ncclras": RAS.format(status="MISMATCH", lines="  1 rank has launched up to operation 6"),
    "py-spy": stacks(["all_reduce", "load"]),
}


def of_text(folder: Path, text: str) -> Evidence:
    file = folder / "paste.txt"
    file.write_bytes(text.encode())
    return read_evidence([file])


def facts(evidence: Evidence, form: str) -> list[tuple[str, tuple[tuple[str, str], ...]]]:
    """Kinds and values of statements, without their lines. ``form`` is read by its own module alone."""
    assert form in {part.form for part in evidence.parts}
    return [
        (statement.kind, tuple(sorted(statement.values.items())))
        for statement in evidence.statements
    ]


@pytest.mark.parametrize("form", TEXTS)
@pytest.mark.parametrize("change", ["crlf", "colours", "words before and after"])
def test_line_ends_colours_and_words_around_change_no_statement(
    form: str, change: str, tmp_path: Path
) -> None:
    text = TEXTS[form]
    changed = {
        "crlf": text.replace("\n", "\r\n"),
        "colours": "".join(f"\x1b[32m{line}\x1b[0m\n" for line in text.splitlines()),
        "words before and after": f"Hello,\n\nthis is what I see:\n{text}\nAny idea?\n",
    }[change]
    assert facts(of_text(tmp_path, changed), form) == facts(of_text(tmp_path, text), form)


TAGS = (
    "2026-03-12 14:17:56,123 INFO probe: ",
    "Mar 12 14:17:56 box3 probe[471]: ",
    "box3 | ",
    "[worker-0] ",
    "> ",
    "    ",
)


@pytest.mark.parametrize("form", TEXTS)
@pytest.mark.parametrize("tag", TAGS)
def test_what_a_logger_wrote_before_lines_hides_no_statement(
    form: str, tag: str, tmp_path: Path
) -> None:
    lines = TEXTS[form].splitlines()
    changed = "".join(f"{tag}{line}\n" for line in lines * (3 if len(lines) < 3 else 1))
    alone = "\n".join(lines * (3 if len(lines) < 3 else 1)) + "\n"
    assert facts(of_text(tmp_path, changed), form) == facts(of_text(tmp_path, alone), form)


@pytest.mark.parametrize("form", [form for form in TEXTS if form != "lspci"])
@pytest.mark.parametrize("second", ["ports of NICs", "kernel log", "NCCL log"])
def test_a_second_tools_output_changes_no_statement_of_the_first(
    form: str, second: str, tmp_path: Path
) -> None:
    alone = facts(of_text(tmp_path, TEXTS[form]), form)
    both = facts(of_text(tmp_path, TEXTS[form] + TEXTS[second]), form)
    assert both[: len(alone)] == alone


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(form=st.sampled_from(sorted(TEXTS)), share=st.floats(0, 1))
def test_a_cut_leaves_what_stands_before_it(form: str, share: float, tmp_path: Path) -> None:
    text = TEXTS[form]
    cut = text[: int(share * len(text))]
    lines = cut.count("\n")
    whole = [
        statement for statement in of_text(tmp_path, text).statements if statement.line < lines
    ]
    left = of_text(tmp_path, cut).statements
    # What a block says at its end may be missing; no statement is another one.
    kinds = [(statement.kind, statement.line) for statement in left]
    assert [
        (statement.kind, statement.line)
        for statement in whole
        if statement.kind not in ("port", "stack")
    ] == [
        (kind, line) for kind, line in kinds if line < lines and kind not in ("port", "stack")
    ]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(content=st.binary(max_size=2000))
def test_any_bytes_are_read_or_left(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "any"
    file.write_bytes(content)
    evidence = read_evidence([file])
    assert len(evidence.files) == 1


def test_every_reader_of_machines_has_lines_of_its_own() -> None:
    assert set(OWNED_BY_MACHINES) == set(READERS)
