"""Results are headed by what each target says of itself, and are called estimates only where they are."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import onnx
import pytest

import inlay
from inlay.cli import render
from inlay.cli.terminal import Table
from inlay.errors import InlayError
from inlay.report.page import verdict
from inlay.run.compare import BenchRow
from inlay.run.result import TuneResult
from inlay.targets.base import TargetSpec
from inlay.targets.registry import available, create, heading_of, options_in
from inlay.testing import random_feed
from inlay.trial import Interval
from tests.support.branches import branches

MEASURED = {"tensorrt": "10.9.0", "clock": "device", "arguments": "", "device": "GeForce", "plugins": ""}
ESTIMATED = {
    "kind": "estimate",
    "results": "numpy",
    "vela": "5.1",
    "system_config": "High_End",
    "memory_mode": "Shared",
}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> TuneResult:
    folder = tmp_path_factory.mktemp("heading")
    onnx.save(branches(), folder / "m.onnx")
    feeds = [random_feed(branches(), seed) for seed in range(6)]
    return inlay.tune(folder / "m.onnx", data=feeds, target="null", max_measurements=4, out=folder / "out")


def on(result: TuneResult, name: str, facts: dict[str, str]) -> TuneResult:
    return dataclasses.replace(result, target=(name, "0" * 16), facts=facts)


def text(result: TuneResult) -> str:
    return "\n".join(line for line in render.verdict(result) if isinstance(line, str))


def test_what_was_measured_is_not_called_estimated(result: TuneResult) -> None:
    shown = text(on(result, "trtexec", MEASURED))
    assert "on trtexec (tensorrt 10.9.0, device GeForce, clock device)" in shown
    assert "estimate" not in shown
    assert "estimate" not in on(result, "trtexec", MEASURED).summary()


def test_what_was_estimated_is(result: TuneResult) -> None:
    estimated = on(result, "ethos-u55-256", ESTIMATED)
    first = text(estimated).splitlines()[0]
    assert first.endswith("(vela 5.1, system_config High_End, memory_mode Shared, estimated)")
    assert "Verdict (estimated)" in text(estimated)
    assert "estimated" in estimated.summary()
    assert "These figures are estimates." in verdict(estimated.as_json())
    assert "These figures are estimates." not in verdict(on(result, "trtexec", MEASURED).as_json())


def test_a_target_that_is_not_known_here_shows_its_short_facts() -> None:
    facts = {"sdk": "3.1", "sha256": "0" * 64, "program": "x" * 99, "unit": "cycles", "empty": ""}
    assert heading_of("vendor-npu", facts) == "sdk 3.1"
    assert options_in("vendor-npu", facts) == {}


@pytest.mark.parametrize("name", sorted(available()))
def test_every_installed_target_is_headed_by_facts_that_it_has(name: str) -> None:
    try:
        target = create(TargetSpec(name))
        facts = target.fingerprint().facts
    except InlayError as error:
        pytest.skip(str(error))
    chosen = getattr(target, "heading", ())
    assert set(chosen) <= set(facts)
    told = heading_of(name, facts)
    assert told
    assert told.endswith("estimated") == (facts.get("kind") == "estimate")


def test_the_unit_of_a_report_is_the_targets(result: TuneResult) -> None:
    counted = on(result, "qnn-htp", {"kind": "offload", "unit": "passes", "measures": "what stays"})
    sentence = verdict(counted.as_json())
    assert "passes" in sentence
    assert " ms" not in sentence


def test_a_comparison_of_estimates_says_so() -> None:
    row = BenchRow(Path("m.onnx"), 1.0, Interval(1.0, 1.0, 1.0), 1, "ms", True)

    def head(table: Table) -> str:
        return " ".join(table.rows[0])

    assert "estimated" in head(render.bench_table([row]))
    assert "estimated" not in head(render.bench_table([dataclasses.replace(row, estimated=False)]))
