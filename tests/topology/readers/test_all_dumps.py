"""Every real dump through the registry: what was found, of what must be found."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from typing import Any

import pytest

from ccbench.errors import MachineError
from ccbench.topology.readers import READERS, read_text, reader
from tests.topology.dumps import entries, names, needs_dumps, text_of
from tests.topology.facts import checked_facts, compare

ENTRIES = entries()
SHARE_MET = 0.98

pytestmark = needs_dumps


def test_nearly_every_fact_of_every_dump_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    checked: Counter[str] = Counter()
    missed: Counter[str] = Counter()
    lines: list[str] = []
    for entry in ENTRIES:
        kind = entry["file"].split("/")[0]
        checked[kind] += len(checked_facts(entry))
        misses = compare(entry, read_text(text_of(entry), entry["file"]))
        missed[kind] += len(misses)
        lines += misses
    met = checked.total() - missed.total()
    with capsys.disabled():
        print()
        for line in lines:
            print(f"  missed: {line}")
        for kind, count in sorted(checked.items()):
            print(f"  {kind}: {count - missed[kind]} of {count} facts")
        print(f"  {len(ENTRIES)} dumps: {met} of {checked.total()} facts ({met / checked.total():.2%})")
    assert met >= SHARE_MET * checked.total(), "\n".join(lines)


def test_a_class_that_is_stated_is_the_right_one() -> None:
    wrong = [
        line
        for entry in ENTRIES
        for line in compare(entry, read_text(text_of(entry)))
        if (": topology_class:" in line and not line.endswith("found 'unknown'"))
        or (": nvswitch:" in line and not line.endswith("found None"))
    ]
    assert not wrong


def test_comparing_notices_every_fact_that_is_changed() -> None:
    """A comparison that lets everything pass would make the others worthless."""
    for entry in ENTRIES:
        topology = read_text(text_of(entry))
        met = set(checked_facts(entry)) - {line.split(": ")[1] for line in compare(entry, topology)}
        for key in met - {"topology_class", "fault"}:
            wanted = checked_facts(entry)[key]
            other = dataclasses.replace(topology, facts={**topology.facts, key: "something else"})
            if wanted == "damaged":
                other = dataclasses.replace(topology, notices=())
            assert any(f": {key}: " in line for line in compare(entry, other)), (entry["file"], key)


@pytest.mark.thinned(12)
@pytest.mark.parametrize("entry", ENTRIES, ids=names(ENTRIES))
def test_a_dump_cut_anywhere_is_read_or_refused_in_one_line(entry: dict[str, Any]) -> None:
    text = text_of(entry)
    for length in range(0, len(text), 64):
        refusal = ""
        try:
            topology = read_text(text[:length], "cut.txt")
        except MachineError as error:
            refusal = str(error)
        else:
            named = {device.name for device in topology.devices}
            assert len(named) == len(topology.devices)
            assert all({link.source, link.target} <= named for link in topology.links)
        assert "\n" not in refusal


@pytest.mark.parametrize("entry", ENTRIES, ids=names(ENTRIES))
def test_exactly_one_reader_recognises_a_dump(entry: dict[str, Any]) -> None:
    text = text_of(entry)
    assert len([name for name in READERS if reader(name).recognises(text)]) == 1


@pytest.mark.parametrize("entry", ENTRIES, ids=names(ENTRIES))
def test_the_files_name_plays_no_part(entry: dict[str, Any]) -> None:
    text = text_of(entry)
    named, nameless = read_text(text, "other.xml"), read_text(text)
    assert (named.name, named.devices, named.links) == ("other.xml", nameless.devices, nameless.links)
    assert dict(named.facts) == dict(nameless.facts)


@pytest.mark.parametrize(
    "text", ["", " \n", "\x00\x01\x02" * 100, "<html></html>", "hello, world", "{}", "\ufffd" * 50]
)
def test_what_is_no_machine_is_refused_with_name_and_advice(text: str) -> None:
    with pytest.raises(MachineError, match="topo -m") as caught:
        read_text(text, "box.txt")
    assert str(caught.value).startswith("box.txt: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "line", ["<", "GPU0", "<system ", "NCCL INFO ", "\t", "[0] ", "Link 0", "0-1,", "\n", "  "]
)
def test_a_megabyte_of_anything_is_sorted_out_in_seconds(line: str) -> None:
    text = line * (1_000_000 // len(line))
    for name in READERS:
        started = time.process_time()
        reader(name).recognises(text)
        assert time.process_time() - started < 2, name
