"""Samples from files or functions, checked against the model's inputs."""

from __future__ import annotations

import importlib
import itertools
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from inlay.data.archives import as_text, read_arrays, read_tensor
from inlay.data.images import Images, image_files, read_images
from inlay.data.left_out import LeftOut
from inlay.data.objects import MOST_SAMPLES, arrays_of, as_array, as_feeds, as_given, at_most, batches, is_loader
from inlay.data.samples import Feed, InputSpec, Samples
from inlay.data.sounds import read_sounds, sound_files, sounds_in
from inlay.data.tables import read_table
from inlay.data.tokens import read_token_lines
from inlay.errors import DataError, InlayError, UsageError

_FORMS = ("*.npz", "*.npy", "test_data_set_*/input_*.pb")
Find = Callable[[str, str, Callable[[Any], Any]], Callable[..., Any]]
"""Finds a user's function: by ``module:function`` and the option that names it, with what turns its result into
arrays of Inlay's."""


def found_here(text: str, option: str, finish: Callable[[Any], Any]) -> Callable[..., Any]:
    """A user's function that runs in this process; arguments as for :data:`Find`."""
    function = load_function(text, option)
    return lambda *arguments: finish(function(*arguments))


def read_samples(
    source: str | Path | Iterable[Mapping[str, np.ndarray]],
    specs: Sequence[InputSpec],
    images: Images | None = None,
    find: Find = found_here,
) -> Samples:
    """Samples from a ``.npz``, ``.npy`` or ``.jsonl`` file, a folder, ``module:function``, or feeds.

    Args:
        source: an array's first axis counts the samples (in batches, if the model has a fixed batch size); a ``.npz``
            may also hold an array per sample, ``INPUT_0``, ``INPUT_1``, …, in which shapes may differ; a folder holds
            such files, each with one sample or several, or ONNX ``test_data_set_*`` folders, or images; for ``.jsonl``
            see :mod:`inlay.data.tokens`.
        find: finds the function that ``module:function`` names; by default one that runs in this process.

    Raises:
        UsageError: ``images`` does not fit the inputs, or there are no images.
        DataError: there are no samples, or they do not fit the inputs; the message names the input.
    """
    for spec in specs:
        spec.refuse_unfed()
    left = LeftOut()
    samples = _read(source, specs, images, find, left)
    return replace(samples, left_out=left.said)


def _read(
    source: str | Path | Iterable[Mapping[str, np.ndarray]],
    specs: Sequence[InputSpec],
    images: Images | None,
    find: Find,
    left: LeftOut,
) -> Samples:
    text, free = str(source), [s for s in specs if s.fixed is None]
    folder = Path(source) if isinstance(source, (str, Path)) else None
    if folder is not None and folder.is_dir() and not _array_files(folder) and (files := image_files(folder)):
        left.files(folder, files, "the images")
        arrays = read_images(files, free, images or Images(), f"--data {folder}", left)
        return checked(_rows(arrays, specs, f"--data {folder}", left), "images", str(folder), specs)
    if images is not None:
        raise UsageError("--preprocess applies only to --data FOLDER with images")
    if not isinstance(source, (str, Path)):
        return checked(_feeds(source, specs, "given feeds", left), "feeds", "given feeds", specs)
    path = Path(text)
    if path.is_dir():
        return _from_folder(path, specs, left)
    if path.suffix in (".npz", ".npy", ".jsonl", ".csv") and not path.is_file():
        raise DataError(f"--data {text}: no such file")
    if path.suffix in (".npz", ".npy"):
        return checked(_rows(_arrays(path, specs), specs, text, left), "npz", text, specs)
    if path.suffix == ".jsonl":
        return checked(read_token_lines(path, specs), "jsonl", text, specs)
    if path.suffix == ".csv":
        return checked(_rows(read_table(path, specs), specs, text, left), "csv", text, specs)
    if (sounds := sounds_in(text)) is not None:
        name = sounds.name if ":" in sounds.name else ""
        own = find(name, "--data", partial(as_array, name="its result", where=f"--data {text}")) if name else None
        left.files(sounds.folder, sounds.files, "the .wav files")
        return checked(read_sounds(sounds, free, own), "sounds", text, specs)
    if ":" in text and not path.exists():
        function = find(text, "--data", partial(as_given, f"--data {text}"))
        try:
            feeds = _feeds(function(), specs, text, left)
        except InlayError:
            raise
        except (Exception, SystemExit) as error:  # the user's own code
            raise DataError(f"--data {text} failed: {blame(error)}") from error
        return checked(feeds, "function", text, specs)
    raise DataError(
        f"--data {text}: give a .npz, .jsonl or .csv file, a folder of .npz/.npy/images/test_data_set_*, "
        "a saved data set, FRONT_END:FOLDER of .wav files, or module:function"
    )


def load_function(text: str, option: str) -> Callable[..., Any]:
    """The function that ``module:function`` names; modules in the working directory are found too.

    Raises:
        UsageError: there is no such module or function, or importing it fails.
    """
    module_name, _, name = text.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UsageError(f"{option} {text}: there is no module {error.name}") from error
    except (Exception, SystemExit) as error:  # the user's own code
        raise UsageError(f"{option} {text}: importing {module_name} failed: {blame(error)}") from error
    function = getattr(module, name, None)
    if function is None:
        raise UsageError(f"{option} {text}: module {module_name} has no {name}")
    if not callable(function):
        raise UsageError(f"{option} {text}: {name} is not a function")
    return function  # type: ignore[no-any-return]


def blame(error: BaseException) -> str:
    """What went wrong in the user's own code, and where."""
    try:
        said = str(error)
    except Exception:  # its text is the user's code as well
        said = "it cannot be shown"
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {said}{where}"


def _feeds(given: object, specs: Sequence[InputSpec], where: str, left: LeftOut) -> list[Feed]:
    """Feeds from what a function or a caller gave: feeds one by one, stacked arrays by name, or what holds them."""
    if is_loader(given):
        each = (_rows(arrays_of(batch, where), specs, where, left, True) for batch in batches(given, specs, where))
        return at_most(itertools.chain.from_iterable(each), where)
    found = as_given(where, as_feeds(given, specs, where))
    return found if isinstance(found, list) else _rows(found, specs, where, left)


def _arrays(path: Path, specs: Sequence[InputSpec]) -> dict[str, np.ndarray]:
    arrays = read_arrays(path)
    if "" in arrays and path.suffix == ".npy":
        free = [s for s in specs if s.fixed is None]
        if len(free) != 1:
            names = ", ".join(s.name for s in specs)
            raise DataError(f"{path} holds one array, but the model has the inputs {names}: give a .npz")
        return {free[0].name: arrays[""]}
    return arrays


def _rows(
    arrays: dict[str, np.ndarray], specs: Sequence[InputSpec], where: str, left: LeftOut, short: bool = False
) -> list[Feed]:
    """Split stacked arrays into feeds: along the first axis by the batch size, or along an extra first axis.

    Args:
        left: hears how many rows fill no batch.
        short: they may be too few for a single one, as a loader's last batch is.
    """
    if numbered := _numbered(arrays, specs):
        return numbered
    _same_names(arrays, specs, where)
    columns, shared, rests = dict[str, Sequence[np.ndarray]](), Feed(), dict[str, tuple[InputSpec, int, int]]()
    for spec in (s for s in specs if s.name in arrays):
        array = arrays[spec.name]
        if array.ndim and len(array) > MOST_SAMPLES:
            raise DataError(f"{where}: {len(array)} rows for input {spec.name}; give at most {MOST_SAMPLES}")
        rank = None if spec.dims is None else len(spec.dims)
        if rank == 0 and array.ndim == 0:
            shared[spec.name] = array
        elif rank is not None and array.ndim == rank + 1:
            columns[spec.name] = list(array)
        elif rank is None or array.ndim == rank:
            batch = spec.dims[0] if spec.dims and isinstance(spec.dims[0], int) else 1
            if rank == 0 or array.ndim == 0:
                raise DataError(f"{where}: input {spec} is a scalar: give an array of one number per sample")
            whole = len(array) // max(batch, 1)
            if len(array) and not whole and not short:
                raise DataError(f"{where}: input {spec} takes {batch} rows at once, the array has {len(array)}")
            columns[spec.name] = [array[i * batch : (i + 1) * batch] for i in range(whole)]
            if batch > 1:
                rests[spec.name] = spec, len(array) - whole * batch, len(array)
        else:
            raise DataError(f"{where}: input {spec} expects rank {rank}, the array has shape {list(array.shape)}")
    if not columns:
        return [shared] if shared else []
    counts = {name: len(rows) for name, rows in columns.items()}
    if len(set(counts.values())) > 1:
        raise DataError(f"{where}: the inputs have different numbers of samples: {counts}")
    if rests:
        left.rows(rests)
    return [{**shared, **{name: rows[i] for name, rows in columns.items()}} for i in range(min(counts.values()))]


def _numbered(arrays: Mapping[str, np.ndarray], specs: Sequence[InputSpec]) -> list[Feed]:
    """Feeds from one array per input and sample, ``INPUT_0``, ``INPUT_1``, …; none where they have other names."""
    found: dict[int, Feed] = {}
    ranks = {s.name: None if s.dims is None else len(s.dims) for s in specs}
    for key, array in arrays.items():
        name, _, number = key.rpartition("_")
        if key in ranks or name not in ranks or not (number.isascii() and number.isdecimal() and len(number) < 10):
            return []
        rank = ranks[name]
        found.setdefault(int(number), {})[name] = array[None] if rank is not None and array.ndim == rank - 1 else array
    return [found[number] for number in sorted(found)]


def files_of(source: object) -> list[Path]:
    """The files that samples are read from; none where ``source`` is not a path."""
    if not isinstance(source, (str, Path)):
        return []
    path = Path(source)
    if (sounds := sounds_in(str(source))) is not None:
        return sounds.files
    return [path] if path.is_file() else _array_files(path) or image_files(path)


def _array_files(folder: Path) -> list[Path]:
    return [p for form in _FORMS for p in folder.glob(form)]


def _from_folder(folder: Path, specs: Sequence[InputSpec], left: LeftOut) -> Samples:
    sets = sorted(p for p in folder.glob("test_data_set_*") if p.is_dir())
    if sets:
        left.files(folder, [p for each in sets for p in each.glob("input_*.pb")], "the test_data_set_* folders")
        return checked([_test_data_set(p, specs) for p in sets], "folder", str(folder), specs)
    files = sorted([*folder.glob("*.npz"), *folder.glob("*.npy")])
    if not files and is_saved_set(folder):
        return checked(_feeds(open_set(folder), specs, f"--data {folder}", left), "dataset", str(folder), specs)
    if not files and sound_files(folder):
        raise DataError(
            f"--data {folder}: holds .wav files: say what the model takes of them: --data waveform:{folder}, "
            f"--data log-mel:{folder}, or --data module:function:{folder}"
        )
    if not files:
        raise DataError(f"--data {folder}: holds neither .npz, .npy, images nor test_data_set_* folders")
    left.files(folder, files, "the .npz and .npy files")
    feeds: list[Feed] = []
    for file in files:
        arrays = _arrays(file, specs)
        needed = [s for s in specs if s.fixed is None or s.name in arrays]
        single = all(s.dims is None or (s.name in arrays and arrays[s.name].ndim == len(s.dims)) for s in needed)
        whole = single and all(_fits(arrays[s.name].shape, s) for s in specs if s.name in arrays)
        if whole:
            _same_names(arrays, specs, str(file))
            feeds.append(arrays)
        else:
            feeds.extend(_rows(arrays, specs, str(file), left))
    return checked(feeds, "folder", str(folder), specs)


def _test_data_set(folder: Path, specs: Sequence[InputSpec]) -> Feed:
    feed: Feed = {}
    numbered = {p.stem.removeprefix("input_"): p for p in folder.glob("input_*.pb")}
    for number in sorted((n for n in numbered if n.isdecimal()), key=int):
        name, array = read_tensor(numbered[number])
        if not any(s.name == name for s in specs) and int(number) < len(specs):
            name = specs[int(number)].name
        feed[name] = array
    return feed


def _same_names(arrays: Mapping[str, np.ndarray], specs: Sequence[InputSpec], where: str) -> None:
    expected = {s.name for s in specs}
    missing = [str(s) for s in specs if s.name not in arrays and s.fixed is None]
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


def checked(feeds: list[Feed], kind: str, source: str, specs: Sequence[InputSpec], option: str = "--data") -> Samples:
    """``feeds`` as samples that fit the model's inputs, in their types.

    Raises:
        DataError: there are none, or one does not fit; the message begins with ``option`` and ``source``.
    """
    if not feeds:
        raise DataError(f"{option} {source}: holds no samples")
    fixed = []
    for number, feed in enumerate(feeds):
        where = f"{option} {source}, sample {number}"
        _same_names(feed, specs, where)
        fixed.append({s.name: s.only(_fitting(np.asarray(feed.get(s.name, s.fixed)), s, where), where) for s in specs})
    return Samples(tuple(fixed), kind, source)


def _fitting(array: np.ndarray, spec: InputSpec, where: str) -> np.ndarray:
    if not _fits(array.shape, spec) and spec.dims and _fits((1, *array.shape), spec):  # without its batch
        array = array[None]
    if not _fits(array.shape, spec):
        raise DataError(f"{where}: input {spec} got shape {list(array.shape)}{_turned(array, spec)}")
    if spec.dtype.hasobject:
        return _text(array, spec, where)
    if array.dtype != spec.dtype:
        widening = spec.dtype.kind == "f" and array.dtype.kind == "f"
        numbers = array.dtype.kind in "iub" and spec.dtype.kind in "iub"
        exact = numbers and np.array_equal(array.astype(spec.dtype), array)
        if not (widening or exact):
            raise DataError(
                f"{where}: input {spec} got {array.dtype.name}"
                + (
                    " with numbers that it cannot hold"
                    if numbers
                    else f": give it the values that it gets in use, as {spec.kind}"
                )
            )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise DataError(f"{where}: input {spec.name} holds NaN or infinite numbers")
    return np.asarray(array, spec.dtype, order="C")  # ascontiguousarray would make a scalar an array of one number


def _turned(array: np.ndarray, spec: InputSpec) -> str:
    """What to do with images whose channels are at the other end; empty where they are no such images."""
    rank = len(spec.dims or ())
    last, first = (0, *range(2, rank), 1), (0, rank - 1, *range(1, rank - 1))
    for axes in (first, last) if array.ndim == rank > 2 else ():
        if _fits(tuple(array.shape[i] for i in axes), spec):
            return f": transpose it with .transpose{axes}"
    return ""


def _text(array: np.ndarray, spec: InputSpec, where: str) -> np.ndarray:
    try:
        text = as_text(array)
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: input {spec} got bytes that are not UTF-8") from error
    if text.dtype.kind != "U":
        raise DataError(f"{where}: input {spec} got {array.dtype.name}: give an array of str")
    return text


def is_saved_set(folder: Path) -> bool:
    """Whether a folder was written by ``save_to_disk``: one data set, or several splits."""
    return (folder / "dataset_dict.json").is_file() or (folder / "dataset_info.json").is_file()


def open_set(folder: Path) -> Any:
    """The data set, or its splits by name. Raises DataError where the package is not installed, or cannot read it."""
    try:
        from datasets import load_from_disk
    except ImportError:
        raise DataError(f"--data {folder} is a saved data set, which needs: pip install 'inlay[datasets]'") from None
    try:
        return load_from_disk(str(folder))
    except Exception as error:  # of pyarrow and others, which share no class
        raise DataError(f"--data {folder} cannot be read as a data set: {error}") from error
