"""The example of a third party's target: it installs, keeps the contract, and its rewrite is taken where it pays."""

from __future__ import annotations

import importlib
import json
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from benchmarks.simulated import Clock, simulated
from setuptools import build_meta  # type: ignore[import-untyped]

from inlay.data import Samples
from inlay.model.load import load
from inlay.prepare.config import TuneConfig
from inlay.quant.extract import extract
from inlay.run.inputs import TuneRequest
from inlay.run.result import TuneResult
from inlay.run.tune import tune
from inlay.targets import registry
from inlay.targets.base import Target, TargetSpec
from inlay.testing import Builder, TargetTestCase, random_feed, run_reference

EXAMPLE = Path(__file__).parents[2] / "examples" / "custom_target"
SPEC = TargetSpec("toy-npu")
SAMPLES = 8


@pytest.fixture(scope="module", autouse=True)
def _installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The package as its wheel installs it, with its metadata, on ``sys.path``."""
    folder = tmp_path_factory.mktemp("toy_npu")
    source, site = copytree(EXAMPLE, folder / "source"), folder / "site"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(source)
        wheel = build_meta.build_wheel(str(folder))
        zipfile.ZipFile(folder / wheel).extractall(site)
        patch.chdir(folder)
        patch.syspath_prepend(site)
        importlib.invalidate_caches()
        yield
    for name in [n for n in sys.modules if n.partition(".")[0] == "toy_npu"]:
        del sys.modules[name]


class TestContract(TargetTestCase):
    def target(self) -> Target:
        return registry.create(SPEC)


def test_it_stays_small() -> None:
    lines = sum(len(path.read_text().splitlines()) for path in EXAMPLE.rglob("*.py"))
    assert lines < 200


def three_convs() -> onnx.ModelProto:
    """Convs of 6, 8 and 5 output channels; the last one over a single pixel, where a Slice costs what lanes save."""
    b = Builder()
    odd = b.conv("odd", b.input("x", (1, 3, 24, 24)), 6, relu=True)
    even = b.conv("even", odd, 8, relu=True)
    pooled = b.node("pool", "GlobalAveragePool", [even])
    b.output(b.conv("single", pooled, 5, kernel=1))
    return b.model()


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> TuneResult:
    folder = tmp_path_factory.mktemp("tuned")
    model = three_convs()
    onnx.save(model, folder / "model.onnx")
    samples = Samples(tuple(dict(random_feed(model, seed)) for seed in range(SAMPLES)), "feeds", "test")
    clock = Clock()
    lab = simulated(registry.create(SPEC), clock)
    config = TuneConfig(target=SPEC, max_measurements=12, cost_db=False)
    return tune(
        TuneRequest(file=load(folder / "model.onnx"), out=folder / "out", samples=samples, config=config, lab=lab)
    )


@pytest.mark.exhaustive
def test_tuning_takes_the_rewrite_where_it_pays(result: TuneResult) -> None:
    graph = onnx.load(result.model_path).graph
    (cut,) = [n for n in graph.node if n.op_type == "Slice"]
    (weight,) = [t for t in graph.initializer if t.name == "odd_weight_quantized"]
    assert cut.name.startswith("odd")
    assert tuple(weight.dims) == (8, 3, 3, 3)
    data = json.loads((result.folder / "result.json").read_text())
    assert data["best"]["latency_ms"] < min(a["latency_ms"] for a in data["anchors"]), "no anchor has the rewrite"


def test_the_tuned_model_computes_what_it_would_without_the_rewrite(result: TuneResult) -> None:
    """Read back, it has the float model's operators, and outputs like them."""
    found = extract(ir.load(result.model_path))
    assert not found.leftovers
    assert {r.port.node for r in found.placement.rewrites} == {"odd"}
    assert [n.op_type for n in found.model.graph] == [n.op_type for n in three_convs().graph.node]
    feed = random_feed(three_convs(), 1000)
    (want,), (got,) = (run_reference(m, feed).values() for m in (three_convs(), result.model_path))
    assert np.linalg.norm(want - got) < 0.1 * np.linalg.norm(want)
