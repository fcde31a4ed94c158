"""The inputs that latency is measured on: one feed, or several of different shapes, each with its share of the work.

Where the user states shapes, there is a feed of each. Where samples differ in shape, a few stand for all: every shape
where there are few, otherwise the sample of about mean size out of each group of equally many by size. Where batch
sizes are asked for, each of these feeds is there in all of them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from inlay.data.archives import save_feeds
from inlay.data.likely import random_samples
from inlay.data.samples import Feed, InputSpec, Samples, bound
from inlay.errors import UsageError

MOST_SHAPES = 4
"""Shapes that stand for those of the samples: a block takes as long as with one, so each is measured less precisely."""

Shapes = tuple[tuple[str, tuple[int, ...]], ...]  # shape of each input, by name in order

_SHAPE = re.compile(r"(?P<name>.+)=(?P<sizes>\d{1,9}(x\d{1,9})*)")
_BATCH = re.compile(r"(n|b|bs|.*batch.*)", re.IGNORECASE)
"""Names that exporters and their users give to the dimension of samples."""
_LARGEST_BATCH = 2**16
_WEIGHT = re.compile(r"(?P<shapes>.+=\d[\dx]*):(?P<weight>\d{1,9}(\.\d{1,9})?)")


@dataclass(frozen=True)
class ShapeWish:
    """A shape that latency is to be measured on."""

    sizes: Mapping[str, int]  # of dynamic dimensions, by symbol
    weight: float  # its share, before all are made to add up to one


@dataclass(frozen=True, eq=False)
class Workload:
    """Feeds, each with its share of the inferences; shares add up to one."""

    feeds: tuple[Feed, ...]
    weights: tuple[float, ...]

    @classmethod
    def of_some(cls, samples: Sequence[Feed], counted: Sequence[tuple[int, int]]) -> Workload:
        """Some samples, by number, with how many each stands for."""
        total = sum(count for _, count in counted)
        return cls(tuple(samples[n] for n, _ in counted), tuple(count / total for _, count in counted))

    @property
    def shapes(self) -> tuple[Shapes, ...]:
        """Of each feed."""
        return tuple(map(shapes_of, self.feeds))

    def save(self, folder: Path) -> Path:
        """Write it into a new folder, for :func:`~inlay.data.load_workload`; one feed is a file as any sample is."""
        paths = save_feeds(folder, self.feeds)
        if len(paths) == 1:
            return paths[0]
        listed = folder / "workload.json"
        listed.write_text(json.dumps([[p.name, w] for p, w in zip(paths, self.weights, strict=True)]), encoding="utf8")
        return listed


def shapes_of(feed: Feed) -> Shapes:
    """The shapes of a feed's arrays, by name in order."""
    return tuple((name, feed[name].shape) for name in sorted(feed))


def parse_shapes(entries: Sequence[str], specs: Sequence[InputSpec]) -> tuple[ShapeWish, ...]:
    """Shapes from ``input=AxB``, with ``,input=CxD`` for further inputs and ``:weight`` behind them.

    Inputs that share a dynamic dimension by its name share its size.

    Raises:
        UsageError: an entry says something else, or does not fit the inputs.
    """
    return tuple(_parsed(entry, {s.name: s for s in specs}) for entry in entries)


def _parsed(entry: str, specs: Mapping[str, InputSpec]) -> ShapeWish:
    weighted = _WEIGHT.fullmatch(entry)
    weight = 1.0 if weighted is None else float(weighted["weight"])
    if not weight:
        raise UsageError(f"--shape {entry}: a weight of 0 leaves the shape out")
    sizes: dict[str, int] = {}
    for part in re.split(r"(?<=\d),", entry if weighted is None else weighted["shapes"]):
        found = _SHAPE.fullmatch(part)
        if found is None:
            raise UsageError(f"--shape {entry}: give INPUT=AxB, such as input_ids=1x128, or INPUT=AxB:WEIGHT")
        spec = specs.get(found["name"])
        given = tuple(map(int, found["sizes"].split("x")))
        if spec is None:
            raise UsageError(f"--shape {entry}: the model has no input {found['name']}; it has {', '.join(specs)}")
        if spec.dims is None or len(spec.dims) != len(given):
            raise UsageError(f"--shape {entry}: input {spec} has another number of dimensions")
        for dim, size in zip(spec.dims, given, strict=True):
            if sizes.setdefault(dim, size) != size if isinstance(dim, str) else dim != size:
                raise UsageError(f"--shape {entry}: dimension {dim} of input {spec} cannot be {size}")
    return ShapeWish(sizes, weight)


def parse_batch(given: str | int | Sequence[int] | None) -> tuple[int, ...] | None:
    """Batch sizes, in order, from numbers or ``1,8``. Raises UsageError where they are something else."""
    if given is None:
        return None
    said = given if isinstance(given, str) else ",".join(map(str, [given] if isinstance(given, int) else given))
    sizes = [int(part) if re.fullmatch(r"\d{1,9}", part.strip()) else 0 for part in said.split(",")]
    if not all(0 < n <= _LARGEST_BATCH for n in sizes) or len(set(sizes)) < len(sizes):
        raise UsageError(f"--batch {said}: give different sizes from 1 to {_LARGEST_BATCH}, such as 1,8")
    return tuple(sizes)


def batch_wishes(sizes: Sequence[int] | None, specs: Sequence[InputSpec]) -> tuple[ShapeWish, ...]:
    """Each batch size as a wish for the dynamic dimension that inputs begin with.

    Raises:
        UsageError: no input begins with one, or it is not clear which of several counts the samples.
    """
    if sizes is None:
        return ()
    said = f"--batch {','.join(map(str, sizes))}"
    named = {str(s.dims[0]): s for s in specs if s.dims and isinstance(s.dims[0], str)}
    if not named:
        listed = "; ".join(map(str, specs))
        raise UsageError(
            f"{said}: no input begins with a dynamic dimension ({listed}): export the model with one, without --bind"
        )
    likely = [d for d in named if _BATCH.fullmatch(d)]
    if not likely and len(named) > 1 and any(d != f"{s.name}_dim0" for d, s in named.items()):
        raise UsageError(f"{said}: {' or '.join(named)} may count the samples: give --shape instead")
    return tuple(ShapeWish(dict.fromkeys(likely or named, n), 1.0) for n in sizes)


def workload_of(
    samples: Sequence[Feed],
    specs: Sequence[InputSpec],
    wishes: Sequence[ShapeWish] = (),
    batches: Sequence[ShapeWish] = (),
) -> Workload:
    """The workload that samples stand for, or that was wished for, made of them.

    Args:
        samples: at least one.
        specs: the inputs.
        wishes: shapes; a sample of about such a size is cut or repeated to fit, if none has that shape.
        batches: sizes of batches; each of the feeds is there in all of them.
    """
    if batches:
        single = _workload_of(samples, specs, wishes, max(1, MOST_SHAPES // len(batches)))
        pairs = [(f, w, b) for f, w in zip(single.feeds, single.weights, strict=True) for b in batches]
        return _shared([_of_shape([f], specs, b) for f, _, b in pairs], [w * b.weight for _, w, b in pairs])
    return _workload_of(samples, specs, wishes, MOST_SHAPES)


def _workload_of(
    samples: Sequence[Feed], specs: Sequence[InputSpec], wishes: Sequence[ShapeWish], most: int
) -> Workload:
    if wishes:
        return _shared([_of_shape(samples, specs, wish) for wish in wishes], [wish.weight for wish in wishes])
    shapes = [shapes_of(feed) for feed in samples]
    counted = Counter(shapes)
    if len(counted) <= most:
        return _shared([samples[shapes.index(s)] for s in counted], list(counted.values()))
    by_size = sorted(samples, key=_size)
    groups = [[by_size[int(i)] for i in part] for part in np.array_split(np.arange(len(by_size)), most)]
    means = [float(np.mean([_size(f) for f in group])) for group in groups]
    nearest = [min(g, key=lambda f, mean=mean: abs(_size(f) - mean)) for g, mean in zip(groups, means, strict=True)]  # type: ignore[misc]
    return _shared(nearest, [len(group) for group in groups])


def random_of_shapes(
    specs: Sequence[InputSpec], wishes: Sequence[ShapeWish], rng: np.random.Generator, count: int
) -> Samples:
    """``count`` random samples, of the shapes in turn. Raises UsageError as :func:`~inlay.data.random_samples` does."""
    sizes = [dict(w.sizes) for w in wishes] or [{}]
    drawn = [random_samples(bound(specs, sizes[i % len(sizes)]), rng, 1).feeds[0] for i in range(count)]
    return Samples(tuple(drawn), "random", "random")


def _shared(feeds: Sequence[Feed], weights: Sequence[float]) -> Workload:
    """The workload of these feeds; of those with one shape the first stands for all."""
    found: dict[Shapes, tuple[Feed, float]] = {}
    for feed, weight in zip(feeds, weights, strict=True):
        first, before = found.get(shapes_of(feed), (feed, 0.0))
        found[shapes_of(feed)] = first, before + weight / sum(weights)
    return Workload(tuple(f for f, _ in found.values()), tuple(w for _, w in found.values()))


def _of_shape(feeds: Sequence[Feed], specs: Sequence[InputSpec], wish: ShapeWish) -> Feed:
    def wanted(feed: Feed) -> dict[str, tuple[int, ...]]:
        dims = {s.name: s.dims or feed[s.name].shape for s in specs}
        return {
            name: tuple(
                wish.sizes.get(d, n) if isinstance(d, str) else d for d, n in zip(dims[name], a.shape, strict=True)
            )
            for name, a in feed.items()
        }

    def distance(feed: Feed) -> int:
        shapes = wanted(feed)
        return sum(abs(n - m) for name, a in feed.items() for n, m in zip(a.shape, shapes[name], strict=True))

    nearest = min(feeds, key=distance)
    return {name: _resized(nearest[name], shape) for name, shape in wanted(nearest).items()}


def _resized(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """``array`` cut or repeated along each axis."""
    for axis, size in enumerate(shape):
        if not array.shape[axis] and size:  # of an empty past there is nothing to repeat
            array = np.zeros((*array.shape[:axis], size, *array.shape[axis + 1 :]), array.dtype)
        elif array.shape[axis] != size:
            array = np.take(array, np.arange(size) % max(array.shape[axis], 1), axis)
    return np.asarray(array, order="C")


def _size(feed: Feed) -> int:
    return sum(array.size for array in feed.values())
