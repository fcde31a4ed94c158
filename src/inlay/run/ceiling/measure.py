"""A processor's peaks, measured through a target, and kept: large products in its precisions, and streams of elements.

What is measured is counted by the very functions that count a model's kernels (:mod:`.counts`), each kernel by its own
time in a profile, and the best of several profiles counts, since other work on the machine can only make it slower.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from inlay.calibrate.observe import observe
from inlay.calibrate.tables import CalibrationChoice
from inlay.data import Samples, input_specs, load_feed, random_samples, save_feed
from inlay.deadline import Deadline
from inlay.errors import InlayError
from inlay.measure.client import Worker
from inlay.model.graph import Graph, build_graph
from inlay.model.load import ModelFile, load
from inlay.prepare.candidate_writer import CandidateWriter
from inlay.prepare.model import PreparedModel, prepare
from inlay.run.ceiling.bound import Ceiling, ceiling, reached_by
from inlay.run.ceiling.counts import Counter
from inlay.run.machine_costs import keep_peaks, read_peaks
from inlay.search.baselines import FULL_INT8, anchor_units
from inlay.search.peaks import Peaks, Reached, peaks_of, precision_of
from inlay.targets.base import Artifact, Capabilities, KernelTime
from inlay.targets.registry import create

SHORT_S = 1.5  # seconds that the short form takes at most, the first model aside
LONG_S = 22.0  # seconds that `inlay calibrate-machine` takes for peaks at most
_REPEATS = 7
"""Inferences in a profile: it tells the median of each kernel, which a busy moment spoils where most are hit."""
_ROUNDS = 12  # profiles of each model, in turns, as far as there is time: a busy moment spoils one
_PRODUCTS = ((128, 1024, 1024), (256, 2048, 1024), (512, 4096, 512))  # rows, depth, columns
_CONVS = ((128, 56, 3), (512, 28, 1))  # channels, rows, window
_STREAMED = (1 << 17, 1 << 19, 1 << 21, 1 << 23)  # elements
_VECTORS = ((512, 512), (2048, 2048), (4096, 4096))  # depth, columns
_LEAST = 2  # models that are measured in any case: a product and a stream
_CHAIN = 3  # times that each operator of a stream runs
_SURE_NS = 5_000.0  # nanoseconds of a kernel from which on its rate counts: a profiler's clock has microseconds


def has_peaks(worker: Worker) -> bool:
    """Whether the target of a worker runs on a processor whose instructions it tells, and times its kernels there."""
    known = worker.fingerprint
    return "isa" in known.facts and known.gives_times and not worker.deterministic and "profile" not in worker.lacks


def measure_peaks(
    worker: Worker, target: Capabilities, folder: Path, rng: np.random.Generator, deadline: Deadline, brief: bool
) -> Peaks | None:
    """The peaks of the target that ``worker`` has, with its threads; None where it tells too little for them.

    Args:
        deadline: no further model or profile is begun after it.
    """
    if not has_peaks(worker):
        return None
    folder.mkdir()
    found: list[Reached] = []
    ready: list[tuple[_Form, list[Reached]]] = []
    try:
        for number, (proto, low) in enumerate(_models(brief)):
            if number >= _LEAST and not deadline.left:
                break
            try:
                plain, file = _as_it_is(proto, folder / str(number), rng)
                forms = [plain]
                if low:
                    forms += _in_integers(file, plain.feed, target, worker, folder / str(number), brief)
                for form in forms:
                    reached = form.reached(worker)
                    found += reached
                    ready.append((form, reached))
            except InlayError:  # a target that refuses one runs others
                continue
        for _ in range(0 if brief else _ROUNDS):
            best = peaks_of(found)
            for form, reached in ready:
                if not deadline.left or best is None:
                    return best
                if any(best.is_near(each) for each in reached):
                    found += form.reached(worker)
    except InlayError:  # what was measured until then stands
        pass
    finally:
        for form, _ in ready:
            worker.drop(form.artifact)
    return peaks_of(found)


def peaks_here(worker: Worker, folder: Path, deadline: Deadline, brief_s: float) -> Peaks | None:
    """The peaks of a worker's target: those that are kept, or where ``brief_s`` allows for it, the short form of them.

    Args:
        deadline: nothing is measured where that takes longer.
        brief_s: seconds that measuring may take.
    """
    known = read_peaks(worker.fingerprint)
    if known is not None or not has_peaks(worker) or brief_s < SHORT_S or not deadline.fits(2.0 * SHORT_S):
        return known
    capabilities, rng = Capabilities.of(create(worker.spec)), np.random.default_rng(0)
    found = measure_peaks(worker, capabilities, folder, rng, deadline.within(SHORT_S), brief=True)
    if found is not None:
        found = replace(found, moved=found.moved[:1])  # the best rate, for any number of bytes: few were tried
        with contextlib.suppress(InlayError, OSError):  # it is measured again next time
            keep_peaks(worker.fingerprint, found)
    return found


def judged(
    worker: Worker, peaks: Peaks, models: Sequence[tuple[Sequence[KernelTime], Graph, float]]
) -> list[Ceiling | None]:
    """The ceiling of each model, by its kernels, its graph and the nanoseconds that it takes; None without kernels.

    Where a model beats the peaks, what it reached is kept for the next one.
    """
    found = [ceiling(kernels, graph, peaks, ns) if kernels else None for kernels, graph, ns in models]
    if any(each is not None and each.beaten for each in found):
        reached = [r for kernels, graph, _ in models for r in reached_by(kernels, graph)]
        with contextlib.suppress(InlayError, OSError):
            keep_peaks(worker.fingerprint, peaks.raised(reached))
    return found


@dataclass(frozen=True, eq=False)
class _Form:
    """A model in one precision: its graph, its file, and that of its inputs."""

    graph: Graph
    artifact: Artifact
    feed: Path

    def reached(self, worker: Worker) -> list[Reached]:
        """What its kernels reached in one more profile. Raises TargetError."""
        kernels = worker.profile(self.artifact, self.feed, _REPEATS)
        counter = Counter(self.graph, kernels)
        counted = ((kernel, counter.work(kernel)) for kernel in kernels if kernel.ns >= _SURE_NS)
        return [Reached(precision_of(k), w.products, 0.0 if w.moves else w.bytes, k.ns) for k, w in counted]


def _as_it_is(proto: onnx.ModelProto, folder: Path, rng: np.random.Generator) -> tuple[_Form, ModelFile]:
    """A model in float, as it is written here with all sizes."""
    folder.mkdir()
    path, feed = folder / "model.onnx", folder / "feed.npz"
    onnx.save(proto, path)
    file = load(path)
    save_feed(feed, random_samples(input_specs(file.model), rng, 1).feeds[0])
    return _Form(build_graph(file.model), Artifact(path, file.sha256), feed), file


def _in_integers(
    file: ModelFile, feed: Path, target: Capabilities, worker: Worker, folder: Path, brief: bool
) -> list[_Form]:
    """The same in the low precisions of the target's anchors, or in the usual one (``brief``). Raises InlayError."""
    prepared = prepare(file, target, load_feed(feed), folder)
    writer = writer_by_extremes(prepared, Samples((load_feed(feed),), "random", "random"), worker.fingerprint.digest)
    named = anchor_units(prepared.graph, prepared.units)
    chosen = [named[FULL_INT8]] if brief else list(named.values())
    placements = dict.fromkeys(prepared.label(precisions) for precisions in chosen)
    return [_Form(prepared.graph, writer.write(placement), feed) for placement in placements if placement]


def writer_by_extremes(prepared: PreparedModel, samples: Samples, runtime: str) -> CandidateWriter:
    """Writes candidates with ranges from the least to the largest element: kernels take as long whatever these are.

    ``runtime`` is the digest of the target's fingerprint.
    """
    choice, observed = CalibrationChoice("minmax"), observe(prepared, samples)
    return CandidateWriter(prepared, choice.table(prepared, observed), choice.digest(observed), runtime)


def _models(brief: bool) -> Iterator[tuple[onnx.ModelProto, bool]]:
    """The models, and whether they are measured in low precision, too; those that tell most come first."""
    yield _product(*_PRODUCTS[0]), True
    yield _stream(_STREAMED[0]), False
    yield _product(*_PRODUCTS[1]), True
    yield _conv(*_CONVS[0]), True
    for elements in _STREAMED[1 : 2 if brief else None]:
        yield _stream(elements), False
    for vector in _VECTORS[: 1 if brief else None]:
        yield _product(1, *vector), False
    if not brief:
        for product in _PRODUCTS[2:]:
            yield _product(*product), True
        for conv in _CONVS[1:]:
            yield _conv(*conv), True


def _product(rows: int, depth: int, columns: int) -> onnx.ModelProto:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], "product")]
    return _model(nodes, {"x": [rows, depth], "y": [rows, columns]}, {"w": _weights(depth, columns)})


def _conv(channels: int, rows: int, window: int) -> onnx.ModelProto:
    pads = [window // 2] * 4
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"], "product", kernel_shape=[window] * 2, pads=pads)]
    shape = [1, channels, rows, rows]
    return _model(nodes, {"x": shape, "y": shape}, {"w": _weights(channels, channels, window, window)})


def _stream(elements: int) -> onnx.ModelProto:
    """Operators that do little more than read and write, one after another; what leaves the model is small."""
    nodes: list[onnx.NodeProto] = []
    shapes = {"x": [elements], "y": [1]}

    def add(op: str, *inputs: str, sizes: Sequence[int] = (elements,), **attributes: Any) -> str:
        name = f"{op}_{len(nodes)}"
        names = [f"{name}_out{i}" for i in range(len(sizes))]
        shapes.update({value: [size] for value, size in zip(names, sizes, strict=True)})
        nodes.append(helper.make_node(op, inputs, names, name, **attributes))
        return names[0]

    last = "x"
    for _ in range(_CHAIN):
        first = add("Relu", last)
        joined = add("Concat", first, add("Add", first, add("Neg", first)), sizes=[2 * elements], axis=0)
        last = add("Split", joined, sizes=[elements] * 2, axis=0)
    nodes.append(helper.make_node("ReduceMax", [last], ["y"], "last", keepdims=1))
    return _model(nodes, shapes, {})


def _model(
    nodes: list[onnx.NodeProto], shapes: dict[str, list[int]], weights: dict[str, np.ndarray]
) -> onnx.ModelProto:
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()}
    graph = helper.make_graph(
        nodes,
        "peaks",
        [values.pop("x")],
        [values.pop("y")],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
        value_info=list(values.values()),
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _weights(*shape: int) -> np.ndarray:
    """Numbers that take no time to draw, whose sums stay small: kernels do not depend on them."""
    return np.resize(np.linspace(-1.0, 1.0, 1021, dtype=np.float32), shape) / np.float32(shape[0])
