"""Names that options and arguments take: completed by the shell, and said where a required one is missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem

from ccbench.cli.output import completing

Names = Callable[[click.Context], Iterable[str]]


def collectives(context: click.Context) -> Iterable[str]:
    """Names of collectives."""
    from ccbench.collectives import COLLECTIVES

    return COLLECTIVES


def algorithms(context: click.Context) -> Iterable[str]:
    """Names of the algorithms of the collective before."""
    from ccbench.schedules import ALGORITHMS

    chosen = context.params.get("collective")
    return dict.fromkeys(row.name for row in ALGORITHMS if chosen in (None, row.collective))


def catalog(context: click.Context) -> Iterable[str]:
    """Names of the catalog's machines."""
    from ccbench.topology.files import catalog_names

    return catalog_names()


def machines(context: click.Context) -> Iterable[str]:
    """Names of the catalog's machines, and ``detect``."""
    return (*catalog(context), "detect")


def networks(context: click.Context) -> Iterable[str]:
    """A network of each kind: eight NICs of its usual rate a node."""
    from ccbench.topology.node_nics import KINDS, PORT_GIGABITS

    return (f"{kind}-{PORT_GIGABITS.get(kind, 100)}x8" for kind in KINDS)


def backends(context: click.Context) -> Iterable[str]:
    """Names of backends."""
    from ccbench.cases.capabilities import backend_names

    return backend_names()


def dtypes(context: click.Context) -> Iterable[str]:
    """Names of element types."""
    from ccbench.dtypes import ITEM_BYTES

    return ITEM_BYTES


def suites(context: click.Context) -> Iterable[str]:
    """Names of the suites that ship, then of collectives, which a run sweeps."""
    from ccbench.suite.model import shipped_suites

    return dict.fromkeys((*shipped_suites(), *collectives(context)))


def plans(context: click.Context) -> Iterable[str]:
    """Names of the plans that ship."""
    from ccbench.plan.document import shipped_plans

    return shipped_plans()


def baselines(context: click.Context) -> Iterable[str]:
    """Names of published results."""
    from ccbench.results.loading import PREFIX, published_names, server_names

    return (PREFIX + name for name in (*published_names(), *server_names()))


class Named(click.types.StringParamType):
    """Text that is usually one of some names.

    else_type: what the shell completes where no name begins so. example: what to write where it is missing.
    """

    def __init__(self, names: Names, else_type: str = "", example: str = "") -> None:
        self._complete = completing(names, else_type)
        self._example = example

    def get_missing_message(
        self, param: click.Parameter, ctx: click.Context | None = None
    ) -> str | None:
        """Say what to type. click before 8.2 gives no context."""
        return f"Write {self._example}" if self._example else None

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the names that begin so."""
        return self._complete(ctx, param, incomplete)


MACHINE = Named(machines, "file", "--machine hgx-h100, or another of 'ccbench list machines'")
NETWORK = Named(networks)
COLLECTIVE = Named(
    collectives, "", "--collective all_reduce, or another of 'ccbench list collectives'"
)
ALGORITHM = Named(algorithms)
BACKEND = Named(backends)
DTYPE = Named(dtypes)
