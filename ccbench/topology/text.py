"""Text as tools print it and people paste it: lines, numbers with their rounding, PCI addresses, XML.

Shared by the readers of machines (topology.readers) and of other tools' results (results.importers).

Words of people about machines: what they say is there, and what they say is not.

XML that strangers wrote: parsed without trusting it, and kept as far as it goes when it is damaged.

Document types, entities and external references are refused, size, depth and number of elements are bounded,
so that no small file can cost much time or memory, or open another file. A document that ends early or breaks
in the middle keeps every element whose start tag was read; what follows the damage is left out and named in
a warning with its line.

Model names of accelerators by PCI vendor and device id, for sources that print no name: only ids that were
seen beside their name, in what lspci -nn, nouveau's and vendors' own tables print in public repositories, or
in hwloc's files of such machines (15f9, 1db8). The list is short on purpose: an id that is not listed has no
name here, never a similar one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ccbench.documents import read_installed
from ccbench.errors import MachineError
from ccbench.findings import SourceWarning
from ccbench.topology.graph import Device

_TERMINAL = re.compile(
    r"\x1b\[[0-9;?]{0,20}[A-Za-z]|\x1b[()][A-Za-z0-9]"
    r"|\[[0-9]{1,2}(?:;[0-9]{1,2})*m"  # colours whose ESC byte was lost on the way through a web page
    r"|[\x00-\x08\x0b\x0e-\x1f\x7f]"
)

_TAG = re.compile(
    r"\([^()\n]{0,120}pid=\d{1,10}[^()\n]{0,60}\)\s?"  # Ray
    r"|\[[^\]\s\d,][^\]\s,]{0,60}[,:]\d{1,9},\d{1,9}\](?:<std(?:out|err|diag)>)?:?\s?"  # Open MPI 5
    r"|\[\d{1,9},\d{1,9}\](?:<std(?:out|err|diag)>)?:?\s?"  # mpirun --tag-output
    r"|\[[\w.-]{1,200}:\d{1,9}\]:\s?"  # Intel MPI's -prepend-rank, torchrun
    r"|\[default\d{1,6}\]:\s?"  # torchrun
    r"|\[pod/[^\]\s]{1,200}\]\s?"  # kubectl logs --prefix
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\s"  # --timestamps
    r"|\s{0,6}\d{1,7}:\s"  # srun --label
    r"|\[\d{1,7}\]\s(?=\s{0,9}#|\s{0,16}\d[\d_]{0,20}\s{1,40}\d)"  # mpiexec -l, before a table's lines
    r"|[A-Za-z][\w.-]{0,80}(?::|\s{1,4}\|)\s(?=\s{0,8}#|\s{0,16}\d{1,20}\s{1,16}\d{1,20}\s)"  # pdsh, compose
    r"|>\s"  # a quotation
)
_MOST_TAGS = 5

# One word that names a part of a machine. The look-ahead settles a word once, so that no text takes long.
_NAMED = (
    r"(?=[\w./-]*?"
    r"(?:nv-?link|nv-?switch|nvl-?\d|nvls|sharp|bridge|mesh|cube|xgmi|infinity|fabric|hccs|p2p|peer|gpudirect|rdma|infiniband|ethernet|slingshot|omni-?path|switch|link|network|connector|adapter)"
    r"|\b(?:ib|ipoib|roce(?:v\d)?|efa|opa|tcp(?:xo?)?|gdr|nics?|nv\d{1,2}|mnnvl|sxm\d?|hgx|dgx)(?![a-z]))"
)
_PART = rf"(?<![\w./])(?<!(?<!\bnon)-){_NAMED}[\w./-]+"
_PARTS = rf"{_PART}(?:\s+{_PART}){{0,3}}"
_MORE = rf"\s+(?:and|n?or)\s+(?:(?:no|an?|any)\s+)?{_PARTS}"
_PAIR = rf"{_PARTS}(?:{_MORE})?"
_LIST = rf"{_PARTS}(?:(?:\s*,\s*{_PARTS}){{0,3}}\s*,?{_MORE}){{0,3}}"
_PCIE = r"pcie[\w.-]*(?:\s(?:gen\s?)?[1-6]\b)?"
_BETWEEN = r"(?:(?!(?:pcie|but|with|only|over|via|through|and|or)\b)[\w'-]{1,20}\s+){0,3}?"
_IS = r"(?:(?:is|are|was|were|has been|have been)\s+)?(?:currently\s+|all\s+)?"
_OUT_OF_USE = (
    r"(?:disabled|missing|absent|broken|unused|inactive|dead|removed|down|failed|unplugged|unpopulated|unavailable"
    r"|unsupported)\b"
)
_IN_USE = (
    r"(?:installed|present|available|used|in use|enabled|active|activated|connected|populated|plugged|fitted"
    r"|mounted|supported|working|possible|detected|found|there|up|on|reachable|usable|visible|allowed)\b"
)
_NO = (
    r"(?:\bthere (?:is|are|was|were) )?"
    r"(?:\b(?:no|not|without|lacks?|lacking|minus|neither|nor|never|non|none(?=\s+of\b)"
    r"|(?:does|do|has|have|is|are)n't)|w/o|(?<![\w.-])(?:zero|0(?:\s?%\s+of)?(?=\s+(?:x\s|(?:[\w-]+\s+){0,4}links\b|[\w-]+s\b))))"
    # A hyphen before what is no part makes an adjective (a non-blocking fabric); "no more than 4" are some.
    rf"(?:\s+(?!only\b|(?:more|less|fewer)\s+than\b)|-(?:{_NAMED}|(?=pcie|gpu)))"
)
_DENIAL = re.compile(
    # Of a quality, which denies no part: "never oversubscribed InfiniBand".
    r"\b(?:not|never|non)[\s-]+(?:over-?subscribed|congested|contended|shared|throttled|degraded|tapered|limited)\b"
    rf"|(?<![\w./]){_NAMED}[\w./-]*-less\b|"
    # After the part: "bridge not installed", "NVLink disabled", "NVLink: none".
    rf"{_PAIR}\s?(?:(?:[,:(-]\s*)?{_IS}(?:not|never|isn't|aren't|wasn't|weren't)\s+(?:yet\s+|been\s+)?{_IN_USE}"
    rf"|(?::\s*)?{_IS}(?:{_OUT_OF_USE}|off\b)|\(\s*{_IS}(?:{_OUT_OF_USE}|off\b)\s*\)"
    # A variable (NCCL_NVLS_ENABLE=0) may be of one of several runs: whoever reads variables knows of which.
    rf"|(?::|(?<!_ENABLE)=)\s?(?:no|none|off|false|0)(?![\w.]))(?:\s+{_LIST})?"
    # Before it: "no working NVLink bridge", "no PCIe switch", "not a DGX", "missing bridge".
    rf"|{_NO}(?:{_BETWEEN}(?:{_PCIE}\s+)?{_LIST}|{_PCIE}|(?:an?\s+|the\s+|any\s+)?[\w./+-]+)"
    rf"|\b{_OUT_OF_USE}\s+{_LIST}",
    re.IGNORECASE,
)

_SHARES = {"half": 0.5, "third": 1 / 3, "quarter": 0.25, "fourth": 0.25, "eighth": 0.125}
# An ordinal ("the third NVLink") is no share, so that all but a half need their "of".
_SHARE = (
    r"\b(?:(?P<percent>[1-9][0-9]?)\s?(?:%|percent)\s+of|half(?:\s+of)?"
    r"|(?:(?P<times>two|three)[\s-])?(?P<part>third|quarter|fourth|eighth)s?\s+of)\s+(?:(?:the|its|their|all)\s+)*"
)

_RANGE = re.compile(r"([0-9]{1,7})(?:-([0-9]{1,7}))?", re.ASCII)
_WHOLE = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_NUMBER = re.compile(
    r"[+-]?[0-9]{1,30}(?:\.([0-9]{0,30}))?(?:[eE]([+-]?[0-9]{1,3}))?", re.ASCII
)


def plain(text: str) -> str:
    """Return ``text`` without terminal escapes and other control characters, its lines ended by ``\\n``."""
    return _TERMINAL.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))


def plain_lines(text: str) -> list[str]:
    """Return the lines of ``plain(text)``; index + 1 is the line number."""
    return plain(text).split("\n")


def without_tags(line: str) -> str:
    """Return ``line`` without what launchers wrote before it: ranks, hosts, pods, time stamps."""
    # Launchers start each other, so a line may carry the tags of several.
    for _ in range(_MOST_TAGS):
        match = _TAG.match(line)
        if match is None:
            break
        line = line[match.end() :]
    return line


def said_and_denied(words: str) -> tuple[str, str]:
    """Return (what ``words`` say is there, what they say is not), of a machine or a network.

    ``pcie4, no NVLink bridge`` says ``pcie4`` and denies ``no NVLink bridge``. Parts that stand together are
    denied together (``without NVLink or NVSwitch``), and where a word may belong to either side it is denied:
    a machine is better taken to be slower than it is. Words that deny nothing are returned as they are.
    """
    denied = _DENIAL.findall(words)
    if not denied:
        return words, ""
    kept = re.sub(r"\(\W*\)", "", _DENIAL.sub(",", words)).split(",")
    return ", ".join(filter(None, map(str.strip, kept))), "; ".join(denied)


def share_said(words: str, part: str) -> tuple[float, str]:
    """Return (least share of a machine's parts that ``words`` say is in use or fast, the other words).

    ``pcie4, half of the NVLinks`` and ``pcie4, NVLink at half rate`` say 0.5 of NVLinks, and ``pcie4``: a
    share of a part does not say that it is there. part: a pattern of its name.
    """
    rated = rf"(?:{part})\s+(?:[a-z]+\s+)?at\s+(?:an?\s+)?{_SHARE}(?:full\s+)?(?:rate|speed|width|bandwidth)"
    shares = [1.0]
    for pattern in (rf"{_SHARE}(?:them\b|{part})(?P<gone>\s+{_IS}{_OUT_OF_USE})?", rated):
        for match in re.finditer(pattern, words, re.IGNORECASE):
            share = _SHARES[(match["part"] or "half").lower()]
            share *= {"two": 2, "three": 3}.get((match["times"] or "").lower(), 1)
            share = int(match["percent"]) / 100 if match["percent"] else share
            shares.append(1 - share if match.groupdict().get("gone") else share)
        words = re.sub(pattern, "", words, flags=re.IGNORECASE)
    return min(shares), words


def whole(text: str) -> int | None:
    """Return the whole number that ``text`` spells in at most 18 digits; None for anything else."""
    return int(text) if _WHOLE.fullmatch(text) else None


@dataclass(frozen=True)
class PrintedFigure:
    """A number as printed, times its unit; ``half_unit`` is what rounding may have changed it by."""

    value: float
    half_unit: float

    def times(self, factor: float) -> PrintedFigure:
        """Return the same figure in a unit that is ``factor`` times smaller."""
        return PrintedFigure(self.value * factor, self.half_unit * factor)

    def over(self, divisor: float) -> PrintedFigure:
        """Return the same figure in a larger unit: rounded once only, unlike ``times(1 / divisor)``."""
        return PrintedFigure(self.value / divisor, self.half_unit / divisor)


def figure(text: str) -> PrintedFigure | None:
    """Return the figure that ``text`` spells; None for none, a negative one, and one too large to hold."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        return None
    value, exponent = float(text), int(match[2] or 0) - len(match[1] or "")
    if not math.isfinite(value) or value < 0 or not -300 < exponent < 300:
        return None
    # Half a unit of the last digit: 10.50 is known to 0.005, 1e3 to 500.
    return PrintedFigure(value, 0.5 * 10.0**exponent)


def decimal(text: str) -> float | None:
    """Return the value of ``figure(text)``."""
    number = figure(text)
    return number.value if number else None


def one_or_all(values: Sequence[Any]) -> Any:
    """Return the value that all of ``values`` are, all where they differ, None where there is none."""
    if not values:
        return None
    return values[0] if len(set(values)) == 1 else list(values)


def ranges(text: str) -> tuple[tuple[int, int], ...] | None:
    """Return a Linux list such as ``0-13,28-41`` as (first, last) pairs; None where it is none.

    Ranges are not expanded, so that a damaged number cannot fill the memory.
    """
    pairs = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None or int(match[2] or match[1]) < int(match[1]):
            return None
        pairs.append((int(match[1]), int(match[2] or match[1])))
    return tuple(pairs)


def overlap(
    first_list: tuple[tuple[int, int], ...], second_list: tuple[tuple[int, int], ...]
) -> bool:
    """Return whether two lists of ranges name a number in common."""
    # By their beginning: a range overlaps what the other side has reached before it.
    reached = [-1, -1]
    sides = [(*pair, 0) for pair in first_list] + [(*pair, 1) for pair in second_list]
    for first, last, side in sorted(sides):
        if first <= reached[1 - side]:
            return True
        reached[side] = max(reached[side], last)
    return False


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


ADDRESS = re.compile(r"([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])")

CODING: Mapping[float, float] = {
    2.5: 8 / 10,
    5.0: 8 / 10,
    8.0: 128 / 130,
    16.0: 128 / 130,
    32.0: 128 / 130,
    64.0: 242 / 256,
}
"""GT/s of each generation -> share of the bits that are data: 8b/10b, 128b/130b, and 242 of 256 bytes of a
PCIe 6.0 flit (PCI Express Base Specification 1.1, 3.0 and 6.0)."""


GENERATIONS: Mapping[float, int] = {
    speed: index + 1 for index, speed in enumerate(sorted(CODING))
}
"""GT/s -> PCIe generation."""


def normal_address(text: str) -> str:
    """``00000000:0A:00.0`` -> ``0000:0a:00.0``: how sysfs spells it; the text itself if it is no address."""
    match = ADDRESS.fullmatch(text.strip())
    if match is None:
        return text.strip().lower()
    # Some tools pad the domain to eight digits; sysfs has four.
    return f"{int(match[1], 16):04x}:{match[2].lower()}:{match[3].lower()}.{match[4]}"


def card_count(devices: Iterable[Device]) -> int:
    """Return how many cards ``devices`` are: those at one address, whatever their function, are one.

    Devices without an address (bonded, virtual and container interfaces) are none.
    """
    # The digit behind the dot is the function of a card.
    return len(
        {
            (device.node, device.bus_id.rpartition(".")[0])
            for device in devices
            if "." in device.bus_id
        }
    )


def bytes_per_second(gigatransfers: float | None, width: int | None) -> float | None:
    """Return the rate of a PCIe link in one direction, less its coding; None where either is not known."""
    if gigatransfers is None or gigatransfers not in CODING or not width:
        return None
    return gigatransfers * 1e9 * CODING[gigatransfers] * width / 8


MODELS = Path(__file__).with_name("models.yaml")
"""Vendor -> device -> name."""


def model_of(vendor: str, device: str) -> str | None:
    """The name of a device with these ids as files print them (``0x10de``); None when it is not listed."""
    models: dict[str, dict[str, str]] = read_installed(MODELS)
    return models.get(vendor.strip().lower(), {}).get(device.strip().lower())
