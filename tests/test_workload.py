"""What latency is measured on: feeds of several shapes, each with its share, as one reading."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from benchmarks.simulated import Clock, simulated

import inlay
from inlay.cli.render import verdict
from inlay.data import (
    Feed,
    InputSpec,
    Samples,
    batch_wishes,
    load_feed,
    load_workload,
    parse_batch,
    parse_shapes,
    random_of_shapes,
    workload_of,
)
from inlay.errors import UsageError
from inlay.measure.blocks import Block, weighted
from inlay.measure.paired import Timing, joined
from inlay.measure.worker import mean_kernels
from inlay.model.load import load
from inlay.prepare.config import TuneConfig
from inlay.report.folder import read_run
from inlay.report.page import page
from inlay.run.compare import compare, load_all
from inlay.run.inputs import TuneRequest
from inlay.run.tune import tune
from inlay.targets.base import KernelTime, TargetSpec
from inlay.targets.null import NullExecutable, NullTarget
from inlay.testing import Builder, run_reference
from tests.support.fixtures import SaveModel
from tests.support.texts import encoder, texts

IDS = InputSpec("input_ids", np.dtype(np.int64), ("batch", "length"))
MASK = InputSpec("attention_mask", np.dtype(np.int64), ("batch", "length"))
SPECS = (IDS, MASK)


def lengths(feeds: Sequence[Feed]) -> list[int]:
    return [f["input_ids"].shape[1] for f in feeds]


# --- from samples ----------------------------------------------------------------------------------------------------


def test_samples_of_one_shape_are_one_feed_the_first() -> None:
    feeds = texts([8] * 5)
    found = workload_of(feeds, SPECS)
    assert (len(found.feeds), found.weights) == (1, (1.0,))
    assert found.feeds[0] is feeds[0]


def test_few_shapes_are_all_there_by_their_share() -> None:
    found = workload_of(texts([8, 16, 8, 8]), SPECS)
    assert dict(zip(lengths(found.feeds), found.weights, strict=True)) == {8: 0.75, 16: 0.25}


@pytest.mark.parametrize("seed", range(5))
def test_many_lengths_have_a_few_representatives_with_about_their_mean(seed: int) -> None:
    drawn = [int(n) for n in np.random.default_rng(seed).lognormal(4, 0.6, 200).clip(4, 400)]
    found = workload_of(texts(drawn), SPECS)
    assert 2 <= len(found.feeds) <= 4
    assert sum(found.weights) == pytest.approx(1.0)
    assert all(n in drawn for n in lengths(found.feeds)), "samples as they are"
    assert np.dot(lengths(found.feeds), found.weights) == pytest.approx(np.mean(drawn), rel=0.05)


# --- from the user ---------------------------------------------------------------------------------------------------


def test_a_stated_shape_holds_for_every_input_that_shares_its_dimensions() -> None:
    wishes = parse_shapes(["input_ids=1x32:3", "input_ids=2x12"], SPECS)
    found = workload_of(texts([8, 12]), SPECS, wishes)
    assert found.weights == (0.75, 0.25)
    assert [f[n].shape for f in found.feeds for n in ("input_ids", "attention_mask")] == [(1, 32)] * 2 + [(2, 12)] * 2
    assert found.feeds[1]["input_ids"][0].tolist() == found.feeds[1]["input_ids"][1].tolist(), "repeated"


def test_a_sample_that_has_the_shape_is_taken_as_it_is() -> None:
    feeds = texts([8, 12, 30])
    found = workload_of(feeds, SPECS, parse_shapes(["input_ids=1x12"], SPECS))
    assert np.array_equal(found.feeds[0]["input_ids"], feeds[1]["input_ids"])


def test_random_samples_have_the_shapes_in_turn() -> None:
    wishes = parse_shapes(["input_ids=1x4", "input_ids=1x6"], SPECS)
    drawn = random_of_shapes(SPECS, wishes, np.random.default_rng(0), 3)
    assert lengths(drawn.feeds) == [4, 6, 4]


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ("input_ids", "give INPUT=AxB"),
        ("input_ids=1xN", "give INPUT=AxB"),
        ("input_ids=1x8:0", "a weight of 0"),
        ("ids=1x8", "no input ids; it has input_ids, attention_mask"),
        ("input_ids=8", "another number of dimensions"),
        ("input_ids=1x8,attention_mask=1x9", "dimension length of input attention_mask.* cannot be 9"),
        ("fixed=1x9", "dimension 8 of input fixed.* cannot be 9"),
    ],
)
def test_shapes_that_do_not_fit_are_one_line(entry: str, why: str) -> None:
    fixed = InputSpec("fixed", np.dtype(np.float32), (1, 8))
    with pytest.raises(UsageError, match=rf"--shape {entry}: .*{why}"):
        parse_shapes([entry], SPECS if "fixed" not in entry else (fixed,))


def test_names_may_hold_colons() -> None:
    spec = InputSpec("input_ids:0", np.dtype(np.int64), ("batch", "length"))
    (wish,) = parse_shapes(["input_ids:0=1x8:2.5"], [spec])
    assert (wish.sizes, wish.weight) == ({"batch": 1, "length": 8}, 2.5)


def image(*dims: int | str, name: str = "x") -> InputSpec:
    return InputSpec(name, np.dtype(np.float32), dims)


@pytest.mark.parametrize("given", ["1,8", (1, 8), [1, 8]])
def test_batches_are_each_feed_in_each_size(given: str | Sequence[int]) -> None:
    """Of two lengths, by their share; the rows of a batch are the sample again."""
    batches = batch_wishes(parse_batch(given), SPECS)
    found = workload_of(texts([8, 16, 8, 8]), SPECS, batches=batches)
    shapes = {f["input_ids"].shape: w for f, w in zip(found.feeds, found.weights, strict=True)}
    assert shapes == {(1, 8): 0.375, (8, 8): 0.375, (1, 16): 0.125, (8, 16): 0.125}
    assert all(f["attention_mask"].shape == f["input_ids"].shape for f in found.feeds)
    assert all((f["input_ids"] == f["input_ids"][:1]).all() for f in found.feeds)


def test_many_lengths_and_batches_stay_few_feeds() -> None:
    found = workload_of(texts([*range(4, 40)]), SPECS, batches=batch_wishes((1, 2, 4, 8), SPECS))
    assert len(found.feeds) == 4
    stated = workload_of(
        texts([8]), SPECS, parse_shapes(["input_ids=1x8:3", "input_ids=1x4"], SPECS), batch_wishes((2,), SPECS)
    )
    assert [(f["input_ids"].shape, w) for f, w in zip(stated.feeds, stated.weights, strict=True)] == [
        ((2, 8), 0.75),
        ((2, 4), 0.25),
    ]


@pytest.mark.parametrize(
    ("specs", "sizes"),
    [
        ((image("batch", 3), image(2, "batch", name="state")), {"batch": 8}),
        ((image("N", 3), image("length", 3, name="z")), {"N": 8}),
        ((image("x_dim0", 3), image("z_dim0", name="z")), {"x_dim0": 8, "z_dim0": 8}),
        ((image("rows"), image(16000, name="rate")), {"rows": 8}),
    ],
)
def test_the_batch_is_found(specs: Sequence[InputSpec], sizes: dict[str, int]) -> None:
    (wish,) = batch_wishes((8,), specs)
    assert wish.sizes == sizes


@pytest.mark.parametrize(
    ("batch", "specs", "why"),
    [
        ("1,x", SPECS, "give different sizes"),
        ("0", SPECS, "give different sizes"),
        ("8,8", SPECS, "give different sizes"),
        ("1,8", (image(1, 3, 8, 8),), r"no input begins with a dynamic dimension \(x: float32 \[1, 3, 8, 8\]\)"),
        ("8", (image("frames", 3), image("people", name="z")), "frames or people may count the samples"),
    ],
)
def test_batches_that_a_model_does_not_take_are_one_line(batch: str, specs: Sequence[InputSpec], why: str) -> None:
    with pytest.raises(UsageError, match=f"^--batch {batch}: {why}"):
        batch_wishes(parse_batch(batch), specs)


# --- measured --------------------------------------------------------------------------------------------------------


def test_a_workload_is_a_file_of_files(tmp_path: Path) -> None:
    found = workload_of(texts([8, 16, 8, 8]), SPECS)
    listed = load_workload(found.save(tmp_path / "several"))
    assert [w for _, w in listed] == [0.75, 0.25]
    assert [load_feed(p)["input_ids"].shape for p, _ in listed] == [(1, 8), (1, 16)]
    single = workload_of(texts([8]), SPECS).save(tmp_path / "one")
    assert load_workload(single) == [(single, 1.0)]


def test_a_weighted_block_is_that_of_the_mean_inference() -> None:
    short = Block([100.0, 50.0], 0.01, [0.1, 0.0], [0.2, 0.0])
    long = Block([400.0, 300.0], 0.03, [0.0, 0.5], [0.0, 0.5])
    found = weighted([short, long], [0.75, 0.25])
    assert found.ns == [0.75 * 100 + 0.25 * 400, 0.75 * 50 + 0.25 * 300]
    own = [0.75 * 90 + 0.25 * 400, 0.75 * 50 + 0.25 * 150]
    assert [n * (1 - t) for n, t in zip(found.ns, found.taken, strict=True)] == pytest.approx(own)
    clock = [0.75 * 90 / 0.8 + 0.25 * 400, 0.75 * 50 + 0.25 * 300]
    assert found.hit == pytest.approx([1 - o / c for o, c in zip(own, clock, strict=True)])
    assert 0.01 < found.drift < 0.03
    assert found.by_feed == [[100.0, 400.0], [50.0, 300.0]]
    assert weighted([short], [1.0]) == short


def test_readings_by_feed_follow_their_blocks_and_models() -> None:
    block = {"ns": [1.0, 2.0], "drift": 0.0, "taken": [0.0, 0.0], "hit": [0.0, 0.5]}
    quiet = {**block, "hit": [0.0, 0.0]}
    found = Timing.of([{**block, "by_feed": [[1.0, 1.0], [2.0, 2.0]]}, {**quiet, "by_feed": [[3.0, 3.0], [4.0, 4.0]]}])

    def listed(timing: Timing) -> list[list[list[float]]]:
        return [] if timing.by_feed is None else list(timing.by_feed.tolist())

    assert np.shape(listed(joined([found, found]))) == (4, 2, 2)
    assert listed(found.without([0])) == [[[2.0, 2.0]], [[4.0, 4.0]]]
    assert listed(found.least_preempted(1)) == [[[3.0, 3.0], [4.0, 4.0]]]
    assert Timing.of([{**block, "by_feed": []}]).by_feed is None


def test_kernels_are_those_of_the_mean_inference() -> None:
    one, two = KernelTime("a", "MatMul", 10.0), KernelTime("b", "Add", 4.0)
    assert mean_kernels([([one, two], 1.0)]) == [one, two]
    found = mean_kernels([([one, two], 0.75), ([KernelTime("a", "MatMul", 30.0)], 0.25)])
    assert [(k.name, k.ns) for k in found] == [("a", 15.0), ("b", 3.0)]


def test_a_run_measures_the_shapes_and_says_what_each_gains(tmp_path: Path, save: SaveModel) -> None:
    config = TuneConfig(target=TargetSpec("null"), budget_s=None, max_measurements=3, cost_db=False)
    samples = Samples(tuple(texts([8, 12] * 3 + [40] * 6)), "feeds", "test")
    lab = simulated(NullTarget(), Clock())
    tune(TuneRequest(file=load(save(encoder())), out=tmp_path / "out", samples=samples, config=config, lab=lab))
    said = json.loads((tmp_path / "out" / "result.json").read_text())["best"]
    assert {s["shapes"]["input_ids"][1]: s["weight"] for s in said["shapes"]} == {8: 0.25, 12: 0.25, 40: 0.5}
    assert said["latency_ms"] == pytest.approx(sum(s["weight"] * s["latency_ms"] for s in said["shapes"]))
    assert all(s["speedup"] == pytest.approx(s["baseline_ms"] / s["latency_ms"]) for s in said["shapes"])
    assert "By shape" in page(read_run(tmp_path / "out"))


@pytest.mark.exhaustive
def test_a_run_measures_batches_and_its_lines_run_what_was_measured(
    tmp_path: Path, save: SaveModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One file for both sizes; ``run_with`` as it stands gives, on each, what ONNX Runtime gives of it."""
    out = tmp_path / "out"
    data = texts([8] * 6)
    result = inlay.tune(save(encoder()), out=out, batch="1,8", data=data, strategy="anchors", budget=None, threads=2)
    assert {s.shapes["input_ids"][0]: s.weight for s in result.best.shapes} == {1: 0.5, 8: 0.5}
    assert "50% at attention_mask 8x8, input_ids 8x8" in "\n".join(map(str, verdict(result)))
    assert "--batch 1,8" in result.command
    monkeypatch.chdir(out)
    for feed in workload_of(texts([8]), SPECS, batches=batch_wishes((1, 8), SPECS)).feeds:
        names: dict[str, object] = {"feed": feed}
        exec(result.run_with, names)
        got, want = names["outputs"], run_reference(out / "model.onnx", feed)
        assert isinstance(got, list)
        assert [len(y) for y in got] == [len(y) for y in want.values()]
        assert all(np.allclose(a, b, rtol=0.1, atol=0.1) for a, b in zip(got, want.values(), strict=True))


def test_a_batch_that_the_model_cannot_run_is_refused_before_the_work(tmp_path: Path, save: SaveModel) -> None:
    """The first dimension has a symbol, and a Reshape of one row."""
    b = Builder()
    x = b.input("x", ("batch", 4))
    one = b.node("one", "Reshape", [x, b.constant("row", np.array([1, 4], np.int64))])
    b.output(b.node("y", "MatMul", [one, b.constant("w", np.eye(4, dtype=np.float32))]))
    with pytest.raises(UsageError, match="--batch 1,8: the model does not run at x 8x4: "):
        inlay.tune(save(b.model()), out=tmp_path / "out", batch=(1, 8))
    assert not (tmp_path / "out" / "result.json").exists()
    with pytest.raises(UsageError, match="the model does not run at x 8x4: "):  # and not that the budget is too short
        inlay.tune(save(b.model()), out=tmp_path / "out", batch=(1, 8), budget=0.5)


def test_models_are_compared_on_stated_shapes(save: SaveModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A microsecond a token, so that the latency told is the mean of the shapes' by weight."""

    def a_microsecond_a_token(_: object, feed: Feed, repeats: int) -> np.ndarray:
        return np.full(repeats, 1000 * feed["input_ids"].size, np.int64)

    monkeypatch.setattr(NullExecutable, "time", a_microsecond_a_token)
    files = load_all([save(encoder())] * 2)
    lab, wishes = simulated(NullTarget(), Clock()), parse_shapes(["input_ids=1x8", "input_ids=1x60:2"], SPECS)
    rng = np.random.default_rng(0)
    rows = compare(files, TargetSpec("null"), workload_of(texts([8, 60]), SPECS, wishes), 2, 1, rng, lab)
    assert [row.latency_ms for row in rows] == pytest.approx([(8 + 2 * 60) / 3 / 1e3] * 2)


def test_stated_shapes_and_batches_are_timed_by_the_target(save: SaveModel) -> None:
    model = save(encoder())
    rows = inlay.bench([model, model], shapes=["input_ids=1x8", "input_ids=1x60:2"], blocks=2, processes=1)
    (lone,) = inlay.bench([model, model], batch=8, data=texts([8]), blocks=2, processes=1)[1:]
    assert all(row.latency_ms > 0.0 for row in [*rows, lone])
