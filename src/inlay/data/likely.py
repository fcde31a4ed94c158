"""Sizes and values that inputs plausibly have, by their names and by what reads them: for random samples and templates.

Random inputs say nothing of the accuracy, but the model has to run on them: an id outside its table ends an inference,
a mask of zeros gives no number, and a length or a sampling rate of 0 leaves nothing to compute.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence

import numpy as np

from inlay.data.samples import InputSpec, Samples
from inlay.data.tokens import following
from inlay.errors import UsageError

MAX_RANDOM_BYTES = 1 << 28
"""Bytes of one random input at most. A model can ask for any size, and each 100 MB take about half a second to draw;
real inputs are smaller."""

RATE = 16_000  # samples a second: what most models of speech take
_RATE = re.compile(r"(sr|(sampling|sample)_?rate)$", re.IGNORECASE)
_LENGTHS = re.compile(r"(^|[_.])(len|lens|length|lengths)$", re.IGNORECASE)
_SOUND = re.compile(r"audio|wave|wav|speech|pcm|signal", re.IGNORECASE)
_BATCH = re.compile(r"(n|b|bs|.*batch.*)$", re.IGNORECASE)
_SIDE = re.compile(r"(h|w|height|width)$", re.IGNORECASE)
_PAST = re.compile(r"past|cache", re.IGNORECASE)
_SUM = re.compile(r"\s*\+\s*")

_STATE = re.compile(r"(state|hidden|cell|^h|^c)(n|_?\d|_?in)?$", re.IGNORECASE)

_POSITIONS, _FRAMES, _SIDES, _KEPT, _OTHER = 64, 100, 224, 16, 16
_OTHERS = (128, 512, 32, 2048)
"""Sizes to try in place of a mere guess that does not run: of windows, and of what is divided by them."""


def is_carried(spec: InputSpec, rank: int) -> bool:
    """Whether an input of ``rank`` axes is what the model gave at the step before, by its name: a cache, or a state."""
    named = _PAST.search(spec.name) or (rank > 2 and _STATE.search(spec.name))
    return spec.dtype.kind == "f" and bool(named)


def likely_sizes(specs: Sequence[InputSpec], guess: int = _OTHER) -> dict[str, int]:
    """A plausible size for each dynamic dimension, by symbol: the one that a delivered model remembers, if any.

    Those that nothing is known of are ``guess``.
    """
    found: dict[str, int] = {}
    for spec in specs:
        for axis, dim in enumerate(spec.dims or ()):
            if isinstance(dim, str):
                size = spec.tuned.get(dim) or _size(dim, axis, spec)
                found.setdefault(dim, guess if size == _OTHER and not spec.tuned.get(dim) else size)
    for dim in found:  # such as "past_sequence_length + 1"
        parts = [found.get(part, int(part) if part.isdecimal() else 0) for part in _SUM.split(dim)]
        if len(parts) > 1 and all(parts):
            found[dim] = sum(parts)
    return found


def sizes_to_try(specs: Sequence[InputSpec]) -> list[dict[str, int]]:
    """Plausible sizes of the dynamic dimensions, the likeliest first; one where nothing is guessed."""
    found = [likely_sizes(specs, guess) for guess in (_OTHER, *_OTHERS)]
    return found[:1] if found[0] == found[1] else found


def _size(dim: str, axis: int, spec: InputSpec) -> int:
    dims = spec.dims or ()
    if axis == 0 or _BATCH.match(dim):
        return 1
    if _PAST.search(dim) or _PAST.search(spec.name):
        return _KEPT
    if len(dims) == 4 and (_SIDE.match(dim) or (dims[1] in (1, 3, 4) and axis > 1)):
        return _SIDES
    if spec.dtype.kind == "f" and _SOUND.search(spec.name) and len(dims) < 3:
        return RATE
    if axis == 1 and len(dims) == 3 and _STATE.search(spec.name):
        return 1  # layers, batch, numbers: of a recurrent net
    if spec.dtype.kind == "f" and len(dims) == 3:
        return _FRAMES
    return _POSITIONS if spec.dtype.kind in "iu" else _OTHER


def random_samples(specs: Sequence[InputSpec], rng: np.random.Generator, count: int) -> Samples:
    """Random inputs: standard normal for floats, ids within their table, and whatever names ask for; else 0 or 1.

    Args:
        specs: the inputs; an unknown first dimension (the batch) is 1.

    Raises:
        UsageError: a dynamic dimension other than the first has no size, an input is neither float nor integer, or it
            is larger than ``MAX_RANDOM_BYTES``.
        ModelError: no array can be fed to an input.
    """
    for spec in specs:
        spec.refuse_unfed()
    shapes = _shapes(specs)
    feeds = [{s.name: _drawn(s, specs, shapes, rng) for s in specs} for _ in range(count)]
    return Samples(tuple(feeds), "random", "random")


def _shapes(specs: Sequence[InputSpec]) -> dict[str, tuple[int, ...]]:
    """The shape of each input, as far as it is known: of one that a run remembers, or a batch of 1."""
    unknown = next((spec.name for spec in specs if spec.dims is None), None)
    if unknown is not None:
        raise UsageError(f"input {unknown} has no known shape: give --data")
    shapes: dict[str, tuple[int, ...]] = {}
    missing: dict[str, InputSpec] = {}
    for spec in specs:
        sizes = [
            spec.tuned.get(d, 1 if i == 0 else 0) if isinstance(d, str) else d for i, d in enumerate(spec.dims or ())
        ]
        for size, dim in zip(sizes, spec.dims or (), strict=True):
            if isinstance(dim, str) and not size:
                missing.setdefault(dim, spec)
        shapes[spec.name] = tuple(sizes)
    if missing:
        sizes_of = likely_sizes(specs)
        listed = ", ".join(f"{dim} (input {spec.name})" for dim, spec in missing.items())
        bind = " ".join(f"--bind {shlex.quote(f'{dim}={sizes_of[dim]}')}" for dim in missing)
        guess = f"sizes, such as {bind} (not tried)"
        raise UsageError(f"dynamic dimensions without a size: {listed}: give --data with real samples, or {guess}")
    for spec in specs:
        size = math.prod(max(d, 1) for d in shapes[spec.name]) * spec.dtype.itemsize
        if size > MAX_RANDOM_BYTES:  # numpy refuses such a shape beside a 0, too
            raise UsageError(f"input {spec} is larger than {MAX_RANDOM_BYTES >> 20} MiB: give --data with real samples")
    return shapes


def _drawn(
    spec: InputSpec, specs: Sequence[InputSpec], shapes: Mapping[str, tuple[int, ...]], rng: np.random.Generator
) -> np.ndarray:
    shape = shapes[spec.name]
    if spec.fixed is not None:
        return spec.fixed
    if spec.dtype.kind not in "fiub":
        raise UsageError(f"input {spec} takes text: random values make no sense, give --data")
    constant = asked_by_name(spec, specs, shapes)
    if constant is not None:
        return np.asarray(np.broadcast_to(constant, shape), spec.dtype, order="C")
    if spec.dtype.kind == "f":
        return np.asarray(rng.standard_normal(shape), spec.dtype)
    return np.asarray(rng.integers(0, _ids(spec), shape), spec.dtype)


def asked_by_name(
    spec: InputSpec, specs: Sequence[InputSpec], shapes: Mapping[str, Sequence[int]]
) -> np.ndarray | None:
    """What an input of such a name holds, to be broadcast to its shape; None where any value will do."""
    rule, shape = following(spec), shapes[spec.name]
    if rule is not None and shape:
        return rule(shape[-1], shape[-1])
    if "mask" in spec.name.lower():  # most say what to keep; those of padding, what to leave out
        return np.array(int("pad" not in spec.name.lower()))
    if _RATE.match(spec.name):
        return np.array(RATE)
    if spec.dtype.kind in "iu" and _LENGTHS.search(spec.name):
        stem = _LENGTHS.sub("", spec.name)
        others = [s for s in specs if s.name != spec.name and len(shapes[s.name]) > 1]
        of = next((s for s in others if s.name == stem), others[0] if others else None)
        if of is not None:
            free = [i for i, d in enumerate(of.dims or ()) if isinstance(d, str) and i]
            return np.array(shapes[of.name][free[-1] if free else -1])
    return None


def _ids(spec: InputSpec) -> int:
    """One more than the largest number that an input of integers is given."""
    most = 2 if spec.dtype.kind == "b" else np.iinfo(spec.dtype).max
    return min(spec.vocabulary or 2, most)


def template(specs: Sequence[InputSpec], sizes: Mapping[str, int] | None = None, remark: str = "") -> str:
    """A Python program that writes samples for ``--data``, to be filled in.

    Dynamic dimensions have plausible sizes by default; ``remark`` says what is known of them.
    """
    sizes = {**likely_sizes(specs), **(sizes or {})}
    shapes = {s.name: [sizes[d] if isinstance(d, str) else d for d in s.dims or ()] for s in specs}
    rows = []
    for spec in specs:
        dims = spec.dims or ()
        counts = bool(dims) and isinstance(dims[0], int) and dims[0] != 1  # of another size it counts no samples
        own, shape = (dims, shapes[spec.name]) if counts else (dims[1:], shapes[spec.name][1:])
        free = [d for d in own if isinstance(d, str)]
        rows += [f"    # any size: {', '.join(free)}"] if free else []
        if is_carried(spec, len(dims)):
            rows.append("    # what the model gave at the step before: inlay record -- PROGRAM saves what is fed")
        rows.append(f"    {spec.name!r}: {_row(spec, specs, shapes, [16, *shape])},")
    body = "\n".join(rows)
    return (
        "import numpy as np\n\nrng = np.random.default_rng(0)\n"
        "# replace these with real samples, a hundred if you can; first axis = samples\n"
        + (f"# {remark}\n" if remark else "")
        + f'np.savez("samples.npz", **{{\n{body}\n}})\n'
    )


def _row(spec: InputSpec, specs: Sequence[InputSpec], shapes: Mapping[str, Sequence[int]], shape: Sequence[int]) -> str:
    """An expression for ``shape`` of one input."""
    sizes, dtype = f"[{', '.join(map(str, shape))}]", spec.kind
    if spec.dtype.hasobject:
        return f"np.full({sizes}, 'text')"
    if spec.dtype.kind not in "fiub":
        return f"np.zeros({sizes}, 'float32')"  # which is refused, with what to do
    constant = asked_by_name(spec, specs, shapes)
    if constant is None and spec.dtype.kind == "f":
        return f"rng.standard_normal({sizes}).astype({dtype!r})"
    if constant is None:
        return f"rng.integers(0, {_ids(spec)}, {sizes}).astype({dtype!r})"
    if constant.ndim and np.array_equal(constant, np.arange(constant.size)):
        return f"np.broadcast_to(np.arange({constant.size}), {sizes}).astype({dtype!r})"
    return f"np.full({sizes}, {int(constant.flat[0])}, {dtype!r})"
