"""Import of models that other tools quantized: every Q/DQ site is imported, or listed with its reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from inlay.autotune import Config, QDQAutotuner
from inlay.model.load import load
from inlay.patterns.scheme_import import import_placement
from inlay.patterns.search_space import find_search_space
from inlay.prepare.model import prepare
from inlay.targets.base import Capabilities
from inlay.targets.onnxruntime.rules import rules_for
from inlay.types import Placement, QType
from tests.support.branches import branches
from tests.support.runtime_quantizer import quantize_by_runtime

RULES = rules_for("x86_64", frozenset({"avx512_vnni"}))


def by_the_runtime(folder: Path, per_channel: bool) -> Path:
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.standard_normal((1, 3, 8, 8)).astype(np.float32)} for _ in range(4)]
    return quantize_by_runtime(branches(), folder, feeds, per_channel=per_channel)


def by_hand(path: Path) -> Path:
    """One pair before the first Conv, read by it alone."""
    model = branches()
    graph = model.graph
    graph.initializer.extend(
        [
            numpy_helper.from_array(np.array(0.05, np.float32), "s"),
            numpy_helper.from_array(np.array(128, np.uint8), "z"),
        ]
    )
    first = next(n for n in graph.node if n.name == "left")
    pair = [
        helper.make_node("QuantizeLinear", [first.input[0], "s", "z"], ["q"], "Q"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["dq"], "DQ"),
    ]
    first.input[0] = "dq"
    index = list(graph.node).index(first)
    nodes = [*list(graph.node)[:index], *pair, *list(graph.node)[index:]]
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.save(model, path / "hand.onnx")
    return path / "hand.onnx"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("per_channel", [False, True])
def test_runtime_quantized_model_is_imported_whole(tmp_path: Path, per_channel: bool) -> None:
    feed = {"x": np.zeros((1, 3, 8, 8), np.float32)}
    path = by_the_runtime(tmp_path, per_channel)
    quantized = onnx.load(path)
    ready = prepare(load(path), Capabilities(RULES), feed, tmp_path)
    assert ready.extraction is not None
    report = import_placement(find_search_space(ready.graph, RULES), ready.extraction.placement)
    assert report.sites == len(ready.extraction.placement) > 15
    assert not ready.extraction.leftovers
    assert not report.unknown
    assert all(reason for _, reason in report.kept)
    written = {n.output[0] for n in quantized.graph.node if n.op_type == "DequantizeLinear"}
    readers = sum(v in written for n in quantized.graph.node for v in n.input)
    readers += sum(o.name in written for o in quantized.graph.output)
    assert report.sites == readers
    assert "Q/DQ sites" in str(report)


@pytest.mark.filterwarnings("ignore")
def test_imported_schemes_seed_the_search_and_give_the_placement_back(tmp_path: Path) -> None:
    path = by_the_runtime(tmp_path, True)
    feed = {"x": np.zeros((1, 3, 8, 8), np.float32)}
    ready = prepare(load(path), Capabilities(RULES), feed, tmp_path)
    assert ready.extraction is not None
    tuner = QDQAutotuner(tmp_path / "float.onnx")
    tuner.initialize(Config(schemes_per_region=3, confirmations=0))
    report = tuner.import_insertion_points(ready.extraction.placement)
    assert len(report.points) + len(report.implied) >= 0.8 * report.sites
    tuner.submit(10.0)
    wanted = dict(report.placement)

    def latency(placement: Placement) -> float:
        hits = sum(port in wanted for port, _ in placement)
        return 10.0 - 0.1 * hits + 0.5 * (len(placement) - hits)

    for region in tuner.regions:
        tuner.set_profile_region(region)
        while (index := tuner.generate()) is not None:
            tuner.submit(latency(tuner.records[index].placement))
    tuner.set_profile_region(None)
    assert set(dict(tuner.best_placement)) == set(wanted)


def test_hand_made_pair_is_imported(tmp_path: Path) -> None:
    feed = {"x": np.zeros((1, 3, 8, 8), np.float32)}
    ready = prepare(load(by_hand(tmp_path)), Capabilities(RULES), feed, tmp_path)
    assert ready.extraction is not None
    report = import_placement(find_search_space(ready.graph, RULES), ready.extraction.placement)
    assert [(str(p), q) for p, q in report.placement] == [("left[0]", QType.UINT8)]
    assert len(report.points) == report.sites == 1
