"""Samples as values: what a model's inputs expect, feeds, random feeds, and the split into three parts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from inlay.data.fixed import fixed_array, fixed_values, shown
from inlay.errors import DataError, ModelError, UsageError

if TYPE_CHECKING:
    import onnx_ir as ir

AUTO_MASK, NO_MASK = "auto", "none"
"""In place of the name of an input that says which positions are padding: found by a rule, or there is none."""

Feed = dict[str, np.ndarray]  # one array per model input, by name

Joins = Mapping[str, tuple[tuple[int, ...] | None, ...]]
"""What a model joins into its outputs, by name: for each axis one number for each index, equal where the same values
were joined; None for an axis that nothing was joined along. See :mod:`inlay.model.joins`."""


@dataclass(frozen=True)
class Ends:
    """What a model computes its outputs with; see :mod:`inlay.model.ends`."""

    # by output, the types of the operators that compute its elements
    computed: Mapping[str, frozenset[str]] = field(default_factory=dict)
    operators: frozenset[str] = frozenset()  # types of all operators of the model


@dataclass(frozen=True)
class InputSpec:
    """One input of a model."""

    name: str  # of the input
    dtype: np.dtype[Any]  # of its elements; of Python objects where they are strings, whose arrays are numpy's text
    # its dimensions: a size, or the symbol of a dynamic one; None if not even the rank is known
    dims: tuple[int | str, ...] | None
    # rows of the table that its integers choose from; 0 where they are no ids
    vocabulary: int = field(default=0, compare=False)
    # the sizes that its dynamic dimensions had when a run wrote the model, by symbol
    tuned: Mapping[str, int] = field(default_factory=dict, compare=False)
    # the only value that it takes; None where it takes any
    fixed: np.ndarray | None = field(default=None, compare=False)

    def __str__(self) -> str:
        dims = "any shape" if self.dims is None else "[" + ", ".join(map(str, self.dims)) + "]"
        return f"{self.name}: {self.kind} {dims}"

    @property
    def kind(self) -> str:
        """The name of ``dtype``, as a model says it."""
        return "string" if self.dtype.hasobject else self.dtype.name

    def refuse_unfed(self) -> None:
        """Raise ModelError where no array can be fed: runtimes take none of bfloat16, of 8-bit floats or of 4 bits."""
        if not self.dtype.hasobject and self.dtype.kind not in "fiub":
            raise ModelError(
                f"input {self}: no array of {self.kind} can be fed; export the model with a float32 input, and let it "
                f"cast that to {self.kind} itself"
            )

    def only(self, array: np.ndarray, where: str) -> np.ndarray:
        """``array``, which a fixed input must be equal to. Raises DataError where it is not."""
        if self.fixed is not None and not np.array_equal(array, self.fixed):
            raise DataError(
                f"{where}: input {self.name} is {shown(array)}, but the model is for {shown(self.fixed)} only"
            )
        return array


@dataclass(frozen=True, eq=False)
class Samples:
    """Feeds for one inference each."""

    feeds: tuple[Feed, ...]  # at least one
    kind: str  # `npz`, `jsonl`, `folder`, `function`, `feeds` or `random`
    source: str  # where they come from, for messages and `result.json`
    labels: np.ndarray | None = None  # one per feed (or per row of its batch), or None
    # where each stands in the user's data, from 0; empty where these are all of it, in order
    numbers: tuple[int, ...] = ()
    mask: str = AUTO_MASK  # the input that says which positions are padding, by name; see `padding`
    joins: Joins = field(default_factory=dict)  # what the model joins into its outputs
    ends: Ends = field(default_factory=Ends)  # what it computes them with
    left_out: tuple[str, ...] = ()  # what of the user's data is in none of them, and why, for people

    def part(self, indices: Sequence[int]) -> Samples:
        """The samples at ``indices``, labels included."""
        labels = None if self.labels is None else self.labels[list(indices)]
        numbers = tuple(self.number(i) for i in indices)
        return replace(self, feeds=tuple(self.feeds[i] for i in indices), labels=labels, numbers=numbers)

    def evenly(self, most: int) -> Samples:
        """At most so many of them, evenly spaced over all."""
        return self if most >= len(self) else self.part(evenly_spaced([*range(len(self))], most))

    def and_then(self, others: Samples) -> Samples:
        """These, and behind them other samples of the same data."""
        numbers = tuple(part.number(i) for part in (self, others) for i in range(len(part)))
        labels = [part.labels for part in (self, others) if part.labels is not None]
        joined = np.concatenate(labels) if labels else None
        return replace(self, feeds=(*self.feeds, *others.feeds), numbers=numbers, labels=joined)

    def number(self, index: int) -> int:
        """Where the sample at ``index`` stands in the user's data, from 0."""
        return self.numbers[index] if self.numbers else index

    @cached_property
    def digest(self) -> str:
        """64 hexadecimal digits over all arrays and labels."""
        digest = hashlib.sha256()
        for feed in self.feeds:
            for name in sorted(feed):
                digest.update(f"{name} {feed[name].dtype} {feed[name].shape} ".encode() + feed[name].tobytes())
        if self.labels is not None:
            digest.update(self.labels.tobytes())
        return digest.hexdigest()

    def __len__(self) -> int:
        return len(self.feeds)


@dataclass(frozen=True, eq=False)
class Split:
    """Samples in three disjoint parts."""

    calibration: Samples  # for the ranges of values
    selection: Samples  # for the accuracy of candidates; the search may look at it
    verification: Samples  # for the accuracy of the winner; used once
    verified: bool  # whether the parts are disjoint; with fewer than three samples they are not


def input_specs(model: ir.Model) -> tuple[InputSpec, ...]:
    """The inputs that a feed must provide: all but those that are initializers too.

    Raises:
        ModelError: an input is not a tensor.
    """
    import onnx_ir as ir  # a worker, which reads no model, starts in half the time without it

    specs, fixed = [], fixed_values(model)
    for value in model.graph.inputs:
        if value.name in model.graph.initializers:
            continue
        if not isinstance(value.type, ir.TensorType):
            raise ModelError(f"input {value.name} is not a tensor ({value.type}): only tensor inputs can be fed")
        dims = None
        if value.shape is not None:
            dims = tuple(
                d if isinstance(d, int) else str(d.value or f"{value.name}_dim{i}") for i, d in enumerate(value.shape)
            )
        try:
            dtype = np.dtype(value.type.dtype.numpy())
        except TypeError:
            raise ModelError(
                f"input {value.name} has no element type that arrays have ({value.type.dtype.name})"
            ) from None
        only = fixed_array(fixed[str(value.name)], dtype, dims) if value.name in fixed else None
        specs.append(InputSpec(str(value.name), dtype, dims, _vocabulary(value), tuned_sizes(model), only))
    return tuple(specs)


TUNED = "inlay.sizes"
"""The entry of a model's metadata that holds the sizes of its dynamic dimensions when a run wrote it, as JSON."""
_CARRY_IDS = ("Cast", "Identity", "Unsqueeze", "Squeeze", "Reshape", "Flatten", "Expand")
_MOST_CLASSES = 1 << 20  # of a one-hot code that is written as a comparison with all of them


def tuned_sizes(model: ir.Model) -> dict[str, int]:
    """The sizes that a model remembers, by symbol; none where it is another tool's, or says something else."""
    try:
        said = json.loads(model.metadata_props.get(TUNED, "{}"))
        return {str(name): size for name, size in said.items() if isinstance(size, int) and 0 < size < 1 << 31}
    except (ValueError, AttributeError, RecursionError):
        return {}


def _vocabulary(value: ir.Value) -> int:
    """How many things integers choose from, directly or once they are cast or reshaped: the least number of any use."""
    found, left = list[int](), [value]
    for _ in range(100):  # more steps than any exporter puts there
        if not left:
            break
        for use in left.pop().uses():
            if use.node.domain == "" and use.node.op_type in _CARRY_IDS and use.idx == 0:
                left += use.node.outputs
            elif use.node.domain == "":
                found.append(_choices(use.node, use.idx))
    return min(filter(None, found), default=0)


def _choices(node: ir.Node, slot: int) -> int:
    """Rows of the table that a Gather's indices choose from, or classes of a one-hot code; 0 where it is neither."""
    known = [None if v is None or v.const_value is None else v.const_value for v in node.inputs]
    if node.op_type == "Gather" and slot == 1 and known[0] is not None:
        sizes, axis = known[0].shape.numpy(), node.attributes.get_int("axis", 0)
        return int(sizes[axis]) if -len(sizes) <= axis < len(sizes) else 0
    if node.op_type == "OneHot" and slot == 0 and known[1] is not None and known[1].size == 1:
        return int(known[1].numpy().item())
    other = known[1 - slot] if node.op_type == "Equal" else None
    if other is None or not 2 <= other.size <= _MOST_CLASSES:
        return 0
    classes = other.numpy().ravel()
    return int(classes.size) if np.array_equal(classes, np.arange(classes.size)) else 0


def bound(specs: Sequence[InputSpec], sizes: Mapping[str, int]) -> tuple[InputSpec, ...]:
    """The inputs with sizes for dynamic dimensions, by symbol. Raises UsageError where no input has such a symbol."""
    symbols = {d for s in specs for d in s.dims or () if isinstance(d, str)}
    for name in sizes:
        if name not in symbols:
            known = f"they have {', '.join(sorted(symbols))}" if symbols else "all of theirs are fixed"
            raise UsageError(f"--bind {name}={sizes[name]}: no input has the dynamic dimension {name}; {known}")
    return tuple(
        s if s.dims is None else replace(s, dims=tuple(sizes.get(d, d) if isinstance(d, str) else d for d in s.dims))
        for s in specs
    )


def common_sizes(specs: Sequence[InputSpec], feeds: Sequence[Feed]) -> dict[str, int]:
    """Sizes of the dynamic dimensions that have one and the same in all ``feeds``, by symbol."""
    seen: dict[str, set[int]] = {}
    for spec in specs:
        for axis, dim in enumerate(spec.dims or ()):
            if isinstance(dim, str):
                seen.setdefault(dim, set()).update(feed[spec.name].shape[axis] for feed in feeds)
    return {name: sizes.pop() for name, sizes in seen.items() if len(sizes) == 1}


def split(samples: Samples, rng: np.random.Generator, calibration: int = 128, others: int = 2000) -> Split:
    """Split samples in three: half for calibration, the rest in equal parts for selection and verification.

    Labelled samples are shuffled, since they are often sorted by class. Of unlabelled samples every second one is for
    calibration, so that it covers all scenes; the rest is cut in the order given: neighbours are often views of one
    scene, and a scene in both selection and verification would make the verified accuracy too optimistic.

    Args:
        calibration: most samples for calibration.
        others: most samples in each of the other parts.
    """
    n = len(samples)
    order = [*range(1, n, 2), *range(0, n, 2)] if samples.labels is None else [int(i) for i in rng.permutation(n)]
    if n < 3:
        return Split(samples, samples.part(order[-1:]), samples.part(order[-1:]), verified=False)
    first = n // 2
    rest = order[max(1, first) :]
    half = (len(rest) + 1) // 2
    return Split(
        samples.part(evenly_spaced(order[: max(1, first)], calibration)),
        samples.part(evenly_spaced(rest[:half], others)),
        samples.part(evenly_spaced(rest[half:], others)),
        verified=True,
    )


def evenly_spaced(indices: list[int], most: int) -> list[int]:
    """At most ``most`` of ``indices``, evenly spaced over all of them."""
    return [indices[int(i)] for i in np.linspace(0, len(indices) - 1, min(len(indices), most))]
