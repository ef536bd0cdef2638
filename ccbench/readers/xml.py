"""XML that strangers wrote: parsed without trusting it, and kept as far as it goes when it is damaged.

Document types, entities and external references are refused, size, depth and number of elements are bounded,
so that no small file can cost much time or memory, or open another file. A document that ends early or breaks
in the middle keeps every element whose start tag was read; what follows the damage is left out and named in
a warning with its line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from ccbench.errors import MachineError
from ccbench.findings import SourceWarning

MOST_CHARACTERS = 16 * 2**20
"""Characters a document may have; the largest topology seen in the wild has about 1.5 million."""

MOST_DEPTH = 64
"""Elements that may stand inside each other; cascaded PCIe switches reach about 15."""

MOST_ELEMENTS = 200_000
"""Elements a document may have; NCCL itself reads at most 256 of one host."""

_CHUNK = 2**16
_PROLOGUE = 2**18
_OPENING = re.compile(r"<([A-Za-z_][\w.:-]{0,63})(?=[\s/>])")
_SKIPPED = (("<!--", "-->"), ("<?", "?>"), ("<!", ">"))


@dataclass
class Element:
    """One element. ``line`` is that of its start tag; ``closed`` is False where its end was never read.

    text: what stands directly in it, without blanks around; empty where the element is not closed.
    """

    tag: str
    attributes: dict[str, str]
    line: int
    children: list[Element] = field(default_factory=list)
    closed: bool = False
    text: str = ""

    def walk(self) -> Iterator[Element]:
        """This element and all below it, in document order."""
        waiting = [self]
        while waiting:
            element = waiting.pop()
            yield element
            waiting.extend(reversed(element.children))

    def named(self, tag: str) -> list[Element]:
        """Direct children called ``tag``, in order."""
        return [child for child in self.children if child.tag == tag]


@dataclass(frozen=True)
class XmlDocument:
    """Elements that could be read; some may be missing unless it is ``complete``."""

    root: Element
    warnings: tuple[SourceWarning, ...] = ()

    @property
    def complete(self) -> bool:
        """True if the whole root element was read."""
        return self.root.closed


class _Builder:
    """Receives what the parser reads; ElementTree fixes the names of the methods."""

    def __init__(self, name: str, first_line: int) -> None:
        self.name, self.first_line = name, first_line
        self.parser: Any = None
        self.root: Element | None = None
        self.open: list[Element] = []
        self.texts: list[list[str]] = []
        self.count = 0

    def line(self) -> int:
        return int(self.parser.parser.CurrentLineNumber) + self.first_line - 1

    def refusal(self, fault: str, expected: str) -> MachineError:
        return MachineError(f"{self.name}: line {self.line()}: {fault}; expected {expected}")

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self.count += 1
        if self.count > MOST_ELEMENTS:
            expected = "the few thousand of a machine; check the file"
            raise self.refusal(f"more than {MOST_ELEMENTS} elements", expected)
        if len(self.open) >= MOST_DEPTH:
            expected = "a machine's tree; check the file"
            raise self.refusal(f"elements nested more than {MOST_DEPTH} deep", expected)
        element = Element(tag, dict(attributes), self.line())
        if self.open:
            self.open[-1].children.append(element)
        else:
            self.root = element
        self.open.append(element)
        self.texts.append([])

    def end(self, tag: str) -> None:
        element = self.open.pop()
        element.text = "".join(self.texts.pop()).strip()
        element.closed = True

    def data(self, content: str) -> None:
        if self.texts:
            self.texts[-1].append(content)

    def feed(self, text: str, doctype_allowed: bool) -> str:
        """Parse ``text``; return the parser's complaint, empty when there is none."""
        from xml.etree.ElementTree import ParseError
        from xml.parsers.expat import ErrorString

        from defusedxml.common import DefusedXmlException  # type: ignore[import-untyped]  # ships no types
        from defusedxml.ElementTree import DefusedXMLParser  # type: ignore[import-untyped]  # ships no types

        # A bare document type names a file; the parser has no way to open it.
        self.parser = DefusedXMLParser(
            target=self, forbid_dtd=not doctype_allowed, forbid_external=not doctype_allowed
        )
        try:
            # In pieces, because limits are checked as elements come, before the rest is parsed.
            for start in range(0, len(text), _CHUNK):
                self.parser.feed(text[start : start + _CHUNK])
            self.parser.close()
        except ParseError as error:
            return ErrorString(error.code)
        except DefusedXmlException:
            fault = "a document type or an entity is declared"
            raise self.refusal(fault, "plain elements; remove the declaration") from None
        return ""


def root_tag(text: str) -> str:
    """The name of the first element of ``text``, empty when its beginning is no XML; cheap, never raises."""
    start = text.find("<", 0, _PROLOGUE)
    while start >= 0:
        # Declarations, comments and document types may stand before the first element.
        match = _OPENING.match(text, start)
        if match is not None:
            return match[1]
        end = next((end for begin, end in _SKIPPED if text.startswith(begin, start)), "")
        stop = text.find(end, start, start + _PROLOGUE) if end else -1
        start = text.find("<", stop + len(end), stop + _PROLOGUE) if stop >= 0 else -1
    return ""


def parse_xml(text: str, name: str, doctype_allowed: bool = False) -> XmlDocument:
    """The elements of ``text``; ``name`` (of the kind of file) opens every error message.

    doctype_allowed: accept ``<!DOCTYPE name SYSTEM "...">`` (never fetched); entities stay refused.
    Raises MachineError for text without any element, for declared entities, and above the limits.
    """
    if len(text) > MOST_CHARACTERS:
        raise MachineError(
            f"{name}: {len(text)} characters; at most {MOST_CHARACTERS} are read; is this a topology file?"
        )
    warnings: list[SourceWarning] = []
    start = max(text.find("<"), 0)
    if text[:start].strip().strip("\ufeff"):
        warnings.append(
            SourceWarning("damaged_line", "text before the first element is left out", 1)
        )
    first_line = text.count("\n", 0, start) + 1
    builder = _Builder(name, first_line)
    # Lone surrogates (from files opened with errors="surrogateescape") cannot be handed to the parser.
    sound = text[start:].encode("utf-8", errors="replace").decode("utf-8")
    complaint = builder.feed(sound, doctype_allowed)
    if builder.root is None:
        raise MachineError(
            f"{name}: no XML element found ({complaint or 'the text is empty'}); expected an XML "
            "document; check that the whole file was copied"
        )
    if complaint:
        line, root = builder.line(), builder.root
        if root.closed:
            text = f"text after the end of <{root.tag}> is left out ({complaint})"
            warnings.append(SourceWarning("damaged_line", text, line))
        else:
            opened = builder.open[-1].tag if builder.open else ""
            where = "ends" if line >= sound.count("\n") + first_line else "breaks"
            text = f"the document {where} inside <{opened}> ({complaint}): the rest is left out"
            warnings.append(SourceWarning("truncated", text, line))
    return XmlDocument(builder.root, tuple(warnings))


def parse_below(text: str, name: str, tag: str, writer: str) -> tuple[XmlDocument, Element]:
    """Return what ``parse_xml`` does, and its first ``tag``; MachineError naming ``writer`` without."""
    document = parse_xml(text, name)
    first_element = next(
        (element for element in document.root.walk() if element.tag == tag), None
    )
    if first_element is None:
        raise MachineError(
            f"{name}: line {document.root.line}: <{document.root.tag}> was found, <{tag}> was expected; "
            f"give a file that {writer} wrote"
        )
    return document, first_element
