"""Samples: read, check that they fit the model's inputs, split for calibration, selection and verification."""

from __future__ import annotations

import importlib
import os
import sys
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import onnx_ir as ir

from inlay.errors import DataError, ModelError, UsageError

Feed = dict[str, np.ndarray]


@dataclass(frozen=True)
class InputSpec:
    """One input of a model: its dtype, and its dimensions: a number, or the symbol of a dynamic one."""

    name: str
    dtype: np.dtype[Any]
    dims: tuple[int | str, ...] | None

    def __str__(self) -> str:
        dims = "any shape" if self.dims is None else "[" + ", ".join(map(str, self.dims)) + "]"
        return f"{self.name}: {self.dtype.name} {dims}"


@dataclass(frozen=True, eq=False)
class Samples:
    """Feeds, each a full set of inputs for one inference.

    Attributes:
        feeds: at least one.
        kind: ``npz``, ``folder``, ``function``, ``feeds`` or ``random``.
        source: where they came from, for messages and ``result.json``.
        labels: one per feed (or per row of its batch), or None.
    """

    feeds: tuple[Feed, ...]
    kind: str
    source: str
    labels: np.ndarray | None = None

    def part(self, indices: Sequence[int]) -> Samples:
        """The samples at ``indices``, labels included."""
        labels = None if self.labels is None else self.labels[list(indices)]
        return Samples(tuple(self.feeds[i] for i in indices), self.kind, self.source, labels)

    def __len__(self) -> int:
        return len(self.feeds)


@dataclass(frozen=True, eq=False)
class Split:
    """Samples in three disjoint parts: ranges come from the first, choices from the second, the last is kept back.

    With fewer than three samples parts repeat, and ``verified`` is False.
    """

    calibration: Samples
    selection: Samples
    verification: Samples
    verified: bool


def input_specs(model: ir.Model) -> tuple[InputSpec, ...]:
    """The inputs that a feed must give (initializers listed among the inputs need none)."""
    specs = []
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
        specs.append(InputSpec(str(value.name), np.dtype(value.type.dtype.numpy()), dims))
    return tuple(specs)


def read_samples(source: str | Path | Iterable[Mapping[str, np.ndarray]], specs: Sequence[InputSpec]) -> Samples:
    """Samples from a ``.npz``, a folder, ``module:function``, or feeds given directly.

    Raises:
        DataError: nothing there, or not what the model's inputs expect; the message names the input.
    """
    if not isinstance(source, (str, Path)):
        return _checked([dict(f) for f in source], "feeds", "given feeds", specs)
    text = str(source)
    path = Path(text)
    if path.is_dir():
        return _from_folder(path, specs)
    if path.suffix in (".npz", ".npy"):
        if not path.is_file():
            raise DataError(f"--data {text}: no such file")
        return _checked(_rows(_arrays(path, specs), specs, text), "npz", text, specs)
    if ":" in text and not path.exists():
        feeds = load_function(text, "--data")()
        if isinstance(feeds, Mapping):
            feeds = _rows({k: np.asarray(v) for k, v in feeds.items()}, specs, text)
        return _checked([{k: np.asarray(v) for k, v in f.items()} for f in feeds], "function", text, specs)
    raise DataError(f"--data {text}: give a .npz file, a folder of .npz/.npy/test_data_set_*, or module:function")


def random_samples(
    specs: Sequence[InputSpec], bind: Mapping[str, int], rng: np.random.Generator, count: int
) -> Samples:
    """Random inputs: standard normal numbers for floats, 0 or 1 for integers and booleans.

    Raises:
        UsageError: a dynamic dimension other than the batch has no size.
    """
    feeds = []
    for _ in range(count):
        feed: Feed = {}
        for spec in specs:
            shape = _bound(spec, bind)
            if spec.dtype.kind == "f":
                feed[spec.name] = rng.standard_normal(shape).astype(spec.dtype)
            elif spec.dtype.kind in "iub":
                feed[spec.name] = rng.integers(0, 2, shape).astype(spec.dtype)
            else:
                raise UsageError(f"input {spec.name} is {spec.dtype.name}: random values make no sense, give --data")
        feeds.append(feed)
    return Samples(tuple(feeds), "random", "random")


def read_labels(source: str | Path, count: int) -> np.ndarray:
    """One label per sample from a ``.npy``, ``.npz`` with one array, or a text file with one number per line.

    Raises:
        DataError: not readable, or not ``count`` labels.
    """
    path = Path(source)
    if not path.is_file():
        raise DataError(f"--labels {path}: no such file")
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as archive:
                if len(archive.files) != 1:
                    raise DataError(f"--labels {path}: holds arrays {', '.join(archive.files)}; give a file with one")
                labels = archive[archive.files[0]]
        elif path.suffix == ".npy":
            labels = np.asarray(np.load(path, allow_pickle=False))
        else:
            labels = np.loadtxt(path, dtype=np.int64, ndmin=1)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"--labels {path} cannot be read: {error}") from error
    if labels.ndim == 0 or len(labels) != count:
        held = "one number" if labels.ndim == 0 else f"{len(labels)} labels"
        raise DataError(f"--labels {path}: {held}, but --data has {count} samples")
    return np.asarray(labels)


def split(samples: Samples, rng: np.random.Generator, calibration: int = 128, others: int = 2000) -> Split:
    """Cut samples in three: half (at most ``calibration``) to calibrate; the rest in equal parts.

    Labelled samples are shuffled, since they are often sorted by class. Of others every second one calibrates, so that
    ranges see all there is; the rest is cut in the order given: neighbours are often views of one scene, and selection
    and verification must not share scenes, or the accuracy would look better than it is.

    Args:
        samples: at least one.
        rng: shuffles.
        calibration: most samples to calibrate with.
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
    """At most ``most`` of ``indices``, evenly over all of them."""
    return [indices[int(i)] for i in np.linspace(0, len(indices) - 1, min(len(indices), most))]


def save_feed(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays by name as ``.npz``, whatever their names."""
    with path.open("wb") as file:
        np.savez(file, **cast(Any, arrays))  # numpy's stubs take names for options in some versions


def load_function(text: str, option: str) -> Callable[..., Any]:
    """The function that ``module:function`` names; the current folder counts as a place for modules.

    Raises:
        UsageError: no such module or function.
    """
    module_name, _, name = text.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        function = getattr(importlib.import_module(module_name), name)
    except ModuleNotFoundError as error:
        raise UsageError(f"{option} {text}: there is no module {error.name}") from error
    except AttributeError as error:
        raise UsageError(f"{option} {text}: module {module_name} has no {name}") from error
    if not callable(function):
        raise UsageError(f"{option} {text}: {name} is not a function")
    return function  # type: ignore[no-any-return]


def _bound(spec: InputSpec, bind: Mapping[str, int]) -> tuple[int, ...]:
    if spec.dims is None:
        raise UsageError(f"input {spec.name} has no known shape: give --data")
    shape = []
    for i, dim in enumerate(spec.dims):
        if isinstance(dim, str) and dim not in bind and i > 0:
            raise UsageError(
                f"input {spec.name} has the dynamic dimension {dim}: give --bind {dim}=N, or --data with real samples"
            )
        shape.append(dim if isinstance(dim, int) else bind.get(dim, 1))
    return tuple(shape)


def _arrays(path: Path, specs: Sequence[InputSpec]) -> dict[str, np.ndarray]:
    try:
        with path.open("rb") as file:  # numpy leaves a broken archive open
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                if len(specs) != 1:
                    names = ", ".join(s.name for s in specs)
                    raise DataError(f"{path} holds one array, but the model has the inputs {names}: give a .npz")
                return {specs[0].name: loaded}
            with loaded:
                return {name: loaded[name] for name in loaded.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise DataError(f"{path} cannot be read: {error}") from error


def _rows(arrays: dict[str, np.ndarray], specs: Sequence[InputSpec], where: str) -> list[Feed]:
    """Cut stacked arrays into feeds: along the batch axis in the model's batch size, or along an extra first axis."""
    _same_names(arrays, specs, where)
    columns = {}
    for spec in specs:
        array = arrays[spec.name]
        rank = None if spec.dims is None else len(spec.dims)
        if rank is not None and array.ndim == rank + 1:
            columns[spec.name] = list(array)
        elif rank is None or array.ndim == rank:
            batch = spec.dims[0] if spec.dims and isinstance(spec.dims[0], int) else 1
            if rank == 0 or array.ndim == 0:
                raise DataError(f"{where}: input {spec} is a scalar: give an array of one number per sample")
            whole = len(array) // max(batch, 1)
            columns[spec.name] = [array[i * batch : (i + 1) * batch] for i in range(whole)]
        else:
            raise DataError(f"{where}: input {spec} expects rank {rank}, the array has shape {list(array.shape)}")
    counts = {name: len(rows) for name, rows in columns.items()}
    if len(set(counts.values())) > 1:
        raise DataError(f"{where}: the inputs have different numbers of samples: {counts}")
    return [{name: rows[i] for name, rows in columns.items()} for i in range(min(counts.values(), default=0))]


def _from_folder(folder: Path, specs: Sequence[InputSpec]) -> Samples:
    sets = sorted(p for p in folder.glob("test_data_set_*") if p.is_dir())
    if sets:
        return _checked([_test_data_set(p, specs) for p in sets], "folder", str(folder), specs)
    files = sorted([*folder.glob("*.npz"), *folder.glob("*.npy")])
    if not files:
        raise DataError(f"--data {folder}: holds neither .npz nor .npy files nor test_data_set_* folders")
    feeds: list[Feed] = []
    for file in files:
        arrays = _arrays(file, specs)
        single = all(s.dims is None or (s.name in arrays and arrays[s.name].ndim == len(s.dims)) for s in specs)
        whole = single and all(_fits(arrays[s.name].shape, s) for s in specs if s.name in arrays)
        if whole:
            _same_names(arrays, specs, str(file))
            feeds.append(arrays)
        else:
            feeds.extend(_rows(arrays, specs, str(file)))
    return _checked(feeds, "folder", str(folder), specs)


def _test_data_set(folder: Path, specs: Sequence[InputSpec]) -> Feed:
    feed: Feed = {}
    for i, file in enumerate(sorted(folder.glob("input_*.pb"), key=lambda p: int(p.stem.split("_")[1]))):
        try:
            proto = onnx.TensorProto.FromString(file.read_bytes())
            name = proto.name if any(s.name == proto.name for s in specs) else specs[i].name
            feed[name] = onnx.numpy_helper.to_array(proto)
        except Exception as error:  # protobuf and numpy each raise their own
            raise DataError(f"{file} cannot be read: {error}") from error
    return feed


def _same_names(arrays: Mapping[str, np.ndarray], specs: Sequence[InputSpec], where: str) -> None:
    expected = {s.name for s in specs}
    missing = [str(s) for s in specs if s.name not in arrays]
    unknown = [name for name in arrays if name not in expected]
    if missing:
        extra = f"; it has {', '.join(unknown)} instead" if unknown else ""
        raise DataError(f"{where}: no array for the model's input {'; '.join(missing)}{extra}")
    if unknown:
        raise DataError(
            f"{where}: the model has no input {', '.join(unknown)}; it expects {', '.join(map(str, specs))}"
        )


def _fits(shape: tuple[int, ...], spec: InputSpec) -> bool:
    if spec.dims is None:
        return True
    return len(shape) == len(spec.dims) and all(
        isinstance(d, str) or d == n for n, d in zip(shape, spec.dims, strict=True)
    )


def _checked(feeds: list[Feed], kind: str, source: str, specs: Sequence[InputSpec]) -> Samples:
    if not feeds:
        raise DataError(f"--data {source}: holds no samples")
    fixed = []
    for number, feed in enumerate(feeds):
        where = f"--data {source}, sample {number}"
        _same_names(feed, specs, where)
        fixed.append({spec.name: _fitting(np.asarray(feed[spec.name]), spec, where) for spec in specs})
    return Samples(tuple(fixed), kind, source)


def _fitting(array: np.ndarray, spec: InputSpec, where: str) -> np.ndarray:
    if not _fits(array.shape, spec):
        raise DataError(f"{where}: input {spec} got shape {list(array.shape)}")
    if array.dtype != spec.dtype:
        widening = spec.dtype.kind == "f" and array.dtype.kind == "f"
        exact = array.dtype.kind in "iu" and spec.dtype.kind in "iu" and np.array_equal(array.astype(spec.dtype), array)
        if not (widening or exact):
            raise DataError(f"{where}: input {spec} got {array.dtype.name}")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise DataError(f"{where}: input {spec.name} holds NaN or infinite numbers")
    return np.ascontiguousarray(array, dtype=spec.dtype)
