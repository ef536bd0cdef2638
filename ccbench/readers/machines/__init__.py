"""Sources of a topology: the catalog, one of our files, or what another tool prints.

A reader module of READERS has ``recognises(text) -> bool``, cheap and never raising, and
``read(text) -> Topology``, which raises MachineError and nothing else. Modules are imported when a text is
read, so that a reader's heavy library costs nothing to those who do not read its format.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

from ccbench.documents import open_file
from ccbench.errors import MachineError
from ccbench.readers.lines import LARGEST_TEXT_BYTES, UTF_16, decoded_text, repeated_tags
from ccbench.topology.graph import Topology
from ccbench.units import shown

READERS: tuple[str, ...] = (
    "nccl_xml",
    "nccl_log",
    "npu_smi",
    "rocm_smi",
    "amd_smi",
    "smi_topo",
    "smi_nvlink",
)
"""Reader modules in the order they are asked.

XML first, because its root element leaves no doubt; then logs, which may quote any of the others; ``topo``
before ``nvlink``, because a paste of both says more in its matrix.
"""

FORMATS = (
    "an NCCL or RCCL topology XML, an NCCL_DEBUG=INFO log, "
    "'nvidia-smi topo -m', 'nvidia-smi nvlink -s', 'rocm-smi --showtopo', 'amd-smi topology' or 'npu-smi info -t topo'"
)

_TAGGED_LINES = 5000
"""More than the matrices and trees that people paste with a logger's tags."""

_SAMPLE_BYTES = 64 << 10
_SPACES = frozenset("\t\n\r\f\v\b\x1b\ufeff\xa0")
"""Signs that text has besides those to print: terminals write escapes, some editors other blanks."""


def reader(name: str) -> ModuleType:
    """Return the reader module called ``name``, one of READERS."""
    return importlib.import_module(f"{__name__}.{name}")


def _reader_of(text: str) -> str | None:
    """The name of the first reader that recognises ``text``."""
    return next((name for name in READERS if reader(name).recognises(text)), None)


def read_text(text: str, name: str = "") -> Topology:
    """Return the machine that ``text`` describes, read by the first reader that recognises it.

    Where none does, or the one that does finds no link, the first _TAGGED_LINES lines are read without what
    they repeat at their beginning. name: where the text comes from (a file's name), for errors and for
    Topology.name; never used to choose. Raises MachineError when no reader recognises the text, or when the
    one that does finds nothing in it.
    """
    topology: Topology | None
    try:
        topology = _read_plain(text, name)
    except MachineError:
        topology = _read_untagged(text, name, None)
        if topology is None:
            raise
    else:
        if not topology.links:
            topology = _read_untagged(text, name, topology) or topology
    return dataclasses.replace(topology, name=name) if name else topology


def _read_plain(text: str, name: str) -> Topology:
    candidate = _reader_of(text)
    if candidate is None:
        start = shown(text.strip()) if text.strip() else "nothing"
        raise MachineError(
            f"{name or 'the text'}: this is no machine description ccbench knows: {start}; give it {FORMATS}"
        )
    try:
        topology: Topology = reader(candidate).read(text)
    except MachineError as error:
        if name and not str(error).startswith(name):
            raise MachineError(f"{name}: {error}") from error
        raise
    return topology


def _read_untagged(text: str, name: str, as_it_is: Topology | None) -> Topology | None:
    """The machine of ``text`` without the tag that hides most of it; ``as_it_is`` where none hides any."""
    best, lines = as_it_is, text.split("\n")
    # Fewer remarks alone are no reason: a document that lost its lines' beginnings has none.
    least = _shown(as_it_is)[:2]
    for tag in repeated_tags(lines[:_TAGGED_LINES]):
        try:
            topology = _read_plain("\n".join(tag.removed(lines[:_TAGGED_LINES])), name)
        except MachineError:
            continue
        if _shown(topology)[:2] > least and _shown(topology) > _shown(best):
            best = topology
    return best


def _shown(topology: Topology | None) -> tuple[int, int, int]:
    if topology is None:
        return 0, 0, 0
    return len(topology.devices), len(topology.links), -len(topology.warnings)


def read_source(source: str) -> Topology:
    """Return the topology that ``source`` names, which is not this machine's.

    ``-``: the text on stdin. A name of the catalog, in any case. A path: one of our YAML or JSON files, or
    another tool's output, told apart by what it says. A file that is called like a machine of the catalog
    needs ``./`` before its name.

    Raises MachineError when there is no such thing, or nothing can be made of it.
    """
    from ccbench.topology.files import catalog_names, load_catalog

    if not source.strip():
        raise MachineError(
            "the source is empty; leave it out for this machine, or name a file or a machine of the catalog"
        )
    if source == "-":
        return _topology_of_bytes(
            sys.stdin.buffer.read(LARGEST_TEXT_BYTES + 1), "stdin", "stdin"
        )
    names = tuple(catalog_names())
    if source in names:
        return load_catalog(source)
    path = Path(source)
    try:
        exists = path.exists()
    except (OSError, ValueError):  # too long a name, a zero byte
        exists = False
    if exists:
        try:
            with open_file(path) as file:
                content = file.read(LARGEST_TEXT_BYTES + 1)
        except OSError as error:
            raise MachineError(
                f"{path}: cannot be read ({error.strerror}); name a topology file or a name of the catalog, "
                "or pipe the text in: ccbench topo -"
            ) from None
        return _topology_of_bytes(content, path.name, source)
    if source.lower() in names:
        return load_catalog(source.lower())
    near = difflib.get_close_matches(source.lower(), names, n=3, cutoff=0.4)
    listed = (
        ", ".join(near) if near else ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
    )
    kind = "Did you mean" if near else "The catalog has"
    raise MachineError(
        f"{shown(source)} is neither a file nor in the catalog. {kind}: {listed}"
    )


def topology_of_text(text: str, name: str, place: str = "") -> Topology:
    """Return the topology in ``text``: our JSON or YAML, or another tool's output.

    name: of the topology where the text gives none. place: what an error begins with; ``name`` if empty.
    """
    from ccbench.topology.files import VERSION_KEY, read_json, read_yaml

    text = text.removeprefix("\ufeff")
    # Other tools print JSON too; what has our key is ours, and what no reader knows is refused as ours.
    begin = re.compile(r"\s*").match(text)
    is_json = begin is not None and text.startswith("{", begin.end())
    if is_json and (f'"{VERSION_KEY}"' in text or _reader_of(text) is None):
        return read_json(text, place or name)
    # Comments and blank lines may be as long as people like; the key is among the first that follow.
    begin = re.compile(r"(?:[^\S\n]*(?:#[^\n]*)?\n)*").match(text)
    head = text[begin.end() if begin else 0 :][:20000]
    if re.search(rf"^['\"]?{VERSION_KEY}['\"]?:", head, re.M):
        return read_yaml(text, place or name)
    return read_text(text, name)


def _topology_of_bytes(content: bytes, name: str, place: str) -> Topology:
    text = decoded_text(content, place, "with the topology", MachineError)
    # Of a text, even a damaged one, less than a tenth is neither to print nor white space.
    sample = content[:_SAMPLE_BYTES]
    shown_as = "" if sample[:2] in UTF_16 else sample.decode("utf-8", "replace")
    odd = sum(
        not (sign.isprintable() or sign in _SPACES) or sign == "\ufffd" for sign in shown_as
    )
    if odd * 10 > len(shown_as):
        raise MachineError(
            f"{place}: is no text but binary data; give what a tool printed, or a YAML or JSON file, in UTF-8"
        )
    return topology_of_text(text, name, place)
