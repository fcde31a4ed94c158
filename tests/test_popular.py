"""The measures of popular models, against brute force and known cases; nothing is fetched."""

from __future__ import annotations

import json
import shlex
import zipfile
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from benchmarks import paired
from benchmarks.popular import packages, row, table, task
from benchmarks.popular.packages import PACKAGES
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("skimage")
pytest.importorskip("sklearn")
pytest.importorskip("PIL")

from benchmarks.popular import decoder, evaluate, models, pictures, repair, sentences, speech, written


def _edits(a: str, b: str) -> int:
    if not a or not b:
        return len(a) + len(b)
    return min(_edits(a[1:], b) + 1, _edits(a, b[1:]) + 1, _edits(a[1:], b[1:]) + (a[0] != b[0]))


@pytest.mark.parametrize("pair", [("", "ab"), ("abc", "abc"), ("kitten", "sitting"), ("abcd", "bd"), ("ab", "ba")])
def test_edits_are_the_least(pair: tuple[str, str]) -> None:
    assert task.edits(*pair) == _edits(*pair)


def test_ctc_drops_repetitions_and_blanks() -> None:
    assert written.collapsed(np.array([0, 3, 3, 0, 3, 5, 5, 0])) == [3, 3, 5]


def test_overlaps_are_areas_of_pixels() -> None:
    rng = np.random.default_rng(0)
    corners = np.sort(rng.integers(0, 12, (6, 2, 2)), axis=1).astype(float) + np.array([[0, 0], [1, 1]])
    boxes = corners.reshape(6, 4)
    masks = np.zeros((6, 14, 14), bool)
    for mask, (left, top, right, bottom) in zip(masks, boxes.astype(int), strict=True):
        mask[top:bottom, left:right] = True
    for i, j in combinations(range(6), 2):
        expected = (masks[i] & masks[j]).sum() / (masks[i] | masks[j]).sum()
        assert pictures.overlaps(boxes[i : i + 1], boxes[j : j + 1])[0, 0] == pytest.approx(expected)


def test_detections_of_another_class_or_place_are_not_the_same() -> None:
    one = np.array([[0, 0, 10, 10, 0.9, 1.0]])
    assert pictures.matched(one, one) == 1
    assert pictures.matched(one, one + np.array([[0, 0, 0, 0, 0, 1]])) == 0
    assert pictures.matched(one, one + np.array([[8, 8, 8, 8, 0, 0]])) == 0
    assert pictures.matched(np.vstack([one, one]), one) == 1  # each stands for one at most


def test_suppression_keeps_the_surest_of_a_place_and_class() -> None:
    output = np.zeros((1, 6, 4), np.float32)  # two classes, four places: centre and size, then scores
    output[0, :4] = np.array([[50, 50, 20, 20], [51, 50, 20, 20], [50, 50, 20, 20], [90, 90, 8, 8]]).T
    output[0, 4:] = np.array([[0.6, 0.0], [0.9, 0.0], [0.0, 0.5], [0.1, 0.0]]).T
    found = pictures.detections(output)
    assert [(round(float(r[4]), 1), int(r[5])) for r in found] == [(0.9, 0), (0.5, 1)]


def test_a_line_of_text_is_found_where_it_is() -> None:
    scores = np.zeros((60, 200), np.float32)
    scores[20:40, 30:150] = 0.9
    scores[50:52, 10:12] = 0.9  # too small for text
    (box,) = written.text_boxes(scores)
    assert pictures.overlaps(box[None], np.array([[14.0, 4.0, 166.0, 56.0]]))[0, 0] > 0.8


def test_the_loss_has_the_measures_direction_and_an_interval() -> None:
    rng = np.random.default_rng(1)
    worse = [np.array([1.0 + (rng.random() < 0.5), 10.0]) for _ in range(80)]
    floats = [np.array([1.0, 10.0])] * 80
    errors = next(t for t in models.TASKS.values() if not t.higher and t.value is task.ratio_of_sums)
    found = task.judged(errors, worse, floats)
    assert found.low < found.loss < found.high
    assert found.loss == pytest.approx(found.value - 0.1)
    right = models.TASKS["minilm_l6"]
    assert task.judged(right, worse, floats).loss == pytest.approx(-found.loss)
    with pytest.raises(ValueError, match="80"):
        task.judged(errors, worse[1:], floats)


def test_every_task_names_packages_that_are_known() -> None:
    for one in models.TASKS.values():
        assert set(one.packages) <= PACKAGES.keys(), one.name
    assert all(len(p.sha256) == 64 and p.licence for p in PACKAGES.values())


def test_a_package_is_fetched_by_its_digest_and_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def download(package: packages.Package, scratch: Path) -> Path:
        asked.append(package.name)
        with zipfile.ZipFile(scratch / "a.whl", "w") as archive:
            archive.writestr("nudenet/320n.onnx", "model")
        return scratch / "a.whl"

    monkeypatch.setattr(packages, "_download", download)
    for _ in range(2):
        assert (packages.fetch("nudenet", tmp_path) / "nudenet" / "320n.onnx").read_text() == "model"
    assert asked == ["nudenet"]


def test_the_table_counts_rows_within_their_bounds_alone() -> None:
    ratio = {"value": 2.0, "low": 1.9, "high": 2.1}
    good = {"model": "a", "feasible": True, "over_best": ratio, "over_float": ratio}
    outside = {**good, "model": "b", "feasible": False, "over_best": {"value": 9.0, "low": 9.0, "high": 9.0}}
    found = table.table([good, outside, {"model": "c", "error": "no wheel came"}])
    assert found["feasible"] == [1, 3]
    assert found["geometric_mean"]["over_best"]["value"] == pytest.approx(2.0)
    json.dumps(found)


def test_a_row_of_which_nothing_is_within_the_bound_is_a_row_as_well() -> None:
    ns = {"a": np.full(6, 2e6), "b": np.full(6, 1e6)}
    readings = paired.Readings(ns, {"float": "a", "Inlay": "b"}, {})
    entries: list[dict[str, Any]] = [
        {"name": "float", "feasible": False, "ms": 2.0, "over_float": {"value": 1.0}},
        {"name": "Inlay", "feasible": False, "ms": 1.0, "over_float": {"value": 2.0}},
        {"name": "shipped: a", "feasible": True, "note": "of no use without readings"},
    ]
    found = row._verdict(entries, readings)
    assert (found["best"], found["over_best"], found["feasible"]) == (row.NOTHING, None, False)
    assert found["over_float"]["value"] == pytest.approx(2.0)
    assert row._verdict([{**entries[0], "feasible": True}, entries[1]], readings)["best"] == "float"


def test_word_pieces_are_the_longest_known_and_others_unknown() -> None:
    known = ["[CLS]", "[SEP]", "[UNK]", "play", "##ing", "##in", "##g", "cafe", "."]
    tokenize = sentences.WordPieces({piece: i for i, piece in enumerate(known)})
    assert [known[i] for i in tokenize("Playing CAFÉ.")] == ["[CLS]", "play", "##ing", "cafe", ".", "[SEP]"]
    assert [known[i] for i in tokenize("jazz")] == ["[CLS]", "[UNK]", "[SEP]"]


def test_the_area_under_the_curve_is_the_share_of_pairs_in_order() -> None:
    rng = np.random.default_rng(3)
    clips = [np.stack([rng.random(30).round(1), rng.random(30) < 0.4]) for _ in range(2)]
    said, truth = np.hstack(clips)
    pairs = [(a > b) + 0.5 * (a == b) for a in said[truth > 0.5] for b in said[truth < 0.5]]
    assert speech.area(clips) == pytest.approx(np.mean(pairs))


def test_a_sound_that_lasts_longer_is_near_and_another_is_far() -> None:
    steps = np.arange(8192) / 22050
    tone, other = (np.sin(2 * np.pi * f * steps).astype(np.float32) for f in (440.0, 1700.0))
    longer = np.concatenate([tone, np.sin(2 * np.pi * 440.0 * np.arange(8192, 9000) / 22050).astype(np.float32)])
    one, same, far = (speech.spectrum(wave) for wave in (tone, longer, other))
    assert speech.distance(one, one)[0] == 0
    assert speech.distance(same, one)[0] < 0.2 * speech.distance(far, one)[0]


def test_byte_pairs_join_by_rank() -> None:
    merges = ["l o", "lo w", "Ġ lo"]
    tokens = ["l", "o", "w", "Ġ", "e", "1", "2", "lo", "low", "Ġlo"]
    tokenize = decoder.BytePairs(tokens, merges)
    assert [tokens[i] for i in tokenize("low lo12")] == ["low", "Ġlo", "1", "2"]


def test_a_decoder_with_a_cache_says_what_it_says_of_the_whole_text() -> None:
    rng = np.random.default_rng(5)
    facts = {"block_count": 2, "embedding_length": 16, "attention.head_count": 4, "attention.head_count_kv": 2}
    metadata: dict[str, float] = {f"llama.{k}": v for k, v in facts.items()}
    metadata |= {"llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.rope.freq_base": 1e4}
    shapes: dict[str, tuple[int, ...]] = {
        "attn_q": (16, 16),
        "attn_k": (8, 16),
        "attn_v": (8, 16),
        "attn_output": (16, 16),
    }
    shapes |= {"ffn_gate": (24, 16), "ffn_up": (24, 16), "ffn_down": (16, 24), "attn_norm": (16,), "ffn_norm": (16,)}
    names = {f"blk.{layer}.{name}": shape for layer in range(2) for name, shape in shapes.items()}
    names |= {"token_embd": (11, 16), "output_norm": (16,)}
    weights = {f"{n}.weight": rng.normal(0, 0.4, s).astype(np.float32) for n, s in names.items()}
    net = decoder.Llama(metadata, weights)
    model = ort.InferenceSession(net.model().SerializeToString(), providers=["CPUExecutionProvider"])
    empty = {f"past_{n}": np.zeros((1, 2, 0, 4), np.float32) for n in net.cache()}
    ids = rng.integers(11, size=(1, 7))
    whole = model.run(["logits"], {**empty, "input_ids": ids})[0]
    past = model.run([f"present_{n}" for n in net.cache()], {**empty, "input_ids": ids[:, :6]})
    behind = dict(zip(empty, past, strict=True))
    last = model.run(["logits"], {**behind, "input_ids": ids[:, 6:]})[0]
    np.testing.assert_allclose(last[0, -1], whole[0, -1], atol=1e-5)
    changed = model.run(["logits"], {**empty, "input_ids": np.append(ids[:, :6], [[(ids[0, 6] + 1) % 11]], axis=1)})[0]
    np.testing.assert_allclose(changed[0, :6], whole[0, :6], atol=1e-5)  # nothing sees what comes later
    assert np.abs(changed[0, 6] - whole[0, 6]).max() > 1e-3


def _scaled(path: Path, factor: float) -> None:
    """A model that gives its input, the second of two scores times ``factor``."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 2]) for name in "xy")
    by = numpy_helper.from_array(np.array([1.0, factor], np.float32), "by")
    graph = helper.make_graph([helper.make_node("Mul", ["x", "by"], ["y"])], "scaled", [x], [y], [by])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def test_a_run_is_told_the_measure_where_that_compares_with_float(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = models.TASKS["open_nsfw_resnet"]
    words = evaluate.options(found, tmp_path)
    assert words[0] == "--evaluate"
    assert words[2:] == ("--higher-is-better", "--max-drop", "0.05")
    reader = models.TASKS["ppocrv6_rec"]
    assert evaluate.options(reader, tmp_path) == (), "it needs what the text says"
    task.truth_of(tmp_path, unseen=True).touch()
    assert evaluate.options(reader, tmp_path) == (), "and not of what it is judged by"
    task.truth_of(tmp_path, unseen=False).touch()
    assert evaluate.options(reader, tmp_path)[2:] == ("--lower-is-better", "--max-drop", "0.005")
    rng = np.random.default_rng(0)
    task.save(tmp_path / task.SAMPLES, [{"x": rng.random((1, 2), np.float32)} for _ in range(9)])
    _scaled(tmp_path / "model.onnx", 1.0)
    for factor, value in ((2.0, 1.0), (-1.0, -1.0)):  # of ranks: twice as much is as good, the reverse is not
        _scaled(tmp_path / "other.onnx", factor)
        monkeypatch.setattr("sys.argv", [*shlex.split(words[1])[2:-1], str(tmp_path / "other.onnx")])
        evaluate.main()
        assert json.loads(capsys.readouterr().out) == {evaluate.MEASURE: pytest.approx(value)}


def _repaired(gain: float, loss: float) -> dict[str, Any]:
    ratio = {"value": gain, "low": gain - 0.1, "high": gain + 0.1}
    metric = {"value": 0.1, "loss": loss, "loss_low": loss - 0.01, "loss_high": loss + 0.01}
    files = [
        {"name": name, "mb": 1.0, "ms": 1.0, "over_given": ratio, "metric": metric}
        for name in (repair.GIVEN, repair.FLOAT, repair.REPAIRED)
    ]
    return {
        "model": f"m{gain}",
        "packages": {"p": ["1", "00", "MIT"]},
        "metric": {"name": "error", "higher": False},
        "files": files,
        "slower": [{"op_type": "Conv", "kernel": "ConvInteger", "count": 3, "share": 0.5, "float_share": 0.2}],
        "repair": {"written": True, "problem": "", "given_db": 20.0, "repaired_db": 300.0, "speedup": ratio},
        "reached": True,
        "run": {"budget_s": 1.0, "wall_s": 1.0},
    }


def test_the_table_of_shipped_files_tells_gains_reasons_and_failures() -> None:
    rows = [_repaired(2.0, 0.0), _repaired(8.0, 0.0), {"model": "bad", "error": "OSError: it | is gone"}]
    found = repair.table(rows)
    assert found["reached"] == [2, 3]
    assert found["geometric_mean"]["value"] == pytest.approx(4.0)
    told = repair.text(
        {
            "machine": {**dict.fromkeys(("inlay", "onnxruntime", "cpu", "isa"), "x"), "cores": 1}
            | {"threads": 1, "budget_s": 9.0},
            **found,
        }
    )
    assert "3 x Conv as ConvInteger: 50%; in float 20%" in told
    assert "fails: OSError: it / is gone" in told
    assert "20.0 dB → as float" in told
    assert told.count("\n| p | 1 | MIT |") == 1


def test_losses_are_against_the_shipped_file_where_the_measure_is_against_float() -> None:
    (named,) = [t for t in models.SHIPPED.values() if t.name == "title_decoder"]
    floats = [np.arange(8), np.arange(8)]
    given = [np.array([0, 1, 2, 3, 9, 9, 9, 9]), np.arange(8)]
    worse = [np.full(8, 9), np.arange(8)]
    assert repair._against(named, given, given, floats)["loss"] == 0.0
    assert repair._against(named, floats, given, floats)["loss"] == pytest.approx(-0.25)
    assert repair._against(named, worse, given, floats)["loss"] == pytest.approx(0.25)
    assert repair._against(named, worse, given, floats)["value"] == pytest.approx(0.5)
