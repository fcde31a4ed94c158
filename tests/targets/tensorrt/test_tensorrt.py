"""TensorRT's bindings as a target, with stand-ins for the libraries that were written after their documentation."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

import inlay
from inlay.errors import CompileFailed, RunFailed, TargetError, UsageError
from inlay.targets.base import Artifact, Target
from inlay.targets.tensorrt import bindings
from inlay.targets.tensorrt.target import TensorRtTarget
from inlay.testing import Builder, TargetTestCase, random_feed, residual_model, run_reference
from tests.targets.tensorrt.fake_bindings import TENSORRT, Cuda

FEED = random_feed(residual_model())


def _forget() -> None:
    for cached in (bindings.load, bindings.cuda, bindings.logger):
        cached.cache_clear()


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cuda]:
    """The stand-ins, and the device's memory."""
    found = Cuda()
    monkeypatch.setitem(sys.modules, "tensorrt", TENSORRT)
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", found)
    _forget()
    yield found
    _forget()


class TestTensorRt(TargetTestCase):
    @pytest.fixture(autouse=True)
    def _libraries(self, device: Cuda, tmp_path: Path) -> Iterator[None]:
        self.cache = tmp_path / "cache"
        yield
        assert not device.memory, "all memory of the device was given back"

    def target(self) -> Target:
        return TensorRtTarget(timing_cache=str(self.cache))


@pytest.fixture
def model(tmp_path: Path) -> Artifact:
    onnx.save(residual_model(), tmp_path / "model.onnx")
    return Artifact(tmp_path / "model.onnx", "digest")


def test_candidates_share_the_timing_cache(device: Cuda, model: Artifact, tmp_path: Path) -> None:
    target = TensorRtTarget(timing_cache=str(tmp_path / "cache"))
    for _ in range(3):
        target.compile(model).close()
    assert (tmp_path / "cache").read_bytes() == b"...", "each build adds to what it was given"
    with pytest.raises(UsageError, match="there is no folder"):
        TensorRtTarget(timing_cache="/no/such/folder/cache")


def test_shapes_are_locked_to_the_inputs(device: Cuda, tmp_path: Path) -> None:
    dynamic = residual_model()
    for value in (*dynamic.graph.input, *dynamic.graph.value_info, *dynamic.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "N"
    onnx.save(dynamic, tmp_path / "dynamic.onnx")
    executable = TensorRtTarget().compile(Artifact(tmp_path / "dynamic.onnx", "digest"))
    (want,) = run_reference(residual_model(), FEED).values()
    for count in (2, 1, 2):
        (found,) = executable.run({k: np.concatenate([v] * count) for k, v in FEED.items()}).values()
        assert found.shape[0] == count
        assert np.allclose(found[:1], want, atol=1e-4)
    with pytest.raises(RunFailed, match="has the shape"):
        executable.run({k: v[..., None] for k, v in FEED.items()})


def test_outputs_whose_size_the_data_decide(device: Cuda, tmp_path: Path) -> None:
    b = Builder()
    b.output(b.node("find", "NonZero", [b.input("x", (1, 6))]), onnx.TensorProto.INT64)
    onnx.save(b.model(), tmp_path / "find.onnx")
    found = TensorRtTarget().compile(Artifact(tmp_path / "find.onnx", "digest"))
    for row in ([0, 3, 0, 4, 0, 0], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0]):
        (places,) = found.run({"x": np.array([row], np.float32)}).values()
        assert np.array_equal(places, np.nonzero([row]))
    found.close()
    assert not device.memory


def test_both_clocks(device: Cuda, model: Artifact) -> None:
    """The device's is that of its events; the host's covers the transfers as well."""
    device.transfer_s, device.kernel_ms = 0.002, 0.125
    host, kernels = (TensorRtTarget(clock=c).compile(model).time(FEED, 3) for c in ("host", "device"))
    assert kernels.tolist() == [125_000] * 3
    assert host.dtype == np.int64
    assert host.min() >= 4_000_000, "to the device, and back"
    with pytest.raises(UsageError, match="clock=wall"):
        TensorRtTarget(clock="wall")


def test_layers_are_traced_by_the_inspector(device: Cuda, model: Artifact) -> None:
    kernels = TensorRtTarget().compile(model).profile(FEED, 4)
    assert {n for k in kernels for n in k.nodes} == {n.name for n in onnx.load(model.path).graph.node}
    assert all(k.ns == 0.25e6 for k in kernels)


def test_what_tensorrt_refuses_is_told_in_its_words(device: Cuda, model: Artifact, tmp_path: Path) -> None:
    b = Builder()
    boxes, scores = b.input("boxes", (1, 4, 4)), b.input("scores", (1, 1, 4))
    b.output(b.node("nms", "NonMaxSuppression", [boxes, scores]), onnx.TensorProto.INT64)
    onnx.save(b.model(), tmp_path / "nms.onnx")
    with pytest.raises(CompileFailed, match="no importer registered for op: NonMaxSuppression"):
        TensorRtTarget().compile(Artifact(tmp_path / "nms.onnx", "digest"))
    (tmp_path / "broken.so").write_bytes(b"")
    for name, words in (("nothing.so", "there is no plugin library"), ("broken.so", "does not load")):
        with pytest.raises(CompileFailed, match=words):
            TensorRtTarget(plugins=str(tmp_path / name)).compile(model)
    with pytest.raises(CompileFailed, match="cudaSetDevice failed: 101"):
        TensorRtTarget(device=1).compile(model)


def test_facts(device: Cuda) -> None:
    facts = TensorRtTarget().fingerprint().facts
    assert (facts["tensorrt"], facts["device"], facts["cuda"]) == ("11.3.0", "a stand-in", "13.2")
    with pytest.raises(TargetError, match="cudaGetDeviceProperties failed"):
        TensorRtTarget(device=3).fingerprint()


def test_libraries_that_are_missing_or_too_old_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    _forget()
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(UsageError, match=r"needs tensorrt: pip install tensorrt cuda-python") as raised:
        TensorRtTarget().fingerprint()
    assert "\n" not in str(raised.value)
    old = type(sys)("tensorrt")
    old.__version__ = "10.13.3"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorrt", old)
    with pytest.raises(UsageError, match=r"needs version 11 or later of tensorrt, installed is 10\.13\.3"):
        TensorRtTarget().fingerprint()
    _forget()


def test_the_list_says_that_no_device_was_at_hand() -> None:
    rows = {row.name: row for row in inlay.list_targets()}
    for name in {"tensorrt", "trtexec"} & set(rows):  # once the package's entry points are installed
        assert "nothing of it has run on a device" in rows[name].remark
        assert rows[name].problem or rows[name].facts
    assert "nothing of it has run on a device" in TensorRtTarget.remark
