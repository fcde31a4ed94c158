"""What a loader yields, bound to the arguments of a module's ``forward``: batches, their labels, and how they differ.

A batch is a tensor, a mapping by the names of arguments, or a tuple by their positions. What ``forward`` does not take
is left out; of a tuple, one element beyond the arguments is taken for the labels.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from inlay.data.archives import read_arrays
from inlay.data.reading import blame
from inlay.errors import DataError, InlayError, UsageError
from inlay.integrations.packages import required

MOST_SAMPLES = 1024
"""Rows that are read unless more are asked for: a run uses some hundreds."""
MOST_BYTES = 1 << 30
"""Of all samples together: they are kept in memory."""
_LABELS = frozenset({"label", "labels", "target", "targets", "y"})
_GIVE = "give a torch.utils.data.DataLoader, batches (tensors, tuples or dicts of them), or a .npz by argument names"

Arguments = dict[str, Any]
"""Arguments of ``forward`` by name; in their order, as the exporter asks for them."""


@dataclass(frozen=True)
class Batch:
    """One batch."""

    arguments: Arguments  # of the module's forward; tensors, or what holds some
    labels: Any = None  # a tensor; None where the batch has none


def read(source: Any, module: Any, most: int) -> list[Batch]:
    """Batches with ``most`` rows in all, or a few more.

    Raises:
        UsageError: ``source`` is something else.
        DataError: a batch does not fit the module, or there is none.
    """
    forward = inspect.signature(module.forward)
    found, rows, size = list[Batch](), 0, 0
    for number, given in enumerate(_batches(source)):
        batch = bind(given, forward, f"data, batch {number}")
        tensors = leaves(batch.arguments)
        if not tensors:
            raise DataError(f"data, batch {number}: holds no tensor for the module's forward{forward}")
        found.append(batch)
        rows += rows_of(tensors) or 1
        size += sum(t.numel() * t.element_size() for t in tensors)
        if rows >= most or size >= MOST_BYTES:
            break
    if not found:
        raise DataError("data: holds no batches")
    return found


def _batches(source: Any) -> Iterator[Any]:
    torch = required("torch", "torch", "a PyTorch module")
    if isinstance(source, (str, Path)):
        if Path(source).suffix != ".npz":
            raise UsageError(f"data={str(source)!r} with a PyTorch module: {_GIVE}")
        if not Path(source).is_file():
            raise DataError(f"--data {source}: no such file")
        source = read_arrays(Path(source))
    if isinstance(source, (torch.Tensor, np.ndarray, Mapping)):
        source = [source]  # one batch
    if not isinstance(source, Iterable):
        raise UsageError(f"data takes batches with a PyTorch module, not {type(source).__name__}: {_GIVE}")
    try:
        yield from source
    except InlayError:
        raise
    except Exception as error:  # the user's own code
        raise DataError(f"data failed: {blame(error)}") from error


def bind(given: Any, forward: inspect.Signature, where: str) -> Batch:
    """One batch as arguments.

    Raises:
        DataError: an argument that ``forward`` must have is missing.
    """
    parameters = [p for p in forward.parameters.values() if p.kind is not p.VAR_KEYWORD]
    open_ended = len(parameters) < len(forward.parameters)
    if isinstance(given, Mapping):
        needed = {p.name for p in parameters if p.default is p.empty}
        names = {p.name for p in parameters if p.name in needed or p.name not in _LABELS}
        known = {k: tensor_of(v) for k, v in given.items() if k in names or (open_ended and k not in _LABELS)}
        labels = next((tensor_of(v) for k, v in given.items() if k in _LABELS), None)
        order = [p.name for p in parameters if p.name in known]
        bound = {name: known[name] for name in (*order, *(k for k in known if k not in names))}
        return Batch(_complete(bound, parameters, where, list(given)), labels)
    row = list(given) if isinstance(given, (tuple, list)) else [given]
    places = _places(parameters, len(row))
    bound = {name: tensor_of(value) for name, value in zip(places, row, strict=False)}
    left = row[len(places) :]
    labels = tensor_of(left[0]) if left and _is_tensor(tensor_of(left[0])) else None
    return Batch(_complete(bound, parameters, where, [f"{len(row)} elements"]), labels)


def _places(parameters: Sequence[inspect.Parameter], count: int) -> list[str]:
    """The arguments that the elements of a tuple stand for, by position: no labels, and none that takes no tensor."""
    names = list[str]()
    for p in parameters:
        if p.kind is p.VAR_POSITIONAL:
            return [*names, *(f"{p.name}_{i}" for i in range(count - len(names)))]
        optional = p.default is not p.empty
        if p.kind is p.KEYWORD_ONLY or (optional and (p.name in _LABELS or p.default is not None)):
            break
        names.append(p.name)
    return names[:count]


def _complete(bound: Arguments, parameters: Sequence[inspect.Parameter], where: str, given: list[str]) -> Arguments:
    needed = [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_POSITIONAL]
    missing = [name for name in needed if name not in bound]
    if missing:
        raise DataError(f"{where}: the module's forward needs {', '.join(missing)}; the batch has {', '.join(given)}")
    return bound


def tensor_of(value: Any) -> Any:
    """Arrays as tensors; everything else as it is."""
    torch = required("torch", "torch", "a PyTorch module")
    return torch.from_numpy(np.ascontiguousarray(value)) if isinstance(value, np.ndarray) else value


def _is_tensor(value: Any) -> bool:
    return isinstance(value, required("torch", "torch", "a PyTorch module").Tensor)


def leaves(arguments: Any) -> list[Any]:
    """The tensors in arguments, in the order in which an export has inputs."""
    pytree = required("torch.utils._pytree", "torch", "a PyTorch module")
    return [leaf for leaf in pytree.tree_leaves(arguments) if _is_tensor(leaf)]


def rows_of(tensors: Sequence[Any]) -> int:
    """How many rows all of these have in their first axis; 0 where that is not one number."""
    sizes = {int(t.shape[0]) if t.ndim else 0 for t in tensors}
    return sizes.pop() if len(sizes) == 1 else 0


def dynamic_axes(batches: Sequence[Batch], by_rows: bool) -> list[dict[int, str]]:
    """By input, the axes that differ between batches, and the first one where it counts rows.

    Axes that always have the same size share a name: a mask is as long as the tokens that it masks.
    """
    shapes = [[tuple(t.shape) for t in leaves(batch.arguments)] for batch in batches]
    counts = {tuple(map(len, each)) for each in shapes}
    if len(counts) > 1:
        raise DataError("data: batches have different numbers of tensors, or of axes")
    columns: dict[tuple[int, ...], str] = {}
    found = list[dict[int, str]]()
    for i, rank in enumerate(next(iter(counts))):
        axes = dict[int, str]()
        for axis in range(rank):
            sizes = tuple(each[i][axis] for each in shapes)
            if by_rows and axis == 0:
                axes[axis] = "batch"
            elif len(set(sizes)) > 1:
                axes[axis] = columns.setdefault(sizes, f"size{len(columns)}" if columns else "size")
        found.append(axes)
    return found


def counts_rows(batches: Sequence[Batch]) -> bool:
    """Whether the first axis of every tensor counts the rows of a batch: it has one size in all tensors of each."""
    return all(rows_of(leaves(batch.arguments)) > 0 for batch in batches)


def samples(batches: Sequence[Batch], names: Sequence[str], rows: int | None) -> Iterator[dict[str, np.ndarray]]:
    """Feeds for one inference each, by the names of inputs.

    Args:
        rows: of an inference, to which batches are cut; None where a batch is one inference as it is.
    """
    for batch in batches:
        arrays = {name: array_of(t) for name, t in zip(names, leaves(batch.arguments), strict=True)}
        if rows is None:
            yield arrays
        else:
            for begin in range(0, min(map(len, arrays.values())) // rows * rows, rows):
                yield {name: array[begin : begin + rows] for name, array in arrays.items()}


def labels_of(batches: Sequence[Batch]) -> np.ndarray | None:
    """One label for each row of all batches; None where a batch has none, or another number of them."""
    found = [array_of(batch.labels) for batch in batches if batch.labels is not None]
    rows = [(rows_of(leaves(batch.arguments)),) for batch in batches]
    return np.concatenate(found) if [a.shape for a in found] == rows else None


def array_of(tensor: Any) -> np.ndarray:
    """A tensor's numbers, on this machine."""
    array: np.ndarray = tensor.detach().cpu().numpy()
    return array
