"""Labels of samples: an array, or a file with one for each sample, or for each row of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from inlay.data.archives import read_arrays
from inlay.data.samples import InputSpec, Samples
from inlay.errors import DataError

_STACKED = ("npz", "csv", "images")  # kinds of one stack of rows, of which only the last ones may be left out


def labelled(samples: Samples, given: str | Path | np.ndarray, specs: Sequence[InputSpec]) -> Samples:
    """``samples`` with their labels.

    Args:
        given: the labels, or a ``.npy``, ``.npz`` with one array, or a text file with one number per line. Where the
            model fixes a batch size, there may be one for each row of the data.
        specs: the inputs.

    Raises:
        DataError: the file cannot be read, or there are not as many labels as samples.
    """
    file = given if isinstance(given, (str, Path)) else None
    labels = _read(Path(file)) if file is not None else np.asarray(given)
    who, count = "labels" if file is None else f"--labels {file}", len(samples)
    sizes = {s.dims[0] for s in specs if s.dims and s.fixed is None}
    batch = sizes.pop() if len(sizes) == 1 else 1
    if isinstance(batch, int) and batch > 1 and labels.ndim == 1 and len(labels) != count:
        unused = batch - 1 if samples.kind in _STACKED and samples.left_out else 0
        if 0 <= len(labels) - count * batch <= unused:
            labels = labels[: count * batch].reshape(count, batch)
    if labels.ndim == 0 or len(labels) != count:
        held = "one number" if labels.ndim == 0 else f"{len(labels)} labels"
        each = f", each of {batch} rows" if isinstance(batch, int) and batch > 1 else ""
        there = "there are" if file is None else "--data has"
        raise DataError(f"{who}: {held}, but {there} {count} samples{each}")
    return replace(samples, labels=labels)


def _read(path: Path) -> np.ndarray:
    if not path.is_file():
        raise DataError(f"--labels {path}: no such file")
    if path.suffix in (".npz", ".npy"):
        arrays = read_arrays(path)
        if len(arrays) != 1:
            raise DataError(f"--labels {path}: holds arrays {', '.join(arrays)}; give a file with one")
        (labels,) = arrays.values()
        return labels
    try:
        return np.loadtxt(path, dtype=np.int64, ndmin=1)
    except (ValueError, ArithmeticError, OSError) as error:
        raise DataError(f"--labels {path} cannot be read: {error}") from error
