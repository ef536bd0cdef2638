from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.errors import MachineError
from ccbench.topology import text as xml
from ccbench.topology.text import (
    MOST_CHARACTERS,
    MOST_DEPTH,
    figure,
    overlap,
    parse_xml,
    plain_lines,
    ranges,
    root_tag,
    said_and_denied,
    whole,
    without_tags,
)
from tests.topology.denials import NETWORKS, PARTS, denials


def test_colours_and_foreign_line_ends_disappear() -> None:
    assert plain_lines("\x1b[4mGPU0\x1b[0m\r\n[4mGPU1[0m\rend") == ["GPU0", "GPU1", "end"]


def test_text_in_brackets_that_is_no_colour_stays() -> None:
    assert plain_lines("[0] rank [12m away] [4x]") == ["[0] rank  away] [4x]"]
    assert plain_lines("ring[3] 10 m") == ["ring[3] 10 m"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", ((0, 0),)),
        ("0-13,28-41", ((0, 13), (28, 41))),
        ("1-1, 3-3", ((1, 1), (3, 3))),
        ("-31,64-95", None),
        ("5-2", None),
        ("N/A", None),
        ("", None),
        ("0-9999999", ((0, 9999999),)),
        ("0-99999999", None),
        ("²", None),
    ],
)
def test_lists_of_cpus(text: str, expected: tuple[tuple[int, int], ...] | None) -> None:
    assert ranges(text) == expected


@given(
    *[st.lists(st.tuples(st.integers(0, 60), st.integers(0, 9)), min_size=1, max_size=6)] * 2
)
def test_lists_overlap_where_they_name_a_number_in_common(
    one: list[tuple[int, int]], other: list[tuple[int, int]]
) -> None:
    found = [tuple((first, first + more) for first, more in parts) for parts in (one, other)]
    sets = [
        {number for first, last in half for number in range(first, last + 1)} for half in found
    ]
    assert overlap(*found) == bool(sets[0] & sets[1])


@pytest.mark.parametrize(
    "tag",
    [
        "(pid=123) ",
        "[1,0]<stdout>:",
        "[node-3,1,0]<stdout>: ",
        "[node-3:0]: ",
        "[default3]:",
        "[pod/a/b] ",
        "2026-01-02T03:04:05.678Z ",
        "  12: ",
        "> ",
    ],
)
def test_tags_of_launchers_disappear_and_what_they_tagged_keeps_its_indentation(
    tag: str,
) -> None:
    assert without_tags(f"{tag}  + PCI[24.0]") in ("  + PCI[24.0]", " + PCI[24.0]")
    assert without_tags("[0] 1048576 262144 float") == "1048576 262144 float"
    assert without_tags("[0] NCCL INFO Trees [0] 1") == "[0] NCCL INFO Trees [0] 1"


def test_a_figure_knows_half_a_unit_of_its_last_digit() -> None:
    expected = {"36.50": (36.5, 0.005), "1.2e+05": (1.2e5, 5000.0), "7": (7.0, 0.5)}
    assert {
        text: (f.value, f.half_unit) for text in expected if (f := figure(text))
    } == expected
    assert [figure(text) for text in ("-1", "N/A", "1e999", "")] == [None] * 4
    assert [whole(text) for text in ("12", "-1", "1.0", "9" * 19)] == [12, -1, None, None]


NAME = "a file"


def test_elements_keep_order_attributes_text_and_lines() -> None:
    document = parse_xml(
        '<?xml version="1.0"?>\n<a x="1">\n  <b/>\n  <!-- <d/> -->\n  <c y="2">t</c>\n</a>\n',
        NAME,
    )
    assert document.complete
    assert document.warnings == ()
    root = document.root
    assert (root.tag, root.attributes, root.line) == ("a", {"x": "1"}, 2)
    assert [(child.tag, child.line, child.text, child.closed) for child in root.children] == [
        ("b", 3, "", True),
        ("c", 5, "t", True),
    ]
    assert [element.tag for element in root.walk()] == ["a", "b", "c"]
    assert root.named("c")[0].attributes == {"y": "2"}


@pytest.mark.parametrize(
    ("text", "complete", "elements", "noticed"),
    [
        ('\n\n<?xml version="1.0"?>\n<a/>', True, [("a", 4)], []),
        ("\ufeff<a/>", True, [("a", 1)], []),
        (
            "node0: NCCL dump follows\n<a><b/></a>",
            True,
            [("a", 2), ("b", 2)],
            [("damaged_line", 1)],
        ),
        ("<a><b/></a>\n<a/>\n", True, [("a", 1), ("b", 1)], [("damaged_line", 2)]),
        (
            '<a>\n <b x="1">\n  <c/>\n  <d y="2',
            False,
            [("a", 1), ("b", 2), ("c", 3)],
            [("truncated", 4)],
        ),
        (
            '<a>\n<b/>\n<c x="1" x="2"/>\n<d/></a>',
            False,
            [("a", 1), ("b", 2)],
            [("truncated", 3)],
        ),
    ],
)
def test_damage_is_noticed_with_its_line_and_what_was_complete_before_it_stays(
    text: str, complete: bool, elements: list[tuple[str, int]], noticed: list[tuple[str, int]]
) -> None:
    document = parse_xml(text, NAME)
    assert document.complete is complete
    assert [(element.tag, element.line) for element in document.root.walk()] == elements
    assert [(warning.kind, warning.line) for warning in document.warnings] == noticed


def test_an_element_that_the_texts_end_leaves_open_is_named() -> None:
    document = parse_xml('<a>\n <b x="1">\n  <c/>\n  <d y="2', NAME)
    assert [element.closed for element in document.root.walk()] == [False, False, True]
    assert "inside <b>" in document.warnings[0].text


BOMB = (
    '<!DOCTYPE a [<!ENTITY x0 "ha">'
    + "".join(f'<!ENTITY x{n + 1} "{f"&x{n};" * 10}">' for n in range(12))
    + "]><a>&x12;</a>"
)
STOLEN = '<!DOCTYPE a [<!ENTITY q SYSTEM "file:///etc/hostname">]><a>&q;</a>'
PARAMETER = '<!DOCTYPE a [<!ENTITY % q SYSTEM "file:///etc/hostname"> %q;]><a/>'


@pytest.mark.parametrize("text", [BOMB, STOLEN, PARAMETER])
@pytest.mark.parametrize("doctype_allowed", [False, True])
def test_entities_are_refused_whether_or_not_a_document_type_is_allowed(
    text: str, doctype_allowed: bool
) -> None:
    with pytest.raises(MachineError, match=r"a file: line 1: .*remove the declaration"):
        parse_xml(text, NAME, doctype_allowed)


def test_a_document_type_is_refused_unless_allowed_and_then_never_fetched(
    tmp_path: Path,
) -> None:
    definition = tmp_path / "a.dtd"
    definition.write_text('<!ATTLIST a stolen CDATA "yes">')
    text = f'<!DOCTYPE a SYSTEM "{definition}"><a/>'
    with pytest.raises(MachineError, match="document type"):
        parse_xml(text, NAME)
    assert parse_xml(text, NAME, doctype_allowed=True).root.attributes == {}


def test_a_declared_encoding_does_not_change_text_that_is_decoded_already() -> None:
    text = '<?xml version="1.0" encoding="UTF-16"?><a x="\u00e9"/>'
    assert parse_xml(text, NAME).root.attributes == {"x": "\u00e9"}


@pytest.mark.parametrize(
    "text", ["", " \n", "no element", "<", "<a", "\x00<a/>"[:1], "<!-- only -->", "&amp;"]
)
def test_text_without_any_element_is_an_error_that_says_what_was_expected(text: str) -> None:
    with pytest.raises(
        MachineError, match=r"^a file: no XML element found .*expected an XML document"
    ):
        parse_xml(text, NAME)


def test_size_depth_and_number_of_elements_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MachineError, match=f"at most {MOST_CHARACTERS}"):
        parse_xml(" " * (MOST_CHARACTERS + 1), NAME)
    assert parse_xml("<a>" * MOST_DEPTH + "</a>" * MOST_DEPTH, NAME).complete
    with pytest.raises(MachineError, match=f"more than {MOST_DEPTH} deep"):
        parse_xml("<a>" * (MOST_DEPTH + 1) + "</a>" * (MOST_DEPTH + 1), NAME)
    monkeypatch.setattr(xml, "MOST_ELEMENTS", 1000)
    with pytest.raises(MachineError, match="more than 1000 elements"):
        parse_xml("<a>" + "<b/>" * 1000 + "</a>", NAME)


@pytest.mark.parametrize(
    "garbage",
    [
        "<",
        "<a ",
        "<!--",
        "&",
        "<a>&#65;",
        '<a x="\n',
        "<a>x\n",
        "<!DOCTYPE a [",
        "<?x ?>",
        "\x00",
    ],
)
def test_a_megabyte_of_garbage_takes_less_than_two_seconds(garbage: str) -> None:
    text = garbage * (2**20 // len(garbage))
    started = time.process_time()
    root_tag(text)
    try:
        parse_xml(text, NAME)
    except MachineError as error:
        assert "a file: " in str(error)  # noqa: PT017 - both outcomes are allowed, only the time counts
    assert time.process_time() - started < 2


@pytest.mark.parametrize(
    ("text", "tag"),
    [
        ("<system version='1'>", "system"),
        ("\n<?xml version='1.0'?><!-- <graphs> -->\n<!DOCTYPE x><system>", "system"),
        ("<graphs/>", "graphs"),
        ("GPU0 <0> <system>", ""),
        ("<!-- never closed <system>", ""),
        ("<system", ""),
        ("", ""),
    ],
)
def test_the_root_is_told_without_parsing(text: str, tag: str) -> None:
    assert root_tag(text) == tag


@given(st.text(alphabet=st.sampled_from("<>/ab=\"' \n&;![]-?\ud800\x00"), max_size=80))
def test_any_text_gives_a_document_or_a_machine_error(text: str) -> None:
    root_tag(text)
    try:
        document = parse_xml(text, NAME)
    except MachineError:
        return
    assert document.complete or document.warnings


@pytest.mark.parametrize(
    ("words", "message", "denied"),
    [
        ("pcie4, no NVLink bridge", "pcie4", "no NVLink bridge"),
        ("no NVLink pcie4", "pcie4", "no NVLink"),
        ("2 cards without bridge on PCIe 4", "2 cards, on PCIe 4", "without bridge"),
        ("no PCIe 5, pcie4", "pcie4", "no PCIe 5"),
        ("nvswitch3 (no SHARP)", "nvswitch3", "no SHARP"),
        ("nvswitch3, disabled ECC", "nvswitch3, disabled ECC", ""),
        ("bridge, not installed, pcie4", "pcie4", "bridge, not installed"),
        ("no NVLink, NVSwitch or bridge", "", "no NVLink, NVSwitch or bridge"),
        ("neither NVLink nor NVSwitch, pcie5", "pcie5", "neither NVLink nor NVSwitch"),
        ("NVLink missing bridge", "", "NVLink missing bridge"),  # of both readings the slower
        ("B200, not H100", "B200", "not H100"),
        ("tcp-25x1, ib-ndr-400x8 not used", "tcp-25x1", "ib-ndr-400x8 not used"),
        ("not only NVLink but NVSwitch", "not only NVLink but NVSwitch", ""),
        ("none used", "none used", ""),
        ("pcie4, 0 NVLinks", "pcie4", "0 NVLinks"),
        (
            "pcie4, 0 % of the NVLink or NVSwitch links",
            "pcie4",
            "0 % of the NVLink or NVSwitch links",
        ),
        ("NVLink (missing bridge)", "NVLink", "missing bridge"),
        ("bridge (removed), pcie4", "pcie4", "bridge (removed)"),
        ("device 0 NVIDIA H100 NVLink", "device 0 NVIDIA H100 NVLink", ""),
        ("no. 3 of the NVLink boxes", "no. 3 of the NVLink boxes", ""),
        ("non-blocking InfiniBand NDR", "non-blocking InfiniBand NDR", ""),
        ("HGX, non-blocking NVSwitch", "HGX, non-blocking NVSwitch", ""),
        ("zero-copy RoCE 400x8", "zero-copy RoCE 400x8", ""),
        ("pcie4, no-NVLink", "pcie4", "no-NVLink"),
        ("nvswitch3, 0 NVLink links", "nvswitch3", "0 NVLink links"),
        ("pcie4, NVLink-less", "pcie4", "NVLink-less"),
        ("no more than 4 NVLinks", "no more than 4 NVLinks", ""),
        ("never oversubscribed InfiniBand 400x8", "InfiniBand 400x8", "never oversubscribed"),
    ],
)
def test_what_is_said_to_be_missing_is_told_from_what_is_there(
    words: str, message: str, denied: str
) -> None:
    assert said_and_denied(words) == (message, denied)


@given(
    denials(PARTS + NETWORKS),
    st.sampled_from(["pcie4", "H100 SXM", "2 pairs NV12 bridge", "tcp-25x1"]),
)
def test_a_denial_leaves_what_stands_beside_it(denial: str, words: str) -> None:
    assert said_and_denied(words) == (words, "")
    for text in (f"{words}, {denial}", f"{denial}, {words}"):
        assert said_and_denied(text)[0].strip(" ,)") == words


@given(st.text("nolik vswitcbrdge,;()-/ 04", max_size=80))
def test_any_words_are_parted_and_those_that_deny_nothing_stay(words: str) -> None:
    said, denied = said_and_denied(words)
    assert denied or said == words


@pytest.mark.parametrize(
    "words", ["nvlink, ", "nvlink-bridge ", "no ", "nvlink and ", "link", "0 ", "(nvlink "]
)
def test_long_words_are_parted_in_little_time(words: str) -> None:
    started = time.process_time()
    said_and_denied(words * (20_000 // len(words)))
    assert time.process_time() - started < 5
