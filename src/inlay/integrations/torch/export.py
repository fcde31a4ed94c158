"""A module as an ONNX model with dynamic sizes, checked against what the module itself computes.

``torch.onnx.export`` follows the module through ``torch.export``. Sizes that differ between batches become dynamic, and
so does the number of rows. Where a module does not allow that, rows are fixed to one, or to those of a batch.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from inlay.errors import ModelError, UsageError
from inlay.files import scratch_folder
from inlay.integrations.packages import required
from inlay.integrations.torch.batches import (
    Arguments,
    Batch,
    array_of,
    counts_rows,
    dynamic_axes,
    leaves,
    rows_of,
)
from inlay.integrations.torch.fakes import exportable
from inlay.model.load import load
from inlay.model.reference import Session
from inlay.model.store import WeightStore, externalize_weights

_LEAST_DB = 40.0
"""Between the module's outputs and those of its export: float operators in another order are at 100 dB or more, and
fake quantization that rounds a few halves the other way at 50."""
_TRACED = ("pkg.torch", "pkg.onnxscript")
_WHAT = "a PyTorch module"
Dynamic = Mapping[str, Mapping[int, str]]
"""Dynamic axes with their names, by argument."""


@dataclass(frozen=True)
class Exported:
    """An ONNX model of a module."""

    model: onnx.ModelProto
    inputs: tuple[str, ...]  # its inputs, in the order of the tensors in a batch's arguments
    rows: int | None  # of an inference; None where a batch is one inference as it is
    notes: tuple[str, ...]  # what people should know


def export(module: Any, batches: Sequence[Batch], dynamic: Dynamic | None) -> Exported:
    """Export ``module``, in evaluation mode, as it runs ``batches``.

    Args:
        module: stays as it is.
        batches: at least one; the first one is what the export follows.
        dynamic: axes that are dynamic; None for those that differ, and the rows.

    Raises:
        ModelError: it cannot be exported, or the export computes something else.
        UsageError: PyTorch or its exporter is not installed, or ``dynamic`` names no argument.
    """
    required("onnxscript", "torch", f"the export of {_WHAT}")
    with _evaluating(module) as evaluated:
        written, by_rows = exportable(evaluated), dynamic is None and counts_rows(batches)
        ways = list(_ways(batches, dynamic, by_rows))
        reasons = list[str]()
        for arguments, axes, rows in ways:
            try:
                proto = _exported(written, arguments, axes)
            except Exception as error:  # whatever a module runs into
                reasons.append(_reason(error))
                continue
            names = tuple(i.name for i in proto.graph.input)
            if len(names) != len(leaves(arguments)):
                raise ModelError(
                    f"the export has the inputs {', '.join(names)}, but a batch has {len(leaves(arguments))} tensors: "
                    "export the module yourself, and give the file"
                )
            _check(proto, names, written, arguments)
            notes = [f"the export has fixed sizes, since with dynamic ones it fails: {reasons[0]}"] if reasons else []
            return Exported(proto, names, rows, tuple(notes))
    raise ModelError(f"the module cannot be exported: {reasons[0]}")


def _ways(
    batches: Sequence[Batch], dynamic: Dynamic | None, by_rows: bool
) -> Iterator[tuple[Arguments, list[dict[int, str]], int | None]]:
    """Arguments to export with, dynamic axes of their tensors, and rows of an inference: the best way first."""
    first = batches[0].arguments
    if dynamic is not None:
        unknown = [name for name in dynamic if name not in first]
        if unknown:
            raise UsageError(f"dynamic: the module has no argument {unknown[0]}; a batch has {', '.join(first)}")
        axes = [dict(dynamic.get(name, {})) for name, value in first.items() for _ in leaves({name: value})]
        rows = 1 if counts_rows(batches) and axes and all(0 in each for each in axes) else None
        yield (_rows(first, 2) if rows else first), axes, rows
        return
    axes = dynamic_axes(batches, by_rows)
    # a size of 1 would be taken for a constant, so that the export follows two rows
    yield (_rows(first, 2) if by_rows else first), axes, 1 if by_rows else None
    if any(axis > 0 or not by_rows for each in axes for axis in each):
        return  # samples of several sizes do not fit a model of one
    if by_rows:
        yield _rows(first, 1), [{} for _ in axes], 1
        yield first, [{} for _ in axes], rows_of(leaves(first))


def _rows(arguments: Arguments, count: int) -> Arguments:
    """The first rows, repeated where there are fewer."""
    torch = required("torch", "torch", _WHAT)
    pytree = required("torch.utils._pytree", "torch", _WHAT)

    def cut(leaf: Any) -> Any:
        return leaf[torch.arange(count) % len(leaf)] if isinstance(leaf, torch.Tensor) else leaf

    made: Arguments = pytree.tree_map(cut, arguments)
    return made


@contextlib.contextmanager
def _evaluating(module: Any) -> Iterator[Any]:
    """The module that was compiled or distributed, in evaluation mode; afterwards it is in the mode that it was in."""
    module = getattr(module, "_orig_mod", module)
    if type(module).__name__ in ("DataParallel", "DistributedDataParallel"):
        module = module.module
    modes = {each: each.training for each in module.modules()}
    with contextlib.suppress(NotImplementedError):  # exported programs have the mode that they were exported in
        module.eval()
    try:
        yield module
    finally:
        for each, training in modes.items():
            each.training = training


def _exported(module: Any, arguments: Arguments, axes: Sequence[Mapping[int, str]]) -> onnx.ModelProto:
    torch = required("torch", "torch", _WHAT)
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    args, kwargs, shapes = _called(module, _on(arguments, device), _shapes(arguments, axes))
    with _quiet(), torch.no_grad():
        made = _plain(module(*args, **kwargs))
        flat = isinstance(made, Mapping) and all(isinstance(value, torch.Tensor) for value in made.values())
        program = torch.onnx.export(
            module,
            args,
            kwargs=kwargs,
            output_names=list(made) if flat else None,
            dynamo=True,
            dynamic_shapes=shapes,
            verbose=False,
        )
        proto: onnx.ModelProto = program.model_proto
    each: Any
    for each in (proto.graph, *proto.graph.node, *proto.graph.value_info, *proto.graph.input, *proto.graph.output):
        kept = [p for p in each.metadata_props if not p.key.startswith(_TRACED)]  # where in whose files it was traced
        del each.metadata_props[:]
        each.metadata_props.extend(kept)
    return proto


def _called(
    module: Any, arguments: Arguments, shapes: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
    """Positional and named arguments, and dynamic shapes, as the exporter takes them."""
    parameters = inspect.signature(module.forward).parameters.values()
    several = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), None)
    only = {p.name for p in parameters if p.kind is p.POSITIONAL_ONLY}
    if several is None and not only:
        return (), arguments, dict(shapes)
    return tuple(arguments.values()), {}, (tuple(shapes.values()) if several is None else (tuple(shapes.values()),))


def _on(arguments: Arguments, device: Any) -> Arguments:
    torch = required("torch", "torch", _WHAT)
    pytree = required("torch.utils._pytree", "torch", _WHAT)
    moved: Arguments = pytree.tree_map(lambda v: v.to(device) if isinstance(v, torch.Tensor) else v, arguments)
    return moved


def _shapes(arguments: Arguments, axes: Sequence[Mapping[int, str]]) -> dict[str, Any]:
    """``axes``, which count tensors, in the structure of ``arguments``; each name is one dimension."""
    torch = required("torch", "torch", _WHAT)
    pytree = required("torch.utils._pytree", "torch", _WHAT)
    left = iter(axes)
    made: dict[str, Any] = pytree.tree_map(
        lambda v: dict(next(left)) or None if isinstance(v, torch.Tensor) else None, arguments
    )
    return made


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without what the exporter says of its steps: what matters of a failure is in its exception."""
    before, nowhere = logging.root.manager.disable, io.StringIO()
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(nowhere),
            contextlib.redirect_stderr(nowhere),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _reason(error: BaseException) -> str:
    """The innermost cause, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in re.sub(r"\x1b\[\d*m", "", str(error)).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def _check(proto: onnx.ModelProto, names: Sequence[str], module: Any, arguments: Arguments) -> None:
    """Raise ModelError where the export computes something else than the module, for the arguments it followed."""
    torch, pytree = required("torch", "torch", _WHAT), required("torch.utils._pytree", "torch", _WHAT)
    device = next((p.device for p in module.parameters()), torch.device("cpu"))
    args, kwargs, _ = _called(module, _on(arguments, device), {})
    with _quiet(), torch.no_grad():
        wanted = [
            array_of(t) for t in pytree.tree_leaves(_plain(module(*args, **kwargs))) if isinstance(t, torch.Tensor)
        ]
    file = load(proto)
    folder = scratch_folder()
    try:
        store = WeightStore(folder)
        session = Session(externalize_weights(file.model, store), store, fuse_qdq=False)
        feed = {name: array_of(t) for name, t in zip(names, leaves(arguments), strict=True)}
        got = list(session.run(feed).values())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if len(got) != len(wanted):
        raise ModelError(f"the export has {len(got)} outputs, the module {len(wanted)} tensors")
    for output, want, have in zip(file.model.graph.outputs, wanted, got, strict=True):
        if want.shape != have.shape:
            raise ModelError(
                f"the export's {output.name} has shape {list(have.shape)}, the module's {list(want.shape)}"
            )
        if (found := _db(want, have)) < _LEAST_DB:
            raise ModelError(
                f"the export computes something else than the module: {output.name} has {found:.1f} dB; a module that "
                "draws random numbers, or depends on values, cannot be exported"
            )


def _plain(outputs: Any) -> Any:
    """Outputs of a model of transformers are a mapping that the library does not always look into."""
    return dict(outputs) if isinstance(outputs, Mapping) else outputs


def _db(want: np.ndarray, have: np.ndarray) -> float:
    noise = float(np.square(np.subtract(want, have, dtype=np.float64)).sum())
    signal = float(np.square(want.astype(np.float64)).sum())
    return float("inf") if noise == 0.0 else 10.0 * float(np.log10(max(signal, 1e-300) / noise))
