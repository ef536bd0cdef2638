from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccbench.errors import MachineError
from ccbench.readers import xml
from ccbench.readers.xml import MOST_CHARACTERS, MOST_DEPTH, parse_xml, root_tag

NAME = "a file"


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


def test_size_depth_and_number_of_elements_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MachineError, match=f"at most {MOST_CHARACTERS}"):
        parse_xml(" " * (MOST_CHARACTERS + 1), NAME)
    assert parse_xml("<a>" * MOST_DEPTH + "</a>" * MOST_DEPTH, NAME).complete
    with pytest.raises(MachineError, match=f"more than {MOST_DEPTH} deep"):
        parse_xml("<a>" * (MOST_DEPTH + 1) + "</a>" * (MOST_DEPTH + 1), NAME)
    monkeypatch.setattr(xml, "MOST_ELEMENTS", 1000)
    with pytest.raises(MachineError, match="more than 1000 elements"):
        parse_xml("<a>" + "<b/>" * 1000 + "</a>", NAME)


@given(st.text(alphabet=st.sampled_from("<>/ab=\"' \n&;![]-?\ud800\x00"), max_size=80))
def test_any_text_gives_a_document_or_a_machine_error(text: str) -> None:
    root_tag(text)
    try:
        document = parse_xml(text, NAME)
    except MachineError:
        return
    assert document.complete or document.warnings
