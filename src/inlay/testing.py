"""For tests: small models built node by node, and the conformance classes of targets and strategies.

A package that brings a target of its own proves that it keeps the contract in three lines of pytest::

    class TestMyTarget(inlay.testing.TargetTestCase):
        def target(self) -> Target:
            return MyTarget()

pytest itself is not imported here.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import helper, numpy_helper

from inlay.data import Samples, input_specs, random_samples
from inlay.errors import CompileFailed, InlayError, RunFailed
from inlay.model.load import file_sha256, load
from inlay.search.base import Strategy
from inlay.targets.base import Artifact, Executable, Feed, Rules, Target
from inlay.trial import Accuracy, Failed, Infeasible, Interval, Latency, Measured, Proposal, Trial
from inlay.workbench import Candidates, observe, prepare, table_from

__all__ = [
    "Builder",
    "StrategyTestCase",
    "TargetTestCase",
    "concat_model",
    "depthwise_model",
    "full_int8",
    "random_feed",
    "residual_model",
    "run_reference",
    "small_model",
    "sqnr",
]


class Builder:
    """Builds a model node by node, with seeded weights; every node has the name that it is given.

    Args:
        opset: version of the default ONNX domain.
        seed: of the weights.

    Example::

        b = Builder()
        x = b.input("x", (1, 3, 16, 16))
        b.output(b.conv("first", x, 8, relu=True))
        proto = b.model()
    """

    def __init__(self, opset: int = 17, seed: int = 0) -> None:
        self.opset = opset
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}
        self._channels: dict[str, int] = {}

    def input(self, name: str, shape: Sequence[int | str | None], dtype: int = onnx.TensorProto.FLOAT) -> str:
        """A graph input; text and None stand for dynamic dimensions."""
        self.inputs.append(helper.make_tensor_value_info(name, dtype, list(shape)))
        if len(shape) > 1 and isinstance(shape[1], int):
            self._channels[name] = shape[1]
        return name

    def constant(self, name: str, array: object) -> str:
        """An initializer; Python floats become float32, integers int64."""
        numbers = np.asarray(array)
        if numbers.dtype == np.float64:
            numbers = numbers.astype(np.float32)
        self.initializers[name] = numpy_helper.from_array(numbers, name)
        return name

    def node(
        self,
        name: str,
        op_type: str,
        inputs: Sequence[str],
        outputs: Sequence[str] = (),
        domain: str = "",
        channels: int | None = None,
        **attributes: Any,
    ) -> str:
        """A node; returns its first output, which is called ``<name>_out`` where ``outputs`` does not say.

        Args:
            name: of the node.
            op_type: operator.
            inputs: value names, ``""`` for an absent optional input.
            outputs: value names.
            domain: of the operator.
            channels: size of axis 1 of the first output, where it differs from that of the first input.
            attributes: of the node.
        """
        made = list(outputs) or [f"{name}_out"]
        self.nodes.append(helper.make_node(op_type, list(inputs), made, name=name, domain=domain, **attributes))
        known = channels if channels is not None else self._channels.get(inputs[0]) if inputs else None
        if known is not None:
            self._channels[made[0]] = known
        return made[0]

    def conv(
        self,
        name: str,
        x: str,
        channels: int,
        kernel: int = 3,
        group: int = 1,
        stride: int = 1,
        bias: bool = True,
        relu: bool = False,
    ) -> str:
        """A two-dimensional Conv with padding that keeps the size, perhaps with a Relu called ``<name>_relu``."""
        width = self.channels(x) // group
        shape = (channels, width, kernel, kernel)
        spread = np.sqrt(2.0 / (width * kernel * kernel))
        inputs = [x, self.constant(f"{name}_weight", self.rng.standard_normal(shape).astype(np.float32) * spread)]
        if bias:
            inputs.append(self.constant(f"{name}_bias", self.rng.normal(0, 0.1, channels).astype(np.float32)))
        pads = [kernel // 2] * 4
        y = self.node(name, "Conv", inputs, channels=channels, pads=pads, group=group, strides=[stride, stride])
        return self.node(f"{name}_relu", "Relu", [y]) if relu else y

    def concat(self, name: str, values: Sequence[str]) -> str:
        """Values joined along the channels."""
        return self.node(name, "Concat", values, channels=sum(self.channels(v) for v in values), axis=1)

    def classifier(self, name: str, x: str, classes: int) -> str:
        """Global average pooling, Flatten and Gemm."""
        pooled = self.node(f"{name}_pool", "GlobalAveragePool", [x])
        flat = self.node(f"{name}_flatten", "Flatten", [pooled])
        weight = self.rng.standard_normal((classes, self.channels(x))).astype(np.float32)
        bias = self.rng.normal(0, 0.1, classes).astype(np.float32)
        inputs = [flat, self.constant(f"{name}_weight", weight), self.constant(f"{name}_bias", bias)]
        return self.node(name, "Gemm", inputs, channels=classes, transB=1)

    def channels(self, value: str) -> int:
        """Size of axis 1 of ``value``."""
        return self._channels[value]

    def output(self, value: str, dtype: int = onnx.TensorProto.FLOAT) -> None:
        """Make ``value`` a graph output; its shape is inferred when the model is built."""
        given = next((i for i in self.inputs if i.name == value), None)
        self.outputs.append(given or helper.make_tensor_value_info(value, dtype, None))

    def model(self, check: bool = True) -> onnx.ModelProto:
        """The model, with inferred shapes, checked by ONNX unless ``check`` is False."""
        graph = helper.make_graph(self.nodes, "test", self.inputs, self.outputs, list(self.initializers.values()))
        opsets = [helper.make_opsetid("", self.opset)]
        opsets += [helper.make_opsetid(d, 1) for d in sorted({n.domain for n in self.nodes} - {""})]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="inlay.testing")
        if not check:
            return model
        inferred = onnx.shape_inference.infer_shapes(model)
        onnx.checker.check_model(inferred)
        return inferred


def residual_model(seed: int = 0) -> onnx.ModelProto:
    """Conv+Relu, then a residual block (Conv, Add of the skip, Relu), then a classifier."""
    b = Builder(seed=seed)
    stem = b.conv("stem", b.input("x", (1, 3, 12, 12)), 8, relu=True)
    branch = b.conv("branch", stem, 8)
    total = b.node("add_relu", "Relu", [b.node("add", "Add", [branch, stem])])
    b.output(b.classifier("head", total, 5))
    return b.model()


def concat_model(seed: int = 0) -> onnx.ModelProto:
    """A Fire module: squeeze, two expanding branches joined by Concat; its second output is the squeezed value."""
    b = Builder(seed=seed)
    squeeze = b.conv("squeeze", b.input("x", (1, 3, 12, 12)), 4, kernel=1, relu=True)
    narrow = b.conv("expand1", squeeze, 6, kernel=1, relu=True)
    wide = b.conv("expand3", squeeze, 6, relu=True)
    b.output(b.conv("last", b.concat("join", [narrow, wide]), 4))
    b.output(squeeze)
    return b.model()


def depthwise_model(seed: int = 0) -> onnx.ModelProto:
    """A separable convolution: depthwise and pointwise, between MaxPool and Sigmoid."""
    b = Builder(seed=seed)
    stem = b.conv("stem", b.input("x", (1, 3, 12, 12)), 8, relu=True)
    pooled = b.node("pool", "MaxPool", [stem], kernel_shape=[2, 2], strides=[2, 2])
    depthwise = b.conv("depthwise", pooled, 8, group=8, relu=True)
    b.output(b.node("gate", "Sigmoid", [b.conv("pointwise", depthwise, 6, kernel=1)]))
    return b.model()


def small_model(seed: int = 0) -> onnx.ModelProto:
    """All of the above in one: fork, Concat, depthwise Conv, residual Add, a float island (Tanh), a classifier."""
    b = Builder(seed=seed)
    stem = b.conv("stem", b.input("x", (1, 3, 16, 16)), 8, stride=2, relu=True)
    joined = b.concat("join", [b.conv("left", stem, 4, kernel=1, relu=True), b.conv("right", stem, 4, relu=True)])
    depthwise = b.conv("depthwise", joined, 8, group=8, relu=True)
    total = b.node("add", "Add", [b.conv("pointwise", depthwise, 8, kernel=1), joined])
    island = b.node("island", "Tanh", [total])
    b.output(b.classifier("head", b.conv("last", island, 8, relu=True), 10))
    return b.model()


def random_feed(model: onnx.ModelProto | Path, seed: int = 0, bind: Mapping[str, int] | None = None) -> Feed:
    """One set of random inputs: normal numbers for floats, 0 or 1 for integers and booleans."""
    loaded = ir.load(model) if isinstance(model, Path) else ir.from_proto(model)
    return random_samples(input_specs(loaded), bind or {}, np.random.default_rng(seed), 1).feeds[0]


def run_reference(model: onnx.ModelProto | Path, feed: Feed) -> dict[str, np.ndarray]:
    """Outputs by name, computed by ONNX Runtime with all graph rewrites off."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    source = str(model) if isinstance(model, Path) else model.SerializeToString()
    session = ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    return dict(zip((o.name for o in session.get_outputs()), session.run(None, dict(feed)), strict=True))


def sqnr(want: np.ndarray, got: np.ndarray) -> float:
    """Signal-to-quantization-noise ratio in dB; 300 where the arrays are equal."""
    signal = float(np.sum(np.square(want, dtype=np.float64)))
    noise = float(np.sum(np.square(want.astype(np.float64) - got)))
    return 300.0 if noise == 0.0 else float(10.0 * np.log10(max(signal, 1e-300) / noise))


def full_int8(model: Path, rules: Rules, feed: Feed, folder: Path) -> Path:
    """``model`` with all that ``rules`` allow in low precision, calibrated on one feed; gives a path in ``folder``."""
    prepared = prepare(load(model), rules, feed, folder)
    table = table_from(prepared, observe(prepared, Samples((dict(feed),), "feeds", "testing")), "minmax")
    placement = prepared.label(frozenset(u.name for u in prepared.selectable))
    return Candidates(prepared, table, "testing", "testing").deliver(placement, folder / "full-int8.onnx").path


@contextmanager
def _raises(kind: type[InlayError], what: str) -> Iterator[None]:
    try:
        yield
    except kind as error:
        text = str(error)
        assert text.strip(), f"{what}: the message of {kind.__name__} is empty"
        assert "\n" not in text, f"{what}: the message of {kind.__name__} has more than one line"
    except Exception as error:
        raise AssertionError(f"{what}: {type(error).__name__} instead of {kind.__name__}: {error}") from error
    else:
        raise AssertionError(f"{what}: nothing was raised, {kind.__name__} was expected")


class TargetTestCase:
    """What every target must keep. Subclass it, define :meth:`target`, and let pytest collect the subclass.

    Attributes:
        float_sqnr_db: least SQNR of a float model's outputs against ONNX Runtime's without rewrites.
        int8_sqnr_db: the same for a model with every allowed operator quantized.
    """

    float_sqnr_db = 60.0
    int8_sqnr_db = 10.0

    def target(self) -> Target:
        """A new target, the same one each time."""
        raise NotImplementedError("define target()")

    def models(self) -> Mapping[str, onnx.ModelProto]:
        """Float models that the target must run."""
        return {"residual": residual_model(), "concat": concat_model(), "depthwise": depthwise_model()}

    def test_fingerprint_is_stable_text(self) -> None:
        """Two instances have one fingerprint, made of text."""
        first, second = self.target().fingerprint(), self.target().fingerprint()
        assert first.target == self.target().name != ""
        assert first.digest == second.digest
        assert dict(first.facts) == dict(second.facts)
        assert all(isinstance(k, str) and isinstance(v, str) for k, v in first.facts.items())
        assert isinstance(self.target().deterministic, bool)

    def test_rules_are_consistent(self) -> None:
        """The table's keys, slots and limits make sense."""
        rules = self.target().rules()
        assert rules.weight.signed, "weights are symmetric: they need a signed type"
        assert 0 < rules.weight_limit <= rules.weight.qmax
        assert not rules.activation.value.startswith("int32")
        assert not rules.absorbed & set(rules.ops), "an absorbed activation has no row of its own"
        for op_type, row in rules.ops.items():
            assert row.op_type == op_type
            slots = row.activations or ()
            assert len(set(slots)) == len(slots), f"{op_type} names an input slot twice"
            taken = [s for s in (*slots, row.weight, row.bias) if s is not None]
            assert len(set(taken)) == len(taken), f"{op_type} gives an input slot two roles"
            assert all(s >= 0 for s in taken)
            assert row.activations is None or row.activations, f"{op_type} has no activation"
            assert not (row.moves and row.weight is not None), f"{op_type} only moves elements, but has a weight"

    def test_float_models_run(self) -> None:
        """Outputs come by name, in the model's dtype and shape, with the right numbers."""
        for name, proto in self.models().items():
            with self._compiled(proto) as (executable, feed, _):
                self._check_outputs(name, executable.run(feed), run_reference(proto, feed), self.float_sqnr_db)

    def test_quantized_models_run(self) -> None:
        """The full recipe of the target's own rules compiles and computes about the same."""
        for name, proto in self.models().items():
            with tempfile.TemporaryDirectory() as text:
                folder = Path(text)
                feed = random_feed(proto)
                onnx.save(proto, folder / "float.onnx")
                path = full_int8(folder / "float.onnx", self.target().rules(), feed, folder)
                executable = self.target().compile(Artifact(path, file_sha256(path)))
                try:
                    found = executable.run(feed)
                finally:
                    executable.close()
                self._check_outputs(name, found, run_reference(proto, feed), self.int8_sqnr_db)

    def test_time_gives_nanoseconds(self) -> None:
        """``time`` returns as many positive whole numbers as it was asked for."""
        with self._compiled(small_model()) as (executable, feed, _):
            for repeats in (1, 4):
                ns = executable.time(feed, repeats)
                assert isinstance(ns, np.ndarray)
                assert ns.dtype == np.int64
                assert ns.shape == (repeats,)
                assert (ns > 0).all()

    def test_deterministic_targets_repeat_themselves(self) -> None:
        """A target that says that it is deterministic gives one time only, in every executable."""
        if not self.target().deterministic:
            return
        with self._compiled(small_model()) as (first, feed, _), self._compiled(small_model()) as (second, _, _):
            assert len({*first.time(feed, 3).tolist(), *second.time(feed, 3).tolist()}) == 1

    def test_profile_lists_kernels(self) -> None:
        """``profile`` names kernels with finite times; together they took some."""
        with self._compiled(small_model()) as (executable, feed, _):
            kernels = executable.profile(feed, 3)
            assert kernels
            assert all(k.op_type and isinstance(k.nodes, tuple) for k in kernels)
            assert all(np.isfinite(k.ns) and k.ns >= 0.0 for k in kernels)
            assert sum(k.ns for k in kernels) > 0.0
            executable.run(feed)  # profiling leaves the executable usable

    def test_executables_are_independent(self) -> None:
        """Two models live side by side, and closing one leaves the other alone."""
        proto = residual_model()
        with self._compiled(proto) as (first, feed, _), self._compiled(proto) as (second, _, _):
            before = second.run(feed)
            first.close()
            after = second.run(feed)
            assert all(np.array_equal(before[k], after[k]) for k in before)

    def test_garbage_does_not_compile(self) -> None:
        """A file that is no model, a truncated model, an invalid graph and a missing file raise CompileFailed."""
        whole = residual_model().SerializeToString()
        invalid = residual_model()
        invalid.graph.node[0].input[0] = "no_such_value"
        cases = {
            "noise": hashlib.sha256(b"noise").digest() * 8,
            "truncated": whole[: len(whole) // 2],
            "empty": b"",
            "invalid": invalid.SerializeToString(),
        }
        with tempfile.TemporaryDirectory() as folder:
            for name, data in cases.items():
                path = Path(folder) / f"{name}.onnx"
                path.write_bytes(data)
                with _raises(CompileFailed, name):
                    self.target().compile(Artifact(path, file_sha256(path))).close()
            with _raises(CompileFailed, "missing file"):
                self.target().compile(Artifact(Path(folder) / "missing.onnx", "0" * 64)).close()

    def test_wrong_feeds_do_not_run(self) -> None:
        """A missing input and a wrong rank raise RunFailed; the executable stays usable."""
        with self._compiled(residual_model()) as (executable, feed, _):
            with _raises(RunFailed, "missing input"):
                executable.run({})
            with _raises(RunFailed, "wrong rank"):
                executable.run({k: v[..., None] for k, v in feed.items()})
            executable.run(feed)

    def test_closed_executables_do_not_run(self) -> None:
        """After ``close`` (twice is fine) every call raises RunFailed."""
        with self._compiled(residual_model()) as (executable, feed, _):
            executable.close()
            executable.close()
            calls: dict[str, Callable[[], object]] = {
                "run": lambda: executable.run(feed),
                "time": lambda: executable.time(feed, 1),
                "profile": lambda: executable.profile(feed, 1),
            }
            for name, call in calls.items():
                with _raises(RunFailed, f"{name} after close"):
                    call()

    @contextmanager
    def _compiled(self, proto: onnx.ModelProto) -> Iterator[tuple[Executable, Feed, Path]]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            onnx.save(proto, path)
            executable = self.target().compile(Artifact(path, file_sha256(path)))
            try:
                yield executable, random_feed(proto), path
            finally:
                executable.close()

    @staticmethod
    def _check_outputs(
        name: str, found: Mapping[str, np.ndarray], want: Mapping[str, np.ndarray], least_db: float
    ) -> None:
        assert list(found) == list(want), f"{name}: outputs {list(found)} instead of {list(want)}"
        for output, array in want.items():
            assert found[output].dtype == array.dtype, f"{name}: dtype of {output}"
            assert found[output].shape == array.shape, f"{name}: shape of {output}"
            quality = sqnr(array, found[output])
            assert quality >= least_db, f"{name}: output {output} has {quality:.1f} dB"


class StrategyTestCase:
    """The ask/tell contract. Subclass it, define :meth:`strategy`, and let pytest collect the subclass.

    Attributes:
        most_asks: a strategy that asks more often counts as one that never ends.
    """

    most_asks = 2000

    def strategy(self) -> Strategy:
        """A new strategy, built with the same arguments each time."""
        raise NotImplementedError("define strategy()")

    def answer(self, proposal: Proposal, number: int) -> Trial:
        """What the ``number``-th proposal is told: by default speeds and accuracies that depend on its digest only."""
        draw = np.random.default_rng(int(proposal.placement.digest, 16))
        gain = float(np.exp(draw.normal(0.05, 0.3)))
        feasible = bool(draw.random() < 0.6)
        accuracy = Accuracy(feasible, float(draw.normal(25.0, 8.0)), reason="" if feasible else "outside the bound")
        latency = Latency(1e6 / gain, Interval(gain, gain * 0.99, gain * 1.01), 6)
        accepted = feasible and draw.random() < 0.3
        return Trial(proposal, Measured(latency, accuracy), accepted, Interval(gain, gain * 0.99, gain * 1.01))

    def test_it_ends_and_stays_ended(self) -> None:
        """``ask`` returns None at last, and None again afterwards."""
        strategy, asked = self.strategy(), self._talk(self.answer)
        assert len(asked) <= self.most_asks
        for number in range(self.most_asks):
            proposal = strategy.ask()
            if proposal is None:
                break
            strategy.tell(self.answer(proposal, number))
        assert strategy.ask() is None
        assert strategy.ask() is None

    def test_it_is_deterministic(self) -> None:
        """Two strategies built with the same arguments and told the same ask the same."""
        first, second = self._talk(self.answer), self._talk(self.answer)
        assert [(p.placement, p.origin, p.anchor) for p in first] == [(p.placement, p.origin, p.anchor) for p in second]

    def test_proposals_are_named(self) -> None:
        """The strategy and each of its proposals say where they come from."""
        assert self.strategy().name
        assert all(p.origin for p in self._talk(self.answer))

    def test_failures_do_not_stop_it_early_or_ever(self) -> None:
        """When everything fails it still ends, and does not raise."""
        self._talk(lambda p, n: Trial(p, Failed("compile", "refused")))
        self._talk(lambda p, n: Trial(p, Infeasible(Accuracy(False, 5.0, reason="outside the bound"))))

    def _talk(self, answer: Callable[[Proposal, int], Trial]) -> list[Proposal]:
        strategy, asked = self.strategy(), []
        while (proposal := strategy.ask()) is not None:
            assert isinstance(proposal, Proposal)
            asked.append(proposal)
            assert len(asked) <= self.most_asks, f"{strategy.name} asked {len(asked)} times and goes on"
            strategy.tell(answer(proposal, len(asked) - 1))
        return asked
