"""Contents of a suite file, checked: Suite, Sweep and SamplingRules, frozen.

From a path or a shipped suite's name to a Suite, every mistake told in one line.
"""

from __future__ import annotations

import re
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    create_model,
    model_validator,
)

from ccbench.cases.axes import AXES, AXIS, Axis, InexactData, Variant
from ccbench.cases.capabilities import backend_names
from ccbench.cases.measurement import Sampling
from ccbench.collectives import COLLECTIVES, SETUPS
from ccbench.documents import MOST_BYTES, Document, FileOrigin, read_document, shipped_folder
from ccbench.errors import CcbenchError, SuiteError
from ccbench.groups import LAYOUT_AXES, MEGATRON_ORDER, ORDERS
from ccbench.suite import grouping
from ccbench.suite.accuracy import ACCURACY
from ccbench.suite.functions import normal_word
from ccbench.suite.readers import (
    DEFAULT_SIZES,
    MOST_RANKS,
    RANKS,
    ROOTS,
    SIZES,
    MisfitError,
    Range,
    Reads,
    numbers,
    one_or_many,
    one_text,
    one_word,
    read_algorithms,
    read_backends,
    read_collectives,
    read_joining_backends,
    read_sweep_backends,
    refuse_unknown,
    whole_number,
    words,
)
from ccbench.suite.variants import VARIANTS
from ccbench.units import parse_duration, parse_fraction, shown, suggestion

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
LONGEST_QUESTION = 500
LONGEST_SECONDS = 24 * 3600.0
LARGEST_SEED = 2**63 - 1

IN_PLACE_COLLECTIVES = tuple(
    name
    for name, row in COLLECTIVES.items()
    if row.moves_data and set(row.inputs(0, 2, 2, 0)) & set(row.outputs(0, 2, 2, 0))
)
"""Collectives whose output lies over their input, so that one buffer can be both."""


def _seconds(lowest: float) -> Reads:
    """A duration: text with a unit in the file, seconds in the model."""

    def read(value: Any) -> float:
        seconds = parse_duration(value)
        if not lowest <= seconds <= LONGEST_SECONDS:
            raise MisfitError(
                f"{shown(value)} is out of range; write {lowest:g} s to {LONGEST_SECONDS:g} s"
            )
        return seconds

    schema = {"type": "string", "examples": ["500 ms", "1m30s"]}
    return Reads(read, schema, write=lambda seconds: f"{seconds!r} s")


def _fraction(lowest: float, highest: float) -> Reads:
    def read(value: Any) -> float:
        fraction = parse_fraction(value)
        if not lowest <= fraction <= highest:
            raise MisfitError(
                f"{shown(value)} is out of range; write {lowest:.1%} to {highest:.1%}"
            )
        return fraction

    return Reads(read, {"type": ["string", "number"], "examples": ["95%", 0.95]})


def _whole(lowest: int, highest: int) -> Reads:
    def read(value: Any) -> int:
        return whole_number(value, lowest, highest, "number for this")

    return Reads(read, {"type": "integer", "minimum": lowest, "maximum": highest})


def _texts(read: Callable[[Any], tuple[str, ...]], *types: str) -> Reads:
    return Reads(
        read, one_or_many({"type": types[0] if len(types) == 1 else list(types)}), write=list
    )


def _words(read: Callable[[Any], tuple[str, ...]], *words: str) -> Reads:
    return Reads(read, one_or_many({"enum": list(words)}), write=list)


def _values(axis: Axis) -> Reads:
    """Reader of an axis' values in a sweep: its words, or numbers within its bounds."""
    if axis.bounds is None:
        read = words(axis.noun, axis.values, axis.all_values)
        return _words(read, *axis.values, *(["all"] if axis.all_values else []))
    lowest, highest = axis.bounds
    schema = one_or_many({"type": "integer", "minimum": lowest, "maximum": highest})
    return Reads(numbers(axis.noun, lowest, highest), schema, write=list)


_read_name = one_text(
    "name for a run folder", _NAME.fullmatch, "letters, digits, '.', '_', '-', at most 64"
)
_read_question = one_text(
    "question",
    lambda text: len(text) <= LONGEST_QUESTION,
    f"a text of at most {LONGEST_QUESTION} letters",
)


def _one_of(kind: str, *words: str) -> Reads:
    return Reads(one_word(kind, words), {"enum": list(words)})


_LAYOUT_SCHEMA: dict[str, Any] = {
    "anyOf": [
        {"const": grouping.NO_LAYOUT},
        {
            "type": "object",
            "properties": {
                "order": {"type": "string", "examples": [MEGATRON_ORDER, *ORDERS]},
                **{
                    name: {"type": "integer", "minimum": 1, "maximum": MOST_RANKS}
                    for name in (*LAYOUT_AXES, "etp")
                },
            },
            "additionalProperties": False,
            "minProperties": 1,
        },
    ]
}


_LAYOUT = Reads(
    grouping.read_layout, _LAYOUT_SCHEMA, write=lambda sizes: dict(sizes) or grouping.NO_LAYOUT
)


class StrictModel(BaseModel):
    """Frozen; unknown keys are refused with the nearest known one."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _keys_are_known(cls, value: Any) -> Any:
        if isinstance(value, cls):
            return value
        # pydantic would refuse an unknown key as well, but without naming the nearest that exists.
        keys = {field.alias or name: field for name, field in cls.model_fields.items()}
        needed = [key for key, field in keys.items() if field.is_required()]
        if not isinstance(value, Mapping):
            raise MisfitError(
                f"{shown(value)} is not a mapping; write keys such as '{(needed or [*keys])[0]}: ...'"
            )
        refuse_unknown(value, keys)
        for key in needed:
            if key not in value:
                raise MisfitError(f"has no {key!r}; add the key")
        return value


class SamplingRules(StrictModel):
    """Rules by which a case has been measured well enough; times in seconds, widths as fractions of one."""

    confidence: Annotated[float, _fraction(0.5, 0.999)] = 0.95
    max_ci_width: Annotated[float, _fraction(0.001, 1.0)] = 0.05
    rounds: Annotated[int, _whole(1, 100)] = 6
    start_ranks: Annotated[str, _one_of("start", "once", "each_round")] = "once"
    minimum_samples: Annotated[int, _whole(1, 1_000_000)] = 10
    maximum_samples: Annotated[int, _whole(1, 1_000_000)] = 400
    warmup: Annotated[float, _seconds(0.0)] = 0.02
    minimum_sample: Annotated[float, _seconds(0.0)] = 0.001
    budget: Annotated[float, _seconds(1e-6)] = 0.5
    time_limit: Annotated[float, _seconds(1e-3)] = 60.0

    @model_validator(mode="after")
    def _limits_agree(self) -> SamplingRules:
        if self.minimum_samples > self.maximum_samples:
            raise MisfitError(
                f"{self.minimum_samples} is more than maximum_samples ({self.maximum_samples}); lower it",
                "minimum_samples",
            )
        if self.minimum_sample > self.budget:
            raise MisfitError(
                f"{self.minimum_sample:g} s is longer than the budget of {self.budget:g} s; shorten it",
                "minimum_sample",
            )
        if self.warmup + self.budget > self.time_limit:
            raise MisfitError(
                f"{self.time_limit:g} s is shorter than warmup and budget ({self.warmup + self.budget:g} s); "
                "lengthen it",
                "time_limit",
            )
        return self


SWEPT = tuple(axis for axis in AXES if axis.values or axis.bounds)
"""Axes of which a sweep lists values; of the others it says in keys of their own what makes them."""

# These keys are made of AXES, so that a further axis needs no line here; a type checker cannot follow that.
if TYPE_CHECKING:
    _SweptKeys = StrictModel
else:
    _SweptKeys = create_model(
        "_SweptKeys",
        __base__=StrictModel,
        **{
            axis.key: (Annotated[tuple[Any, ...], _values(axis)], (axis.sweep_default,))
            for axis in SWEPT
        },
    )


class Sweep(_SweptKeys):
    """Points to measure: every combination of what its keys say."""

    collective: Annotated[
        tuple[str, ...], _words(read_collectives, *COLLECTIVES, *SETUPS, "all")
    ]
    algorithm: Annotated[tuple[str, ...], _texts(read_algorithms, "string")] = ("default",)
    size: Annotated[tuple[int | Range, ...], SIZES] = DEFAULT_SIZES
    ranks: Annotated[tuple[int, ...] | str, RANKS] = "auto"
    backends: Annotated[
        tuple[str, ...], _words(read_sweep_backends, *backend_names(), "all")
    ] = Field(default_factory=backend_names)
    fewest_ranks: Annotated[int, _whole(1, MOST_RANKS)] = 1
    most_ranks: Annotated[int, _whole(1, MOST_RANKS)] = MOST_RANKS
    root: Annotated[tuple[int, ...] | str, ROOTS] = (0,)
    pairs: Annotated[tuple[str, ...], _texts(grouping.read_pairs, "string")] = (
        grouping.PAIRS_OF_RING,
    )
    layout: Annotated[grouping.LayoutSizes, _LAYOUT] = ()
    groups: Annotated[
        tuple[str, ...], _texts(grouping.read_group_expressions, "string", "array")
    ] = ("",)
    per: Annotated[str, _one_of("unit", *grouping.UNITS)] = "rank"
    within: Annotated[
        int | str, Reads(grouping.read_within, {"type": ["string", "integer"]})
    ] = "all"
    group_mode: Annotated[
        tuple[str, ...], _words(grouping.read_group_modes, *grouping.GROUP_MODES)
    ] = ("concurrent",)
    concurrent: Annotated[tuple[str, ...], _texts(grouping.read_concurrent, "string")] = ("",)
    traffic: Annotated[tuple[str, ...], _texts(grouping.read_traffics, "string", "array")] = (
        "",
    )
    accuracy: Annotated[InexactData | None, ACCURACY] = None

    def values_of(self, name: str) -> tuple[Any, ...]:
        """The values of one of the axes in SWEPT, as cases hold them."""
        axis = AXIS[name]
        return tuple(map(axis.from_word, getattr(self, axis.key)))

    @model_validator(mode="after")
    def _combinations_exist(self) -> Sweep:
        grouping.check_layout(self)
        if (
            isinstance(self.root, tuple)
            and isinstance(self.ranks, tuple)
            and max(self.root) >= max(self.ranks)
        ):
            raise MisfitError(
                f"{max(self.root)} is no rank of {max(self.ranks)}; ranks count from 0: "
                f"write at most {max(self.ranks) - 1}",
                "root",
            )
        in_pairs = any(
            group == "round_robin" or group.startswith("matching:") for group in self.groups
        )
        for key, usual in (("per", "rank"), ("within", "all")):
            if getattr(self, key) != usual and not in_pairs:
                cure = "write such groups, or leave it out"
                raise MisfitError(
                    f"says how groups matching:N and round_robin are made; {cure}", key
                )
        if self.values_of("in_place") == (True,) and not set(self.collective) & set(
            IN_PLACE_COLLECTIVES
        ):
            raise MisfitError(
                f"in_place does not exist for {', '.join(self.collective)}; write out_of_place",
                "placement",
            )
        return self


def _listed(value: Any) -> Any:
    """One mapping stands for a list of one; the list becomes the tuple that a frozen model holds."""
    if isinstance(value, (Mapping, Sweep)):
        return (value,)
    if not isinstance(value, (list, tuple)):
        raise MisfitError(
            f"{shown(value)} is not a sweep; write a mapping such as '{{collective: all_reduce}}'"
        )
    if not value:
        raise MisfitError("is an empty list; write at least one mapping with a collective")
    return tuple(value)


class Suite(StrictModel):
    """One suite file. Build it with ``load_suite`` or ``read_suite``; ``as_document`` writes it back."""

    suite: Annotated[
        str, Reads(_read_name, {"type": "string", "pattern": f"^{_NAME.pattern}$"})
    ] = "suite"
    question: Annotated[
        str, Reads(_read_question, {"type": "string", "maxLength": LONGEST_QUESTION})
    ] = ""
    backends: Annotated[tuple[str, ...], _words(read_backends, "auto", *backend_names())] = (
        "auto",
    )
    where_installed: Annotated[
        tuple[str, ...], _words(read_joining_backends, *backend_names())
    ] = ()
    variants: Annotated[tuple[Variant, ...], VARIANTS] = ()
    sweep: Annotated[tuple[Sweep, ...], BeforeValidator(_listed)]
    sampling_rules: SamplingRules = Field(default=SamplingRules(), alias="sampling")
    verdict: Annotated[str, _one_of("verdict", "speed", "health", "fleet", "box")] = "speed"
    several_nodes: Annotated[str, _one_of("several_nodes", "", "fleet")] = ""
    order: Annotated[str, _one_of("order", "interleaved", "written")] = "interleaved"
    seed: Annotated[int, _whole(0, LARGEST_SEED)] = 1
    _origin: FileOrigin = PrivateAttr(default=FileOrigin())

    @property
    def name(self) -> str:
        """The suite's name: a part of its runs' folder names."""
        return self.suite

    @property
    def origin(self) -> FileOrigin:
        """File and lines that the suite was read from, for errors."""
        return self._origin

    @property
    def sampling(self) -> Sampling:
        """The sampling rules as workers take them."""
        rules = self.sampling_rules
        return Sampling(
            confidence=rules.confidence,
            target_relative_width=rules.max_ci_width,
            rounds=rules.rounds,
            fresh_ranks=rules.start_ranks == "each_round",
            minimum_samples=rules.minimum_samples,
            maximum_samples=rules.maximum_samples,
            warmup_seconds=rules.warmup,
            minimum_sample_seconds=rules.minimum_sample,
            budget_seconds=rules.budget,
            time_limit_seconds=rules.time_limit,
        )

    def as_document(self) -> dict[str, Any]:
        """Plain values that JSON or YAML can hold; ``Suite.model_validate`` of them equals this suite."""
        return self.model_dump(mode="json", by_alias=True)


def suite_schema() -> dict[str, Any]:
    """A JSON schema of suite files, for editors that complete and check YAML."""
    schema = Suite.model_json_schema(by_alias=True)
    # A file may write one sweep without a list, which the field's type does not show.
    listed = schema["properties"]["sweep"]
    schema["properties"]["sweep"] = {"anyOf": [listed["items"], {**listed, "minItems": 1}]}
    schema["title"] = "ccbench suite"
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


_ENDINGS = (".yaml", ".yml", ".json")


def shipped_suites() -> dict[str, Path]:
    """Name to file of every suite that ships, by name."""
    return {path.stem: path for path in sorted(shipped_folder("suites").glob("*.yaml"))}


def load_suite(path_or_name: str | Path) -> Suite:
    """The suite in a file, or the shipped suite of that name. Raises SuiteError in one line."""
    path = suite_file(path_or_name)
    try:
        with path.open("rb") as file:
            # One byte more than allowed shows that a file is too large without reading it whole.
            content = file.read(MOST_BYTES + 1)
    except OSError as problem:
        raise SuiteError(
            f"{_place(path)}: cannot be read ({problem.strerror}); check the file"
        ) from None
    suite = read_suite(content, place=_place(path), name=path.stem)
    # Files of functions are found from the suite's folder on.
    sweeps = (
        sweep.model_copy(
            update={
                "algorithm": tuple(normal_word(word, path.parent) for word in sweep.algorithm)
            }
        )
        for sweep in suite.sweep
    )
    return suite.model_copy(update={"sweep": tuple(sweeps)})


def suite_file(path_or_name: str | Path) -> Path:
    """The file that a path or a shipped suite's name stands for; SuiteError when there is none."""
    text, shipped = str(path_or_name), shipped_suites()
    path = Path(text)
    kind = 0
    try:
        kind = path.stat().st_mode
    except OSError:
        pass  # there is no such file
    except ValueError:
        raise SuiteError(
            f"{shown(text)}: is no file name; write a path or a suite's name"
        ) from None
    if stat.S_ISREG(kind):
        return path
    # A folder of results may be called as a suite that ships: the suite is meant.
    if text in shipped and (not kind or stat.S_ISDIR(kind)):
        return shipped[text]
    if kind:
        problem = "is not a file; write the path of a suite such as suites/quick.yaml"
    elif text.endswith(_ENDINGS) and path.stem in shipped:
        problem = f"no such file; the suite that ships is called {path.stem!r}"
    else:
        cure = suggestion(path.stem, shipped)
        listed = f" (shipped: {', '.join(shipped)})" if cure.startswith("did you mean") else ""
        problem = f"no such file, nor a suite that ships; {cure}{listed}"
    raise SuiteError(f"{_place(path)}: {problem}")


def _place(path: Path) -> str:
    text = str(path)
    return text if text.isprintable() and len(text) <= 300 else shown(text)


def read_suite(content: str | bytes, place: str = "suite", name: str = "suite") -> Suite:
    """The suite that YAML (or JSON) text describes; ``name`` is used where it does not name itself.

    Raises SuiteError in one line that begins with ``place`` and the number of the text's line.
    """
    encoded = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    return suite_from_document(read_document(encoded, place), name)


def suite_from_document(document: Document, name: str = "suite") -> Suite:
    """The suite of a tree that was read already; see ``read_suite``."""
    tree: Any = document.tree
    if isinstance(tree, dict) and "suite" not in tree:
        tree = {"suite": name, **tree}
    try:
        suite = Suite.model_validate(tree)
    except ValidationError as problem:
        raise first_error(problem, document.origin) from None
    suite._origin = document.origin
    return suite


def first_error(
    problem: ValidationError, origin: FileOrigin, spot: tuple[str | int, ...] = ()
) -> CcbenchError:
    """Return the error that stands first in the file, below ``spot``: later ones often follow from it."""
    errors = []
    for error in problem.errors(include_url=False, include_input=False):
        cause = error.get("ctx", {}).get("error")
        place = cause.place if isinstance(cause, MisfitError) else ()
        message = str(cause) if isinstance(cause, ValueError) else error["msg"]
        errors.append(((*spot, *error["loc"], *place), message))
    path, message = min(errors, key=lambda item: origin.line(item[0]) or 0)
    return origin.error(path, message)
