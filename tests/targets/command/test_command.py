"""What a program may say and do, and what becomes of it: a value that was checked, or an error of one line."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from inlay.errors import BadReading, CompileFailed, NoSuchFile, RunFailed, TargetError, TimedOut, UsageError
from inlay.measure.checked import Checked
from inlay.space.rules import Needs
from inlay.targets.base import Artifact
from inlay.targets.command.protocol import Program, save_inputs
from inlay.targets.command.table import load_rules
from inlay.targets.command.target import CommandTarget
from inlay.targets.process import Process
from inlay.testing import random_feed, residual_model
from inlay.types import QType
from tests.support.command_line import RunCommand, failed, nothing_written
from tests.support.faulty_runs import installed
from tests.support.fixtures import SaveModel
from tests.targets.command.scripts import LATENCIES, write_script

DESCRIBE = """[ "$INLAY_DO" = describe ] && echo '{"inlay": 1, "gives": ["latency", "outputs", "profile"]}' && exit"""


@pytest.fixture
def model(tmp_path: Path) -> Artifact:
    onnx.save(residual_model(), tmp_path / "model.onnx")
    return Artifact(tmp_path / "model.onnx", "digest")


def checked(folder: Path, model: Artifact, body: str, limit_s: float = 20.0) -> Checked:
    """An executable behind a program that describes itself, and does ``body`` otherwise."""
    program = write_script(folder, f"{DESCRIBE}\n{body}")
    return Checked(CommandTarget(program, "null", limit_s).compile(model), lambda: None)


FEED = random_feed(residual_model())


# --- answers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        ('{"latencies_ms": [1.0, 2.0]}', BadReading, "instead of 3 times"),
        ('{"latencies_ms": [1.0, 2.0, 0.0]}', BadReading, "took 0 ns"),
        ('{"latencies_ms": [1.0, 2.0, -1]}', BadReading, "took -1e+06 ns"),
        ('{"latencies_ms": [1.0, 2.0, NaN]}', BadReading, "took nan ns"),
        ('{"latencies_ms": [1.0, 2.0, 1e400]}', BadReading, "took inf ns"),
        ('{"latencies_ms": [1.0, 2.0, "3"]}', BadReading, "no list of numbers"),
        ('{"latencies_ms": 3}', BadReading, "no list of numbers"),
        ("{}", BadReading, "no list of numbers"),
        ('{"error": "the board is busy"}', RunFailed, "the board is busy"),
        ("{1: 2}", RunFailed, "not JSON"),
        ("[1, 2, 3]", RunFailed, "ended without an answer"),
        ("", RunFailed, "ended without an answer (exit code 0)"),
    ],
)
def test_times(answer: str, error: type[Exception], words: str, model: Artifact, tmp_path: Path) -> None:
    executable = checked(tmp_path, model, f"cat <<'END'\n{answer}\nEND")
    with pytest.raises(error) as raised:
        executable.time(FEED, 3)
    assert words in str(raised.value)


def test_chatter_around_an_answer_is_left_alone_and_last_words_are_told(model: Artifact, tmp_path: Path) -> None:
    chatter = 'echo "loading {"; echo; echo \'  {"latencies_ms": [1.5, 2.5]}\'; echo done'
    assert checked(tmp_path, model, chatter).time(FEED, 2).tolist() == [1.5e6, 2.5e6]
    with pytest.raises(RunFailed, match=r"exit code 7\): no such board"):
        checked(tmp_path, model, "echo 'no such board' >&2; exit 7").time(FEED, 2)
    with pytest.raises(RunFailed, match="signal SIGABRT"):
        checked(tmp_path, model, "kill -ABRT $$").time(FEED, 2)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ('{"outputs": []}', "gave no output"),
        ('{"outputs": [{"name": "y"}]}', "cannot be read"),
        ('{"outputs": [{"name": "y", "npy": "nothing.npy"}]}', "cannot be read"),
        ('{"outputs": [{"name": "y", "raw": "measure.sh", "dtype": "float32", "shape": [1, 1000]}]}', "cannot be read"),
        ('{"outputs": [{"name": "y", "raw": "measure.sh", "dtype": "object", "shape": [1]}]}', "cannot be read"),
        ('{"latencies_ms": [1.0]}', "no list of outputs"),
    ],
)
def test_outputs(answer: str, words: str, model: Artifact, tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match=words):
        checked(tmp_path, model, f"cat <<'END'\n{answer}\nEND").run(FEED)


def test_inputs_arrive_as_bytes_and_outputs_return_as_bytes(model: Artifact, tmp_path: Path) -> None:
    """The first input's bytes come back as the output: its own size is told by the request."""
    (output,) = [o.name for o in onnx.load(model.path).graph.output]
    ((name, array),) = FEED.items()
    row = {"name": output, "raw": "echoed.bin", "dtype": "float32", "shape": list(array.shape)}
    body = f"""
    [ "$INLAY_INPUTS" = "{name}:$INLAY_FOLDER/inputs/0.bin" ] || exit 3
    cp "$INLAY_FOLDER/inputs/0.bin" "$INLAY_FOLDER/echoed.bin"
    echo '{json.dumps({"outputs": [row]})}'
    """
    assert np.array_equal(checked(tmp_path, model, body).run(FEED)[output], array)


@pytest.mark.parametrize(
    "layer", ['{"ms": 1}', '{"name": "a"}', '{"name": "a", "ms": -1}', '{"name": "a", "ms": NaN}', "1"]
)
def test_layers_without_a_time_or_a_name(layer: str, model: Artifact, tmp_path: Path) -> None:
    with pytest.raises(BadReading):
        checked(tmp_path, model, f"""echo '{{"layers": [{layer}]}}'""").profile(FEED, 1)


def test_layers_are_traced_to_nodes_and_values(model: Artifact, tmp_path: Path) -> None:
    graph = onnx.load(model.path).graph
    first, second = graph.node[0], graph.node[1]
    layers: list[dict[str, Any]] = [
        {"name": f"{first.name} + {second.name}", "ms": 2, "op_type": "Fused"},
        {"name": f"{first.name}_nchwc_7", "ms": 1},
        {"name": "reorder", "ms": 1, "kind": "layout", "values": ["nothing", first.output[0]]},
        {"name": "told", "ms": 0, "nodes": [second.name], "precision": "int8"},
        {"name": "something else", "ms": 1},
    ]
    found = checked(tmp_path, model, f"echo '{json.dumps({'layers': layers})}'").profile(FEED, 1)
    assert [k.nodes for k in found] == [(first.name, second.name), (first.name,), (), (second.name,), ()]
    assert found[0].ns == 2e6
    assert (found[2].kind, found[2].values) == ("layout", (first.output[0],))
    assert found[3].precision == "int8"
    assert not found[4].attributed


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ('{"inlay": 2}', "version 2 of the protocol"),
        ("{}", "version None"),
        ('{"inlay": 1, "gives": ["speed"]}', "build, latency, outputs, profile"),
        ('{"inlay": 1, "facts": 3}', "facts 3"),
    ],
)
def test_descriptions(answer: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=words):
        CommandTarget(write_script(tmp_path, f"echo '{answer}'"), "null").fingerprint()


def test_what_cannot_be_built_does_not_compile(model: Artifact, tmp_path: Path) -> None:
    body = """case $INLAY_DO in
    describe) echo '{"inlay": 1, "gives": ["build", "latency"]}' ;;
    build) echo '{"error": "no room on the board"}' ;;
    esac"""
    with pytest.raises(CompileFailed, match=r"model.onnx: no room on the board"):
        CommandTarget(write_script(tmp_path, body), "null").compile(model)


# --- processes -------------------------------------------------------------------------------------------------------


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended but was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except FileNotFoundError:
        return False


def ends(pid: int) -> bool:
    for _ in range(200):
        if not is_alive(pid):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.exhaustive
def test_a_timeout_ends_all_that_the_program_started(model: Artifact, tmp_path: Path) -> None:
    executable = checked(tmp_path, model, f"sleep 600 & echo $! > {tmp_path}/child; wait", limit_s=2.0)
    with pytest.raises(TimedOut, match="within 2 s"):
        executable.time(FEED, 1)
    assert ends(int((tmp_path / "child").read_text()))


def test_a_program_that_reads_nothing_keeps_its_time_limit() -> None:
    """A pipe takes 64 kB: writing more waits for a reader."""
    long = json.dumps({"inputs": "x" * 1_000_000})
    process = Process(["/bin/sh", "-c", "sleep 600"])
    with pytest.raises(TimedOut):
        process.ask(long, 0.5, is_last=True)
    answering = Process(["/bin/sh", "-c", """echo '{"latencies_ms": [1]}'"""])
    assert answering.ask(long, 20.0, is_last=True) == '{"latencies_ms": [1]}'
    answering.end()


def test_the_program_ends_with_the_process_that_asked_it(tmp_path: Path) -> None:
    """A worker can be killed at any moment: no signal handler of it runs then."""
    program = write_script(tmp_path, f"echo $$ > {tmp_path}/own; sleep 600 & echo $! > {tmp_path}/child; wait")
    code = f"from inlay.targets.command.protocol import Program; Program({program!r}, 600.0).describe()"
    asking = subprocess.Popen([sys.executable, "-c", code])
    while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text().strip():
        time.sleep(0.05)
        assert asking.poll() is None
    children = Path(f"/proc/{asking.pid}/task/{asking.pid}/children")
    while children.exists() and len(children.read_text().split()) < 2:  # the program, and what watches over it
        time.sleep(0.05)
    started = [int((tmp_path / name).read_text()) for name in ("own", "child")]
    assert all(map(is_alive, started))
    asking.kill()
    asking.wait()
    assert all(map(ends, started))


def test_what_stays_behind_and_holds_the_output_open_delays_nothing(model: Artifact, tmp_path: Path) -> None:
    body = f"""sleep 600 & echo $! > {tmp_path}/child; echo '{{"latencies_ms": [1]}}'"""
    assert checked(tmp_path, model, body).time(FEED, 1).tolist() == [1e6]
    assert ends(int((tmp_path / "child").read_text()))


def test_files_for_the_program_are_removed(model: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    executable = checked(tmp_path, model, """echo '{"latencies_ms": [1]}'""")
    executable.time(FEED, 1)
    assert list((tmp_path / "scratch").glob("*/inputs/0.npy"))
    executable.close()
    assert not list((tmp_path / "scratch").iterdir())


# --- what is executed ------------------------------------------------------------------------------------------------


def test_no_shell_looks_at_the_command_and_rules_start_nothing(tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    program = write_script(tmp_path, f"""echo "$@" > {proof}; echo '{{"inlay": 1}}'""")
    target = CommandTarget(f"{program} 'a b' ; touch {tmp_path}/shell $HOME", "null")
    target.rules()
    target.rewrites()
    assert not proof.exists()
    target.fingerprint()
    assert proof.read_text().split() == ["a", "b", ";", "touch", f"{tmp_path}/shell", "$HOME"]
    assert not (tmp_path / "shell").exists()


def test_other_programs_rules_and_facts_are_another_target(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text("inlay-rules: 1\nactivation: int8\noperators: {Conv: {weight: 1}}\n")

    def digest(body: str = LATENCIES, arguments: str = "", table: str = str(rules)) -> str:
        return CommandTarget(f"{write_script(tmp_path, body)} {arguments}", table).fingerprint().digest

    first = digest()
    assert first == digest()
    assert len({first, digest(f"{LATENCIES}#"), digest(arguments="x"), digest(table="null")}) == 4
    rules.write_text(rules.read_text() + "share: [Concat]\n")
    assert digest() != first


@pytest.mark.parametrize("command", ["", "no-such-program-anywhere", "'unclosed"])
def test_programs_that_do_not_exist(command: str) -> None:
    with pytest.raises(TargetError) as raised:
        CommandTarget(command, "null").fingerprint()
    assert "\n" not in str(raised.value)


def test_wrong_options() -> None:
    with pytest.raises(UsageError, match="rules=nothing"):
        CommandTarget("x", "nothing").rules()
    with pytest.raises(UsageError, match="another target"):
        CommandTarget("x", "command").rules()
    with pytest.raises(UsageError, match="limit_s"):
        CommandTarget("x", "null", limit_s=0.0)
    with pytest.raises(NoSuchFile, match=r"nothing\.yaml"):
        CommandTarget("x", "nothing.yaml").rules()


# --- rules as a file -------------------------------------------------------------------------------------------------


def test_a_table_of_rules(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("""
inlay-rules: 1
activation: int8
symmetric_activations: true
share: [Concat]
fast: {int16: [Conv]}
operators:
  Conv: {weight: 1, bias: 2, output: either, conditions: [constant_weight], source: "manual, page 3"}
  Add: {activations: all}
  Relu:
""")
    rules = load_rules(path)
    assert (rules.activation, rules.symmetric_activations, rules.share) == (QType.INT8, True, frozenset({"Concat"}))
    assert (rules.fast, rules.types) == ({QType.INT16: frozenset({"Conv"})}, (QType.INT8, QType.INT16))
    conv = rules.ops["Conv"]
    assert (conv.weight, conv.bias, conv.output, conv.source) == (1, 2, Needs.EITHER, "manual, page 3")
    assert [c.__name__ for c in conv.conditions] == ["constant_weight"]
    assert rules.ops["Add"].activations is None
    assert (rules.ops["Relu"].activations, rules.ops["Relu"].source) == ((0,), "rules.yaml")


@pytest.mark.parametrize(("written", "exact"), [("", 128), ("weight_limit: 127\n", 128), ("weight_limit: 63\n", 63)])
def test_a_limit_of_weights_is_that_of_exact_sums(written: str, exact: int, tmp_path: Path) -> None:
    (path := tmp_path / "rules.yaml").write_text(
        f"inlay-rules: 1\nactivation: int8\n{written}operators: {{Conv: {{}}}}"
    )
    rules = load_rules(path)
    assert (rules.exact_limit, rules.weight_limit) == (exact, min(exact, 127))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("- 1", "lacks the line 'inlay-rules: 1'"),
        ("inlay-rules: 2", "lacks the line"),
        ("{inlay-rules: 1, activation: int8}", "no operators"),
        ("{inlay-rules: 1, operators: {Conv: {}}}", "lacks activation"),
        ("{inlay-rules: 1, activation: int9, operators: {Conv: {}}}", "activation cannot be 'int9'"),
        ("{inlay-rules: 1, activation: int8, operators: {Conv: {wieght: 1}}}", "Conv has an unknown entry 'wieght'"),
        ("{inlay-rules: 1, activation: int8, operators: {Conv: {weight: -1}}}", "weight cannot be -1"),
        ("{inlay-rules: 1, activation: int8, operators: {Conv: {activations: []}}}", "activations cannot be"),
        ("{inlay-rules: 1, activation: int8, operators: {Conv: {conditions: [print]}}}", "conditions cannot be"),
        ("{inlay-rules: 1, activation: int8, operators: {Conv: 3}}", "Conv is 3"),
        ("{inlay-rules: 1, activation: int8, share: Concat, operators: {Conv: {}}}", "share cannot be 'Concat'"),
        ("!!python/object/apply:os.getcwd []", "not YAML"),
    ],
)
def test_what_is_no_table(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(text)
    with pytest.raises(UsageError) as raised:
        load_rules(tmp_path / "rules.yaml")
    assert words in str(raised.value)


# --- whole runs ------------------------------------------------------------------------------------------------------


@pytest.fixture
def tuned(run: RunCommand, save: SaveModel, tmp_path: Path) -> Any:
    """Runs ``inlay tune --target command`` with a script."""

    def tune(body: str, *more: str) -> tuple[Any, Path]:
        program, out = write_script(tmp_path, body), tmp_path / "out"
        options = ("--target-option", f"program={program}", "--target-option", "rules=null", "-q", "--accept-unproven")
        with installed(tmp_path / "site", "command", "inlay.targets.command.target:CommandTarget"):
            found = run("tune", save(residual_model()), "-o", out, "--target", "command", *options, *more)
        return found, out

    return tune


def test_a_shell_script_is_all_that_it_takes(tuned: Any) -> None:
    """Without outputs and profiles the search goes by whole models, and judges accuracy elsewhere; both are said."""
    found, out = tuned(LATENCIES, "--max-measurements", "6", "--min-sqnr", "5")
    assert found.code == 0, found.err
    result = json.loads((out / "result.json").read_text())
    assert result["best"]["qdq_pairs"] > 0
    lines = (out / "model.onnx").read_bytes().count(b"DequantizeLinear")
    assert result["best"]["latency_ms"] == pytest.approx(8 / (1 + lines), rel=1e-3), "what the script says of this file"
    assert result["target"]["facts"]["clock"] == "none"
    assert "the target returns no outputs" in found.out
    assert "the target reports no kernel times" in found.out
    assert not [p for p in out.iterdir() if p.name.startswith(".scratch")]


def test_without_latencies_there_is_nothing_to_tune_by(tuned: Any) -> None:
    found, out = tuned("""echo '{"inlay": 1, "gives": ["outputs"]}'""")
    failed(found, 2, "gives no latencies", "inlay quantize")
    nothing_written(out)


def test_options_that_must_be_given_are_named(run: RunCommand, save: SaveModel, tmp_path: Path) -> None:
    with installed(tmp_path / "site", "command", "inlay.targets.command.target:CommandTarget"):
        found = run("tune", save(residual_model()), "-o", tmp_path / "out", "--target", "command")
    failed(found, 2, "target command needs --target-option program=…, --target-option rules=…")
    assert os.environ.get("INLAY_DO") is None
    assert Program("a 'b c'", 1.0).arguments == ["a", "b c"]


def test_inputs_are_told_with_the_digest_of_their_bytes(tmp_path: Path) -> None:
    feed: dict[str, np.ndarray] = {
        "x": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "n": np.array(3, np.int64),
    }
    for row in save_inputs(feed, tmp_path / "inputs"):
        raw = Path(row["raw"]).read_bytes()
        assert row["digest"] == hashlib.sha256(raw).hexdigest()
        assert np.array_equal(np.frombuffer(raw, row["dtype"]).reshape(row["shape"]), feed[row["name"]])
