"""One model made ready for step-by-step tuning: loaded, normalized, indexed; calibrated when it is first needed."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from inlay.data import Samples, input_specs, random_samples, read_samples
from inlay.errors import ModelError
from inlay.model.graph import Graph, build_graph
from inlay.model.load import load
from inlay.model.normalize import normalize
from inlay.model.reference import evaluate, run_model
from inlay.model.store import WeightStore, embed, skeleton
from inlay.quant.calibrate import calibrate, observe_shapes
from inlay.quant.emit import Emitter
from inlay.quant.qparams import QParamsTable
from inlay.space.domains import find_domains
from inlay.targets.base import Rules
from inlay.types import Placement

_RANDOM = 8
"""How many random samples stand in where none are given."""

Source = str | Path | onnx.ModelProto | ir.Model
SampleSource = str | Path | Iterable[Mapping[str, np.ndarray]]


class Prepared:
    """A normalized model with all that is needed to write placements into it.

    Args:
        source: path of a model, or a model in memory.
        rules: the target's table.
        samples: inputs to calibrate with, as ``--data`` takes them; without any, random ones.
        seed: of the random samples.

    Attributes:
        sha256: of the model file, or of the serialized model; identifies it in saved states.
        samples_kind: ``random`` when no samples were given, in which case accuracy means nothing.
    """

    def __init__(self, source: Source, rules: Rules, samples: SampleSource | None = None, seed: int = 0) -> None:
        folder = Path(tempfile.mkdtemp(prefix="inlay-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self._rules = rules
        original, self.sha256 = _read(source)
        self._store = WeightStore(folder)
        specs = input_specs(original)
        rng = np.random.default_rng(seed)
        self._samples: Samples = random_samples(specs, {}, rng, _RANDOM) if samples is None else read_samples(samples, specs)
        self.samples_kind = self._samples.kind
        feed = self._samples.feeds[0]
        result = normalize(original, evaluate(folder), lambda model: run_model(model, self._store, feed))
        self.reports = result.reports
        self.model = result.model
        values = [str(v.name) for n in self.model.graph for v in n.outputs if v.name]
        shapes, dtypes = observe_shapes(skeleton(self.model, self._store), self._store, values, feed)
        shapes.update({name: array.shape for name, array in feed.items()})
        for node in self.model.graph:
            for value in node.outputs:
                if value.name in dtypes and value.dtype is None:
                    value.dtype = dtypes[value.name]
        self.graph: Graph = build_graph(self.model, shapes)
        self._emitter = Emitter(self.model, self.graph, self._store)

    def emit(self, placement: Placement, metadata: Mapping[str, str] | None = None) -> onnx.ModelProto:
        """A self-contained model with ``placement`` set in (below 2 GB)."""
        return embed(self._emitter.emit(placement, self._table, metadata), self._store)

    @cached_property
    def _table(self) -> QParamsTable:
        graph = self.graph
        values = [v for n in graph.nodes for v in n.outputs if v and graph.is_float(v)]
        values += [v for v in graph.inputs if graph.is_float(v)]
        observed = calibrate(self._emitter.base, self._store, graph, values, self._samples.feeds)
        ranges = {v: h.range("minmax") for v, h in observed.histograms.items()}
        domains = find_domains(graph, self._rules)
        together = dict(ranges)
        for value, domain in domains.items():
            if value in ranges:
                together[domain] = together.get(domain, ranges[value]) | ranges[value]
        return QParamsTable(graph, self._rules, {v: together[domains.get(v, v)] for v in ranges})


def _read(source: Source) -> tuple[ir.Model, str]:
    if isinstance(source, (str, Path)):
        file = load(source)
        return file.model, file.sha256
    proto = ir.to_proto(source) if isinstance(source, ir.Model) else source
    if not isinstance(proto, onnx.ModelProto):
        raise ModelError(f"a path, an onnx.ModelProto or an onnx_ir.Model is needed, not {type(source).__name__}")
    digest = hashlib.sha256(proto.SerializeToString(deterministic=True)).hexdigest()
    return ir.from_proto(proto), digest
