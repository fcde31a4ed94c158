"""Q/DQ models that somebody else made, as placements to start from and as files to compare with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from inlay.data import InputSpec, input_specs
from inlay.errors import UsageError
from inlay.model.graph import build_graph
from inlay.model.load import ModelFile, load
from inlay.prepare.config import TuneConfig
from inlay.prepare.model import PreparedModel
from inlay.quant.extract import Leftover, extract, is_quantized, transfer
from inlay.targets.registry import known_rewrites
from inlay.types import Placement, QParams, QType


@dataclass(frozen=True, eq=False)
class Imported:
    """What was taken over.

    Attributes:
        placements: by name, ports of the normalized model.
        qparams: their numbers.
        files: given Q/DQ files with their digests, to be measured as they are.
        missing: sites that could not be taken over, with reasons.
    """

    placements: tuple[tuple[str, Placement], ...]
    qparams: Mapping[tuple[str, QType], QParams]
    files: tuple[tuple[Path, str], ...]
    missing: tuple[Leftover, ...]


def import_baseline(prepared: PreparedModel, config: TuneConfig) -> Imported:
    """The placements of a quantized input model and of ``config.qdq_baseline``. Raises as :func:`read_baseline`."""
    placements: list[tuple[str, Placement]] = []
    numbers: dict[tuple[str, QType], QParams] = {}
    files: list[tuple[Path, str]] = []
    missing: list[Leftover] = []
    if prepared.extraction is not None:
        found = prepared.extraction
        moved = transfer(found, build_graph(found.model), prepared.graph)
        placements.append(("input-qdq", moved.placement))
        numbers.update(moved.qparams)
        missing += [*found.leftovers, *moved.missing]
    if config.qdq_baseline is not None:
        file = read_baseline(config.qdq_baseline, prepared.file)
        found = extract(file.model, known_rewrites())
        moved = transfer(found, build_graph(found.model), prepared.graph)
        placements.append(("qdq-baseline", moved.placement))
        numbers.update(moved.qparams)
        files.append((file.path.resolve(), file.sha256))
        missing += [*found.leftovers, *moved.missing]
    return Imported(tuple(placements), numbers, tuple(files), tuple(missing))


def read_baseline(path: Path, model: ModelFile) -> ModelFile:
    """The Q/DQ model at ``path``.

    Raises:
        ModelError: it cannot be read.
        UsageError: it holds no Q/DQ nodes, or its inputs and outputs are not ``model``'s.
    """
    file = load(path)
    if not is_quantized(file.model):
        raise UsageError(f"--qdq-baseline {path}: it holds no QuantizeLinear or DequantizeLinear nodes")
    here, there = input_specs(model.model), input_specs(file.model)
    if not _alike(here, there):
        raise UsageError(f"--qdq-baseline {path}: its inputs are {_listed(there)}, the model's {_listed(here)}")
    outputs = [str(v.name) for v in model.model.graph.outputs]
    if [str(v.name) for v in file.model.graph.outputs] != outputs:
        raise UsageError(f"--qdq-baseline {path}: its outputs are not the model's ({', '.join(outputs)})")
    return file


def _listed(specs: Sequence[InputSpec]) -> str:
    return ", ".join(map(str, specs))


def _alike(first: Sequence[InputSpec], second: Sequence[InputSpec]) -> bool:
    """Whether one feed can fit both: equal names and dtypes, no fixed dimensions that differ."""
    if [(s.name, s.dtype) for s in first] != [(s.name, s.dtype) for s in second]:
        return False
    for a, b in zip(first, second, strict=True):
        if a.dims is None or b.dims is None:
            continue
        if len(a.dims) != len(b.dims):
            return False
        if any(isinstance(m, int) and isinstance(n, int) and m != n for m, n in zip(a.dims, b.dims, strict=True)):
            return False
    return True
