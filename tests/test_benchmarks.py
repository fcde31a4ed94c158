"""The benchmarks' own arithmetic, their resuming, and the README's table. Nothing here is timed."""

from __future__ import annotations

import argparse
import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from benchmarks import (
    few_samples,
    fleet,
    growth,
    nncf_peer,
    openvino,
    paired,
    peer,
    quality,
    render,
    subjects,
    transfer,
)
from benchmarks import rows as rows_of

from inlay.errors import ModelError
from inlay.measure.paired import Series, speedup
from inlay.targets.base import TargetSpec
from inlay.testing import random_feed, residual_model, run_reference


def test_the_comparison_of_the_page_is_the_committed_table() -> None:
    text = render.PAGE.read_text(encoding="utf8")
    table = render.read("quality")
    assert render.page(text, table) == text, "run: python -m benchmarks page"
    changed = json.loads(json.dumps(table))
    changed["rows"][0]["over_best_anchor"]["value"] += 0.02
    assert render.page(text, changed) != text
    rows = [r["model"] for r in table["rows"] if "error" not in r]
    shown = text.partition(render.BEGIN)[2].partition(render.END)[0]
    assert re.findall(r"^\| (\w+)", shown, re.M)[1:] == rows


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="comparison: begin"):
        render.page("nothing here", {})


def readings(rng: np.random.Generator, blocks: int = 24) -> paired.Readings:
    """Two models, one 10 % faster than the other, on a machine whose speed changes by 30 % from block to block."""
    speed = np.exp(rng.normal(0.0, 0.3, blocks))
    noise = np.exp(rng.normal(0.0, 0.005, (3, blocks)))
    ns = {"g": 2e6 * speed * noise[0], "a": 1.1e6 * speed * noise[1], "d": 1e6 * speed * noise[2]}
    return paired.Readings(ns, {"given": "g", "anchor": "a", "delivered": "d", "twin": "d"}, {})


def test_ratios_pair_the_blocks_of_both_models() -> None:
    found = readings(np.random.default_rng(0))
    ratio = found.ratio("anchor", "delivered")
    assert ratio["low"] <= 1.1 <= ratio["high"]
    assert ratio["high"] / ratio["low"] < 1.02
    unpaired = speedup(Series(found.ns["a"]), Series(np.roll(found.ns["d"], 1)))
    assert unpaired.high / unpaired.low > 1.1, "without the pairing the machine's changes would be in the figure"
    assert found.ratio("twin", "delivered") == {"value": 1.0, "low": 1.0, "high": 1.0}


def test_the_geometric_mean_and_its_interval() -> None:
    """Against simulation: intervals of means of three independent ratios cover the truth."""
    found = paired.geometric_mean([{"value": 2.0, "low": 1.9, "high": 2.1}, {"value": 0.5, "low": 0.5, "high": 0.5}])
    assert found is not None
    assert found["value"] == pytest.approx(1.0)
    assert found["low"] == pytest.approx((1.9 / 2.0) ** 0.5)
    assert paired.geometric_mean([]) is None
    rng, hits = np.random.default_rng(1), 0
    for _ in range(400):
        parts = [readings(rng).ratio("anchor", "delivered"), readings(rng).ratio("given", "delivered")]
        mean = paired.geometric_mean(parts)
        assert mean is not None
        hits += mean["low"] <= np.sqrt(1.1 * 2.0) <= mean["high"]
    assert 0.92 <= hits / 400 <= 0.985


def row(name: str, value: float, trained: bool = True, overhead: float = 0.05, replayed: int = 0) -> dict[str, Any]:
    return {
        "model": name,
        "trained": trained,
        "over_best_anchor": {"value": value, "low": value, "high": value},
        "over_usual": {"value": 2.0 * value, "low": value, "high": 3.0 * value},
        "search": {"overhead": overhead, "replayed": replayed, "unattributed": overhead / 5.0},
    }


def test_means_are_over_trained_models_and_over_all() -> None:
    rows = [row("a", 2.0), row("b", 0.5), row("c", 8.0, False, 0.2, replayed=3), {"model": "d", "error": "it fails"}]
    table = quality.table(rows)
    assert table["geometric_mean"]["trained"]["value"] == pytest.approx(1.0)
    assert table["geometric_mean"]["all"]["value"] == pytest.approx(2.0)
    assert table["geometric_mean_over_usual"]["trained"]["value"] == pytest.approx(2.0)
    assert table["unattributed"] == pytest.approx(0.04)
    assert table["models"] == {"trained": 2, "all": 3}
    assert table["overhead"] == {"largest": 0.05, "of": 2}, "of resumed runs only a part was timed"


def test_rows_that_are_done_are_kept_and_failures_are_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def make(subject: subjects.Subject, work: Path) -> dict[str, Any]:
        made.append(subject.name)
        if subject.name == "inception_v1":
            raise ModelError("it is broken")
        return row(subject.name, 1.5, False)

    def subject(name: str, models: Path | None, folder: Path) -> subjects.Subject:
        return subjects.Subject(name, folder, folder, folder, False)

    monkeypatch.setattr(subjects, "make", subject)
    options = argparse.Namespace(out=tmp_path, models=None, restart=False)
    names = ["squeezenet", "inception_v1"]
    first = rows_of.collect("quality", names[:1], options, make, {"budget": 1})
    both = rows_of.collect("quality", names, options, make, {"budget": 1})
    assert made == names, "the first is not made again"
    assert [r["model"] for r in both] == names
    assert both[0] == first[0]
    assert both[1]["error"] == "it is broken"
    other = rows_of.collect("quality", names[:1], options, make, {"budget": 2})
    assert made == [*names, "squeezenet"], "other settings, other figures"
    assert len(other) == 1
    options.restart = True
    rows_of.collect("quality", names[:1], options, make, {"budget": 2})
    assert made[-2:] == ["squeezenet", "squeezenet"]


def test_a_name_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="there is no model nothing"):
        subjects.chosen(None, ["nothing"])


@pytest.mark.parametrize(("method", "own_axis"), [("static", False), ("static", True), ("dynamic", True)])
@pytest.mark.matrix
def test_the_runtimes_quantizer_leaves_nothing_but_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, own_axis: bool
) -> None:
    """Its preprocessing writes into the working folder (shapes that it infers, weights)."""
    onnx.save(residual_model(), tmp_path / "model.onnx")
    (name,) = (i.name for i in residual_model().graph.input)
    feeds = [random_feed(residual_model())[name] for _ in range(4)]
    np.savez(tmp_path / "samples.npz", **{name: np.stack([x if own_axis else x[0] for x in feeds])})
    folder = tmp_path / "working"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(render.PAGE.parents[1]), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.chdir(folder)
    found = peer.quantize(method, tmp_path / "model.onnx", tmp_path / "samples.npz", tmp_path / "out.onnx")
    assert found.path is not None, found.note
    assert [p.name for p in folder.iterdir()] == []


@pytest.mark.exhaustive
def test_one_file_on_several_targets_has_a_reading_on_each(tmp_path: Path) -> None:
    """And its accuracy there; ``null`` tells times from a table, so that it cannot be mistaken for the others."""
    model, archive = tmp_path / "model.onnx", tmp_path / "samples.npz"
    onnx.save(residual_model(), model)
    feed = random_feed(residual_model())
    np.savez(archive, **feed)
    samples = paired.read(archive, model)
    files = dict.fromkeys(("here", "again", "there"), model)
    targets = {"there": TargetSpec("null")}
    found = paired.measure(files, samples, 3, 2, targets=targets)
    assert found.failed == {}
    assert found.digests["here"] == found.digests["again"] != found.digests["there"]
    assert {len(ns) for ns in found.ns.values()} == {6}
    assert len(set(found.ns[found.digests["there"]].tolist())) == 1
    assert found.ratio("here", "again") == {"value": 1.0, "low": 1.0, "high": 1.0}
    accuracy = paired.sqnr(files, model, samples, targets)
    assert accuracy.keys() == files.keys()
    assert min(accuracy.values()) > 60.0
    assert run_reference(model, feed)


def test_networks_that_differ_in_their_weights_are_told_apart(tmp_path: Path) -> None:
    keys = []
    for weights in (b"1", b"2"):
        (tmp_path / "net.xml").write_bytes(b"<net/>")
        (tmp_path / "net.bin").write_bytes(weights)
        keys.append(paired._key(tmp_path / "net.xml", paired.TARGET))
    assert keys[0] != keys[1]


def test_without_nncf_its_anchors_say_so(tmp_path: Path) -> None:
    onnx.save(residual_model(), tmp_path / "model.onnx")
    np.savez(tmp_path / "samples.npz", **random_feed(residual_model()))
    fails = nncf_peer.quantize(
        "/bin/false", tmp_path / "model.onnx", tmp_path / "samples.npz", tmp_path / "o.xml", "mixed"
    )
    assert fails == "fails: exit code 1"


def test_the_table_of_openvino_has_means_and_every_anchor() -> None:
    def one(name: str, value: float, note: str = "") -> dict[str, Any]:
        ratio = {"value": value, "low": value, "high": value}
        anchors = [
            {"name": "given", "feasible": True, "sqnr_db": 300.0, "over_given": ratio, "note": ""},
            {"name": "NNCF mixed", "feasible": False, "note": note},
        ]
        return {
            "model": name,
            "trained": True,
            "feasible": True,
            "sqnr_db": 22.0,
            "over_best_anchor": ratio,
            "over_usual": {k: 1.5 * v for k, v in ratio.items()},
            "over_onnxruntime": {k: 2.0 * v for k, v in ratio.items()},
            "best_anchor": "full-int8",
            "usual_anchor": "given",
            "search": {"builds": 3, "wall_s": 10.0},
            "anchors": anchors,
        }

    table = openvino.table([one("a", 2.0), one("b", 0.5, "not tried"), {"model": "c", "error": "it fails"}])
    assert table["models"] == 2
    assert table["geometric_mean"]["over_best_anchor"]["value"] == pytest.approx(1.0)
    assert table["geometric_mean"]["over_usual"]["value"] == pytest.approx(1.5)
    assert table["geometric_mean"]["over_onnxruntime"]["value"] == pytest.approx(2.0)
    machine = {"inlay": "0", "onnxruntime": "1", "cpu": "x", "isa": "y", "cores": 2, "budget_s": 40.0}
    text = render.openvino({**table, "machine": machine, "target": {"openvino": "2026"}})
    speeds = "3.00x [3.00, 3.00] | given | 2.00x [2.00, 2.00] | full-int8 | 4.00x [4.00, 4.00]"
    assert f"| a | {speeds} | 22.0 dB | 3 | 10 s |" in text
    assert "| c | fails: it fails" in text
    assert "| b | NNCF mixed |  |  | no | not tried |" in text


def test_the_table_of_auto_says_where_each_model_is_deployed() -> None:
    def one(name: str, value: float, deployed: str) -> dict[str, Any]:
        ratio = {"value": value, "low": value, "high": value}
        anchors = [{"name": "onnxruntime", "feasible": True, "sqnr_db": 300.0, "over_given": ratio, "note": ""}]
        speeds = {
            "over_best_anchor": ratio,
            "over_usual": ratio,
            "over_onnxruntime": {k: 2 * v for k, v in ratio.items()},
        }
        known = {"model": name, "trained": True, "feasible": True, "sqnr_db": 22.0, "anchors": anchors, **speeds}
        kept = {"unproven": "", "usual_anchor": "onnxruntime", "deployed": deployed, "wall_s": 118.4}
        return {**known, **kept}

    rows = [one("a", 2.0, "ort-cpu"), one("b", 0.5, "openvino-cpu"), {"model": "c", "error": "why"}]
    rows.append({**one("d", 9.0, "ort-cpu"), "feasible": False, "unproven": "BOUND NOT SHOWN: few samples"})
    machine = {"inlay": "0", "onnxruntime": "1", "cpu": "x", "isa": "y", "cores": 2, "budget_s": 120.0}
    text = render.auto({**openvino.table(rows), "machine": machine, "target": {"openvino": "2026"}})
    assert "| a | 2.00x [2.00, 2.00] | onnxruntime | 4.00x [4.00, 4.00] | ort-cpu | 22.0 dB | yes |  | 118 s |" in text
    assert "| c | fails: why | | | | | | | |" in text
    assert "| **no** | `BOUND NOT SHOWN` |" in text
    assert "Geometric means over 2 models of 3, those that keep the bound" in text
    assert "- over the best feasible of what people have: 1.00x" in text
    assert "of all anchors" not in text, "there are no others"


def test_relatives_of_a_model_compute_the_same() -> None:
    """A wider network repeats its channels; an exported one has its scales and shapes written out."""
    given = onnx.load(transfer.DIGITS)
    feed = random_feed(given)
    want = next(iter(run_reference(given, feed).values()))
    wide = transfer.widened(onnx.load(transfer.DIGITS), 2)
    np.testing.assert_allclose(next(iter(run_reference(wide, feed).values())), want, rtol=1e-3, atol=1e-3)
    assert sum(len(t.raw_data) for t in wide.graph.initializer) > 3 * sum(
        len(t.raw_data) for t in given.graph.initializer
    )
    exported = transfer.as_exported(onnx.load(transfer.DIGITS))
    assert any(n.op_type == "Constant" for n in exported.graph.node)
    np.testing.assert_allclose(next(iter(run_reference(exported, feed).values())), want, rtol=1e-3, atol=1e-3)


def test_the_transfer_table_tells_how_many_schemes_a_cache_saves() -> None:
    row = {"model": transfer.PAIRS[0].name, "target": "null", "known": "3 of 4", "schemes": 90, "best": 1.25}
    rows = [{**row, "cold": 40, "warm": 4}, {**row, "cold": 40, "warm": None}]
    text = render.transfer({"machine": rows_of.facts(1.0), **transfer.table(rows)})
    assert "| 40 | 4 | 0.10 |" in text
    assert "not reached" in text


def test_models_whose_growth_is_measured_are_made_in_a_process_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What the benchmark itself holds would count as memory of the command that it starts."""
    monkeypatch.delattr(growth, "model_of")
    path = tmp_path / "model.onnx"
    assert growth.write("chain", 50, path) == len(onnx.load(path).graph.node) >= 50


@pytest.mark.exhaustive
def test_a_simulated_fleet_keeps_its_devices_busy(tmp_path: Path) -> None:
    whole = fleet.simulate(80, 8, 0, None, tmp_path)
    assert whole["done"] == 80
    assert whole["gain_share"] == pytest.approx(1.0)
    assert 1.0 <= whole["ratio"] < 1.3, "a fleet of ten runs a device ends less evenly than a large one"
    half = [seconds / 2 for seconds in whole["device_s_by_kind"]]
    (tmp_path / "half").mkdir()
    limited = fleet.simulate(80, 8, 0, half, tmp_path / "half")
    assert sum(half) * 0.9 < limited["device_s"] <= sum(half) + 1
    assert limited["gain_share"] > 0.7, "half of the time finds most of the gain"
    row = {"models": 80, "devices": 8, "whole": {**whole, "ratio": 1.2}, "limited": limited}
    found = {"rows": [{**row, "memory_mb": 1.0, "base_mb": 2.0}], "most_ratio": 1.15, "most_ms": 5.0}
    assert "80 models on 8 devices, whole: 1.2 of 1.15" in fleet.missed(found)
    assert "missed" in fleet.text(found)


def test_a_delivery_below_its_bound_is_silent_only_where_it_is_called_shown() -> None:
    """Planted: full INT8 has 24 dB on one source and 15 on the other, a slower form 60 dB on both."""
    spread = np.linspace(-0.5, 0.5, 24)

    def row(*levels: tuple[float, float]) -> dict[str, Any]:
        each = [[(level + spread).tolist() for level in pair] for pair in levels]
        sets = [{"source": s, "ranged": r, "each_db": each} for s in (0, 1) for r in few_samples.RANGED]
        return {"model": "m", "samples": [24, 24], "speedups": [2.0, 1.5][: len(levels)], "sets": sets}

    alone, beside = (few_samples.figures(few_samples.simulated(row(*levels), few_samples.FEW)) for levels in (
        [(24.0, 15.0)], [(24.0, 15.0), (60.0, 60.0)],
    ))  # fmt: skip
    assert alone["below"] > 0.0, "the control: what has 24 dB where it is judged breaks its bound elsewhere"
    assert alone["silent"] <= alone["below"]
    assert beside["shown"] >= alone["shown"]
    assert beside["silent"] <= 0.05
    steady = few_samples.figures(few_samples.simulated(row((60.0, 60.0)), few_samples.FEW))
    assert steady["below"] == 0.0
    assert steady["delivered"] > 0.2, "its bound is near: where the margin lets it pass, it is delivered"


@pytest.mark.exhaustive
def test_the_committed_share_of_silent_deliveries_is_what_the_rows_give() -> None:
    """And at most one in twenty, of every number of samples, with what is fitted to the other models as well."""
    found = render.read("few_samples")
    again = [f for row in found["rows"] for f in few_samples.simulated(row, few_samples.FEW)]
    assert few_samples.figures(again) == pytest.approx(found["all"])
    assert found["all"]["silent"] <= 0.05 < found["all"]["below_before"]
    for cells in (found["given"], found["left_out_given"]):
        assert all(max(c["silent"], c["silent_tenth"]) <= 0.05 for n, c in cells.items() if int(n) in few_samples.FEW)


def test_a_prior_is_found_again_where_models_are_drawn_from_it() -> None:
    """Spreads by a scaled inverse chi-squared variance, three tenths of it between sources."""
    rng, rows = np.random.default_rng(0), []
    for i in range(300):
        spread = 3.0 * np.sqrt(2.0 / rng.chisquare(2.0))
        sources = [rng.normal(rng.normal(60.0, spread * np.sqrt(0.3)), spread * np.sqrt(0.7), 200) for _ in range(2)]
        each = [[np.clip(s, -60.0, 119.0).tolist() for s in sources]]
        rows.append({"model": str(i), "sets": [{"source": s, "ranged": 1, "each_db": each} for s in (0, 1)]})
    found = few_samples.fitted(rows)
    assert found.spread_db == pytest.approx(3.0, rel=0.2)
    assert found.weight == pytest.approx(2.0, rel=0.3)
