"""Another point of a finished run, without a search; and the costs that outlive it."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import inlay
from inlay.cli.render import selected
from inlay.errors import InlayError, JournalError, UsageError
from inlay.measure.journal import Journal
from inlay.model.load import file_sha256
from inlay.report.exports import export
from inlay.run.facts import BASELINE_NS, MEMORY
from inlay.run.machine_costs import CostDatabase
from inlay.run.result import pareto
from inlay.targets.base import Fingerprint
from inlay.trial import Measured
from inlay.types import Placement

MEASURED = (
    '{"kind": "Measured", "latency": {"ns": 1.0, "speedup": {"value": 1.0, "low": 1.0, "high": 1.0}, "blocks": 3},'
    ' "accuracy": {"feasible": true, "sqnr_db": 1.0, "outputs": []}}'
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the null target, whose costs are known."""
    folder = tmp_path_factory.mktemp("run")
    _tune(folder, folder / "out")
    return folder / "out"


def _tune(folder: Path, out: Path, restart: bool = False) -> None:
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.normal(0, 0.3, (4, 4, 1, 1)).astype(np.float32), f"w{i}") for i in range(5)]
    nodes = [helper.make_node("Conv", [f"v{i}" if i else "x", f"w{i}"], [f"v{i + 1}"], f"c{i}") for i in range(5)]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4, 6, 6]) for n in ("x", "v5")]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "m.onnx")
    feeds = [{"x": rng.normal(0, 1, (1, 4, 6, 6)).astype(np.float32)} for _ in range(60)]
    inlay.tune(
        folder / "m.onnx",
        out=out,
        target="null",
        data=feeds,
        min_sqnr=20,
        max_measurements=12,
        cost_db=False,
        restart=restart,
    )


def test_the_winner_is_written_again_byte_for_byte(run: Path, tmp_path: Path) -> None:
    best = json.loads((run / "result.json").read_text())["best"]
    assert not best["is_float"]
    done = inlay.select(run, to=tmp_path / "again.onnx", min_sqnr=20)
    assert done.placement_digest == best["placement_digest"]
    assert file_sha256(tmp_path / "again.onnx") == best["output_sha256"]


def test_a_tighter_bound_gives_a_more_accurate_model(run: Path, tmp_path: Path) -> None:
    fast = inlay.select(run, to=tmp_path / "fast.onnx", fastest=True)
    exact = inlay.select(run, to=tmp_path / "exact.onnx", min_sqnr=200)
    assert exact.sqnr_db > fast.sqnr_db
    assert exact.speedup < fast.speedup
    onnx.checker.check_model(str(tmp_path / "fast.onnx"), full_check=True)


def test_sizes_are_those_of_the_files(run: Path, tmp_path: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    assert result["baseline"]["size_bytes"] == (run.parent / "m.onnx").stat().st_size
    assert result["best"]["size_bytes"] == (run / "model.onnx").stat().st_size
    sizes = {a["name"]: a["size_bytes"] for a in result["anchors"]}
    assert len(set(sizes.values())) > 1
    small = inlay.select(run, to=tmp_path / "small.onnx", minimize="size")
    assert small.size_bytes == (tmp_path / "small.onnx").stat().st_size
    assert abs(small.size_bytes - min(sizes.values())) < 200, "the name of its file stands in a candidate's references"
    fits = inlay.select(run, to=tmp_path / "fits.onnx", max_size=small.size_bytes + 200)
    assert fits.size_bytes <= small.size_bytes + 200
    fast = inlay.select(run, to=tmp_path / "fast.onnx", fastest=True)
    assert inlay.select(run, to=tmp_path / "any.onnx", max_size="1GB").placement_digest == fast.placement_digest


def test_memory_is_what_the_run_found_out(run: Path, tmp_path: Path) -> None:
    own = tmp_path / "run"
    shutil.copytree(run, own)
    with pytest.raises(UsageError, match="target null does not report how much memory a session takes"):
        inlay.select(own, minimize="memory")
    journal = Journal(own / "run.sqlite", None)
    measured = [t for t in journal.trials() if isinstance(t.outcome, Measured)]
    chosen = [t.candidate for t in measured if journal.placement(t.candidate) is not None]
    for number, key in enumerate(chosen):
        journal.record_fact(MEMORY.of(key), 10_000_000 * (1 + (number + 1) % len(chosen)))
    leanest, second = ({journal.fact(MEMORY.of(k)): k for k in chosen}[n] for n in (10_000_000, 20_000_000))
    speeds = {t.candidate: t.outcome.latency.speedup.value for t in measured if isinstance(t.outcome, Measured)}
    journal.close()
    found = inlay.select(own, to=tmp_path / "lean.onnx", minimize="memory")
    assert (found.memory_bytes, found.speedup) == (10_000_000, speeds[leanest])
    given = (run.parent / "m.onnx").stat().st_size
    said = f"file {found.size_bytes / 1e6:.3g} MB (the given model {given / 1e6:.3g} MB); memory of a session 10 MB."
    assert said in "\n".join(selected(found))
    fits = inlay.select(own, to=tmp_path / "fits.onnx", max_memory="20MB")
    assert fits.speedup == max(speeds[leanest], speeds[second])
    with pytest.raises(UsageError, match=r"at most 1 MB of memory: the leanest takes 10 MB"):
        inlay.select(own, max_memory="1MB")
    with pytest.raises(UsageError, match="--max-memory much: give a size"):
        inlay.select(own, max_memory="much")


def test_memory_of_another_device_is_not_measured_here(run: Path, tmp_path: Path) -> None:
    """As after a run through Ray: what a session takes on the machine of the command says nothing of the device."""
    own = tmp_path / "run"
    shutil.copytree(run, own)
    with contextlib.closing(sqlite3.connect(own / "run.sqlite")) as db, db:
        db.execute("UPDATE identity SET value = 'null 0123' WHERE key = 'target'")
    with pytest.raises(UsageError, match=r"would be measured on null \w+, but the run measured on null 0123"):
        inlay.select(own, max_memory="1GB")


def test_wishes_that_cannot_be_kept_are_said(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the most accurate one has"):
        inlay.select(run, to=tmp_path / "no.onnx", min_sqnr=1000)
    with pytest.raises(UsageError, match="give --max-drop"):
        inlay.select(run)
    with pytest.raises(UsageError, match=r"no measured model keeps at most 0\.0001 MB: .*, the smallest one"):
        inlay.select(run, to=tmp_path / "no.onnx", max_size=100)
    with pytest.raises(UsageError, match="--max-size 20 parsecs: give a size such as"):
        inlay.select(run, max_size="20 parsecs")
    with pytest.raises(UsageError, match="--minimize heat: give latency, size or memory"):
        inlay.select(run, minimize="heat")
    with pytest.raises(JournalError, match=r"no readable result\.json"):
        inlay.select(tmp_path, fastest=True)
    assert not (tmp_path / "no.onnx").exists()


def _changed(folder: Path, change: Callable[[dict[str, Any], Placement], None]) -> None:
    """Change the measured outcomes in a run's journal."""
    journal = Journal(folder / "run.sqlite", None)
    placements = {t.candidate: journal.placement(t.candidate) for t in journal.trials()}
    journal.close()
    with contextlib.closing(sqlite3.connect(folder / "run.sqlite")) as db, db:
        for key, text in db.execute("SELECT candidate, outcome FROM trials").fetchall():
            outcome, placement = json.loads(text), placements[key]
            if outcome["kind"] == "Measured" and placement is not None:
                change(outcome, placement)
                db.execute("UPDATE trials SET outcome = ? WHERE candidate = ?", (json.dumps(outcome), key))


def test_a_model_that_loses_an_output_is_for_fastest_alone(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    fast = inlay.select(run, to=tmp_path / "fast.onnx", fastest=True)

    def lose(outcome: dict[str, Any], placement: Placement) -> None:
        if placement.digest == fast.placement_digest:
            outcome["accuracy"]["outputs"][0]["lost"] = "is 0 throughout"

    _changed(tmp_path / "run", lose)
    warned = inlay.select(tmp_path / "run", to=tmp_path / "lost.onnx", fastest=True)
    assert warned.placement_digest == fast.placement_digest
    assert "WARNING: output v5 is lost: it is 0 throughout" in "\n".join(selected(warned))
    assert "WARNING" not in "\n".join(selected(fast))
    other = inlay.select(tmp_path / "run", to=tmp_path / "other.onnx", max_size="1GB")
    assert other.placement_digest != fast.placement_digest
    assert not other.lost
    with pytest.raises(UsageError, match="loses output v5, and such models are written for --fastest alone"):
        inlay.select(tmp_path / "run", to=tmp_path / "no.onnx", min_sqnr=1000)


def test_a_bound_that_is_broken_or_not_shown_is_said(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    path = tmp_path / "run" / "result.json"
    result = json.loads(path.read_text())
    delivered = result["best"]["placement_digest"]
    result["best"]["bound_note"] = ""
    path.write_text(json.dumps(result))
    seen: dict[str, str] = {}

    def sort(outcome: dict[str, Any], placement: Placement) -> None:
        outcome["accuracy"].update(feasible=True, reason="")
        seen[placement.digest] = "float" if not placement else "quantized"

    _changed(tmp_path / "run", sort)

    def told() -> str:
        """Of the fastest model, whichever it is, which is called delivered or not."""
        found = inlay.select(tmp_path / "run", to=tmp_path / "m.onnx", fastest=True)
        assert seen[found.placement_digest] == "quantized"
        text = list(selected(found))
        assert found.unproven[1:] in text[-1] if found.unproven else len(text) == 2
        return found.unproven

    fastest = inlay.select(tmp_path / "run", to=tmp_path / "m.onnx", fastest=True).placement_digest
    result["best"]["placement_digest"] = "another"
    path.write_text(json.dumps(result))
    assert told() == "bound not shown: new samples were judged by SQNR at least 20 dB for the delivered model only"
    result["best"]["placement_digest"] = fastest
    path.write_text(json.dumps(result))
    assert told() == ""
    result["best"]["bound_note"] = "by 3 samples judged nothing follows"
    path.write_text(json.dumps(result))
    assert told() == "bound not shown: by 3 samples judged nothing follows"
    result["search"]["rejected"] = {fastest: "SQNR of output v5 is 3.0 dB"}
    path.write_text(json.dumps(result))
    assert told() == "outside the run's bound on unseen samples: SQNR of output v5 is 3.0 dB"

    def break_it(outcome: dict[str, Any], placement: Placement) -> None:
        if placement:
            outcome["accuracy"].update(feasible=False, reason="SQNR of output v5 is 2.0 dB")

    _changed(tmp_path / "run", break_it)
    assert told() == "outside the run's bound: SQNR of output v5 is 2.0 dB"
    assert inlay.select(run, to=tmp_path / "own.onnx", min_sqnr=20).placement_digest == delivered


def _as_judged_before(folder: Path) -> None:
    """Make a run's journal one of a time when outputs were compared as a whole."""
    with contextlib.closing(sqlite3.connect(folder / "run.sqlite")) as db, db:
        assert db.execute("DELETE FROM identity WHERE key = 'judging'").rowcount == 1
        db.execute("DELETE FROM facts WHERE key = 'parts'")


def test_accuracies_by_older_rules_are_not_relied_on(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    _as_judged_before(tmp_path / "run")
    with pytest.raises(JournalError, match=r"judged by older rules.*run inlay tune again with --restart; --fastest"):
        inlay.select(tmp_path / "run", to=tmp_path / "no.onnx", min_sqnr=20)
    assert not (tmp_path / "no.onnx").exists()
    found = inlay.select(tmp_path / "run", to=tmp_path / "fast.onnx", fastest=True)
    newer = inlay.select(run, to=tmp_path / "own.onnx", fastest=True)
    assert ["judged by older rules" in "\n".join(selected(each)) for each in (found, newer)] == [True, False]
    shutil.copytree(run, tmp_path / "newer")
    pages = [inlay.write_report(tmp_path / name).read_text(encoding="utf8") for name in ("run", "newer")]
    assert ["judged by older rules" in page for page in pages] == [True, False]


@pytest.mark.exhaustive
def test_a_run_goes_on_only_by_the_rules_that_it_began_with(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(run, out)
    _tune(tmp_path, out)  # the same run goes on
    _as_judged_before(out)
    with pytest.raises(JournalError, match=r"differs in the rules by which accuracy is judged\).*--restart"):
        _tune(tmp_path, out)
    _tune(tmp_path, out, restart=True)
    assert inlay.select(out, to=tmp_path / "again.onnx", min_sqnr=20).sqnr_db >= 20


def test_a_run_goes_on_only_with_outputs_in_the_same_parts(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(run, out)
    with contextlib.closing(sqlite3.connect(out / "run.sqlite")) as db, db:
        assert db.execute("UPDATE facts SET value = '\"other\"' WHERE key = 'parts'").rowcount == 1
    with pytest.raises(JournalError, match=r"differs in the parts that outputs are compared in\).*--restart"):
        _tune(tmp_path, out)


def test_what_is_chosen_by_speed_was_measured(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    fast = inlay.select(run, to=tmp_path / "fast.onnx", fastest=True)
    assert fast.measured

    def untell(outcome: dict[str, Any], placement: Placement) -> None:
        if untold(placement):
            outcome["latency"]["speedup"].update(low=0.0, high=math.inf)

    def untold(placement: Placement) -> bool:
        return everything or placement.digest == fast.placement_digest

    everything = False
    _changed(tmp_path / "run", untell)
    assert (
        inlay.select(tmp_path / "run", to=tmp_path / "m.onnx", fastest=True).placement_digest != fast.placement_digest
    )
    everything = True
    _changed(tmp_path / "run", untell)
    alone = inlay.select(tmp_path / "run", to=tmp_path / "m.onnx", fastest=True)
    assert not alone.measured
    assert "too few readings for a speed-up" in "\n".join(selected(alone))


@pytest.mark.parametrize(
    "text",
    ["", "5", "[]", "{", "null", '{"model": 5}', '{"model": {}}', '{"model": {"path": 5, "sha256": "a"}}',
     '{"model": {"path": [], "sha256": "a"}}', "[" * 100_000, '{"model": {"path": ' + "9" * 5000 + "}}"],
)  # fmt: skip
def test_an_odd_result(text: str, run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    (tmp_path / "run" / "result.json").write_text(text)
    with pytest.raises(JournalError, match=r"no readable result\.json"):
        inlay.select(tmp_path / "run", to=tmp_path / "no.onnx", fastest=True)
    assert not (tmp_path / "no.onnx").exists()


@pytest.mark.matrix(every=4)
@pytest.mark.parametrize("size", ["[red]a[/red]", [], {}, True, -1, 1.5, float("nan"), 10**400])
@pytest.mark.parametrize("key", ["size_bytes", "memory_bytes"])
def test_odd_sizes_in_a_result(key: str, size: object, run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    path = tmp_path / "run" / "result.json"
    result = json.loads(path.read_text())
    result["baseline"][key] = size
    path.write_text(json.dumps(result))
    with pytest.raises(JournalError, match=r"no readable result\.json"):
        inlay.select(tmp_path / "run", to=tmp_path / "no.onnx", fastest=True)
    assert not (tmp_path / "no.onnx").exists()


@pytest.mark.parametrize("name", ["samples.npz", "folder/0.npz"])
@pytest.mark.matrix
@pytest.mark.exhaustive
def test_no_command_on_a_run_writes_over_what_it_was_made_from(name: str, run: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    feeds = [{"x": rng.normal(0, 1, (1, 4, 6, 6)).astype(np.float32)} for _ in range(12)]
    np.savez(tmp_path / "samples.npz", x=np.stack([f["x"] for f in feeds]))
    (tmp_path / "folder").mkdir()
    for i, feed in enumerate(feeds):
        np.savez(tmp_path / "folder" / f"{i}.npz", **feed)
    data = tmp_path / ("folder" if "/" in name else "samples.npz")
    inlay.tune(run.parent / "m.onnx", out=tmp_path / "out", target="null", max_measurements=3, cost_db=False, data=data)
    before = (tmp_path / name).read_bytes()
    with pytest.raises(UsageError, match="overwrite"):
        inlay.select(tmp_path / "out", to=tmp_path / name, fastest=True)
    with pytest.raises(UsageError, match="overwrite"):
        export(tmp_path / "out", "csv", tmp_path / name)
    assert (tmp_path / name).read_bytes() == before
    inlay.select(tmp_path / "out", to=tmp_path / "other.npz", fastest=True)  # the control


@pytest.mark.parametrize(
    ("table", "column", "value"),
    [
        ("trials", "outcome", '{"kind": "Nothing"}'),
        ("trials", "outcome", "[]"),
        ("trials", "outcome", "{"),
        ("trials", "outcome", '{"kind": "Measured", "latency": 5, "accuracy": {}}'),
        ("trials", "outcome", MEASURED.replace("1.0", '"fast"')),
        ("trials", "outcome", MEASURED.replace("1.0", "NaN")),
        ("trials", "outcome", MEASURED.replace("1.0", "null")),
        ("trials", "outcome", MEASURED.replace("true", "[]")),
        ("trials", "outcome", MEASURED.replace("[]", "[5]")),
        ("trials", "versus", "[1, 2]"),
        ("trials", "versus", '["a", 2, 3]'),
        ("placements", "ports", '[["c0", 0]]'),
        ("placements", "ports", '[["c0", -1, "int8"]]'),
        ("placements", "ports", '[["c0", 99, "int8"]]'),
        ("placements", "ports", '[["nothing", 0, "int8"]]'),
        ("placements", "ports", '[["c0", 1e999, "int8"]]'),
        ("placements", "ports", '[["c0", 0, "int9"]]'),
        ("feeds", "npz", b"PK damaged"),
        ("facts", "value", "{}"),
        ("facts", "value", "5"),
        ("facts", "value", "[" * 100_000),
        ("facts", "value", '{"digest": 5, "target": 5, "spec": {"name": []}, "table": []}'),
        ("facts", "value", '{"digest": "", "target": "", "spec": {"name": "null"}, "table": {}}'),
        ("facts", "value", '{"digest": "", "target": "", "spec": {"name": "null"}, "table": {"ranges": {"x": ["a"]}}}'),
    ],
)
@pytest.mark.exhaustive
def test_a_damaged_row(table: str, column: str, value: object, run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    where = "WHERE key = 'calibration'" if table == "facts" else ""
    with contextlib.closing(sqlite3.connect(tmp_path / "run" / "run.sqlite")) as db:
        changed = db.execute(f"UPDATE {table} SET {column} = ? {where}", (value,)).rowcount
        db.commit()
    assert changed > 0
    with pytest.raises(InlayError):
        inlay.select(tmp_path / "run", to=tmp_path / "no.onnx", fastest=True)
    assert not (tmp_path / "no.onnx").exists()


@pytest.mark.parametrize("ns", ["NaN", "0.0", "-5", "1e999"])
def test_no_time_that_anything_takes_is_read_from_a_journal(ns: str, run: Path, tmp_path: Path) -> None:
    shutil.copy(run / "run.sqlite", tmp_path / "run.sqlite")
    with contextlib.closing(sqlite3.connect(tmp_path / "run.sqlite")) as db:
        assert db.execute("UPDATE facts SET value = ? WHERE key = 'baseline_ns'", (ns,)).rowcount == 1
        db.commit()
    with (
        contextlib.closing(Journal(tmp_path / "run.sqlite", None)) as journal,
        pytest.raises(JournalError, match="damaged"),
    ):
        journal.fact(BASELINE_NS)


def test_forecasts_are_reported(run: Path) -> None:
    search = json.loads((run / "result.json").read_text())["search"]
    assert search["forecasts"]
    assert search["forecast_error"] < 0.5
    assert 0.0 <= search["unattributed"] < 0.03


def test_costs_are_averaged_and_kept_by_fingerprint(tmp_path: Path) -> None:
    here = CostDatabase(Fingerprint("t", {"cpu": "a"}), tmp_path)
    here.add({"x": 10.0, "y": 4.0})
    here.add({"x": 20.0})
    assert here.read(["x", "z"]) == {"x": 15.0}
    assert CostDatabase(Fingerprint("t", {"cpu": "b"}), tmp_path).read() == {}


def test_a_damaged_cost_database_counts_as_empty(tmp_path: Path) -> None:
    database = CostDatabase(Fingerprint("t", {}), tmp_path)
    database.add({"x": 1.0})
    for content in ("{", "[]", '{"version": 99, "costs": {}}', '{"version": 1, "costs": {"x": "?"}}'):
        database.path.write_text(content)
        assert database.read() == {}


def test_the_front_of_a_run_is_pareto_optimal_and_can_be_selected(run: Path, tmp_path: Path) -> None:
    front = json.loads((run / "result.json").read_text())["pareto"]
    assert len(front) >= 2
    for slow, fast in itertools.combinations(reversed(front), 2):
        assert fast["speedup"] > slow["speedup"]
        assert fast["sqnr_db"] < slow["sqnr_db"]
    assert inlay.select(run, to=tmp_path / "f.onnx", fastest=True).speedup == front[0]["speedup"]


def test_the_front_goes_by_speedup() -> None:
    drifted = {"latency_ms": 0.9, "speedup": 1.1, "sqnr_db": 20.0}  # measured while the machine ran fast
    better = {"latency_ms": 1.0, "speedup": 1.2, "sqnr_db": 25.0}
    exact = {"latency_ms": 1.2, "speedup": 1.0, "sqnr_db": 300.0}
    assert pareto([exact, drifted, better]) == [better, exact]
    assert pareto([]) == []
