"""Q/DQ models made by other tools: placements to start the search from, and files to beat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inlay.data import InputSpec, input_specs
from inlay.errors import UsageError
from inlay.model.graph import Graph, build_graph
from inlay.model.load import ModelFile, load
from inlay.model.normalize import FloatRewrite, normalize
from inlay.model.reference import ConstantEvaluator
from inlay.prepare.model import PreparedModel
from inlay.prepare.strip_qdq import holds_quantized, strip_qdq
from inlay.quant.extract import Extraction
from inlay.quant.plain.graph import Leftover
from inlay.quant.transfer import transfer
from inlay.targets.base import Artifact, Feed
from inlay.types import Placement, QParams, QType

INPUT_QDQ = "input-qdq"  # names the placement of a model that came quantized


@dataclass(frozen=True, eq=False)
class ImportedQDQ:
    """What was taken over from quantized models."""

    placements: tuple[tuple[str, Placement], ...]  # by name, with the ports of the prepared model
    qparams: Mapping[tuple[str, QType], QParams]  # their scales and zero points
    files: tuple[Artifact, ...]  # the given Q/DQ files, which are measured as they are
    missing: tuple[Leftover, ...]  # quantized sites that were not taken over, with reasons

    @property
    def given_quantized(self) -> bool:
        """Whether the model itself came quantized."""
        return any(name == INPUT_QDQ for name, _ in self.placements)

    def as_json(self) -> dict[str, Any]:
        """How many sites were taken over, by placement, and every one that was not, with its reason.

        ``within`` names the operator of the model, quantized as a whole, that computes what the site was inside of.
        """
        return {
            "sites": {name: len(placement) for name, placement in self.placements},
            "missing": [{"site": m.node, "reason": m.reason, "within": m.within} for m in self.missing],
        }


def import_qdq(
    prepared: PreparedModel,
    baseline: ModelFile | None,
    float_rewrites: Sequence[FloatRewrite],
    feeds: Sequence[Feed],
    folder: Path,
) -> ImportedQDQ:
    """Import the placement of the model itself, where it came quantized, and that of the Q/DQ baseline, where given.

    Args:
        baseline: the same function with Q/DQ nodes.

    Raises:
        ModelError: the baseline does not run.
    """
    found_in: dict[str, tuple[Extraction, Graph]] = {}
    if prepared.extraction is not None:
        found_in[INPUT_QDQ] = prepared.extraction, prepared.graph
    if baseline is not None and (taken := strip_qdq(baseline, feeds, folder)) is not None:
        alike = normalize(taken.model, ConstantEvaluator(folder), None, rewrites=float_rewrites)
        found_in["qdq-baseline"] = taken, build_graph(alike.model)
    placements: list[tuple[str, Placement]] = []
    qparams: dict[tuple[str, QType], QParams] = {}
    missing: list[Leftover] = []
    for name, (found, normalized) in found_in.items():
        moved = transfer(found, build_graph(found.model), prepared.graph, normalized)
        placements.append((name, moved.placement))
        qparams.update(moved.qparams)
        missing += [*found.leftovers, *moved.missing]
    files = () if baseline is None else (Artifact(baseline.content.resolve(), baseline.sha256),)
    return ImportedQDQ(tuple(placements), qparams, files, tuple(missing))


def read_baseline(path: Path, model: ModelFile) -> ModelFile:
    """Load the Q/DQ model at ``path`` and check that it stands for the same function as ``model``.

    Raises:
        ModelError: it cannot be read.
        UsageError: it holds no Q/DQ nodes, or its inputs and outputs are not ``model``'s.
    """
    file = load(path)
    require_baseline(file, model)
    return file


def require_baseline(file: ModelFile, model: ModelFile) -> None:
    """Check that a Q/DQ model stands for the same function as ``model``. Raises UsageError."""
    path = file.path
    if not holds_quantized(file):
        raise UsageError(f"--qdq-baseline {path}: it holds no QuantizeLinear nodes, nor other operators on integers")
    here, there = input_specs(model.model), input_specs(file.model)
    if not _alike(here, there):
        raise UsageError(f"--qdq-baseline {path}: its inputs are {_listed(there)}, the model's {_listed(here)}")
    outputs = [str(v.name) for v in model.model.graph.outputs]
    if [str(v.name) for v in file.model.graph.outputs] != outputs:
        raise UsageError(f"--qdq-baseline {path}: its outputs are not the model's ({', '.join(outputs)})")


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
