"""What the conformance suite does not ask of the OpenVINO target: options, dynamic sizes, profiles."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import inlay
from inlay.cli.render import verdict
from inlay.errors import RunFailed, UsageError
from inlay.measure import own_precision
from inlay.portfolio.labels import measurable
from inlay.targets.base import Artifact, Capabilities
from inlay.targets.machine import cpu_flags
from inlay.targets.openvino import runtime
from inlay.targets.openvino.profile import typical
from inlay.targets.openvino.target import OpenVinoCpuTarget, OpenVinoExecutable
from inlay.targets.registry import available, options_of
from inlay.testing import Builder, random_feed, run_reference, small_model, sqnr
from tests.support.workspace import Workspace


@pytest.fixture
def installed() -> None:
    pytest.importorskip("openvino", reason="the extra openvino is not installed")


@contextmanager
def compiled(proto: onnx.ModelProto, folder: Path, **options: Any) -> Iterator[OpenVinoExecutable]:
    path = folder / "model.onnx"
    onnx.save(proto, path)
    executable = OpenVinoCpuTarget(**options).compile(Artifact(path, "digest"))
    yield executable
    executable.close()


def dynamic_model() -> onnx.ModelProto:
    b = Builder()
    b.output(b.conv("conv", b.input("x", ("n", 3, "h", "w")), 4, relu=True))
    return b.model()


def test_it_is_installed_with_inlay() -> None:
    assert "openvino-cpu" in available()
    assert list(options_of("openvino-cpu")) == ["threads", "streams", "precision"]


@pytest.mark.parametrize("options", [{"threads": -1}, {"streams": 0}, {"precision": "int8"}])
def test_options_without_meaning_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"{next(iter(options))} must be .*, not {next(iter(options.values()))}"):
        OpenVinoCpuTarget(**options)


def test_without_the_package_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr("importlib.import_module", fail)
    runtime.openvino.cache_clear()
    runtime.core.cache_clear()
    try:
        target = OpenVinoCpuTarget()
        assert target.rules().ops
        with pytest.raises(UsageError, match=r"pip install 'inlay\[openvino\]'"):
            target.fingerprint()
        path = tmp_path / "model.onnx"
        onnx.save(small_model(), path)
        with pytest.raises(UsageError, match=r"pip install 'inlay\[openvino\]'"):
            target.compile(Artifact(path, "digest"))
    finally:
        runtime.openvino.cache_clear()
        runtime.core.cache_clear()


@pytest.mark.usefixtures("installed")
def test_every_option_is_part_of_the_fingerprint() -> None:
    variants = [{}, {"threads": 2}, {"streams": 2}, {"precision": "f32"}, {"precision": "bf16"}]
    assert len({OpenVinoCpuTarget(**v).fingerprint().digest for v in variants}) == len(variants)  # type: ignore[arg-type]


@pytest.mark.usefixtures("installed")
def test_dynamic_sizes_are_those_of_the_inputs(tmp_path: Path) -> None:
    proto = dynamic_model()
    with compiled(proto, tmp_path, precision="f32") as executable:
        for sizes in ((1, 8, 8), (2, 8, 8), (1, 6, 10), (1, 5, 5), (3, 4, 4), (1, 8, 8)):
            feed = random_feed(proto, bind=dict(zip("nhw", sizes, strict=True)))
            (want,), (got,) = run_reference(proto, feed).values(), executable.run(feed).values()
            assert got.shape == (sizes[0], 4, *sizes[1:])
            assert sqnr(want, got) > 60.0
        with pytest.raises(RunFailed, match="input x has shape"):
            executable.run({"x": np.zeros((1, 4, 8, 8), np.float32)})


@pytest.mark.usefixtures("installed")
def test_a_single_inference_computes_in_the_calling_thread(tmp_path: Path) -> None:
    """Waiting for another thread to wake up would be taken for other processes at work."""
    b = Builder()
    b.output(b.conv("conv", b.input("x", (1, 32, 64, 64)), 64, relu=True))
    model = b.model()
    with compiled(model, tmp_path, threads=1) as executable:
        feed = random_feed(model)
        executable.time(feed, 3)
        own_ns, all_ns = time.thread_time_ns(), time.process_time_ns()
        executable.time(feed, 20)
        own_ns, all_ns = time.thread_time_ns() - own_ns, time.process_time_ns() - all_ns
    assert own_ns >= 0.9 * all_ns


@pytest.mark.usefixtures("installed")
def test_inputs_of_another_type_are_refused(tmp_path: Path) -> None:
    proto = small_model()
    with compiled(proto, tmp_path) as executable:
        feed = random_feed(proto)
        with pytest.raises(RunFailed, match="input x is float64, the model takes float32"):
            executable.run({"x": feed["x"].astype(np.float64)})
        executable.run(feed)


@pytest.mark.usefixtures("installed")
def test_outputs_have_the_names_of_the_model_where_values_coincide(tmp_path: Path) -> None:
    b = Builder()
    x = b.conv("conv", b.input("x", (1, 3, 4, 4)), 2)
    b.output(b.node("first", "Identity", [x]))
    b.output(b.node("second", "Identity", [x]))
    b.output(b.node("third", "Relu", [x]))
    proto = b.model()
    with compiled(proto, tmp_path, precision="f32") as executable:
        feed = random_feed(proto)
        want, got = run_reference(proto, feed), executable.run(feed)
        assert list(got) == list(want)
        assert all(sqnr(want[name], got[name]) > 60.0 for name in want)


@pytest.mark.usefixtures("installed")
def test_bfloat16_is_honored(tmp_path: Path) -> None:
    """Every x86 processor with AVX512 can compute in it, most of them slowly."""
    proto = small_model()
    feed = random_feed(proto)
    want = next(iter(run_reference(proto, feed).values()))
    with compiled(proto, tmp_path, precision="f32") as executable:
        full = sqnr(want, next(iter(executable.run(feed).values())))
        assert {k.precision for k in executable.profile(feed, 1)} == {"float32"}
    with compiled(proto, tmp_path, precision="bf16") as executable:
        precisions = {k.precision for k in executable.profile(feed, 1)}
        if "bfloat16" not in precisions:
            pytest.skip("this processor computes nothing in bfloat16")
        assert 20.0 < sqnr(want, next(iter(executable.run(feed).values()))) < full - 20.0


@pytest.mark.usefixtures("installed")
def test_a_profile_says_what_each_kernel_is_there_for(tmp_path: Path) -> None:
    """By the units of the model: those in low precision read bytes, and every kernel has a cause."""
    proto = small_model()
    space = Workspace(proto, tmp_path, Capabilities.of(OpenVinoCpuTarget()))
    chosen = frozenset(u.name for u in space.prepared.selectable) - {"last"}
    emitted = space.emit(space.prepared.label(chosen))
    feed = space.feeds[0]
    with compiled(emitted, tmp_path, precision="f32") as executable:
        kernels = executable.profile(feed, 3)
    values = {v for n in space.graph.nodes for v in (*n.inputs, *n.outputs)}
    assert [k.name for k in kernels if not k.attributed] == []
    assert {v for k in kernels for v in k.values} <= values
    assert {n for k in kernels for n in k.nodes} <= {n.name for n in space.graph.nodes}
    computed = {k.nodes[0]: k.precision for k in kernels if k.kind == "compute"}
    assert {computed[n] for n in ("stem", "left", "right", "depthwise", "pointwise")} == {"uint8"}
    assert computed["last"] == "float32"
    assert {k.kind for k in kernels} >= {"compute", "quantize", "layout"}


def test_an_inference_that_was_interrupted_does_not_count() -> None:
    """Of averages cut off to microseconds, over ten inferences, of which one took 4 ms more in the second kernel."""
    rng = np.random.default_rng(0)
    truth = np.array([1500.0, 80_000.0, 700_000.0])
    single = truth * rng.normal(1.0, 0.02, (10, 3))
    single[4, 1] += 4e6
    sums = np.cumsum(single, axis=0)
    averages = np.floor(sums / np.arange(1, 11)[:, None] / 1000.0) * 1000.0
    found = typical([[*row, None] for row in averages.tolist()])
    assert found[3] == 0.0
    assert np.abs(found[:3] - truth).max() < 15_000.0
    assert averages[-1, 1] > 4 * truth[1], "which the average alone does not tell"
    assert np.abs(found[0] - truth[0]) < 1_000.0, "short kernels have the average's resolution"


@pytest.mark.usefixtures("installed")
def test_the_runtimes_own_format_is_read_too(tmp_path: Path) -> None:
    proto = small_model()
    onnx.save(proto, tmp_path / "model.onnx")
    openvino = runtime.openvino()
    openvino.save_model(runtime.core().read_model(tmp_path / "model.onnx"), tmp_path / "ir.xml", compress_to_fp16=False)
    feed = random_feed(proto)
    executable = OpenVinoCpuTarget(precision="f32").compile(Artifact(tmp_path / "ir.xml", "digest"))
    try:
        assert executable.profile(feed, 2)
        for name, want in run_reference(proto, feed).items():
            assert sqnr(want, executable.run(feed)[name]) > 60.0
    finally:
        executable.close()


def test_its_use_is_reported_to_nobody() -> None:
    """The package would import what sends an event to its makers; a new process, since it is imported once."""
    tell = "import sys, inlay.targets.openvino.runtime as r; r.openvino(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", tell], capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    assert "openvino" in modules
    assert "openvino_telemetry" not in modules


@pytest.fixture
def bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that has it, whatever this one has."""
    monkeypatch.setattr("inlay.targets.machine.cpu_flags", lambda: cpu_flags() | {"avx512_bf16"})


@pytest.mark.parametrize(
    ("machine", "flags", "kept"),
    [
        ("x86_64", {"avx2", "avx512_vnni"}, False),
        ("x86_64", {"avx2", "avx512_bf16"}, True),
        ("x86_64", set[str](), True),  # a system that lists none
        ("aarch64", {"asimddp"}, True),
    ],
)
def test_it_rounds_floats_by_itself_where_the_processor_has_products_in_fewer_bits(
    machine: str, flags: set[str], kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("inlay.targets.machine.cpu_flags", lambda: frozenset(flags))
    assert (OpenVinoCpuTarget().own_precision is not None) is kept
    assert OpenVinoCpuTarget(precision="bf16").own_precision is not None
    assert OpenVinoCpuTarget(precision="f32").own_precision is None


@pytest.mark.usefixtures("installed", "bfloat16")
def test_auto_looks_at_both_precisions_unless_one_was_asked_for() -> None:
    def labels(*given: str) -> list[str]:
        return [label for label in measurable(given, 1)[0] if label.startswith("openvino-cpu")]

    assert labels() == ["openvino-cpu", "openvino-cpu precision=f32"]
    assert labels("openvino-cpu.precision=bf16") == ["openvino-cpu"]
    assert labels("openvino-cpu.precision=f32") == ["openvino-cpu"]


@pytest.mark.usefixtures("installed", "bfloat16")
@pytest.mark.parametrize("is_faster", [True, False])
@pytest.mark.matrix
@pytest.mark.exhaustive
def test_a_run_is_in_the_precision_that_is_faster_and_says_how_to_run_the_model(
    is_faster: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the readings say here: which one is faster depends on the processor."""
    monkeypatch.setattr(own_precision, "is_faster", lambda gain: is_faster)
    model, out = tmp_path / "model.onnx", tmp_path / "out"
    onnx.save(small_model(), model)
    feeds = [dict(random_feed(small_model(), seed)) for seed in range(4)]
    options: dict[str, Any] = {"target": "openvino-cpu", "data": feeds, "strategy": "anchors", "budget": None}
    result = inlay.tune(model, out=out, min_sqnr=10.0, max_measurements=2, **options)
    assert result.precision is not None
    assert result.precision.gain is not None
    assert dict(result.precision.options) == ({"precision": "f32"} if is_faster else {})
    assert result.facts["precision"] == ("f32" if is_faster else "default")
    assert ("it was tuned with precision=f32; run it with that, too" in result.notes[0]) is is_faster
    assert ("'INFERENCE_PRECISION_HINT': 'f32'" in result.run_with) is is_faster
    said = "\n".join(line for line in verdict(result) if isinstance(line, str))
    assert ("exactly the measured options (threads 1, streams 1, precision f32), see run_with" in said) is is_faster
    monkeypatch.chdir(out)
    names: dict[str, Any] = {"feed": feeds[0]}
    exec(result.run_with, names)
    want = list(run_reference(out / "model.onnx", feeds[0]).values())
    assert sqnr(want[0], names["outputs"][0]) > 10.0
    monkeypatch.setattr(own_precision, "is_faster", lambda gain: not is_faster)
    again = inlay.tune(model, out=out, min_sqnr=10.0, max_measurements=4, **options)
    assert again.precision == result.precision
    assert again.target == result.target
