"""A stress set: plausible variations of samples, what a model may meet although few samples do not show it.

What an input holds is told from its type, shape and values (:func:`kind_of`); where that cannot be told, it is left
alone, and so is what the model itself gave at the step before: no sample changes that by itself. Ids are never
invented, masks never changed. Inputs of one kind change together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from inlay.data.likely import is_carried
from inlay.data.objects import arrays_of
from inlay.data.reading import Find, checked, found_here
from inlay.data.samples import Feed, InputSpec, Samples
from inlay.data.variations import (
    CHANGES,
    LEAST_TOKENS,
    UNNOTICED,
    Given,
    Kind,
    domain_of,
    lengthened,
    mixture,
    shortened,
    shuffled,
    stored,
)
from inlay.errors import DataError, InlayError

_COLORS = (1, 3, 4)
_LEAST_SIDE = 8  # pixels; fewer are features rather than an image
_LEAST_LENGTH = 1024  # of a series without channels: shorter ones may as well be features or embeddings
_LEAST_STEPS, _STEPS_TO_CHANNELS = 64, 4  # of a series with channels: time is by far the longer axis


@dataclass(frozen=True, eq=False)
class Variation:
    """A sample that was varied."""

    name: str  # in which way, for people: `0.8x brightness`
    feed: Feed  # the result
    half: int  # of the samples that its own is in, 0 or 1; that of a single one is 1


@dataclass(frozen=True, eq=False)
class StressSet:
    """Variations of some samples."""

    # those of each name follow one another in no order; at least one of each name comes first
    variations: tuple[Variation, ...] = ()
    left_alone: tuple[str, ...] = ()  # inputs that are never varied, with the reason, for people

    @property
    def feeds(self) -> tuple[Feed, ...]:
        """One for each variation."""
        return tuple(v.feed for v in self.variations)

    @property
    def names(self) -> tuple[str, ...]:
        """The ways in which samples are varied."""
        return tuple(dict.fromkeys(v.name for v in self.variations))


NO_STRESS = StressSet()  # nothing is varied


def stress_set(
    samples: Samples,
    specs: Sequence[InputSpec],
    augment: str,
    rng: np.random.Generator,
    each: int,
    most: int,
    find: Find = found_here,
) -> StressSet:
    """Variations of some of ``samples``, of both of their halves in turn.

    Args:
        samples: real ones; of random ones there are no variations.
        augment: ``none``, ``auto``, or the user's own as ``module:function``.
        each: samples that are varied in each way, at most.
        most: variations in all, at most; each way comes once before any comes twice.
        find: finds the function that ``module:function`` names; by default one that runs in this process.

    Raises:
        UsageError: there is no such function.
        DataError: the function fails, or gives no feeds of the model.
    """
    if augment == "none" or samples.kind == "random" or most < 1:
        return NO_STRESS
    if augment != "auto":
        return StressSet(tuple(_of_function(samples, specs, augment, rng, each, find))[:most])
    kinds = {s.name: kind_of(s, [f[s.name] for f in samples.feeds]) for s in specs}
    unknown = (f"input {s.name} ({s.dtype.name}) is not varied: {_why(s)}" for s in specs if not kinds[s.name])
    made = (v for turn in range(each) for v in _turn(samples.feeds, specs, kinds, turn, rng))
    return StressSet(tuple(v for v, _ in zip(made, range(most), strict=False)), tuple(unknown))


def with_unnoticed_noise(samples: Samples, rng: np.random.Generator) -> tuple[Feed, ...]:
    """Each of ``samples`` with noise that hardly anybody would notice; none where no input can have any."""
    inputs = [InputSpec(name, array.dtype, None) for name, array in samples.feeds[0].items()]
    kinds = {s.name: kind_of(s, [f[s.name] for f in samples.feeds]) for s in inputs}
    changed = {name: kind for name, kind in kinds.items() if kind in UNNOTICED}

    def noisy(number: int) -> Feed:
        varied = dict(samples.feeds[number])
        for name, kind in changed.items():
            given = _given(samples.feeds, name, kind, number, None, rng)
            if given is not None:
                varied[name] = stored(UNNOTICED[kind](given), given.domain, varied[name].dtype)
        return varied

    return tuple(map(noisy, range(len(samples)))) if changed else ()


def kind_of(spec: InputSpec, arrays: Sequence[np.ndarray]) -> Kind:
    """What an input holds, by its name, type, shape and values in all samples."""
    if is_carried(spec, max(a.ndim for a in arrays)):
        return ""
    arrays = [a for a in arrays if a.size] or arrays[:1]  # of a decoder's empty past nothing can be told
    first = arrays[0]
    shape, dtype = first.shape, spec.dtype
    if dtype.kind == "b" or all(np.isin(a, (0, 1)).all() for a in arrays):
        return "mask"
    if len(shape) == 4 and (dtype.kind == "f" or dtype == np.uint8):
        return "image" if _layout(shape) is not None else "field" if dtype.kind == "f" else ""
    if dtype.kind in "iu" and len(shape) <= 2 and shape and shape[-1] >= LEAST_TOKENS:
        ordered = all((np.diff(a.astype(np.int64), axis=-1) >= 0).all() for a in arrays)
        return "" if ordered or min(int(a.min()) for a in arrays) < 0 else "tokens"  # in order: positions, offsets
    if dtype.kind == "f" and len(shape) in (1, 2, 3):
        *others, longest = sorted(shape)
        channels = others[-1] if others else 1
        if longest >= (_LEAST_LENGTH if channels == 1 else max(_LEAST_STEPS, _STEPS_TO_CHANNELS * channels)):
            return "signal"
    return ""


def _why(spec: InputSpec) -> str:
    carried = is_carried(spec, len(spec.dims or ()))
    return "the model gave it at the step before" if carried else "it is not clear what it holds"


def _layout(shape: tuple[int, ...]) -> int | None:
    """The axis of colors of an image; None where it is none."""
    for axis, sides in ((1, shape[2:]), (3, shape[1:3])):
        if shape[axis] in _COLORS and min(sides) >= _LEAST_SIDE:
            return axis
    return None


def _turn(
    feeds: Sequence[Feed], specs: Sequence[InputSpec], kinds: Mapping[str, Kind], turn: int, rng: np.random.Generator
) -> Iterator[Variation]:
    """Each way once, on samples of the first and of the second half in turn."""
    half = len(feeds) // 2
    halves = [*range(half)] or [0], [*range(half, len(feeds))]
    number = 0
    for kind, changes in CHANGES.items():
        names = [n for n, k in kinds.items() if k == kind]
        shaped = [n for n, k in kinds.items() if k != kind and feeds[0][n].ndim > 2]
        for name, (change, moves) in changes.items() if names else ():
            if moves and shaped:
                continue  # what stands at the same place in another input would have to move along
            part = halves[(number + turn) % 2]
            sample, other = (part[(number // 2 + turn + i) % len(part)] for i in (0, 1))
            number += 1
            varied = {}
            for each in names:
                found = _given(feeds, each, kind, sample, other if other != sample else None, rng)
                if found is None or (change is mixture and not _mixes(feeds, kinds, names, sample, other)):
                    break
                varied[each] = stored(change(found), found.domain, feeds[sample][each].dtype)
            else:
                yield Variation(name, {**feeds[sample], **varied}, int(sample >= half))
    yield from _of_tokens(feeds, specs, kinds, turn, rng)


def _given(
    feeds: Sequence[Feed], name: str, kind: Kind, sample: int, other: int | None, rng: np.random.Generator
) -> Given | None:
    x = feeds[sample][name].astype(np.float32)
    if not x.size or not np.isfinite(x).all():
        return None
    channel = _layout(x.shape) if kind == "image" else None
    beside = None if other is None or feeds[other][name].shape != x.shape else feeds[other][name].astype(np.float32)
    domain = domain_of([f[name] for f in feeds if f[name].ndim == x.ndim and f[name].size], channel)
    axes = (2, 3) if channel == 1 else (1, 2) if channel == 3 else (int(np.argmax(x.shape)),)
    return Given(x, domain, beside, axes, rng)


def _mixes(feeds: Sequence[Feed], kinds: Mapping[str, Kind], names: Sequence[str], one: int, other: int) -> bool:
    """Whether two samples differ in what is mixed alone."""
    rest = [n for n in kinds if n not in names]
    same = all(np.array_equal(feeds[one][n], feeds[other][n]) for n in rest)
    return one != other and same and all(feeds[one][n].shape == feeds[other][n].shape for n in names)


def _of_tokens(
    feeds: Sequence[Feed], specs: Sequence[InputSpec], kinds: Mapping[str, Kind], turn: int, rng: np.random.Generator
) -> Iterator[Variation]:
    """Another order of the ids between the first and the last one; a shorter and a longer text where the model can."""
    names = [n for n, k in kinds.items() if k == "tokens"]
    half = len(feeds) // 2
    for place, name in enumerate(("another order", "three quarters of the length", "two texts as one")):
        part = [*range(half)] if (place + turn) % 2 == 0 and half else [*range(half, len(feeds))]
        sample = part[turn % len(part)]
        feed = feeds[sample]
        if not names or len({feed[n].shape for n in names}) > 1:
            return
        # a mask of zeros alone tells segments rather than padding
        masks = [n for n, k in kinds.items() if k == "mask" and feed[n].shape == feed[names[0]].shape and feed[n].any()]
        if place == 0:
            varied = shuffled(feed, names, masks, rng)
        elif place == 1:
            varied = shortened(feed, names, specs)
        else:
            other, longest = feeds[(sample + 1) % len(feeds)], max(f[names[0]].shape[-1] for f in feeds)
            varied = lengthened(feed, other, names, masks, specs, longest)
        if varied is not None:
            yield Variation(name, varied, int(sample >= half))


def _by_name(who: str, found: object) -> dict[str, Feed]:
    if not isinstance(found, Mapping):
        raise DataError(f"{who} must return samples by the names of their variations, not {type(found).__name__}")
    return {str(name): arrays_of(feed, who, f", {name}") for name, feed in found.items()}


def _of_function(
    samples: Samples, specs: Sequence[InputSpec], text: str, rng: np.random.Generator, each: int, find: Find
) -> Iterator[Variation]:
    function = find(text, "--augment", partial(_by_name, f"--augment {text}"))
    half = len(samples) // 2
    for turn in range(min(each, len(samples))):
        number = turn // 2 if turn % 2 == 0 and half else min(half + turn // 2, len(samples) - 1)
        try:
            # with randomness of its own each time: a function in another process does not move ours on
            varied = function({k: v.copy() for k, v in samples.feeds[number].items()}, rng.spawn(1)[0])
        except InlayError:
            raise
        except (Exception, SystemExit) as error:  # the user's own code
            raise DataError(f"--augment {text} failed: {type(error).__name__}: {error}") from error
        given = checked(list(varied.values()), "function", text, specs, "--augment").feeds if varied else ()
        yield from (Variation(name, feed, int(number >= half)) for name, feed in zip(varied, given, strict=True))
