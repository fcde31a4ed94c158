"""The conformance checks of a target's rewrites, quantized and float."""

from __future__ import annotations

import math
import os
import pickle
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from inlay.calibrate.observe import observe
from inlay.calibrate.tables import CalibrationChoice
from inlay.data import Samples
from inlay.model.graph import build_graph
from inlay.model.load import load
from inlay.model.normalize import HALF_NOISE_DB, NOISE_DB, FloatRewrite, normalize
from inlay.model.passes.half import has_halves
from inlay.model.reference import ConstantEvaluator
from inlay.model.store import WeightStore, embed_weights
from inlay.prepare.model import PreparedModel, prepare
from inlay.quant.emit import Emitter
from inlay.quant.extract import Extraction, extract
from inlay.quant.qparams import QParamsTable
from inlay.quant.rewrite import Rewrite
from inlay.space.units import STATIC
from inlay.targets.base import Capabilities, Feed, Target
from inlay.testing.models import (
    concat_model,
    depthwise_model,
    large_image_model,
    random_feed,
    recurrent_model,
    residual_model,
    run_reference,
    same_up_to_noise,
    small_model,
    upsampling_model,
)
from inlay.types import Placement, PortRewrite, QParams, QType

_DIGESTS = "import pickle, sys; print(*(r.digest for r in pickle.load(sys.stdin.buffer)))"
_Rewrites = Sequence[Rewrite[Any]]
_INEXACT_DB = 30.0  # where sums round in another order, or an operator rounds its state as well


@dataclass(frozen=True, eq=False, kw_only=True)
class _Emission:
    """One model, prepared for a target, with everything in one precision that the target has."""

    name: str  # of the model
    prepared: PreparedModel  # the model
    placement: Placement  # every unit that has this precision, without rewrites
    # qparams whose scales are powers of two. Every product and every sum of the integers is then exact in float32, so
    # that two ways of writing an operator must agree to the bit, whatever order they add in.
    table: QParamsTable
    feed: Feed  # one set of inputs
    static: bool  # whether the scales are fixed. Dynamic ones are no powers of two.
    rewrites: frozenset[PortRewrite]  # of the selectable ones, those to select: they are for integers

    @property
    def selected(self) -> Placement:
        """The placement with every selectable rewrite wherever it applies."""
        return self.placement.with_rewrites(self.rewrites)

    def emit(self, placement: Placement, rewrites: _Rewrites) -> onnx.ModelProto:
        """The model with ``placement`` and those of its rewrites that are among ``rewrites``."""
        model, graph, store = self.prepared.normalized.model, self.prepared.graph, self.prepared.store
        emitter = Emitter(model, graph, store, rewrites, build_graph(model))
        return embed_weights(emitter.emit(placement, self.table), store)


class RewriteTestCase:
    """What a target's rewrites must keep; a part of :class:`~inlay.testing.TargetTestCase`."""

    def target(self) -> Target:
        """A new target, the same one each time."""
        raise NotImplementedError("define target()")

    def rewrite_models(self) -> Mapping[str, onnx.ModelProto]:
        """Float models; each quantized rewrite of the target must change at least one of them."""
        builders = (
            residual_model, concat_model, depthwise_model, small_model, upsampling_model, large_image_model,
            recurrent_model,
        )  # fmt: skip
        return {b.__name__: b() for b in builders}

    def float_rewrite_models(self) -> Mapping[str, onnx.ModelProto]:
        """Float models; each float rewrite of the target must change at least one of them."""
        return self.rewrite_models()

    def test_rewrites_state_what_they_are(self) -> None:
        """Each has a name of its own, a reason and a source; quantized ones are frozen dataclasses."""
        for rewrites in (self.target().rewrites(), self.target().float_rewrites()):
            names = [r.name for r in rewrites]
            assert len(set(names)) == len(names), f"two rewrites have one name: {names}"
            for rewrite in rewrites:
                for what in ("name", "reason", "source"):
                    assert getattr(rewrite, what, "").strip(), f"{rewrite.name or rewrite}: the {what} is empty"
        for rewrite in self.target().rewrites():
            parameters = getattr(type(rewrite), "__dataclass_params__", None)
            assert parameters is not None, f"{rewrite.name}: not a dataclass"
            assert parameters.frozen, f"{rewrite.name}: not frozen"

    def test_rewrite_digests_identify_them(self) -> None:
        """A digest is the same in every process, and another one for other thresholds and other rewrites."""
        rewrites = tuple(self.target().rewrites())
        digests = [r.digest for r in rewrites]
        assert digests == [r.digest for r in self.target().rewrites()]
        assert len(set(digests)) == len(digests), "two rewrites have one digest"
        for rewrite in rewrites:
            for name, other in _other_thresholds(rewrite):
                assert other.digest != rewrite.digest, f"{rewrite.name}: the digest does not depend on {name}"
        for seed in ("1", "3") if rewrites else ():  # in which small sets are iterated over in different orders
            elsewhere = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
            done = subprocess.run(
                [sys.executable, "-c", _DIGESTS], input=pickle.dumps(rewrites), env=elsewhere, capture_output=True
            )
            assert done.returncode == 0, done.stderr.decode()
            assert done.stdout.decode().split() == digests, "a digest is another one in another process"

    def test_rewrites_change_no_result(self) -> None:
        """With each rewrite in turn the written model is valid and computes the same integers as without it."""
        rewrites, changed = tuple(self.target().rewrites()), set()
        for case in self._emissions():
            before = case.emit(case.selected, ())
            want = run_reference(before, case.feed)
            for count, rewrite in enumerate(rewrites, 1):
                what = f"{rewrite.name}, in {case.name}"
                after = case.emit(case.selected, rewrites[:count])
                if after.graph == before.graph:
                    continue
                changed.add(rewrite.name)
                _check(after, what)
                got = run_reference(after, case.feed)
                assert list(got) == list(want), f"{what}: the outputs are {list(got)} instead of {list(want)}"
                if not rewrite.exact:
                    same_up_to_noise(want, got, _INEXACT_DB, what)
                    want = got
                different = [v for v in want if not np.array_equal(want[v], got[v], equal_nan=True)]
                assert not different, f"{what}: {different} changed"
                before = after
        _all_taken(rewrites, changed, "rewrite_models")

    def test_rewrites_are_undone(self) -> None:
        """Extracting finds the placement, the qparams and the operators again; emitted anew, the results are equal."""
        rewrites = tuple(self.target().rewrites())
        for case in self._emissions():
            plain = _extract(case.emit(case.placement, ()))
            written = case.emit(case.selected, rewrites)
            found = _extract(written)
            assert not found.leftovers, f"{case.name}: not undone: {found.leftovers}"
            assert found.placement == case.selected, f"{case.name}: extracting finds another placement"
            assert found.qparams == plain.qparams, f"{case.name}: extracting finds other qparams"
            want, got = (Counter((n.op_type, n.name) for n in e.model.graph) for e in (plain, found))
            assert want == got, f"{case.name}: undone, the operators are not those of before"
            with tempfile.TemporaryDirectory() as folder:
                again = _emit_again(found, case, rewrites, Path(folder))
            assert _extract(again).placement == case.selected, f"{case.name}: emitted anew"
            first, second = (run_reference(m, case.feed) for m in (written, again))
            same_up_to_noise(first, second, np.inf if case.static else _INEXACT_DB, f"{case.name}: emitted anew")

    def test_rewrites_leave_other_models_alone(self) -> None:
        """A rewrite that no port selects changes nothing."""
        rewrites = tuple(self.target().rewrites())
        unconditional = tuple(r for r in rewrites if not r.selectable)
        for case in self._emissions():
            usual = case.emit(case.placement, unconditional)
            assert case.emit(case.placement, rewrites) == usual, f"{case.name}: a rewrite was applied unselected"

    def test_float_rewrites_keep_outputs(self) -> None:
        """Each float rewrite leaves a valid model with the same outputs, up to the order of float operations."""
        rewrites, changed = tuple(self.target().float_rewrites()), set()
        for name, proto in self.float_rewrite_models().items() if rewrites else ():
            feed = random_feed(proto)
            with tempfile.TemporaryDirectory() as folder:
                model = normalize(ir.from_proto(proto), ConstantEvaluator(Path(folder)), None).model
            before = ir.to_proto(model)
            want = run_reference(before, feed)
            for rewrite in rewrites:
                what = f"{rewrite.name}, in {name}"
                rewritten, edits = rewrite.apply(model.clone())
                after = ir.to_proto(rewritten)
                if not edits:
                    assert _content(after) == _content(before), f"{what}: no edits were counted, but the model changed"
                    continue
                changed.add(rewrite.name)
                _check(after, what)
                same_up_to_noise(
                    want, run_reference(after, feed), HALF_NOISE_DB if has_halves(model) else NOISE_DB, what
                )
        _all_taken(rewrites, changed, "float_rewrite_models")

    def _emissions(self) -> Iterator[_Emission]:
        capabilities = Capabilities.of(self.target())
        for name, proto in self.rewrite_models().items() if capabilities.rewrites else ():
            with _emissions(name, proto, capabilities) as cases:
                yield from cases


@contextmanager
def _emissions(name: str, proto: onnx.ModelProto, target: Capabilities) -> Iterator[list[_Emission]]:
    """One for the static precision, one for static floats, and one for each form that some unit has."""
    with tempfile.TemporaryDirectory() as text:
        folder, feed = Path(text), random_feed(proto)
        onnx.save(proto, folder / "float.onnx")
        prepared = prepare(load(folder / "float.onnx"), target, feed, folder)
        observed = observe(prepared, Samples((dict(feed),), "feeds", "testing"))
        plain = CalibrationChoice("minmax").table(prepared, observed)
        precisions = {STATIC: frozenset(u.name for u in prepared.selectable)}
        for form in target.rules.forms:
            precisions[form.name] = frozenset(u.name for u in prepared.units if form.name in u.forms)
        cases = []
        for precision, units in precisions.items():
            placement = prepared.label(dict.fromkeys(units, precision))
            table, static = _powers_of_two(prepared, plain, placement), precision == STATIC
            if static or units:
                rewrites = prepared.selectable_rewrites
                cases.append(
                    _Emission(
                        name=f"{name}, {precision}",
                        prepared=prepared,
                        placement=placement,
                        table=table,
                        feed=feed,
                        static=static,
                        rewrites=rewrites,
                    )
                )
        for qtype in (t for t in prepared.rules.types if t.floating):
            floats = replace(prepared, rules=prepared.rules.with_usual(qtype))
            placement = floats.label(precisions[STATIC])
            table = _powers_of_two(floats, plain, placement)
            cases.append(
                _Emission(
                    name=f"{name}, {qtype.value}",
                    prepared=floats,
                    placement=placement,
                    table=table,
                    feed=feed,
                    static=True,
                    rewrites=frozenset(),
                )
            )
        yield cases


def _powers_of_two(prepared: PreparedModel, table: QParamsTable, placement: Placement) -> QParamsTable:
    """``table``, as far as ``placement`` needs it, with every scale rounded up to a power of two."""
    found: dict[tuple[str, QType], QParams] = {}
    for port, qtype in placement:
        value = prepared.graph.value_of(port)
        if qtype is not QType.INT32 and not qtype.dynamic:  # biases follow from the others
            params = table.params(value, qtype)
            found[value, qtype] = replace(params, scale=tuple(2.0 ** math.ceil(math.log2(s)) for s in params.scale))
    return QParamsTable(prepared.graph, prepared.rules, {}, found)


def _extract(model: onnx.ModelProto) -> Extraction:
    return extract(ir.from_proto(model))


def _emit_again(found: Extraction, case: _Emission, rewrites: _Rewrites, folder: Path) -> onnx.ModelProto:
    """The extracted model with the extracted placement and qparams."""
    model = ir.from_proto(onnx.shape_inference.infer_shapes(ir.to_proto(found.model)))
    graph, store = build_graph(model), WeightStore(folder)
    table = QParamsTable(graph, case.prepared.rules, {}, found.qparams)
    return embed_weights(Emitter(model, graph, store, rewrites).emit(found.placement, table), store)


def _other_thresholds(rewrite: Any) -> Iterator[tuple[str, Rewrite[Any]]]:
    """A dataclass of a rewrite, with each number, text and set among its fields changed in turn."""
    for field in fields(rewrite):
        value: Any = getattr(rewrite, field.name)
        other: Any = None
        match value:
            case bool():
                other = not value
            case int() | float():
                other = value + 1
            case str():
                other = f"{value}?"
            case frozenset():
                other = value | {"?"}
        if other is not None:
            yield field.name, replace(rewrite, **{field.name: other})


def _content(model: onnx.ModelProto) -> tuple[list[onnx.NodeProto], dict[str, bytes]]:
    """Nodes and constants, whatever shapes are stated."""
    return list(model.graph.node), {t.name: onnx.numpy_helper.to_array(t).tobytes() for t in model.graph.initializer}


def _check(model: onnx.ModelProto, what: str) -> None:
    try:
        onnx.checker.check_model(model, full_check=True)
    except Exception as error:  # the checker and shape inference raise several types
        raise AssertionError(f"{what}: the model is not valid any more: {error}") from error


def _all_taken(rewrites: Iterable[Rewrite[Any] | FloatRewrite], changed: set[str], models: str) -> None:
    idle = [r.name for r in rewrites if r.name not in changed]
    assert not idle, f"{idle} changed no model: let {models}() return one that each of them changes"
