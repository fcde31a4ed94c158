"""Memory of a session: what this process grows by, whatever it held before."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from inlay.cli.render import verdict
from inlay.data import Samples, workload_of
from inlay.measure.client import Worker
from inlay.measure.memory import Growth
from inlay.model.load import file_sha256, load
from inlay.prepare.config import TuneConfig
from inlay.run.inputs import TuneRequest
from inlay.run.tune import tune
from inlay.targets.base import Artifact, TargetSpec
from inlay.testing import Builder
from tests.support.fixtures import SaveModel

MB = 1_000_000
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="only Linux begins its high-water mark anew")


def touched(megabytes: int) -> np.ndarray:
    return np.ones(megabytes * MB, np.uint8)


@LINUX
def test_growth_is_the_most_since_its_beginning() -> None:
    touched(300)  # given back before: no share of what follows
    growth = Growth()
    assert (growth.bytes() or 0) < 20 * MB
    touched(80)  # given back again
    found = growth.bytes()
    assert found is not None
    assert 70 * MB < found < 120 * MB


def product(size: int) -> Builder:
    b = Builder()
    x = b.input("x", ("batch", size))
    b.output(b.node("y", "MatMul", [x, b.constant("w", b.rng.standard_normal((size, size)))]))
    return b


@LINUX
def test_larger_weights_and_larger_inputs_take_more(tmp_path: Path, save: SaveModel) -> None:
    found = {}
    for size, batch in ((64, 1), (2500, 1), (64, 100_000)):
        path = save(product(size).model(), f"{size}-{batch}.onnx")
        feed = {"x": np.ones((batch, size), np.float32)}
        saved = workload_of([feed], ()).save(tmp_path / f"feed-{size}-{batch}")
        with Worker(TargetSpec("ort-cpu"), tmp_path) as worker:
            found[size, batch] = worker.memory(Artifact(path, file_sha256(path)), saved) or 0
    weights, output = 4 * 2500**2, 4 * 64 * 100_000
    assert found[2500, 1] - found[64, 1] > 0.9 * weights
    assert found[64, 100_000] - found[64, 1] > 0.9 * output


def test_a_simulation_does_not_tell(tmp_path: Path, save: SaveModel) -> None:
    path = save(product(8).model())
    saved = workload_of([{"x": np.ones((1, 8), np.float32)}], ()).save(tmp_path / "feed")
    with Worker(TargetSpec("null"), tmp_path) as worker:
        assert worker.memory(Artifact(path, file_sha256(path)), saved) is None


@LINUX
@pytest.mark.exhaustive
def test_a_run_has_it_for_what_was_measured_last(tmp_path: Path, save: SaveModel) -> None:
    rng = np.random.default_rng(0)
    feeds = tuple({"x": rng.standard_normal((1, 64)).astype(np.float32)} for _ in range(3))
    config = TuneConfig(budget_s=None, max_measurements=1, strategy="anchors", cost_db=False, confirm_processes=1)
    request = TuneRequest(
        file=load(save(product(64).model())),
        out=tmp_path / "out",
        samples=Samples(feeds, "feeds", "test"),
        config=config,
    )
    found = tune(request)
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["best"]["memory_bytes"] > 0
    assert result["baseline"]["memory_bytes"] > 0
    assert {"memory_bytes"} < set(result["pareto"][0])

    assert found.best.memory_bytes is not None
    same = replace(found, baseline_bytes=found.best.size_bytes, baseline_memory=found.best.memory_bytes)
    assert "Memory" not in "\n".join(map(str, verdict(same))), "nothing to tell"
    twice = replace(same, baseline_memory=2 * found.best.memory_bytes)
    size, memory = (f"{n / 1e6:.3g} MB" for n in (found.best.size_bytes, found.best.memory_bytes))
    given = f"{2 * found.best.memory_bytes / 1e6:.3g} MB"
    line = f"  File: {size} (the given model {size}); Memory of a session: {memory} (the given model {given})."
    assert line in list(verdict(twice))
