"""A topology written and read is the same topology; anything else in a file is refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.documents import read_machine_document
from ccbench.errors import MachineError
from ccbench.findings import SourceWarning
from ccbench.topology.files import (
    LARGEST_QUANTITY,
    MOST_LINKS,
    MOST_MACHINES,
    read_json,
    read_yaml,
    to_plain,
    topology_yaml,
)
from ccbench.topology.graph import (
    Device,
    DeviceKind,
    Link,
    LinkKind,
    LinkState,
    Topology,
    TopologyClass,
)

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
MAPPINGS = st.dictionaries(st.text(), VALUES, max_size=3)
QUANTITIES = st.none() | st.floats(min_value=0, max_value=LARGEST_QUANTITY)


@st.composite
def topologies(draw: st.DrawFn) -> Topology:
    names = draw(st.lists(st.text(min_size=1), min_size=1, max_size=4, unique=True))
    end, kind = st.sampled_from(names), st.sampled_from
    numa, count = st.none() | st.integers(-1, 8), st.integers(1, 99)
    devices = [
        draw(
            st.builds(
                Device,
                st.just(name),
                kind(DeviceKind),
                st.integers(-1, 9),
                st.text(),
                numa,
                MAPPINGS,
            )
        )
        for name in names
    ]
    links = st.builds(
        Link,
        end,
        end,
        kind(LinkKind),
        QUANTITIES,
        QUANTITIES,
        count,
        kind(LinkState),
        st.text(),
        MAPPINGS,
    )
    warnings = st.builds(
        SourceWarning, st.text(min_size=1), st.text(), st.none() | st.integers(0, 999)
    )
    return Topology(
        draw(st.text()),
        tuple(devices),
        tuple(draw(st.lists(links, max_size=4))),
        draw(kind(TopologyClass)),
        draw(st.text()),
        tuple(draw(st.lists(warnings, max_size=2))),
        draw(MAPPINGS),
        draw(st.dictionaries(st.tuples(end, end), st.text(), max_size=3)),
    )


def topology_json(topology: Topology) -> str:
    return json.dumps(to_plain(topology))


FORMS = [(topology_json, read_json), (topology_yaml, read_yaml)]


@pytest.mark.parametrize(("write", "read"), FORMS)
@given(topologies())
def test_a_file_gives_back_what_was_written(
    write: Callable[[Topology], str], read: Callable[[str], Topology], topology: Topology
) -> None:
    assert repr(read(write(topology))) == repr(topology)


TWO = Topology(
    "pair",
    (Device("gpu0", DeviceKind.GPU), Device("gpu1", DeviceKind.GPU)),
    (Link("gpu0", "gpu1", LinkKind.NVLINK, 25e9, 1e-7, 2),),
)


def changed(**changes: Any) -> str:
    return json.dumps({**to_plain(TWO), **changes})


def link_with(**fields: Any) -> str:
    return changed(links=[{"source": "gpu0", "target": "gpu1", "kind": "nvlink", **fields}])


DEVICES = to_plain(TWO)["devices"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "is not a mapping"),
        ('{"a": 1, "a": 2}', "'a' is given twice"),
        ('{"a": NaN}', "NaN is not a number"),
        ("{}", "this release reads 'ccbench_topology: 1'"),
        (changed(ccbench_topology=2), "ccbench_topology is 2"),
        (changed(colour="red"), "colour is not a field"),
        (changed(warnings=[{"kind": "x", "text": "y", "at": 1}]), "at is not a field"),
        (changed(devices=3), "devices: input should be a valid .*seen 3"),
        (changed(devices=[]), r"links\[0\].source: 'gpu0' is not a device"),
        (changed(devices=[*DEVICES, DEVICES[0]]), r"devices\[2\].name: 'gpu0' is given twice"),
        (changed(devices=[{"name": "a"}]), r"devices\[0\].kind: field required"),
        (changed(devices=[{"name": "", "kind": "gpu"}]), r"devices\[0\].name: '' is empty"),
        (changed(devices=[{"name": "a", "kind": "tpu"}]), "should be 'gpu', .*seen 'tpu'"),
        (
            changed(devices=[{"name": "a", "kind": "gpu", "node": True}]),
            "valid integer; seen True",
        ),
        (link_with(count=0), "count: 0 is not"),
        (link_with(count=MOST_LINKS + 1), "count"),
        (link_with(count=10**30), "count"),
        (link_with(bytes_per_second=1e308), "bytes_per_second"),
        (link_with(latency_seconds="1e-7"), "write numbers without quotes"),
        (link_with(latency_seconds=-1), "-1.0 is not"),
        (changed(facts={"machines": MOST_MACHINES + 1}), "facts.machines"),
        (changed(facts={"machines": 10**40}), "facts.machines"),
        (
            '{"ccbench_topology": 1, "name": ' + "9" * 5000 + "}",
            "more digits than any quantity",
        ),
        (changed(matrix=[["gpu0", "gpu1"]]), r"matrix: \[0\]\[2\]: field required"),
        (changed(matrix=[["a", "b", "X"], ["a", "b", "Y"]]), "two labels of one pair"),
        (
            changed(warnings=[{"kind": "x", "text": 1}]),
            r"warnings\[0\].text: input should be a valid string; seen 1",
        ),
    ],
)
def test_whatever_is_wrong_in_a_file_is_named_in_one_line(text: str, complaint: str) -> None:
    with pytest.raises(MachineError, match=complaint) as caught:
        read_json(text, "box.json")
    assert str(caught.value).startswith("box.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a: 1\na: 2\n", "box.yaml:2: a: the key is given twice, first on line 1"),
        ("a: &x [1]\nb: *x\n", "box.yaml:1: a: anchors and aliases are not read"),
        ("[" * 100_000, "nested deeper than 64 levels"),
        ("a: .nan\n", "a: '.nan' is not a number to work with"),
    ],
)
def test_yaml_beyond_plain_values_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(MachineError, match=complaint) as caught:
        read_yaml(text, "box.yaml")
    assert "\n" not in str(caught.value)


@given(st.data())
def test_damaged_files_never_raise_anything_but_a_machine_error(data: st.DataObject) -> None:
    write, read = data.draw(st.sampled_from(FORMS))
    text = list(write(TWO))
    for _ in range(data.draw(st.integers(1, 4))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.characters())
    kept = data.draw(st.integers(0, len(text)))
    complaint = ""
    try:
        read("".join(text[:kept]))
    except MachineError as error:
        complaint = str(error)
    assert "\n" not in complaint


@pytest.mark.parametrize("value", [(1, 2), {1: 2}, float("inf"), b"x", {"a": {3}}])
def test_what_json_cannot_give_back_is_not_written(value: object) -> None:
    strange = Topology("x", (Device("gpu0", DeviceKind.GPU, attributes={"strange": value}),))
    with pytest.raises(MachineError, match="strange"):
        topology_json(strange)


def test_a_link_to_nowhere_is_not_written() -> None:
    with pytest.raises(MachineError, match=r"links\[0\].target: 'gpu7' is not a device"):
        topology_json(Topology("x", TWO.devices, (Link("gpu0", "gpu7", LinkKind.PCIE),)))


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("none.json", None, "cannot be read"),
        ("binary.yaml", b"\xff\xfe\x00", "not UTF-8"),
        ("box.toml", b"", r"neither \.json nor \.yaml"),
        ("large.yaml", b"# " + b"x" * (4 << 20), "larger than 4096 KiB"),
    ],
)
def test_a_file_that_is_no_document_of_a_machine_is_refused(
    tmp_path: Path, name: str, content: bytes | None, complaint: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(MachineError, match=complaint):
        read_machine_document(tmp_path / name)
