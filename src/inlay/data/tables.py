"""Rows of a ``.csv`` file: one sample a line, columns named for inputs or, for one input, in their order."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from inlay.data.samples import InputSpec
from inlay.errors import DataError
from inlay.files import opened

_MOST_ROWS = 1_000_000  # as many samples as other files may hold
_PART = re.compile(r"(.*?)(?:[._]\d+|\[\d+\])")  # `x_0`, `x.0` and `x[0]` are parts of input `x`


def read_table(path: Path, specs: Sequence[InputSpec]) -> dict[str, np.ndarray]:
    """The rows by input, stacked.

    The first line names the columns: an input, or a part of one (``x_0``, ``x.0``, ``x[0]``). For a model with one
    input that no column names, they are its numbers, in order; then a first line of numbers is a sample as well.

    Raises:
        DataError: it is no such table, a cell of numbers is none, or columns do not make up an input; the message names
            them.
    """
    free = [spec for spec in specs if spec.fixed is None]
    try:
        with opened(path) as raw:
            text = io.TextIOWrapper(raw, encoding="utf-8-sig", newline="")
            first = text.readline()
            mark = next((each for each in (",", ";", "\t") if each in first), ",")
            rows = [r for r in csv.reader([first, *text], delimiter=mark) if any(cell.strip() for cell in r)]
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text") from error
    except csv.Error as error:
        raise DataError(f"{path} is no table: {error}") from error
    if not rows:
        raise DataError(f"{path}: holds no rows")
    if len(rows) > _MOST_ROWS:
        raise DataError(f"{path}: {len(rows)} rows; give at most {_MOST_ROWS}")
    names = [cell.strip() for cell in rows[0]]
    bare = len(free) == 1 and all(map(_is_number, names))
    if bare:
        names = [""] * len(names)
    else:
        rows = rows[1:]
    columns = _columns(names, free, path)
    first_line = 1 if bare else 2
    return {
        spec.name: _shaped(_numbers(rows, columns[spec.name], spec, names, f"{path}", first_line), spec, path)
        for spec in free
    }


def _columns(names: Sequence[str], free: Sequence[InputSpec], path: Path) -> dict[str, list[int]]:
    """Places of the columns of each input."""
    found = dict[str, list[int]]()
    known = {spec.name for spec in free}
    for place, name in enumerate(names):
        part = _PART.fullmatch(name)
        own = name if name in known else part[1] if part and part[1] in known else None
        if own is None and name and found:
            raise DataError(f"{path}: the model has no input {name}; it takes {', '.join(known)}: leave the column out")
        if own is not None:
            found.setdefault(own, []).append(place)
    if not found and len(free) == 1:
        return {free[0].name: list(range(len(names)))}
    if missing := [spec.name for spec in free if spec.name not in found]:
        raise DataError(f"{path}: no column for input {', '.join(missing)}; there are {', '.join(names)}")
    if sum(map(len, found.values())) < len(names):
        used = {place for places in found.values() for place in places}
        unknown = [n or f"for column {i}, which has no name" for i, n in enumerate(names, 1) if i - 1 not in used]
        raise DataError(f"{path}: the model has no input {', '.join(unknown)}: leave the column out")
    return found


def _numbers(
    rows: Sequence[Sequence[str]], places: Sequence[int], spec: InputSpec, names: Sequence[str], where: str, first: int
) -> np.ndarray:
    if spec.dtype.hasobject:
        return _texts(rows, places, names, where, first)
    whole = spec.dtype.kind in "iub"
    found = np.empty((len(rows), len(places)), spec.dtype)
    for number, row in enumerate(rows):
        _refuse_ragged(row, names, f"{where}, row {number + first}")
        for column, place in enumerate(places):
            cell = row[place].strip()
            try:
                value = int(cell) if whole and not _FRACTION.search(cell) else float(cell)
                if not math.isfinite(value) or (whole and value != int(value)):
                    raise ValueError
                found[number, column] = value
            except (ValueError, OverflowError):
                what = f"column {names[place]}" if names[place] else f"column {place + 1}"
                kind = f"whole number that {spec.dtype.name} holds" if whole else "number"
                raise DataError(f"{where}, row {number + first}: {what} holds {cell[:40]!r}, no {kind}") from None
    return found


def _texts(
    rows: Sequence[Sequence[str]], places: Sequence[int], names: Sequence[str], where: str, first: int
) -> np.ndarray:
    for number, row in enumerate(rows):
        _refuse_ragged(row, names, f"{where}, row {number + first}")
    return np.array([[row[place] for place in places] for row in rows], np.str_)


def _refuse_ragged(row: Sequence[str], names: Sequence[str], where: str) -> None:
    if len(row) != len(names):
        raise DataError(f"{where}: {len(row)} cells, but there are {len(names)} columns")


_FRACTION = re.compile(r"[.eE]")


def _shaped(table: np.ndarray, spec: InputSpec, path: Path) -> np.ndarray:
    """Rows of numbers in the shape that the input has behind its first axis, or as a whole."""
    dims, width = spec.dims, table.shape[1]
    if dims is None or (len(dims) == 1 and (dims[0] == width != 1 or width == 1)):
        return table[:, 0] if dims is not None and width == 1 and dims[0] != 1 else table
    tail = list(dims[1:])
    free = [place for place, size in enumerate(tail) if isinstance(size, str)]
    fixed = math.prod(size for size in tail if isinstance(size, int))
    if len(free) == 1 and fixed and width % fixed == 0:
        tail[free[0]] = width // fixed
    if any(isinstance(size, str) for size in tail) or math.prod(map(int, tail)) != width:
        raise DataError(
            f"{path}: {width} columns do not make up input {spec}: leave out what is no input of the model, such as "
            "row numbers or a target"
        )
    return table.reshape(len(table), *map(int, tail))


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
