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
from inlay.explanation import command as explained
from inlay.explanation.explanation import Bound, Explanation, Operator, Reason, Waste
from inlay.portfolio import command as render_fleet
from inlay.portfolio.fleet import PAGE, write_page
from inlay.portfolio.result import FleetResult, Row
from inlay.portfolio.runs import Figures
from inlay.report.page import verdict
from inlay.run.compare import BenchRow
from inlay.run.result import TuneResult
from inlay.run.select import Selected
from inlay.targets.base import TargetSpec
from inlay.targets.registry import available, create, heading_of, options_in, options_of
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


@pytest.mark.exhaustive
def test_what_was_measured_is_not_called_estimated(result: TuneResult) -> None:
    shown = text(on(result, "trtexec", MEASURED))
    assert "on trtexec (tensorrt 10.9.0, device GeForce, clock device)" in shown
    assert "estimate" not in shown
    assert "estimate" not in on(result, "trtexec", MEASURED).summary()


def test_what_was_estimated_is(result: TuneResult) -> None:
    estimated = on(result, "ethos-u55-256", ESTIMATED)
    first = next(line for line in text(estimated).splitlines() if not line.startswith("BOUND NOT SHOWN"))
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
    assert set(chosen) <= {*facts, *options_of(name)}, "some are there only where an option asks for them"
    told = heading_of(name, facts)
    assert told
    assert told.endswith("estimated") == (facts.get("kind") == "estimate")


def test_the_unit_of_a_report_is_the_targets(result: TuneResult) -> None:
    counted = on(result, "qnn-htp", {"kind": "offload", "unit": "passes", "measures": "what stays"})
    sentence = verdict(counted.as_json())
    assert "passes" in sentence
    assert " ms" not in sentence


def test_a_comparison_of_estimates_says_so() -> None:
    row = BenchRow(
        path=Path("m.onnx"), latency_ms=1.0, speedup=Interval(1.0, 1.0, 1.0), blocks=1, unit="ms", estimated=True
    )

    def head(table: Table) -> str:
        return " ".join(table.rows[0])

    assert "estimated" in head(render.bench_table([row]))
    assert "estimated" not in head(render.bench_table([dataclasses.replace(row, estimated=False)]))


ESTIMATING = {"kind": "estimate", "unit": "cycles"}


def row(name: str, facts: dict[str, str]) -> Row:
    figures = Figures("full-int8", False, True, 2.0, 2.0, 2.0, 8.0, 4.0, 30.0, None, "b", "0", "done", facts=facts)
    return Row(name=name, model="m.onnx", target="t", figures=figures, why="", seconds=1.0, slices=1)


def test_a_fleet_says_which_of_its_figures_are_estimated(tmp_path: Path) -> None:
    def shown(*rows: Row) -> tuple[str, str]:
        fleet = FleetResult(tmp_path, rows, None, 2.0)
        said = render_fleet.fleet_verdict(fleet)
        lines = [line if isinstance(line, str) else "\n".join(map(" ".join, line.rows)) for line in said]
        write_page(fleet)
        return "\n".join(lines), (tmp_path / PAGE).read_text(encoding="utf8")

    text, page = shown(row("a", ESTIMATING), row("b", {}))
    for each in (text, page):
        assert each.count("(estimated)") == 1
        assert "1 of 2 estimated" in each
    assert "8.000 cycles" in page
    assert "8.000 ms" in page
    for each in shown(row("a", {}), row("b", {"unit": ""})):
        assert "estimated" not in each
    assert "8.000 ms" in page
    assert "all estimated" in shown(row("a", ESTIMATING))[0]


def test_a_selection_says_in_what_its_gain_is() -> None:
    done = Selected(
        path=Path("m"),
        sha256="0" * 64,
        origin="full-int8",
        placement_digest="",
        speedup=2.0,
        latency_ms=4.0,
        sqnr_db=30.0,
        metric=None,
        size_bytes=100,
        speedup_low=2.0,
        speedup_high=2.0,
    )
    assert "estimated" not in "".join(render.selected(done))
    said = "".join(render.selected(dataclasses.replace(done, unit="cycles", estimated=True)))
    assert "over the given model in cycles (estimated)" in said


def test_an_explanation_counts_in_the_targets_unit_throughout() -> None:
    operators = (
        Operator("conv", "Conv", "float", "kernel", 1.5, True, (Reason("unsupported", "it has no kernel"),), 0.5),
        Operator("relu", "Relu", "int8", "kernel", 0.5, False),
    )
    waste = (Waste("idle-pair", "x", (), 0.25, 0.1),)
    at_most = Bound(2.0, 1.0, 0.9, ("nothing",))
    for quantized in (False, True):
        for every in (False, True):
            found = Explanation(
                model="m",
                target="t",
                quantized=quantized,
                latency_ms=2.0,
                kernels_ms=2.0,
                operators=operators,
                waste=waste,
                facts=ESTIMATING,
                bound=at_most,
            )
            said = "\n".join(
                each if isinstance(each, str) else "\n".join(map(" ".join, each.rows))
                for each in explained.lines(found, every)
            )
            assert said.count(" cycles") > 5
            assert " ms" not in said
