"""The Ethos-U target: estimates that count the host, exact results, and failures that are values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from inlay.errors import CompileFailed, RunFailed, UsageError
from inlay.targets import registry
from inlay.targets.base import Artifact, TargetSpec
from inlay.tosa.ethos_u import partitions, vela
from inlay.tosa.ethos_u.partitions import compile_partitions
from inlay.tosa.ethos_u.vela import Accelerator
from inlay.tosa.integer_graph import all_legal
from inlay.tosa.lowering import lower
from tests.tosa.comparison import by_oracle, run_ort
from tests.tosa.nets import Net, normal_feed, random_weights


def chain(host: bool = False, resize: bool = False) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    n = Net()
    x = n.qdq(n.input([1, 4, 16, 16]), 0.05, 3)
    w = random_weights(rng, 8, 4, 3, 3)
    y = n.qdq(n.op("Relu", [n.op("Conv", [x, n.weight(w, 0.002)])]), 0.05, -111)
    if host:
        y = n.qdq(n.op("CumSum", [y, n.const(np.int64(1))]), 0.1, 0)
    if resize:
        y = n.qdq(n.op("Resize", [y, "", n.const(np.array([1, 1, 2, 2], np.float32))], mode="linear"), 0.05, -111)
    w = random_weights(rng, 4, 8, 1, 1)
    n.output(n.qdq(n.op("Conv", [y, n.weight(w, 0.002)]), 0.05, 0))
    return n.model()


def save(model: onnx.ModelProto, folder: Path) -> Artifact:
    onnx.save(model, folder / "m.onnx")
    return Artifact(folder / "m.onnx", "m.onnx")


@pytest.mark.parametrize("name", vela.ACCELERATORS)
def test_every_accelerator(name: str, tmp_path: Path) -> None:
    target = registry.create(TargetSpec(name))
    assert target.name == name
    assert target.deterministic
    model = chain()
    executable = target.compile(save(model, tmp_path))
    feed = normal_feed(model, 1)
    result = executable.run(feed)
    assert list(result) == [o.name for o in model.graph.output]
    np.testing.assert_array_equal(next(iter(result.values())), by_oracle(lower(model).graph, feed)[0])
    assert np.abs(next(iter(result.values())) - run_ort(model, feed)[0]).max() <= 0.05 * 1.001
    times = executable.time(feed, 3)
    assert times.dtype == np.int64
    assert times.shape == (3,)
    assert (times == times[0]).all()
    assert times[0] > 0
    assert sum(k.ns for k in executable.profile(feed, 1)) == pytest.approx(times[0], rel=1e-3)
    executable.close()
    executable.close()
    with pytest.raises(RunFailed):
        executable.run(feed)


def test_dynamic_shapes_are_those_of_the_inputs(tmp_path: Path) -> None:
    """An NPU program has static shapes: the model is built for those of its inputs, and priced by them."""
    model = chain()
    for value in model.graph.input:
        value.type.tensor_type.shape.dim[2].dim_param = "rows"
        value.type.tensor_type.shape.dim[3].Clear()
    executable = registry.create(TargetSpec("ethos-u55-128")).compile(save(model, tmp_path))
    times = []
    for side in (8, 16, 8):
        feed = {"in1": np.random.default_rng(1).normal(size=(1, 4, side, side)).astype(np.float32)}
        (ours,), (theirs,) = executable.run(feed).values(), run_ort(model, feed)
        assert ours.shape == theirs.shape
        assert np.abs(ours - theirs).max() <= 0.05 * 1.001
        times.append(int(executable.time(feed, 1)[0]))
    assert times[0] == times[2] < times[1]


def test_fingerprint_names_what_estimates_depend_on() -> None:
    facts = registry.create(TargetSpec("ethos-u55-128")).fingerprint().facts
    assert {"vela", "tosa-tools", "system_config", "memory_mode", "host_model"} <= set(facts)
    assert facts["kind"] == "estimate"
    other = registry.create(TargetSpec("ethos-u55-128", {"memory_mode": "Sram_Only"})).fingerprint()
    assert other.digest != registry.create(TargetSpec("ethos-u55-128")).fingerprint().digest


def test_estimates_are_deterministic() -> None:
    data = lower(chain()).tosa[0].data
    accelerator = Accelerator.of("ethos-u85-256")
    assert vela.estimate(data, accelerator) == vela.estimate(data, accelerator)


def test_host_work_is_not_free() -> None:
    """A node on the host costs its own work, two crossings and a second call of the NPU."""
    _, inside = compile_partitions(chain(), Accelerator.of("ethos-u55-128"))
    lowered, split = compile_partitions(chain(host=True), Accelerator.of("ethos-u55-128"))
    assert [p.kind for p in lowered.partitions] == ["tosa", "host", "tosa"]
    assert inside.host == 0
    assert split.host > 0
    assert split.crossing > 2 * inside.crossing
    assert split.cycles > inside.cycles


def test_a_node_that_shall_stay_on_the_host_does() -> None:
    """What the benchmark of Concats compares with."""
    model = chain()
    node = next(n.name for n in model.graph.node if n.op_type == "Conv")
    lowered, cost = compile_partitions(model, Accelerator.of("ethos-u55-128"), {node: "left in float"})
    assert [(n.node, n.reason) for n in lowered.not_lowered if n.node == node] == [(node, "left in float")]
    assert cost.host > 0


@pytest.mark.parametrize(("accelerator", "host"), [("ethos-u55-128", True), ("ethos-u85-256", False)])
def test_what_vela_refuses_goes_to_the_host_with_the_reason(accelerator: str, host: bool) -> None:
    lowered, cost = compile_partitions(chain(resize=True), Accelerator.of(accelerator))
    assert ("host" in [p.kind for p in lowered.partitions]) == host
    assert (cost.host > 0) == host
    if host:
        assert "Ethos-U55/U65 resize" in lowered.not_lowered[0].reason


@pytest.mark.parametrize("accelerator", ["ethos-u55-128", "ethos-u65-512", "ethos-u85-256"])
@pytest.mark.parametrize(("kind", "channels"), [("SpaceToDepth", 32), ("DepthToSpace", 2)])
def test_moving_pixels_into_channels_and_back_stays_on_the_npu(kind: str, channels: int, accelerator: str) -> None:
    rng = np.random.default_rng(0)
    n = Net()
    w = random_weights(rng, 8, 4, 3, 3)
    y = n.qdq(n.op("Conv", [n.qdq(n.input([1, 4, 16, 16]), 0.05, 3), n.weight(w, 0.002)]), 0.05, -3)
    y = n.qdq(n.op(kind, [y], blocksize=2), 0.05, -3)
    w = random_weights(rng, 4, channels, 1, 1)
    n.output(n.qdq(n.op("Conv", [y, n.weight(w, 0.002)]), 0.05, 0))
    lowered, cost = compile_partitions(n.model(), Accelerator.of(accelerator))
    assert [p.kind for p in lowered.partitions] == ["tosa"]
    assert not lowered.not_lowered
    assert cost.host == 0


def test_what_the_table_misses_is_found_by_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the table, the rejected partition is searched operator by operator."""
    monkeypatch.setattr(partitions, "legality_for", lambda family: all_legal)
    lowered, _ = compile_partitions(chain(resize=True), Accelerator.of("ethos-u55-128"))
    assert [n.op_type for n in lowered.not_lowered] == ["Resize"]
    assert "Vela refuses" in lowered.not_lowered[0].reason


@pytest.mark.parametrize("name", ["ethos-u55-32", "ethos-u55-128", "ethos-u55-256", "ethos-u65-512", "ethos-u85-256"])
def test_the_price_of_requantizing_is_what_vela_says(name: str) -> None:
    """Two branches of 32x64x64 that meet in a Concat: both with its scale, or one with its own."""

    def cycles(scale: float) -> float:
        rng = np.random.default_rng(0)
        n = Net()
        x = n.qdq(n.input([1, 8, 64, 64]), 0.02, 3)
        parts = []
        for own in (0.05, scale):
            w = random_weights(rng, 32, 8, 3, 3)
            y = n.op("Relu", [n.op("Conv", [x, n.weight(w, 0.002)], pads=[1] * 4)])
            parts.append(n.qdq(y, own, -111))
        n.output(n.qdq(n.op("Concat", parts, axis=1), 0.05, -111))
        return compile_partitions(n.model(), Accelerator.of(name))[1].npu

    added = (cycles(0.06) - cycles(0.05)) / (32 * 64 * 64)
    assert registry.create(TargetSpec(name)).rules().requantize_cost == pytest.approx(added, rel=0.25)


@pytest.mark.parametrize("kind", ["Add", "Sub", "Min", "Max"])
def test_equal_scales_are_never_dearer_than_different_ones(kind: str) -> None:
    """Vela splits some conversions to int32 into several operators; the lowering emits those that it keeps whole."""

    def cycles(second_scale: float) -> float:
        n = Net()
        a, b = (n.qdq(n.input([1, 8, 8, 8]), s, z) for s, z in ((0.05, 3), (second_scale, 3)))
        n.output(n.qdq(n.op(kind, [a, b]), 0.05 if kind in ("Min", "Max") else 0.1, 3))
        return compile_partitions(n.model(), Accelerator.of("ethos-u55-128"))[1].npu

    equal, different = cycles(0.05), cycles(0.03)
    assert equal <= different
    assert different < 3000  # five operators of int32 would be 7,000


def test_unknown_accelerator() -> None:
    with pytest.raises(UsageError, match="ethos-u55-128"):
        Accelerator.of("ethos-u55-512")


def test_unknown_configuration() -> None:
    with pytest.raises(UsageError, match="Nowhere"):
        vela.estimate(b"", Accelerator.of("ethos-u55-128", "Nowhere"))


def test_garbage_is_a_compile_failure(tmp_path: Path) -> None:
    with pytest.raises(CompileFailed):
        vela.estimate(b"no flatbuffer at all", Accelerator.of("ethos-u55-128"))
    (tmp_path / "m.onnx").write_bytes(b"not a model")
    with pytest.raises(CompileFailed):
        registry.create(TargetSpec("ethos-u55-128")).compile(Artifact(tmp_path / "m.onnx", ""))
