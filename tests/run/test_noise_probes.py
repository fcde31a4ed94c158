"""Probes fit into their time, ask nothing twice, and a resumed run hears the same answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from inlay.calibrate.observe import observe
from inlay.calibrate.tables import CalibrationChoice
from inlay.data import Samples
from inlay.errors import RunFailed
from inlay.measure.costs import FREE
from inlay.measure.journal import Journal
from inlay.model.load import load
from inlay.prepare.model import PreparedModel, prepare
from inlay.quant.fake_quant import NoiseProbe
from inlay.quant.qparams import QParamsTable
from inlay.quant.sensitivity import ProbeBudget, Sensitivity
from inlay.run.facts import PROBE_BUDGET
from inlay.run.noise_probes import Probes
from inlay.targets.onnxruntime.target import capabilities_for
from tests.support.pool import PoolHere

Made = tuple[PreparedModel, QParamsTable, Samples]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("model")
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.normal(0, 0.3, (4, 4, 1, 1)).astype(np.float32), f"w{i}") for i in range(20)]
    nodes = [helper.make_node("Conv", [f"v{i}" if i else "x", f"w{i}"], [f"v{i + 1}"], f"c{i}") for i in range(20)]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4, 6, 6]) for n in ("x", "v20")]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "m.onnx")
    feeds = [{"x": rng.normal(0, 1, (1, 4, 6, 6)).astype(np.float32)} for _ in range(5)]
    prepared = prepare(load(folder / "m.onnx"), capabilities_for(), feeds[0], folder)
    samples = Samples(tuple(feeds), "feeds", "test")
    return prepared, CalibrationChoice("minmax").table(prepared, observe(prepared, samples)), samples


class _Counted:
    """A clock on which each run of a probe takes a second, and each build half of one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.runs, self.builds = 0.0, 0, 0
        run, build = NoiseProbe._energies, NoiseProbe.__init__

        def slow_run(probe: NoiseProbe, switched: Iterable[np.ndarray], count: int) -> Iterator[np.ndarray]:
            for energies in run(probe, switched, count):
                self.runs += count
                self.now += 1.0 * count
                yield energies

        def slow_build(probe: NoiseProbe, *arguments: object, **options: object) -> None:
            self.builds += 1
            self.now += 0.5
            build(probe, *arguments, **options)  # type: ignore[arg-type]

        monkeypatch.setattr(NoiseProbe, "_energies", slow_run)
        monkeypatch.setattr(NoiseProbe, "__init__", slow_build)

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    found = Journal(tmp_path / "run.sqlite", {"a": "b"})
    yield found
    found.close()


def test_a_short_budget_is_kept(made: Made, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared, table, samples = made
    clock = _Counted(monkeypatch)
    probes = Probes(prepared, table, samples, journal, 24.0, clock)
    found = probes.sensitivity()
    assert len(found.values) == 21  # every value has a figure, though 41 sources do not fit
    assert len(found.constants) == 20
    assert clock.now <= 24.0 + 5.0
    assert sum(probes.spent) == pytest.approx(clock.now)


def test_a_long_budget_takes_every_source_on_several_samples(
    made: Made, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared, table, samples = made
    clock = _Counted(monkeypatch)
    Probes(prepared, table, samples, journal, 150.0, clock).sensitivity()
    fits = journal.fact(PROBE_BUDGET)
    assert fits is not None
    assert (fits.ranked_samples, fits.placement_samples, fits.source_samples) == (5, 5, 3)
    assert clock.runs == 1 + 5 + 3 * 41


@pytest.mark.parametrize("sound", [1000, 50])
def test_several_hands_find_the_noise_that_one_does(made: Made, tmp_path: Path, sound: int) -> None:
    prepared, table, samples = made
    pool, slow = PoolHere(2, sound), replace(FREE, sample_s=1.0)
    found: list[Sensitivity] = []
    for open_pool in (None, pool.open_pool):
        journal = Journal(tmp_path / f"{len(found)}.sqlite", {"a": "b"})
        journal.record_fact(PROBE_BUDGET, ProbeBudget(5, 5, 3, 41))
        probes = Probes(prepared, table, samples, journal, 9.0, costs=lambda: slow, open_pool=open_pool)
        found.append(probes.sensitivity())
        journal.close()
    assert found[0] == found[1]
    assert pool.asked == {"_answer": 3 * 41}
    assert pool.let_go


def test_answers_come_from_the_journal(made: Made, journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared, table, samples = made
    clock = _Counted(monkeypatch)
    first = Probes(prepared, table, samples, journal, 30.0, clock)
    placement = prepared.label(frozenset({"c3", "c4"}))
    alone, noise = first.sensitivity(), first.noise(placement)
    assert noise is not None
    assert noise[0] > 0.0
    before = clock.now
    again = Probes(prepared, table, samples, journal, 30.0, clock)
    assert again.sensitivity() == alone
    assert again.noise(placement) == noise
    assert clock.now == before
    assert clock.builds == 1
    assert again.noise(prepared.label(frozenset({"c5"}))) != noise  # a new question is asked, with the journaled plan
    assert clock.builds == 2


def test_a_probe_model_that_does_not_run_is_no_failure(
    made: Made, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RunFailed("no")

    monkeypatch.setattr(NoiseProbe, "__init__", broken)
    prepared, table, samples = made
    probes = Probes(prepared, table, samples, journal, 30.0)
    assert not probes.sensitivity().values
    assert probes.noise(prepared.label(frozenset({"c3"}))) is None
