"""Models of GPUs: can the devices that an output lists be those of the machine that is named for it?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from ccbench.model.library.clusters import generations_in, pcie_generation
from ccbench.topology.classes import is_module, topology_class
from ccbench.topology.graph import Topology, TopologyClass

_ANY = re.compile(r"^(?:any|some|generic)\b", re.IGNORECASE)
"""First word of a catalog model that stands for every card of a kind."""


_SAYS_NOTHING = re.compile(r"\b(?:nvidia|tesla|amd|instinct|geforce|[0-9]+ ?gb|hbm[0-9a-z]*)\b")


def bare_model(words: str) -> str:
    """A model without maker and memory, which differ between boards and say nothing about links."""
    bare = " ".join(re.findall(r"[a-z0-9]+", words.lower()))
    while (less := " ".join(_SAYS_NOTHING.sub(" ", bare).split())) != bare:
        bare = less  # words that stand together now may say nothing together
    return bare


def is_other_model(one: str, other: str) -> bool:
    """Return whether two names of GPUs surely mean different ones; False where either says too little.

    Only words with figures count, and a letter more at the end tells nothing apart (MI300 and MI300X).
    """
    left, right = _numbered(one), _numbered(other)
    return bool(left and right) and not any(_alike(a, b) for a in left for b in right)


def _numbered(words: str) -> set[str]:
    if _ANY.match(words):
        return set()
    found = {word for word in bare_model(words).split() if any(letter.isdigit() for letter in word)}
    return {word for word in found if not re.fullmatch(r"sxm[0-9]*|gfx[0-9a-f]+|[0-9]+g|[0-9]", word)}


def _alike(one: str, other: str) -> bool:
    short, long = sorted((one, other), key=len)
    further = long[len(short) :]
    return long.startswith(short) and (not further or further[0].isalpha() or short[-1].isalpha())


@dataclass(frozen=True)
class Difference:
    """Model that was listed, and the machine's own.

    same_links: whether the two are cards on the same kind of slot, so that a model of links still holds.
    """

    listed: str
    machine: str
    model: str
    same_links: bool

    def __str__(self) -> str:
        return f"{self.machine} has {self.model}, and the devices listed are {self.listed}"


def difference(topology: Topology, models: Sequence[str]) -> Difference | None:
    """The first of ``models`` that is none of ``topology``'s GPUs; None where all may be."""
    gpus = topology.gpus
    own = str(gpus[0].attributes.get("model") or topology.facts.get("gpu_model") or "") if gpus else ""
    for listed in models:
        if is_other_model(listed, own):
            cards = topology_class(topology) is TopologyClass.PCIE and not is_module(listed)
            return Difference(listed, topology.name, own, cards and _slot(listed) == _slot(own))
    return None


def _slot(model: str) -> int | None:
    """PCIe generation of a model's port; None where the model is not known."""
    named = generations_in(model)
    return pcie_generation(named[0]) if named else None


def machines_with(model: str) -> tuple[str, ...]:
    """Machines of the catalog whose GPUs ``model`` names."""
    from ccbench.topology.catalog import catalog_names, load_catalog

    wanted = bare_model(model)
    found = []
    for name in catalog_names():
        gpus = load_catalog(name).gpus
        own = str(gpus[0].attributes.get("model", "")) if gpus else ""
        if own and bare_model(own) == wanted:
            found.append(name)
    return tuple(found)


def cure(model: str) -> str:
    """Return the option that names a machine with ``model``, for the end of an error."""
    names = machines_with(model)
    if names:
        return f"name --machine {' or '.join(names)}"
    return "name a machine that has them, or a file that describes it"
