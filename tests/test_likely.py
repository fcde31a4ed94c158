"""Random samples and templates have sizes and values that a model can run on."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto

from inlay import api
from inlay.cli.render import inspection
from inlay.data import InputSpec, bound, input_specs, likely_sizes, random_samples, read_samples, template
from inlay.errors import ModelError, RunFailed, UsageError
from inlay.testing import Builder, run_reference
from tests.support.speech import SYMBOLS, voice
from tests.support.texts import encoder


def detector_of_voices() -> onnx.ModelProto:
    """A sound and its sampling rate in, which divides; a length says how much of the sound counts."""
    b = Builder()
    sound, rate = b.input("audio", ("batch", "samples")), b.input("sr", (), TensorProto.INT64)
    length = b.input("audio_lengths", ("batch",), TensorProto.INT64)
    seconds = b.node("second", "Div", [b.constant("million", np.array(16_000_000, np.int64)), rate])
    factor = b.node("factor", "Cast", [b.node("both", "Add", [seconds, length])], to=TensorProto.FLOAT)
    last = b.node("last", "Sub", [length, b.constant("one", np.array([1]))])
    b.output(b.node("scaled", "Mul", [b.node("end", "Gather", [sound, last], axis=1), factor]))
    return b.model()


def masked() -> onnx.ModelProto:
    """Ids through a Cast and an Unsqueeze; what the mask leaves out is divided by nothing where it leaves out all."""
    b = Builder()
    ids, mask = (b.input(n, ("batch", "length"), TensorProto.INT32) for n in ("ids", "attention_mask"))
    table = b.constant("table", b.rng.normal(0, 1, (7, 4)))
    found = b.node("found", "Gather", [table, b.node("cast", "Cast", [ids], to=TensorProto.INT64)])
    kept = b.node("kept", "Cast", [mask], to=TensorProto.FLOAT)
    total = b.node("total", "ReduceSum", [kept], keepdims=0)
    b.output(b.node("mean", "Div", [b.node("sum", "ReduceSum", [found], keepdims=0), total]))
    return b.model()


MODELS = {"voice": voice, "sound": detector_of_voices, "mask": masked, "text": encoder}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_runs_on_its_template_and_on_random_samples(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a number that is none; zeros and sizes of one, as templates used to have, fail or mean nothing."""
    model = MODELS[name]()
    specs = input_specs(ir.from_proto(model))
    monkeypatch.chdir(tmp_path)
    program = template(specs)
    exec(compile(program, "template", "exec"), {})
    samples = read_samples(tmp_path / "samples.npz", specs)
    assert len(samples) == 16
    drawn = random_samples(bound(specs, likely_sizes(specs)), np.random.default_rng(0), 1)
    for feed in (*samples.feeds[:2], *drawn.feeds):
        for output in run_reference(model, feed).values():
            assert output.size
            assert np.isfinite(output).all()
            assert output.any()


@pytest.mark.parametrize(("classes", "known"), [([0, 1, 2, 3, 4], 5), ([0, 2, 4], 0), ([3], 0)])
@pytest.mark.parametrize("op_type", ["Equal", "OneHot"])
def test_one_hot_codes_say_how_many_classes_there_are(op_type: str, classes: list[int], known: int) -> None:
    b = Builder()
    ids = b.node("row", "Unsqueeze", [b.input("ids", (6,), TensorProto.INT64), b.constant("axis", np.array([1]))])
    if op_type == "Equal":
        same = b.node("same", "Equal", [ids, b.constant("classes", np.array([classes], np.int64))])
        b.output(b.node("hot", "Cast", [same], to=TensorProto.FLOAT))
    else:
        known = classes[-1]
        depth, values = b.constant("depth", np.array(known)), b.constant("values", np.array([0.0, 1.0], np.float32))
        b.output(b.node("hot", "OneHot", [ids, depth, values]))
    (found,) = input_specs(ir.from_proto(b.model()))
    assert found.vocabulary == known


def test_values_are_what_names_and_tables_ask_for() -> None:
    (ids, mask) = input_specs(ir.from_proto(masked()))
    assert (ids.vocabulary, mask.vocabulary) == (7, 0)
    specs = bound([ids, mask], {"length": 500})
    (feed,) = random_samples(specs, np.random.default_rng(0), 1).feeds
    assert set(feed["ids"].ravel()) == set(range(7))
    assert (feed["attention_mask"] == 1).all()
    assert input_specs(ir.from_proto(voice()))[0].vocabulary == SYMBOLS
    sound, rate, length = input_specs(ir.from_proto(detector_of_voices()))
    (feed,) = random_samples(bound([sound, rate, length], {"samples": 321}), np.random.default_rng(0), 1).feeds
    assert feed["sr"] == 16_000
    assert feed["audio_lengths"].tolist() == [321]


def test_all_missing_sizes_are_asked_for_at_once_ready_to_paste() -> None:
    specs = [
        InputSpec("ids", np.dtype(np.int64), ("batch", "length")),
        InputSpec("past", np.dtype(np.float32), ("batch", 4, "past length", 8)),
        InputSpec("mask", np.dtype(np.int64), ("batch", "past length + length")),
    ]
    with pytest.raises(UsageError) as caught:
        random_samples(specs, np.random.default_rng(0), 1)
    message = str(caught.value)
    assert "length (input ids), past length (input past), past length + length (input mask)" in message
    assert "--bind length=64 --bind 'past length=16' --bind 'past length + length=80'" in message
    assert "\n" not in message
    sizes = dict(re.findall(r"--bind '?([^=']+)=(\d+)", message))
    (feed,) = random_samples(
        bound(specs, {n: int(size) for n, size in sizes.items()}), np.random.default_rng(0), 1
    ).feeds
    assert feed["mask"].shape == (1, 80)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [(TensorProto.BFLOAT16, "bfloat16"), (TensorProto.FLOAT8E4M3FN, "float8"), (TensorProto.INT4, "int4")],
)
def test_what_no_array_holds_is_one_line_with_what_to_do(tmp_path: Path, dtype: int, name: str) -> None:
    b = Builder(opset=21)
    x = b.node("cast", "Cast", [b.input("x", ("batch", 8), dtype)], to=TensorProto.FLOAT)
    b.output(b.node("y", "MatMul", [x, b.constant("w", b.rng.normal(0, 1, (8, 8)))]))
    onnx.save(b.model(), tmp_path / "m.onnx")
    np.savez(tmp_path / "s.npz", x=np.zeros((16, 8), np.float32))
    found = "\n".join(inspection(api.inspect(tmp_path / "m.onnx")))
    assert "export the model with a float32 input" in found
    assert f"'{name}" not in found, "the template names no type that numpy lacks"
    for data in (None, tmp_path / "s.npz", [{"x": np.zeros((1, 8), np.float32)}]):
        with pytest.raises(ModelError, match=f"input x: {name}.*export the model with a float32 input") as caught:
            api.quantize(tmp_path / "m.onnx", data=data, out=tmp_path / "q.onnx")
        assert "\n" not in str(caught.value)


def test_inspect_runs_a_model_of_any_size(tmp_path: Path) -> None:
    onnx.save(voice(), tmp_path / "m.onnx")
    found = api.inspect(tmp_path / "m.onnx")
    assert found.quantizable is not None
    assert found.quantizable.operators["Conv"][0] >= 4


def padded(least: int) -> onnx.ModelProto:
    """A sound that is mirrored by half of ``least`` numbers, as before a window, and the state of a recurrent net."""
    b = Builder()
    x, state = b.input("input", ("batch", "sequence")), b.input("state", (2, "batch", 4))
    pads = b.constant("pads", np.array([0, 0, 0, least // 2]))
    mirrored = b.node("mirrored", "Pad", [x, pads], mode="reflect")
    mean = [b.node(f"mean_{v}", "ReduceMean", [v], keepdims=0) for v in (mirrored, state)]
    b.output(b.node("sum", "Add", mean))
    return b.model()


@pytest.mark.parametrize("least", [128, 100_000])
def test_sizes_that_are_suggested_ran_or_are_said_not_to(least: int, tmp_path: Path) -> None:
    """What is mirrored by 64 numbers has more of them than the likeliest size; by 50,000, than any that is tried."""
    path = tmp_path / "mirrored.onnx"
    onnx.save(padded(least), path)
    found = api.inspect(path)
    sizes = dict(found.sizes)
    ran = found.as_json()["sizes_ran"]
    assert ran == (least == 128)
    assert ("the runtime ran it once with" in found.template) == ran
    assert ("DID NOT RUN" in found.template) != ran
    feed = {"input": np.zeros((sizes["batch"], sizes["sequence"]), np.float32)}
    feed["state"] = np.zeros((2, sizes["batch"], 4), np.float32)
    if ran:
        assert run_reference(path, feed)
    else:
        with pytest.raises(RunFailed):
            run_reference(path, feed)


def test_a_template_says_where_states_come_from() -> None:
    """What a recurrent model or a decoder kept is its own: random numbers stand for nothing there."""
    kept, other = np.dtype(np.float32), np.dtype(np.int64)
    said = "inlay record -- PROGRAM saves what is fed"
    for name, dims, dtype, told in (
        ("state", (2, "n", 128), kept, True),
        ("past_key_values.0.key", (1, 2, "past", 8), kept, True),
        ("state", (2, "n", 128), other, False),
        ("c", ("n", 8), kept, False),
        ("audio", (1, "samples"), kept, False),
    ):
        assert (said in template([InputSpec(name, dtype, dims)])) is told, name
