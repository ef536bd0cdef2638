"""Rings and trees that NCCL's logs and graph files list, as lines for a screen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from ccbench.units import plural

MOST_LINES = 8
"""Different rings, chains and trees of each sort that are printed."""

MOST_RANKS = 32
"""Ranks of one ring and edges of one tree that are printed."""

RINGS_CUT = "rings_first_"
"""How facts of rings begin that the source cut after so many ranks."""


def channel_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """Rings, chains and trees of a topology's facts; those alike once, with how many there are."""
    yield from _orders("ring", _lists(facts.get("rings")))
    for name, orders in facts.items():
        if name.startswith(RINGS_CUT):
            yield from _orders("ring", _lists(orders), " ... (cut by the source)")
    chains = facts.get("chains")
    for graph, orders in chains.items() if isinstance(chains, dict) else ():
        yield from _orders(f"chain of graph {graph}", _lists(orders))
    yield from _trees(facts.get("trees"))


def network_line(facts: Mapping[str, Any]) -> str:
    """Ranks, machines and network devices that a log names without drawing the machine; may be empty."""
    parts = []
    for name, word in (("nranks", "rank"), ("nnodes", "machine")):
        if isinstance(facts.get(name), int):
            parts.append(plural(facts[name], word))
    devices = facts.get("net_devices")
    if isinstance(devices, list) and devices:
        listed = " ".join(map(str, devices[:16]))
        parts.append(f"{plural(len(devices), 'network device')} ({listed})")
    return ", ".join(parts)


def _lists(orders: object) -> list[list[Any]]:
    """The orders of a list, or of a mapping from channels to them."""
    found = list(orders.values()) if isinstance(orders, dict) else orders
    return [order for order in found if isinstance(order, list)] if isinstance(found, list) else []


def _orders(word: str, orders: list[list[Any]], ending: str = "") -> Iterator[str]:
    alike = Counter(tuple(map(str, order)) for order in orders if order)
    for order, times in list(alike.items())[:MOST_LINES]:
        shown = " ".join(order[:MOST_RANKS]) + (" ..." if len(order) > MOST_RANKS else "")
        yield f"{word}: {shown}{ending}" + (f"  (x{times})" if times > 1 else "")
    if len(alike) > MOST_LINES:
        yield f"and {len(alike) - MOST_LINES} more orders of this sort; --json lists them"


def _trees(trees: object) -> Iterator[str]:
    """One line for trees that are alike: each known edge as parent > child."""
    edges: dict[str, dict[tuple[int, int], None]] = {}
    for rank, of_rank in trees.items() if isinstance(trees, dict) else ():
        for tree, edge in of_rank.items() if isinstance(of_rank, dict) else ():
            known = edges.setdefault(str(tree), {})
            if not isinstance(edge, dict) or not str(rank).isdecimal():
                continue
            if isinstance(edge.get("parent"), int):
                known[(edge["parent"], int(rank))] = None
            children = edge.get("children")
            for child in children if isinstance(children, list) else ():
                if isinstance(child, int):
                    known[(int(rank), child)] = None
    alike = Counter(tuple(sorted(known)) for known in edges.values() if known)
    for known_edges, times in list(alike.items())[:MOST_LINES]:
        shown = " ".join(f"{parent}>{child}" for parent, child in known_edges[:MOST_RANKS])
        more = " ..." if len(known_edges) > MOST_RANKS else ""
        yield f"tree: {shown}{more}" + (f"  (x{times})" if times > 1 else "")
    if len(alike) > MOST_LINES:
        yield f"and {len(alike) - MOST_LINES} more trees; --json lists them"
