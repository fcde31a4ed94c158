"""What callers have in place of feeds: calibration readers, data sets, loaders of batches, and single arrays.

They are known by what they offer, not by their types: nobody needs their packages here. A reader gives feeds as the
model takes them; an item of a data set is one sample; a batch of a loader is as many as it has rows. Columns and items
that are no inputs, such as labels, are left out of data sets and loaders.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from inlay.data.archives import as_text
from inlay.data.samples import Feed, InputSpec
from inlay.errors import DataError

MOST_SAMPLES = 1_000_000  # A run uses some thousands; a million rows as arrays of their own take about 0.2 GB
_MOST_BYTES = 4 << 30  # of one array: a run uses some thousands of samples, and all of them are held


def as_given(where: str, given: object) -> Feed | list[Feed]:
    """What a function or a caller gave for samples, as arrays that nobody else changes: of a generator all it yields.

    Args:
        given: feeds one by one, or one mapping of stacked arrays.

    Raises:
        DataError: it gave something else than mappings of arrays.
    """
    if callable(getattr(given, "get_next", None)):
        given = _read(given, where)
    if isinstance(given, Mapping):
        return arrays_of(given, where)
    each = enumerate(given if isinstance(given, Iterable) else (given,))
    return at_most((arrays_of(feed, where, f", sample {number}") for number, feed in each), where)


def at_most(feeds: Iterable[Feed], where: str) -> list[Feed]:
    """All of ``feeds``. Raises DataError where they are too many, or never end."""
    found = list(itertools.islice(feeds, MOST_SAMPLES + 1))
    if len(found) > MOST_SAMPLES:
        raise DataError(f"{where}: gives more than {MOST_SAMPLES} samples: let it end after some thousands")
    return found


def arrays_of(given: object, who: str, which: str = "") -> Feed:
    """Arrays by name, of numbers or text: objects of other kinds are code, and do not travel.

    Messages say ``who`` gave ``which``.

    Raises:
        DataError: it is something else.
    """
    if not isinstance(given, Mapping):
        raise DataError(f"{who}: gave {type(given).__name__} instead of a mapping of arrays by input name")
    return {str(name): as_array(value, str(name), f"{who}{which}") for name, value in given.items()}


def as_array(given: object, name: str, where: str) -> np.ndarray:
    """An array of its own: a generator may fill one again and again. Raises DataError where it makes none."""
    try:
        array = as_text(np.array(_on_host(given, f"{where}: {name}")))
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: {name} holds bytes that are not UTF-8") from error
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{where}: {name} is not an array: its lists have different lengths") from error
    if array.dtype.hasobject:
        raise DataError(f"{where}: {name} got object: give an array of str, or of numbers")
    return array


def is_loader(given: object) -> bool:
    """Whether it gives batches of a data set."""
    return hasattr(given, "dataset") and hasattr(given, "batch_size")


def as_feeds(given: object, specs: Sequence[InputSpec], where: str) -> object:
    """Feeds, or stacked arrays by name, of what a caller gave; ``given`` itself where it is none of these things.

    Raises:
        DataError: it holds something else than the inputs ``specs``.
    """
    free = [spec.name for spec in specs if spec.fixed is None]
    if isinstance(given, np.ndarray):
        if len(free) != 1:
            raise DataError(f"{where}: one array, but the model has the inputs {', '.join(free)}: give them by name")
        return {free[0]: bounded(given, where)}
    if isinstance(given, Mapping) and given and all(hasattr(each, "column_names") for each in given.values()):
        raise DataError(f"{where}: it holds the splits {', '.join(map(str, given))}: give one of them")
    if isinstance(columns := getattr(given, "column_names", None), list):
        _refuse_missing(free, columns, f"{where}: the columns are")
        rows: Any = given
        if hasattr(given, "select_columns"):  # others may be large
            rows = given.select_columns(free)
        return ({name: row[name] for name in free} for row in rows)
    return given


def batches(loader: Any, specs: Sequence[InputSpec], where: str) -> Iterator[Mapping[str, Any]]:
    """The batches of a loader by the names of the model's inputs; in tuples these stand first, in the model's order.

    Raises:
        DataError: one of them lacks an input, or is no mapping, tuple or array.
    """
    free = [spec.name for spec in specs if spec.fixed is None]
    for number, batch in enumerate(loader):
        said = f"{where}, batch {number}"
        if isinstance(batch, Mapping):
            _refuse_missing(free, list(batch), f"{said}: it holds")
            yield {name: batch[name] for name in free}
            continue
        items = list(batch) if isinstance(batch, (tuple, list)) else [batch]
        if len(items) < len(free) or not all(hasattr(item, "shape") for item in items[: len(free)]):
            kinds = ", ".join(type(item).__name__ for item in items) or "nothing"
            raise DataError(f"{said}: it holds {kinds}, but the model takes {', '.join(free)}: give them by name")
        yield dict(zip(free, items, strict=False))


def bounded(array: np.ndarray, where: str) -> np.ndarray:
    """``array``, which may be a map of a file. Raises DataError where it is too large to be held."""
    if array.nbytes > _MOST_BYTES:
        rows = len(array) if array.ndim else 1
        step = -(-array.nbytes // _MOST_BYTES)
        raise DataError(
            f"{where}: its {rows} rows take {array.nbytes / 2**30:.1f} GiB: give fewer, such as array[::{step}]"
        )
    return array


def _on_host(given: object, where: str) -> object:
    """``given``, a tensor of another library as an array: on whatever device it is, and however it was computed.

    Raises:
        DataError: numpy has no such type.
    """
    if not callable(getattr(given, "detach", None)):
        return given
    try:
        return given.detach().cpu().numpy()  # type: ignore[attr-defined]
    except (TypeError, RuntimeError) as error:
        raise DataError(f"{where}: it cannot become an array: {error}") from error


def _read(reader: Any, where: str) -> Iterator[object]:
    """The feeds of a reader, which gives None at its end. Raises DataError where it was read before."""
    first = reader.get_next()
    if first is None:
        raise DataError(f"{where}: the calibration reader gives nothing: make a new one, since it can be read once")
    yield from itertools.chain([first], iter(reader.get_next, None))


def _refuse_missing(free: Sequence[str], there: Sequence[Any], said: str) -> None:
    if missing := [name for name in free if name not in there]:
        listed = ", ".join(map(str, there)) or "nothing"
        raise DataError(f"{said} {listed}; the model also takes {', '.join(missing)}: rename or add them")
