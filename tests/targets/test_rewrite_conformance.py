"""Negative controls of the conformance suite: it reports each way in which a rewrite can be wrong."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from inlay.model.graph import Graph, Node
from inlay.model.normalize import FloatRewrite
from inlay.quant.qdq_graph import QDQGraph
from inlay.quant.rewrite import Rewrite
from inlay.space.rules import Rules
from inlay.targets.base import Target
from inlay.targets.null import NullTarget
from inlay.targets.onnxruntime.rewrites import NonzeroZeroPoint
from inlay.testing import TargetTestCase, small_model


class Rewriting(NullTarget):
    """The null target, with rewrites."""

    def __init__(self, rewrites: Sequence[Rewrite[Any]] = (), float_rewrites: Sequence[FloatRewrite] = ()) -> None:
        super().__init__()
        self._rewrites, self._float_rewrites = tuple(rewrites), tuple(float_rewrites)

    def rewrites(self) -> tuple[Rewrite[Any], ...]:
        return self._rewrites

    def float_rewrites(self) -> tuple[FloatRewrite, ...]:
        return self._float_rewrites


class Suite(TargetTestCase):
    def __init__(self, target: Callable[[], Target]) -> None:
        self._target = target

    def target(self) -> Target:
        return self._target()

    def rewrite_models(self) -> Mapping[str, onnx.ModelProto]:
        return {"small": small_model()}


@dataclass(frozen=True)
class Sound(NonzeroZeroPoint):
    """A rewrite that keeps the contract, with a threshold of no effect."""

    threshold: int = 3


class OtherResults(Sound):
    def apply(self, qdq: QDQGraph, forms: Mapping[str, bool]) -> None:
        for node in (n for n in qdq.graph.node if n.name in forms):
            dq = qdq.dequantizer(node.input[1])
            if dq is not None:
                qdq.set_constant(dq.input[0], partial(np.negative, qdq.constant(dq.input[0])), "other", ())


class Invalid(Sound):
    def apply(self, qdq: QDQGraph, forms: Mapping[str, bool]) -> None:
        for node in (n for n in qdq.graph.node if n.name in forms):
            node.attribute.append(onnx.helper.make_attribute("no_such_attribute", 1))


class Idle(Sound):
    def applies(self, graph: Graph, node: Node) -> bool | None:
        return None


class NotUndone(Sound):
    def apply(self, qdq: QDQGraph, forms: Mapping[str, bool]) -> None:
        super().apply(qdq, forms)
        qdq.inverses.update(dict.fromkeys(qdq.inverses, (("less", 0),)))


class WithoutSource(Sound):
    source = " "


class DigestOfNothing(Sound):
    @property
    def digest(self) -> str:
        return self.name


class DigestOfProcess(Sound):
    @property
    def digest(self) -> str:
        return f"{os.getpid()} {self.threshold}"


@pytest.mark.parametrize(
    ("fault", "check", "message"),
    [
        (OtherResults, "test_rewrites_change_no_result", "changed"),
        (Invalid, "test_rewrites_change_no_result", "not valid"),
        (Idle, "test_rewrites_change_no_result", "changed no model"),
        (NotUndone, "test_rewrites_are_undone", "other qparams"),
        (WithoutSource, "test_rewrites_state_what_they_are", "source is empty"),
        (DigestOfNothing, "test_rewrite_digests_identify_them", "threshold"),
        (DigestOfProcess, "test_rewrite_digests_identify_them", "another process"),
    ],
)
@pytest.mark.matrix
def test_a_wrong_rewrite_fails(fault: type[Sound], check: str, message: str) -> None:
    getattr(Suite(lambda: Rewriting([Sound()])), check)()
    with pytest.raises(AssertionError, match=message):
        getattr(Suite(lambda: Rewriting([fault()])), check)()


def double_weights(model: ir.Model) -> tuple[ir.Model, int]:
    return _with_weights(model, 2.0), 1


def secretly_double_weights(model: ir.Model) -> tuple[ir.Model, int]:
    return _with_weights(model, 2.0), 0


def store_weights_anew(model: ir.Model) -> tuple[ir.Model, int]:
    return _with_weights(model, 1.0), 1


def nothing(model: ir.Model) -> tuple[ir.Model, int]:
    return model, 0


def _with_weights(model: ir.Model, factor: float) -> ir.Model:
    for name, value in model.graph.initializers.items():
        if value.const_value is not None and value.const_value.dtype is ir.DataType.FLOAT:
            value.const_value = ir.tensor(np.float32(factor) * value.const_value.numpy(), name=name)
    return model


@pytest.mark.parametrize(
    ("fault", "message"),
    [(double_weights, "dB"), (secretly_double_weights, "no edits were counted"), (nothing, "changed no model")],
)
def test_a_wrong_float_rewrite_fails(fault: Callable[[ir.Model], tuple[ir.Model, int]], message: str) -> None:
    sound = FloatRewrite("sound", store_weights_anew, "a control", "this test")
    Suite(lambda: Rewriting(float_rewrites=[sound])).test_float_rewrites_keep_outputs()
    with pytest.raises(AssertionError, match=message):
        Suite(lambda: Rewriting(float_rewrites=[replace(sound, apply=fault)])).test_float_rewrites_keep_outputs()


def test_two_rewrites_of_one_name_fail() -> None:
    suite = Suite(lambda: Rewriting([Sound(1), Sound(2)]))
    with pytest.raises(AssertionError, match="one name"):
        suite.test_rewrites_state_what_they_are()


def test_a_rule_without_source_fails() -> None:
    class Unsourced(NullTarget):
        def rules(self) -> Rules:
            rules = super().rules()
            return replace(rules, ops={**rules.ops, "Conv": replace(rules.ops["Conv"], source="")})

    Suite(NullTarget).test_rules_are_consistent()
    with pytest.raises(AssertionError, match="row of Conv"):
        Suite(Unsourced).test_rules_are_consistent()
