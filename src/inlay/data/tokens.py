"""Texts as lines of JSON: what a tokenizer made of each, one sample a line.

A line is a list of tokens, for the one input that is no mask, or an object with a list for each input. What exporters
of text models ask for besides the tokens, and what follows from their number, need not be there (:data:`_FOLLOWING`).
Where the model fixes a longer length, lists are filled up with zeros, and the mask says so.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from inlay.data.samples import Feed, InputSpec
from inlay.errors import DataError
from inlay.files import opened

_MOST_LINES = 1_000_000  # as many samples as other files may hold

_FOLLOWING: Mapping[str, Callable[[int, int], np.ndarray]] = {
    "attention_mask": lambda used, whole: np.arange(whole) < used,
    "input_mask": lambda used, whole: np.arange(whole) < used,
    "token_type_ids": lambda used, whole: np.zeros(whole),
    "segment_ids": lambda used, whole: np.zeros(whole),
    "position_ids": lambda used, whole: np.arange(whole),
}
"""What inputs of these names hold for so many tokens in a whole length, as Hugging Face's and Google's exporters name
them; behind a colon, TensorFlow counts outputs."""


def read_token_lines(path: Path, specs: Sequence[InputSpec]) -> list[Feed]:
    """The samples in a ``.jsonl`` file, for a model with a batch of one, or of any size.

    Raises:
        DataError: it cannot be read, or a line does not fit the inputs; the message names line and input.
    """
    try:
        with opened(path) as raw:
            file = io.TextIOWrapper(raw, encoding="utf8")
            lines = [(number, line) for number, line in enumerate(file, 1) if line.strip()]
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text") from error
    if len(lines) > _MOST_LINES:
        raise DataError(f"{path}: {len(lines)} lines; give at most {_MOST_LINES}")
    return [_feed(line, specs, f"{path}, line {number}") for number, line in lines]


def _feed(line: str, specs: Sequence[InputSpec], where: str) -> Feed:
    try:
        said = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: it is not JSON: {error}") from error
    if not isinstance(said, dict):
        main = [s for s in specs if following(s) is None and s.fixed is None]
        if len(main) != 1:
            names = ", ".join(s.name for s in main or specs)
            raise DataError(f"{where}: give an object with the inputs {names}, not one list")
        said = {main[0].name: said}
    unknown = [name for name in said if not any(s.name == name for s in specs)]
    if unknown:
        raise DataError(
            f"{where}: the model has no input {', '.join(unknown)}; it expects {', '.join(map(str, specs))}"
        )
    given = {s.name: _array(said[s.name], s, where) for s in specs if s.name in said}
    leaders = [given[s.name].shape[-1] for s in specs if s.name in given and given[s.name].ndim]
    feed = {}
    for spec in specs:
        rule = following(spec)
        if spec.name in given:
            feed[spec.name] = _filled_up(given[spec.name], spec, any("mask" in s.name.lower() for s in specs), where)
        elif rule is not None and leaders:
            whole = spec.dims[-1] if spec.dims and isinstance(spec.dims[-1], int) else leaders[0]
            row = rule(leaders[0], whole).astype(spec.dtype)
            feed[spec.name] = row.reshape((1,) * (len(spec.dims or (0, 0)) - 1) + (whole,))
        else:
            raise DataError(f"{where}: no list for the model's input {spec}")
    return feed


def following(spec: InputSpec) -> Callable[[int, int], np.ndarray] | None:
    """What an input of such a name holds, for so many tokens in a whole length; None where no name says it."""
    return _FOLLOWING.get(spec.name.partition(":")[0].lower())


def _array(said: Any, spec: InputSpec, where: str) -> np.ndarray:
    """The numbers of a list, with dimensions of one in front, up to the rank of the input."""
    try:
        array = np.asarray(said)
    except (ValueError, OverflowError) as error:
        raise DataError(f"{where}: input {spec} got lists of different lengths") from error
    if array.dtype.kind not in "iufb" or (array.dtype.kind == "f" and array.size > 0) > (spec.dtype.kind == "f"):
        raise DataError(f"{where}: input {spec} got something other than its numbers")
    if array.dtype.kind in "iu" and spec.dtype.kind in "iu":
        limits = np.iinfo(spec.dtype)
        if array.size and not limits.min <= int(array.min()) <= int(array.max()) <= limits.max:
            raise DataError(f"{where}: input {spec} got a number that it cannot hold")
    if not array.size and spec.dims is not None:  # the past of a decoder at its first step
        return np.zeros([d if isinstance(d, int) else int(i == 0) for i, d in enumerate(spec.dims)], spec.dtype)
    rank = array.ndim if spec.dims is None else len(spec.dims)
    return array.astype(spec.dtype).reshape((1,) * (rank - array.ndim) + array.shape)


def _filled_up(array: np.ndarray, spec: InputSpec, has_mask: bool, where: str) -> np.ndarray:
    """``array`` with zeros up to the last dimension that the model fixes."""
    whole = spec.dims[-1] if spec.dims else None
    if not isinstance(whole, int) or array.ndim == 0 or array.shape[-1] == whole:
        return array
    if array.shape[-1] > whole or not has_mask:
        why = "leave tokens out" if array.shape[-1] > whole else "pad the list yourself, since no input masks padding"
        raise DataError(f"{where}: input {spec} got {array.shape[-1]} numbers for {whole} positions: {why}")
    more = [(0, 0)] * (array.ndim - 1) + [(0, whole - array.shape[-1])]
    return np.pad(array, more)
