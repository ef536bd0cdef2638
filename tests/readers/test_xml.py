from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.errors import MachineError
from ccbench.readers import xml
from ccbench.readers.xml import MOST_CHARACTERS, MOST_DEPTH, parse_xml, root_tag
from tests.clocks import within

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

    def read() -> None:
        root_tag(text)
        try:
            parse_xml(text, NAME)
        except MachineError as error:
            assert "a file: " in str(error)  # noqa: PT017 - both outcomes are allowed, only the time counts

    within(2, read)


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
