"""``trtexec`` as a target, with a stand-in for the tool that was written after its documentation."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest

import inlay
from inlay.errors import BadReading, CompileFailed, RunFailed, TargetError, UsageError
from inlay.targets.attribution import Names
from inlay.targets.base import Artifact, Target
from inlay.targets.tensorrt import reports
from inlay.targets.tensorrt.reports import kernels_of
from inlay.targets.tensorrt.trtexec import TrtexecTarget
from inlay.testing import TargetTestCase, random_feed, residual_model, run_reference
from tests.support.command_line import RunCommand
from tests.support.faulty_runs import installed
from tests.support.fixtures import SaveModel

Calls = Callable[[], list[list[str]]]
REMOTE = (
    "--remoteAutoTuningConfig=ssh://me:secret@board:2222?remote_exec_path=/opt/bin/trtexec&remote_lib_path=/opt/lib"
)


class TestTrtexec(TargetTestCase):
    @pytest.fixture(autouse=True)
    def _program(self, fake: str, tmp_path: Path) -> None:
        self.program, self.cache = fake, tmp_path / "cache"

    def models(self) -> Mapping[str, onnx.ModelProto]:
        return {"residual": residual_model()}

    def target(self) -> Target:
        return TrtexecTarget(self.program, timing_cache=str(self.cache))


@pytest.fixture
def model(tmp_path: Path) -> Artifact:
    onnx.save(residual_model(), tmp_path / "model.onnx")
    return Artifact(tmp_path / "model.onnx", "digest")


FEED = random_feed(residual_model())


def options(call: list[str]) -> dict[str, str]:
    return {name.removeprefix("--"): value for name, _, value in (a.partition("=") for a in call)}


def test_arguments_plugins_and_the_cache_reach_every_build(
    fake: str, calls: Calls, model: Artifact, tmp_path: Path
) -> None:
    (tmp_path / "nms.so").write_bytes(b"")
    target = TrtexecTarget(fake, "--useCudaGraph --device=1", f"{tmp_path}/nms.so", f"{tmp_path}/cache")
    for _ in range(2):
        executable = target.compile(model)
        executable.time(FEED, 3)
        executable.close()
    builds, runs = [options(c) for c in calls()[::2]], [options(c) for c in calls()[1::2]]
    assert [b["onnx"] for b in builds] == [str(model.path)] * 2
    assert {b["timingCacheFile"] for b in builds} == {f"{tmp_path}/cache"}
    assert (tmp_path / "cache").read_bytes() == b"..", "the second build found what the first one left"
    for call in (*builds, *runs):
        assert call["device"] == "1"
        assert "useCudaGraph" in call
        assert call["staticPlugins"] == f"{tmp_path}/nms.so"
    assert all("skipInference" in b for b in builds)
    assert all("skipInference" not in r and r["iterations"] == "3" for r in runs)
    assert not (tmp_path / "inlay-trtexec").exists()


def test_both_clocks_read_the_last_inferences(fake: str, model: Artifact) -> None:
    """The stand-in adds 0.75 ms of transfers to every inference, and two inferences that warm up."""
    host = TrtexecTarget(fake, clock="host").compile(model).time(FEED, 4)
    assert host.shape == (4,)
    assert host.min() > 750_000


def test_reports_as_the_tool_writes_them(tmp_path: Path) -> None:
    """Written after the documented formats, also those of 10.x, not by the tool."""
    path = tmp_path / "report.json"
    rows = [{"h2dMs": 0.1, "computeMs": i, "d2hMs": 0.1, "latencyMs": i + 0.2} for i in (9, 1, 2)]
    path.write_text(json.dumps(rows))
    assert reports.read_times(path, "device", 2).tolist() == [1_000_000, 2_000_000]
    assert reports.read_times(path, "host", 2).tolist() == [1_200_000, 2_200_000]
    with pytest.raises(BadReading, match="3 times of 4"):
        reports.read_times(path, "device", 4)
    path.write_text('[\n  { "count" : 3 }\n, { "name" : "conv + relu", "timeMs" : 3, "averageMs" : 1.5 }\n]')
    assert reports.read_profile(path) == {"conv + relu": 1.5}
    path.write_text('[\n  { "name" : "y"\n  , "dimensions" : "1x3"\n  , "values" : [ 1, -nan, -inf ]\n  }\n]')
    found = reports.read_outputs(path, {"y": np.dtype(np.float32)})["y"]
    assert found.shape == (1, 3)
    assert np.isnan(found[0, 1])
    assert found[0, 2] == -np.inf
    for missing in ({"z": np.dtype(np.float32)}, {"y": np.dtype(np.int64)}):
        with pytest.raises(RunFailed):
            reports.read_outputs(path, missing)
    assert reports.version_in("&&&& RUNNING TensorRT.trtexec [TensorRT v8601] # x") == "8.6.1"
    assert reports.version_in("[TensorRT v101303]") == "10.13.3"
    old = {"Name": "a", "Inputs": [{"Name": "x", "Format/Datatype": "Row major Int8"}]}
    first, second = reports.read_layers(json.dumps({"Layers": [old, "b"], "Bindings": []}))
    assert ([t.type for t in first.inputs], second.name) == (["int8"], "b")
    with pytest.raises(RunFailed, match="another form"):
        reports.read_layers("{}")


def test_reformats_serve_the_tensor_that_they_convert() -> None:
    graph = onnx.load_from_string(residual_model().SerializeToString()).graph
    first = graph.node[0]
    name = f"Reformatting CopyNode for Input Tensor 0 to {first.name}"
    layer = reports.Layer(
        name, "Reformat", (), (reports.Tensor(graph.input[0].name, "int8"),), (), (reports.Tensor("copied"),)
    )
    kernel, fused = kernels_of({name: 0.5, f"{first.name} + unknown": 1.0}, [layer], Names(graph))
    assert (kernel.kind, kernel.values, kernel.precision) == ("layout", (graph.input[0].name,), "int8")
    assert fused.nodes == (first.name,), "engines without details have names only"


@pytest.mark.exhaustive
def test_shapes_are_locked_to_the_first_inputs(fake: str, calls: Calls, tmp_path: Path) -> None:
    dynamic = residual_model()
    dynamic.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    for value in (*dynamic.graph.value_info, *dynamic.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "N"
    onnx.save(dynamic, tmp_path / "dynamic.onnx")
    executable = TrtexecTarget(fake).compile(Artifact(tmp_path / "dynamic.onnx", "digest"))
    assert calls() == [], "an engine needs shapes"
    feed = {name: np.concatenate([array, array]) for name, array in FEED.items()}
    for given in (feed, feed, FEED):
        (found,), (want,) = executable.run(given).values(), run_reference(residual_model(), FEED).values()
        assert np.allclose(found[:1], want, atol=1e-4)
    builds = [options(c) for c in calls() if any(a.startswith("--saveEngine") for a in c)]
    (name,) = feed
    shapes = [f"{name}:{'x'.join(map(str, f[name].shape))}" for f in (feed, FEED)]
    assert [{b["minShapes"], b["optShapes"], b["maxShapes"]} for b in builds] == [{s} for s in shapes]
    with pytest.raises(RunFailed, match="has the shape"):
        executable.run({name: feed[name][..., None]})


def test_layers_are_traced_to_the_nodes_that_the_parser_noted(fake: str, model: Artifact) -> None:
    kernels = TrtexecTarget(fake).compile(model).profile(FEED, 3)
    nodes = {n.name for n in onnx.load(model.path).graph.node}
    assert {n for k in kernels for n in k.nodes} == nodes
    assert all(k.ns == 0.5e6 for k in kernels), "medians, not averages"


def test_failures_are_told_by_the_tools_first_error(fake: str, model: Artifact, tmp_path: Path) -> None:
    with pytest.raises(CompileFailed, match=r"trtexec: Unknown option: --best"):
        TrtexecTarget(fake, "--best").compile(model)
    with pytest.raises(CompileFailed, match=r"no plugin library .*nothing\.so"):
        TrtexecTarget(fake, plugins=str(tmp_path / "nothing.so")).compile(model)
    with pytest.raises(TargetError, match="no-trtexec is not on the path: install TensorRT 11"):
        TrtexecTarget("no-trtexec").fingerprint()
    with pytest.raises(TargetError, match="is not trtexec"):
        TrtexecTarget("true").fingerprint()
    old = tmp_path / "old-trtexec"
    old.write_text("#!/bin/sh\necho '&&&& RUNNING TensorRT.trtexec [TensorRT v101303] # trtexec --help'\n")
    old.chmod(0o755)
    with pytest.raises(TargetError, match=r"is of TensorRT 10\.13\.3, whose networks are weakly typed"):
        TrtexecTarget(str(old)).fingerprint()


def test_a_banner_is_no_reason() -> None:
    banner = "&&&& RUNNING TensorRT.trtexec [TensorRT v110400] # x\n[11/22/2026-10:00:00] [I] === Model Options ===\n"
    assert reports.error_in(banner, 1) == "it gave no reason (exit code 1)"
    assert reports.error_in(f"{banner}cannot open shared object file\n&&&& FAILED TensorRT.trtexec # x", 127) == (
        "cannot open shared object file (exit code 127)"
    )


def test_the_warm_up_is_an_option(fake: str, calls: Calls, model: Artifact) -> None:
    TrtexecTarget(fake, warm_up=7).compile(model).time(FEED, 3)
    assert options(calls()[-1])["warmUp"] == "7"
    with pytest.raises(UsageError, match="warm_up=-1"):
        TrtexecTarget(fake, warm_up=-1)


def test_facts_and_the_remark(fake: str, model: Artifact) -> None:
    facts = TrtexecTarget(fake, "--useCudaGraph").fingerprint().facts
    assert (facts["tensorrt"], facts["clock"], facts["arguments"]) == ("11.3.0", "device", "--useCudaGraph")
    assert "nothing of it has run on a device" in TrtexecTarget.remark
    rows = {row.name: row for row in inlay.list_targets()}
    if "trtexec" in rows:  # once the package's entry points are installed
        assert "nothing of it has run on a device" in rows["trtexec"].remark


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ("--onnx=other.onnx", "--onnx itself"),
        ("--exportTimes t.json", "--exportTimes itself"),
        ("--remoteAutoTuningConfig=ssh://board", "give ssh://USER@HOST"),
        ("--remoteAutoTuningConfig=http://me@board?remote_exec_path=/a&remote_lib_path=/b", "give ssh://"),
        ("--remoteAutoTuningConfig=ssh://-oProxyCommand=x@board?remote_exec_path=/a&remote_lib_path=/b", "give ssh://"),
        (f"'{REMOTE}' '{REMOTE}'", "given 2 times"),
        ("'unclosed", "No closing quotation"),
    ],
)
def test_wrong_arguments(arguments: str, word: str) -> None:
    with pytest.raises(UsageError) as raised:
        TrtexecTarget("trtexec", arguments)
    assert word in str(raised.value)
    with pytest.raises(UsageError, match="clock=wall"):
        TrtexecTarget("trtexec", clock="wall")


# --- safe engines, here and on another machine ------------------------------------------------------------------------


def test_safe_engines_give_latencies_only(fake: str, calls: Calls, model: Artifact) -> None:
    target = TrtexecTarget(fake, "--safe")
    assert target.lacks == {"accuracy", "profile"}
    executable = target.compile(model)
    assert (executable.time(FEED, 3) > 0).all()
    (found,), (want,) = executable.run(FEED).values(), run_reference(residual_model(), FEED).values()
    assert np.allclose(found, want, atol=1e-4)
    assert [sorted(a for a in c if a in ("--safe", "--skipInference")) for c in calls()] == [
        ["--safe", "--skipInference"],
        ["--safe"],
    ]
    assert TrtexecTarget(fake, "--skipInference").lacks == {"accuracy", "profile", "latency"}


def test_remote_engines_are_built_here_and_timed_there(
    fake: str, calls: Calls, model: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stand-ins of scp and ssh note what they are asked; the second times what the first has copied."""
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, body in {
        "scp": f'echo "scp $*" >> {tmp_path}/log',
        "ssh": f"""echo "ssh $*" >> {tmp_path}/log
            for n in 1 2 3 4; do echo "[I] Average over 1 runs - GPU latency: 1.$n ms (end to end 2 ms)"; done""",
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{body}\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    target = TrtexecTarget(fake, f"'{REMOTE}'")
    assert target.lacks == {"accuracy", "profile"}
    assert "secret" not in json.dumps(dict(target.fingerprint().facts))
    assert target.fingerprint().facts["device"] == "board:2222"
    executable = target.compile(model)
    assert executable.time(FEED, 3).tolist() == [1.2e6, 1.3e6, 1.4e6]
    executable.time(FEED, 3)
    executable.close()
    (build,) = [c for c in calls() if "--help" not in c]
    assert {"--safe", "--skipInference", REMOTE} <= set(build)
    log = (tmp_path / "log").read_text().splitlines()
    assert [line.split()[0] for line in log] == ["scp", "ssh", "ssh", "ssh"], "copied once, timed twice, removed"
    assert "me@board:/tmp/inlay-" in log[0]
    assert "-p 2222" in log[1]
    assert "/opt/bin/trtexec_safe --loadEngine=/tmp/inlay-" in log[1]
    assert "LD_LIBRARY_PATH=/opt/lib" in log[1]
    assert "rm -f /tmp/inlay-" in log[3]
    assert "secret" not in "".join(log)


# --- a whole command --------------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_quantizing_through_the_tool(run: RunCommand, save: SaveModel, fake: str, calls: Calls, tmp_path: Path) -> None:
    arguments = (
        "-o",
        tmp_path / "q.onnx",
        "--recipe",
        "full-int8",
        "--target",
        "trtexec",
        "--target-option",
        f"program={fake}",
    )
    with installed(tmp_path / "site", "trtexec", "inlay.targets.tensorrt.trtexec:TrtexecTarget"):
        found = run("quantize", save(residual_model()), *arguments)
    assert found.code == 0, found.err
    graph = onnx.load(tmp_path / "q.onnx").graph
    zeros = [onnx.numpy_helper.to_array(t) for t in graph.initializer if t.name.endswith("zero_point")]
    assert zeros
    assert not any(z.any() for z in zeros), "TensorRT takes symmetric quantization only"
    assert len(calls()) > 2
