"""Samples and labels from files or functions, checked against the model's inputs."""

from __future__ import annotations

import importlib
import os
import sys
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx

from inlay.data.samples import Feed, InputSpec, Samples
from inlay.errors import DataError, UsageError


def read_samples(source: str | Path | Iterable[Mapping[str, np.ndarray]], specs: Sequence[InputSpec]) -> Samples:
    """Samples from a ``.npz`` or ``.npy`` file, a folder, ``module:function``, or feeds.

    Args:
        source: an array's first axis counts the samples (in batches, if the model has a fixed batch size); a folder
            holds such files, each with one sample or several, or ONNX ``test_data_set_*`` folders.
        specs: the model's inputs.

    Raises:
        DataError: there are no samples, or they do not fit the inputs; the message names the input.
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


def read_labels(source: str | Path, count: int) -> np.ndarray:
    """One label per sample from a ``.npy``, ``.npz`` with one array, or a text file with one number per line.

    Raises:
        DataError: the file cannot be read, or does not hold ``count`` labels.
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


def save_feed(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays by name as ``.npz``; any name is allowed."""
    with path.open("wb") as file:
        np.savez(file, **cast(Any, arrays))  # numpy's stubs take names for options in some versions


def load_function(text: str, option: str) -> Callable[..., Any]:
    """The function that ``module:function`` names; modules in the working directory are found too.

    Args:
        text: ``module:function``.
        option: the command-line option, for messages.

    Raises:
        UsageError: there is no such module or function.
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
    """Split stacked arrays into feeds: along the first axis by the batch size, or along an extra first axis."""
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
    return np.asarray(array, spec.dtype, order="C")  # ascontiguousarray would make a scalar an array of one number
