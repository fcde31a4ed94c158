"""``inlay record``: what the sessions of a user's own program were fed, however it runs them and however it ends.

The program itself saves what it feeds: that is the oracle.
"""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import inlay
from inlay.data.archives import load_feed
from inlay.data.reading import read_samples
from inlay.data.samples import input_specs
from inlay.errors import UsageError
from inlay.model.load import load
from inlay.recording import hook
from inlay.recording.api import record_program
from inlay.recording.gather import Recording
from inlay.recording.pipeline import Part, Pipeline, read_pipeline
from tests.support.command_line import RunCommand

HEAD = """
import multiprocessing, os, signal, subprocess, sys
import numpy as np
import onnxruntime
from onnxruntime import InferenceSession, OrtValue
rng = np.random.default_rng(os.getpid())
def feed(rows=1):
    return {"x": np.ones((1, rows, 4), np.float32)}
"""
PIPELINE = (
    HEAD
    + """
class Decoder(InferenceSession):
    def run(self, *given, **named):
        return super().run(*given, **named)

encoder, decoder = InferenceSession("encoder.onnx"), Decoder(open("decoder.onnx", "rb").read())
fed = []
for task in range(4):
    sound = rng.standard_normal((1, 3 + task, 4)).astype(np.float32)
    state = encoder.run(None, {"x": sound})[0]
    for step in range(5):
        fed.append(state[:, :1])
        state = decoder.run(output_names=None, input_feed={"x": state[:, :1]})[0]
np.savez("fed.npz", *fed)
"""
)
ENDS = {
    "os.kill(os.getpid(), signal.SIGKILL)": 137,
    "": 0,
    "sys.exit(3)": 3,
    "raise RuntimeError('no')": 1,
    "os._exit(7)": 7,
}


def scaled(rows: int | str = "n", factor: float = 0.5) -> onnx.ModelProto:
    """A model of one MatMul from ``x`` to ``y``."""
    weight = helper.make_tensor("w", TensorProto.FLOAT, [4, 4], (factor * np.eye(4)).ravel())
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, rows, 4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two models, in which the test works."""
    monkeypatch.chdir(tmp_path)
    onnx.save(scaled(), "encoder.onnx")
    onnx.save(scaled(1, 0.9), "decoder.onnx")
    return tmp_path


def recorded(text: str, **limits: int) -> Recording:
    """What is recorded of a program with this text."""
    Path("program.py").write_text(text)
    return record_program([sys.executable, "program.py"], out="recorded", quiet=True, **limits)


def samples(found: Recording, number: int = 0) -> list[np.ndarray]:
    """The input ``x`` of each sample, as ``--data`` reads it."""
    part = found.models[number].part
    specs = input_specs(load(part.model).model)
    return [feed["x"] for feed in read_samples(found.folder / str(part.data), specs).feeds]


def same(found: Sequence[np.ndarray], fed: Sequence[np.ndarray]) -> bool:
    return len(found) == len(fed) and all(map(np.array_equal, found, fed))


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.matrix
def test_what_was_fed_is_kept_however_the_program_ends(end: str) -> None:
    if os.name == "nt" and "SIGKILL" in end:
        pytest.skip("signals of POSIX")
    found = recorded(PIPELINE + end)
    assert found.exit_code == ENDS[end]
    assert [(each.part.runs, each.samples, each.shapes) for each in found.models] == [(4, 4, 4), (20, 20, 1)]
    assert same(samples(found, 1), list(load_feed(Path("fed.npz")).values()))
    assert not same(samples(found, 1)[:4], samples(found, 0)), "the control"
    assert all((each.part.seconds or 0) > 0 for each in found.models)
    pipeline = read_pipeline(Path("recorded"))
    assert pipeline.parts[0].model.name == "encoder.onnx"
    assert pipeline.parts[1].model.read_bytes() == Path("decoder.onnx").read_bytes(), "it was given as bytes"
    assert sorted(p.suffix for p in Path("recorded").iterdir()) == [".npz", ".npz", ".onnx", ".yaml"], "nothing else"


@pytest.mark.usefixtures("null_in_process")
def test_the_command_passes_the_exit_code_on_and_tune_runs_without_a_further_word(run: RunCommand) -> None:
    Path("program.py").write_text(PIPELINE + "print('said', sys.argv[1:]); sys.exit(3)")
    code, out, _ = run("record", "--", sys.executable, "program.py", "--beam", "4")
    assert code == 3
    assert out.startswith("said ['--beam', '4']\n")
    assert ["encoder", "4"] in [line.split()[:2] for line in out.splitlines()]
    tune = next(line.split() for line in out.splitlines() if line.strip().startswith("inlay tune") and "model-" in line)
    code, out, err = run(*tune[1:], "--target", "null", "--max-measurements", "2", "--accept-unproven")
    assert (code, "RANDOM" in out.upper()) == (0, False), err
    code, out, _ = run("record", "--json", sys.executable, "program.py", "--json")
    assert code == 3
    assert [model["runs"] for model in json.loads(out)["models"]] == [4, 20]


def test_limits_hold() -> None:
    found = recorded(PIPELINE, max_samples=7)
    assert [(each.part.runs, each.samples) for each in found.models] == [(4, 4), (20, 7)]
    fed = list(load_feed(Path("fed.npz")).values())
    kept = [next(i for i, each in enumerate(fed) if np.array_equal(each, x)) for x in samples(found, 1)]
    assert kept == sorted(kept), "in the order in which they were fed"
    large = HEAD + "s = InferenceSession('encoder.onnx')\nfor i in range(6):\n  s.run(None, feed(20000 + i))"
    assert 0 < recorded(large, max_mb=1).models[0].samples < 6
    none = recorded(large.replace("20000", "200000"), max_mb=1).models[0]
    assert (none.samples, none.part.data) == (0, None)
    assert none.notes == ("no sample is within --max-mb 1",)


@pytest.mark.parametrize("method", ["spawn", *(["fork", "forkserver"] if sys.platform == "linux" else [])])
@pytest.mark.matrix
def test_processes_that_it_starts_are_recorded(method: str) -> None:
    """The parent runs a session before: what it held is not counted twice."""
    text = f"""
import warnings
warnings.simplefilter("ignore")
def work(number):
    session = InferenceSession("encoder.onnx")
    for step in range(number):
        session.run(None, {{"x": np.full((1, 2, 4), 10 * number + step, np.float32)}})
if __name__ == "__main__":
    work(1)
    with multiprocessing.get_context("{method}").Pool(2) as pool:
        pool.map(work, [2, 3, 4])
    subprocess.run([sys.executable, "-c", "import program; program.work(5)"], check=True)
"""
    found = recorded(HEAD + text)
    assert found.exit_code == 0
    assert [each.part.runs for each in found.models] == [15]
    assert found.models[0].processes in (3, 4), "one of the pool may do all of its work"
    wanted = [10 * number + step for number in range(1, 6) for step in range(number)]
    assert sorted(int(x[0, 0, 0]) for x in samples(found)) == wanted


WAYS = {
    "run_with_ort_values": "s.run_with_ort_values(None, {'x': OrtValue.ortvalue_from_numpy(x)})",
    "bind_cpu_input": "b.bind_cpu_input('x', x); s.run_with_iobinding(b)",
    "bind_ortvalue_input": "b.bind_ortvalue_input('x', OrtValue.ortvalue_from_numpy(x)); s.run_with_iobinding(b)",
    "bind_input": "b.bind_input('x', 'cpu', 0, np.float32, x.shape, x.ctypes.data); s.run_with_iobinding(b)",
    "mutated": "b.bind_cpu_input('x', y := x * 0); y[:] = x; s.run_with_iobinding(iobinding=b)",
    "ort value in a feed": "s.run(None, {'x': OrtValue.ortvalue_from_numpy(x)})",
    "run_async": "e = threading.Event(); s.run_async(None, {'x': x}, lambda *r: e.set(), None); e.wait(30)",
    "threads": "t = threading.Thread(target=s.run, args=(None, {'x': x})); t.start(); t.join()",
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_run_a_session(way: str) -> None:
    x = np.random.default_rng(0).standard_normal((1, 2, 4)).astype(np.float32)
    session = ort.InferenceSession("encoder.onnx", providers=["CPUExecutionProvider"])
    binding = session.io_binding()
    binding.bind_output("y")
    before = dict(vars(ort.InferenceSession)), dict(vars(ort.InferenceSession.__mro__[1]))
    with inlay.record("recorded"):
        text = compile(WAYS[way], "way", "exec")
        exec(text, {"s": session, "b": binding, "x": x, "np": np, "threading": threading, "OrtValue": ort.OrtValue})
    assert (dict(vars(ort.InferenceSession)), dict(vars(ort.InferenceSession.__mro__[1]))) == before, "all is as it was"
    part = read_pipeline(Path("recorded")).parts[0]
    assert part.runs == 1
    assert np.array_equal(load_feed(Path(str(part.data)))["x_0"], x)


def test_what_cannot_be_read_is_counted_and_told_and_changes_nothing() -> None:
    text = (
        HEAD
        + """
s = InferenceSession("encoder.onnx")
good = np.ones((1, 2, 4), np.float32)
for x in (good, np.full((1, 2, 4), np.nan, np.float32)):
    s.run(None, {"x": x})
try:
    s.run(None, {"x": np.ones((2, 2), np.float32)})
except Exception as error:
    print(type(error).__name__)
b = s.io_binding()
b.bind_output("y")
b.bind_input("x", "cpu", 0, 1, good.shape, good.ctypes.data)
s.run_with_iobinding(b)
"""
    )
    found = recorded(text).models[0]
    assert (found.part.runs, found.samples) == (3, 1)
    assert found.notes[0] == "1 run could not be recorded"
    assert any("number of an ONNX type" in note for note in found.notes)
    assert any("1 sample left out: input x holds NaN" in note for note in found.notes)


def test_text_and_names_that_look_numbered() -> None:
    names = ["x", "x_0", "x_1"]
    inputs = [helper.make_tensor_value_info(name, TensorProto.STRING, ["n"]) for name in names]
    outputs = [helper.make_tensor_value_info(f"y{name}", TensorProto.STRING, ["n"]) for name in names]
    nodes = [helper.make_node("Identity", [name], [f"y{name}"]) for name in names]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), "text.onnx")
    session = ort.InferenceSession("text.onnx", providers=["CPUExecutionProvider"])
    fed = [{name: np.array([f"{name}{i}", "é"][: 1 + i % 2], object) for name in names} for i in range(3)]
    with inlay.record("recorded"):
        for feed in fed:
            session.run(None, feed)
    read = read_samples(Path("recorded/text.npz"), input_specs(load("text.onnx").model))
    assert [{name: list(array) for name, array in feed.items()} for feed in read.feeds] == [
        {name: list(array) for name, array in feed.items()} for feed in fed
    ]


def test_a_python_that_is_customized_stays_so(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "own").mkdir()
    (place / "own" / "sitecustomize.py").write_text("import sys\nsys.customized = True\n")
    monkeypatch.setenv("PYTHONPATH", str(place / "own"))
    text = HEAD + "assert sys.customized\nInferenceSession('encoder.onnx').run(None, feed())"
    found = recorded(text)
    assert (found.exit_code, len(found.models)) == (0, 1)


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_a_signal_goes_on_to_the_program(place: Path) -> None:
    wait = "\nprint('up', flush=True)\nsignal.pause()"
    Path("program.py").write_text(PIPELINE + wait)
    command = [sys.executable, "-m", "inlay", "record", "--", sys.executable, "program.py"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=place) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        assert "Recorded 2 models; the program ended with exit code 143." in process.communicate(timeout=60)[0]
    assert process.returncode == 143


def test_a_model_that_is_gone_is_told_and_its_samples_are_kept() -> None:
    text = HEAD + "s = InferenceSession('encoder.onnx')\nos.remove('encoder.onnx')\ns.run(None, feed())"
    (found,) = recorded(text).models
    assert found.samples == 1
    assert "encoder.onnx: no such file" in found.notes[0]


def test_models_of_one_name_are_told_apart() -> None:
    for folder in ("encoder", "decoder"):
        Path(folder).mkdir()
        Path(f"{folder}.onnx").rename(f"{folder}/model.onnx")
    text = HEAD + "for f in ('encoder', 'decoder'):\n  InferenceSession(f + '/model.onnx').run(None, feed())"
    assert [each.part.name for each in recorded(text).models] == ["encoder-model", "decoder-model"]


def test_mistakes_are_one_line_and_leave_nothing(run: RunCommand) -> None:
    Path("full").mkdir()
    Path("full/own.txt").write_text("mine")
    for words, said in {
        ("no-such-program",): "no-such-program cannot be run",
        ("encoder.py",): "inlay record -- python encoder.py",
        ("-o", "full", "--", sys.executable): "holds files, and no recording",
        ("-o", "encoder.onnx", "--", sys.executable): "is not a folder",
    }.items():
        code, out, err = run("record", *words)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert said in err
    code, out, err = run("record", "--", sys.executable, "-c", "pass")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "no session of ONNX Runtime ran" in err
    with pytest.raises(UsageError, match="no session"), inlay.record("recorded"):
        pass
    assert not Path("recorded").exists()
    assert Path("full/own.txt").read_text() == "mine"


def test_a_pipeline_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text("models:\n- a.onnx\n- {model: b/b.onnx, runs: 2.5, data: b.npz, name: the b}\n")
    a, b = read_pipeline(path).parts
    assert a == Part("a", tmp_path / "a.onnx")
    assert b == Part("the-b", tmp_path / "b/b.onnx", str(tmp_path / "b.npz"), 2.5)
    Pipeline((a, b)).write(tmp_path)
    assert read_pipeline(tmp_path).parts == (a, b)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]", "is not a pipeline: expected models"),
        ("models: []", "is not a pipeline: expected models"),
        ("models: [3]", "model 1: give its model as text"),
        ("models: [{model: a, rusn: 1}]", "there is no rusn; did you mean runs?"),
        ("models: [{model: a, runs: 0}]", "runs is a number above 0, not 0"),
        ("models: [{model: a, seconds: .nan}]", "seconds is a number above 0, not nan"),
        ("models: [a.onnx, b/a.onnx]", "two models have the name a"),
        ("modles: [a]\nmodels: [a]", "a pipeline has no modles; did you mean models?"),
    ],
)
def test_what_a_pipeline_may_not_say(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_pipeline(path)
    assert said in str(caught.value)


def test_the_hook_runs_in_a_python_without_inlay_and_of_earlier_versions() -> None:
    trees = [ast.parse(p.read_text(), feature_version=(3, 8)) for p in Path(hook.__path__[0]).glob("*.py")]
    assert len(trees) >= 3
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = {n.module or "" for n in nodes if isinstance(n, ast.ImportFrom) and not n.level}
    names |= {alias.name for n in nodes if isinstance(n, ast.Import) for alias in n.names}
    assert names - set(sys.stdlib_module_names) == {"numpy"}
