"""Inputs as texts have them: tokens in lines, samples of different lengths, and padding that does not count."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from inlay.calibrate.observe import observe
from inlay.calibrate.tables import CalibrationChoice
from inlay.data import InputSpec, Padding, Samples, input_specs, read_samples
from inlay.errors import DataError, UsageError
from inlay.model.load import load
from inlay.prepare.model import PreparedModel, prepare
from inlay.quant.accuracy import Bound, Judge
from inlay.quant.fake_quant import NoiseProbe
from inlay.targets.base import Capabilities
from inlay.targets.onnxruntime.target import capabilities_for
from inlay.testing import Builder
from tests.support.fixtures import SaveModel
from tests.support.texts import LONGEST, VOCABULARY, encoder, text, texts

IDS = InputSpec("input_ids", np.dtype(np.int64), ("batch", "length"))
MASK = InputSpec("attention_mask", np.dtype(np.int64), ("batch", "length"))
KINDS = InputSpec("token_type_ids", np.dtype(np.int64), ("batch", "length"))


def lines(folder: Path, *said: object) -> Path:
    path = folder / "texts.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in said), encoding="utf8")
    return path


# --- samples of different shapes -------------------------------------------------------------------------------------


def test_lines_of_tokens_are_samples_with_what_follows_from_their_number(tmp_path: Path) -> None:
    found = read_samples(lines(tmp_path, [5, 6, 7], "", [[8]]), [IDS, MASK, KINDS])
    assert (found.kind, len(found)) == ("jsonl", 2)
    assert {n: a.tolist() for n, a in found.feeds[0].items()} == {
        "input_ids": [[5, 6, 7]],
        "attention_mask": [[1, 1, 1]],
        "token_type_ids": [[0, 0, 0]],
    }
    assert found.feeds[1]["input_ids"].shape == (1, 1)
    assert all(a.dtype == np.int64 for a in found.feeds[1].values())


def test_lists_are_filled_up_to_a_fixed_length_under_the_mask(tmp_path: Path) -> None:
    fixed = [InputSpec(s.name, s.dtype, (1, 5)) for s in (IDS, MASK)]
    found = read_samples(lines(tmp_path, [5, 6, 7], {"input_ids": [1, 2], "attention_mask": [1, 1]}), fixed)
    assert found.feeds[0]["input_ids"].tolist() == [[5, 6, 7, 0, 0]]
    assert found.feeds[0]["attention_mask"].tolist() == [[1, 1, 1, 0, 0]]
    assert found.feeds[1]["attention_mask"].tolist() == [[1, 1, 0, 0, 0]]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("[1, 2", "line 2: it is not JSON"),
        ("[" * 100_000, "line 2: it is not JSON"),
        ([1, "two"], "line 2: input input_ids.* something other than its numbers"),
        ([1.5, 2], "line 2: input input_ids.* something other than its numbers"),
        ([[1, 2], [3]], "line 2: input input_ids.* lists of different lengths"),
        ([2**70], "line 2: input input_ids.* something other than its numbers"),
        ({"ids": [1]}, "line 2: the model has no input ids"),
        ({"attention_mask": [1]}, "line 2: no list for the model's input input_ids"),
    ],
)
def test_lines_that_do_not_fit_are_named(tmp_path: Path, line: object, why: str) -> None:
    with pytest.raises(DataError, match=why):
        read_samples(lines(tmp_path, [1, 2], line), [IDS, MASK])


def test_lists_that_are_too_long_or_could_not_be_masked_are_refused(tmp_path: Path) -> None:
    fixed = InputSpec("input_ids", np.dtype(np.int64), (1, 3))
    with pytest.raises(DataError, match="4 numbers for 3 positions: leave tokens out"):
        read_samples(lines(tmp_path, [1, 2, 3, 4]), [fixed])
    with pytest.raises(DataError, match=r"2 numbers for 3 positions: .* no input masks"):
        read_samples(lines(tmp_path, [1, 2]), [fixed])
    with pytest.raises(DataError, match="give an object with the inputs input_ids, other"):
        read_samples(lines(tmp_path, [1, 2]), [IDS, InputSpec("other", np.dtype(np.int64), (1, "n"))])


def test_an_archive_holds_one_array_per_input_and_sample(tmp_path: Path) -> None:
    feeds = texts([7, 3, 12])
    np.savez(tmp_path / "a.npz", **{f"{n}_{i}": a for i, f in enumerate(feeds) for n, a in f.items()})
    found = read_samples(tmp_path / "a.npz", [IDS, MASK])
    assert [f["input_ids"].tolist() for f in found.feeds] == [f["input_ids"].tolist() for f in feeds]
    np.savez(tmp_path / "b.npz", input_ids_0=np.arange(3), attention_mask_0=np.ones(3, np.int64))  # without a batch
    assert read_samples(tmp_path / "b.npz", [IDS, MASK]).feeds[0]["input_ids"].shape == (1, 3)
    np.savez(tmp_path / "c.npz", input_ids_0=np.arange(3)[None], attention_mask_1=np.ones((1, 3), np.int64))
    with pytest.raises(DataError, match="sample 0: no array for the model's input attention_mask"):
        read_samples(tmp_path / "c.npz", [IDS, MASK])


def test_a_name_that_ends_in_a_number_is_an_input_first(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", input_1=np.zeros((4, 3), np.int64))
    found = read_samples(tmp_path / "a.npz", [InputSpec("input_1", np.dtype(np.int64), ("batch", 3))])
    assert len(found) == 4


# --- padding ---------------------------------------------------------------------------------------------------------


def samples_of(*feeds: dict[str, np.ndarray], mask: str = "auto") -> Samples:
    return Samples(tuple(feeds), "feeds", "test", mask=mask)


def outputs_of(feed: dict[str, np.ndarray], rng: np.random.Generator) -> dict[str, np.ndarray]:
    batch, length = feed["input_ids"].shape
    return {
        "rows": rng.standard_normal((batch, length, 6)),
        "whole": rng.standard_normal((batch, length)),  # as long as the text by chance
        "tags": rng.integers(0, 9, (batch, length)),
    }


@pytest.mark.parametrize("output", ["rows", "tags"])
def test_noise_in_padding_does_not_count_and_other_noise_does(output: str) -> None:
    rng = np.random.default_rng(0)
    feeds = [text(rng, n, 9) for n in (4, 9)]
    exact = [outputs_of(f, rng) for f in feeds]
    in_padding, in_text = ([{n: y.copy() for n, y in each.items()} for each in exact] for _ in range(2))
    in_padding[0][output][:, 4:] += 1
    in_text[0][output][:, :4] += 1

    def sqnr(noisy: list[dict[str, np.ndarray]], mask: str = "auto") -> float:
        return Judge(exact, samples_of(*feeds, mask=mask), Bound()).judge(noisy).sqnr_db

    assert sqnr(in_padding) == 300.0
    assert sqnr(in_padding, "attention_mask") == 300.0
    assert sqnr(in_padding, "none") < 20.0
    assert sqnr(in_text) < sqnr(in_text, "none") < 20.0, "less signal for the same noise"


def test_what_is_as_long_as_the_mask_by_chance_is_padded_only_where_that_is_said() -> None:
    rng = np.random.default_rng(0)
    feeds = [text(rng, 4, 9)]
    exact = [outputs_of(f, rng) for f in feeds]
    assert Padding.of(feeds, exact).outputs == {"rows", "tags"}
    assert Padding.of(feeds, exact, "attention_mask").outputs == {"rows", "tags", "whole"}


@pytest.mark.parametrize(
    "change",
    [
        {"attention_mask": np.full((1, 9), 2)},  # no mask: numbers of other kinds
        {"attention_mask": np.ones((1, 9), np.int64)},  # nothing is left out
        {"attention_mask": np.zeros((1, 4, 9), np.int64)},  # of which position is which query?
        {"attention_mask": np.zeros((1, 9), np.float32)},  # may be added to something
    ],
)
def test_what_is_no_mask_leaves_nothing_out(change: dict[str, np.ndarray]) -> None:
    rng = np.random.default_rng(0)
    feed = {**text(rng, 4, 9), **change}
    assert not Padding.of([feed], [outputs_of(feed, rng)]).outputs


def test_a_mask_that_is_named_must_be_one() -> None:
    rng = np.random.default_rng(0)
    feed = text(rng, 4, 9)
    for name, why in (("masks", "no such input"), ("input_ids", "ones and zeros")):
        with pytest.raises(UsageError, match=why):
            Judge([outputs_of(feed, rng)], samples_of(feed, mask=name), Bound())


def test_noise_is_that_of_the_texts_without_their_padding(tmp_path: Path, save: SaveModel) -> None:
    """What a masked text computes is what the same text computes alone: the oracle has no padding at all."""
    file = load(save(encoder()))
    lengths = [6, 11, 30]
    padded, alone = texts(lengths, whole=LONGEST), texts(lengths)
    prepared = prepare(file, capabilities_for("x86_64", frozenset({"avx512_vnni"})), padded[0], tmp_path)
    table = CalibrationChoice("minmax").table(prepared, observe(prepared, samples_of(*alone)))
    probe = NoiseProbe(prepared.emitter.base, prepared.store, prepared.graph, prepared.units, prepared.rules, table)
    placement = prepared.label([u.name for u in prepared.selectable if u.op_type == "MatMul"])
    probe.use(alone)
    (rows, pooled) = probe.noise(placement)
    probe.use(padded)
    assert probe.noise(placement) == pytest.approx((rows, pooled), rel=0.05)
    assert probe.noise(placement, samples=1) == pytest.approx((rows, pooled), rel=0.5)
    probe.use(padded, "none")
    assert probe.noise(placement)[0] != pytest.approx(rows, rel=0.05), "padding has noise of its own"


def garbled(feeds: list[dict[str, np.ndarray]], seed: int) -> list[dict[str, np.ndarray]]:
    """The same texts with any tokens in their padding."""
    rng, found = np.random.default_rng(seed), []
    for feed in feeds:
        ids, kept = feed["input_ids"], feed["attention_mask"] > 0
        found.append({**feed, "input_ids": np.where(kept, ids, rng.integers(0, VOCABULARY, ids.shape))})
    return found


def prepared_encoder(folder: Path, target: str, layers: int = 2) -> PreparedModel:
    folder.mkdir()
    (folder / "m.onnx").write_bytes(encoder(1, LONGEST, layers=layers).SerializeToString())
    capabilities = capabilities_for("x86_64")
    if target == "plain":  # attention stays written out
        capabilities = Capabilities(capabilities.rules)
    return prepare(load(folder / "m.onnx"), capabilities, texts([LONGEST])[0], folder)


@pytest.mark.parametrize("target", ["ort", "plain"])
def test_what_stands_in_padding_changes_no_qparams(tmp_path: Path, target: str) -> None:
    """Histograms are those of the texts alone, except where a mask is added."""
    prepared = prepared_encoder(tmp_path / "m", target)
    padded = texts([6, 11, 30], whole=LONGEST)

    def histograms(feeds: list[dict[str, np.ndarray]], mask: str = "auto") -> dict[str, str]:
        observed = observe(prepared, samples_of(*feeds, mask=mask))
        return {v: h.digest for v, h in observed.histograms.items()}

    first, second = (histograms(garbled(padded, seed)) for seed in (1, 2))
    assert {v for v in first if first[v] != second[v]} <= {"masked0_out", "masked1_out"}
    first, second = (histograms(garbled(padded, seed), "none") for seed in (1, 2))
    assert sum(first[v] != second[v] for v in first) > len(first) // 2, "without a mask all of it counts"


def test_ranges_of_padded_texts_are_those_of_the_texts_alone(tmp_path: Path) -> None:
    """The oracle is the same model for any length, which needs neither padding nor a mask."""
    fixed = prepared_encoder(tmp_path / "m", "ort")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "m.onnx").write_bytes(encoder(layers=2).SerializeToString())
    lengths = [6, 11, 30]
    alone = texts(lengths)
    free = prepare(load(tmp_path / "d" / "m.onnx"), capabilities_for("x86_64"), alone[0], tmp_path / "d")
    got = observe(fixed, samples_of(*texts(lengths, whole=LONGEST))).histograms
    want = observe(free, samples_of(*alone)).histograms
    shared = sorted(got.keys() & want.keys() - {"bias_out", "hidden_out", "mask_float_out", "mask_wide_out"})
    assert len(shared) > 10
    for value in shared:
        assert (got[value].low, got[value].high) == pytest.approx((want[value].low, want[value].high), rel=1e-4), value


def test_a_model_that_does_not_go_by_its_mask_has_all_positions_counted(tmp_path: Path) -> None:
    b = Builder()
    ids = b.input("input_ids", (1, LONGEST), TensorProto.INT64)
    mask = b.node("float", "Cast", [b.input("attention_mask", (1, LONGEST), TensorProto.INT64)], to=1)
    words = b.node("words", "Gather", [b.constant("table", b.rng.standard_normal((VOCABULARY, 16))), ids])
    mean = b.node("mean", "ReduceMean", [words], axes=[1], keepdims=0)  # over the padding, too
    b.output(b.node("product", "MatMul", [mean, b.constant("w", b.rng.standard_normal((16, 8)))]))
    b.output(b.node("sum", "ReduceSum", [mask]))
    (tmp_path / "m.onnx").write_bytes(b.model().SerializeToString())
    padded = texts([6, 11], whole=LONGEST)
    prepared = prepare(load(tmp_path / "m.onnx"), capabilities_for("x86_64"), padded[0], tmp_path)
    assert not observe(prepared, samples_of(*padded)).positions.mask


def test_the_inputs_of_the_encoder_are_those_of_texts(save: SaveModel) -> None:
    assert [str(s) for s in input_specs(load(save(encoder())).model)] == [
        "input_ids: int64 [batch, length]",
        "attention_mask: int64 [batch, length]",
    ]
