"""What a pattern cache saves: schemes to reach 98 % of a long run, without and with the cache of a relative.

A relative is the same network at another resolution or width, another export of it, or another network of its family.
Each row tunes the source, then the model twice with evolution alone: cold, and with the cache that the source's run
left. What is counted are the schemes measured until the best one is within 2 % of the best of the cold run.

``null`` prices nodes by their names, so that equal nodes prefer the same at every size: the schemes that a search needs
are counted without noise. ``ort-cpu`` is a real runtime, whose preferences may change with the size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

import inlay
from benchmarks.light_models import input_name, light_model
from inlay.autotune import Config, PatternCache, QDQAutotuner
from inlay.data import input_specs, random_samples
from inlay.measure.journal import Journal
from inlay.model.load import load
from inlay.targets.null import price
from inlay.trial import Measured

Row = dict[str, Any]
ENOUGH = 0.98
"""Share of the long run's speed that counts as reached."""

TARGETS = ("null", "ort-cpu")

SCHEMES = 12
"""Schemes for each pattern, in source and long runs alike."""

_ANCHORS = frozenset({"float", "full-int8", "conv-matmul", "original"})
DIGITS = Path(__file__).parent.parent / "examples" / "digits" / "digits.onnx"


@dataclass(frozen=True)
class Pair:
    """A model to tune, and the relative whose cache it is given."""

    name: str
    source: Callable[[Path], onnx.ModelProto]
    model: Callable[[Path], onnx.ModelProto]


def squeezenet(side: int) -> Callable[[Path], onnx.ModelProto]:
    """SqueezeNet for images of ``side`` pixels."""

    def make(models: Path) -> onnx.ModelProto:
        model = light_model("squeezenet")
        return _resized(model, input_name(model), (side, side))

    return make


def digits(width: int) -> Callable[[Path], onnx.ModelProto]:
    """The digits network with ``width`` times its channels, which computes the same."""
    return lambda models: widened(onnx.load(DIGITS), width)


def trained(name: str, size: tuple[int, int] | None = None) -> Callable[[Path], onnx.ModelProto]:
    """A model of the folder of trained ones, for images of another height and width where given."""

    def make(models: Path) -> onnx.ModelProto:
        model = onnx.load(models / f"{name}.onnx")
        return model if size is None else _resized(model, input_name(model), size)

    return make


def exported(name: str) -> Callable[[Path], onnx.ModelProto]:
    """The same in the form in which PyTorch exports it, before simplification."""
    return lambda models: as_exported(onnx.load(models / f"{name}.onnx"))


PAIRS = (
    Pair("squeezenet 224 to 160", squeezenet(224), squeezenet(160)),
    Pair("squeezenet 224 to 320", squeezenet(224), squeezenet(320)),
    Pair("digits to width x2", digits(1), digits(2)),
    Pair(
        "ultraface simplified to exported",
        trained("ultraface_rfb320_simplified"),
        exported("ultraface_rfb320_simplified"),
    ),
    Pair(
        "ultraface 240x320 to 480x640",
        trained("ultraface_rfb320_simplified"),
        trained("ultraface_rfb320_simplified", (480, 640)),
    ),
)


def row(pair: Pair, target: str, models: Path, work: Path, budget: float) -> Row:
    """Cold and warm counts of one pair on one target; ``budget`` in seconds, of each run on a real target."""
    work.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, make in (("source", pair.source), ("model", pair.model)):
        paths.append(work / f"{name}.onnx")
        onnx.save(make(models), paths[-1])
    run = _simulated if target == "null" else _measured(target, budget)
    cache = work / "cache.yaml"
    run(paths[0], None, work / "out-source", cache)
    cold, _ = run(paths[1], None, work / "out-cold", None)
    warm, coverage = run(paths[1], cache, work / "out-warm", None)
    goal = ENOUGH * max(cold)
    found: Row = {
        "model": pair.name,
        "target": target,
        "known": coverage,
        "schemes": len(cold) - 1,
        "best": max(cold),
        "best_warm": max(warm),
        "cold": _reached(cold, goal),
        "warm": _reached(warm, goal),
    }
    return found


def _reached(speedups: Sequence[float], goal: float) -> int | None:
    return next((i for i, speedup in enumerate(speedups) if speedup >= goal), None)


def _simulated(model: Path, cache: Path | None, out: Path, left: Path | None) -> tuple[list[float], str]:
    """Speed-ups in the order of measurement (the first one is float's), on known costs without noise."""
    tuner = QDQAutotuner(model)  # costs do not depend on ranges: random samples will do
    known = None if cache is None else PatternCache.load(cache)
    tuner.initialize(Config(schemes_per_region=SCHEMES, confirmations=0), known)

    def cost(data: bytes) -> float:
        return 1e-6 * sum(k.ns for k in price(onnx.load_from_string(data)))

    baseline = cost(tuner.export_onnx(insert_qdq=False))
    tuner.submit(baseline)
    speedups = [1.0]
    for region in tuner.regions:
        tuner.set_profile_region(region)
        while tuner.generate() is not None:
            latency = cost(tuner.export_onnx())
            speedups.append(baseline / latency)
            tuner.submit(latency)
    tuner.set_profile_region(None)
    if left is not None:
        tuner.pattern_cache().save(left)
    return speedups, str(tuner.coverage)


def _measured(target: str, budget: float) -> Callable[..., tuple[list[float], str]]:
    """The same on a real target, by ``tune`` without a bound; anchors count for the speed, but not as schemes."""

    def run(model: Path, cache: Path | None, out: Path, left: Path | None) -> tuple[list[float], str]:
        samples = random_samples(input_specs(load(model).model), np.random.default_rng(0), 6)
        result = inlay.tune(
            model,
            out=out,
            target=target,
            data=samples.feeds,
            no_bound=True,
            strategy="evolve",
            schemes_per_region=SCHEMES,
            budget=budget,
            pattern_cache=cache,
            cost_db=False,
        )
        best, speedups, journal = 1.0, [1.0], Journal(out / "run.sqlite", None)
        for record in journal.trials():
            if isinstance(record.outcome, Measured):
                best = max(best, record.outcome.latency.speedup.value)
            if record.origin in _ANCHORS:
                speedups[-1] = best
            else:
                speedups.append(best)
        journal.close()
        if left is not None:
            (out / "pattern_cache.yaml").replace(left)
        patterns = result.search.get("patterns")
        coverage = "" if patterns is None else f"{patterns['known']} of {patterns['total']} patterns known"
        return speedups, coverage

    return run


def table(rows: Iterable[Row]) -> Row:
    """The table as plain data, rows in the order of ``PAIRS``."""
    order = [pair.name for pair in PAIRS]
    ranked = sorted(rows, key=lambda r: (TARGETS.index(r["target"]), order.index(r["model"])))
    return {"enough": ENOUGH, "schemes_per_region": SCHEMES, "rows": ranked}


# --- models ---------------------------------------------------------------------------------------------------------


def _resized(model: onnx.ModelProto, name: str, size: tuple[int, int]) -> onnx.ModelProto:
    for given in model.graph.input:
        if given.name == name:
            for dimension, pixels in zip(given.type.tensor_type.shape.dim[2:], size, strict=True):
                dimension.dim_value = pixels
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    return model


def widened(model: onnx.ModelProto, factor: int) -> onnx.ModelProto:
    """Every inner channel ``factor`` times: weights are repeated along both axes and divided, so outputs stay.

    For networks of Conv (ordinary or depthwise), BatchNormalization, Gemm and operators that work channel by channel,
    whose input and output channels keep their number.
    """
    graph = model.graph
    tensors = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    given, last = graph.input[0].name, graph.node[-1].output[0]
    wide: dict[str, np.ndarray] = {}
    for node in graph.node:
        if node.op_type in ("Conv", "Gemm"):
            weight = tensors[node.input[1]]
            transposed = node.op_type == "Gemm" and not any(a.name == "transB" and a.i for a in node.attribute)
            weight = weight.T if transposed else weight
            groups = [a for a in node.attribute if a.name == "group" and a.i > 1]
            for group in groups:  # one for each channel
                group.i *= factor
            if node.input[0] != given and not groups:
                weight = np.repeat(weight / factor, factor, axis=1)
            if node.output[0] != last:
                weight = np.repeat(weight, factor, axis=0)
                wide |= {name: np.repeat(tensors[name], factor) for name in node.input[2:]}
            wide[node.input[1]] = weight.T if transposed else weight
        elif node.op_type == "BatchNormalization":
            wide |= {name: np.repeat(tensors[name], factor) for name in node.input[1:]}
    kept = [t for t in graph.initializer if t.name not in wide]
    del graph.initializer[:], graph.value_info[:]
    graph.initializer.extend([*kept, *(numpy_helper.from_array(a.astype(np.float32), n) for n, a in wide.items())])
    return model


def as_exported(model: onnx.ModelProto) -> onnx.ModelProto:
    """Weights as Constants, scales of channels as BatchNormalization, target shapes computed, an Identity in between.

    The function stays the same. Node names stay, too, where the operator does.
    """
    rng = np.random.default_rng(0)
    graph = model.graph
    tensors: Mapping[str, np.ndarray] = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    nodes: list[onnx.NodeProto] = []

    def constant(name: str, array: np.ndarray) -> str:
        nodes.append(helper.make_node("Constant", [], [name], f"{name}.constant", value=numpy_helper.from_array(array)))
        return name

    for node in graph.node:
        copy = onnx.NodeProto.FromString(node.SerializeToString())
        out = node.output[0]
        if node.op_type == "Conv" and len(node.input) == 3:
            weight, bias = tensors[node.input[1]], tensors[node.input[2]]
            scale = rng.uniform(0.5, 2.0, len(bias)).astype(np.float32)
            inner = weight / scale.reshape(-1, 1, 1, 1)
            parts = {"scale": scale, "shift": bias, "mean": 0 * bias, "variance": 0 * bias + 1}
            names = [constant(f"{out}.{n}", a.astype(np.float32)) for n, a in parts.items()]
            copy.input[:] = [node.input[0], constant(f"{out}.weight", inner)]
            copy.output[0] = f"{out}.convolved"
            nodes += [
                copy,
                helper.make_node("BatchNormalization", [copy.output[0], *names], [out], f"{out}.bn", epsilon=0.0),
            ]
        elif node.op_type == "Reshape":
            shape = tensors[node.input[1]]
            batch = [f"{out}.shape", constant(f"{out}.zero", np.array([0], np.int64))]
            nodes += [
                helper.make_node("Shape", [node.input[0]], batch[:1], f"{out}.shape_of"),
                helper.make_node("Gather", batch, [f"{out}.batch"], f"{out}.gather"),
            ]
            rest = constant(f"{out}.rest", shape[1:].astype(np.int64))
            nodes.append(helper.make_node("Concat", [f"{out}.batch", rest], [f"{out}.to"], f"{out}.concat", axis=0))
            copy.input[1] = f"{out}.to"
            nodes.append(copy)
        else:
            nodes.append(copy)
    read = {v for n in nodes for v in n.input}
    kept = [t for t in graph.initializer if t.name in read]
    inputs = [i for i in graph.input if i.name not in tensors]
    del graph.node[:], graph.initializer[:], graph.value_info[:], graph.input[:]
    graph.node.extend(nodes)
    graph.initializer.extend(kept)
    graph.input.extend(inputs)
    return model
