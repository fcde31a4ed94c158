"""Normalization in tests: with the numeric gate on, or one rewrite alone with the outputs before and after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from inlay.model.nesting import nested
from inlay.model.normalize import FloatRewrite, Normalized, Pass, normalize
from inlay.model.pieces import run_model
from inlay.model.reference import ConstantEvaluator
from inlay.model.store import WeightStore
from inlay.targets.base import Feed
from inlay.targets.onnxruntime.float_rewrites import FLOAT_REWRITES
from inlay.testing import random_feed, run_reference, sqnr
from tests.support.runtime import check_and_load

REORDERED_DB = 90.0
"""What the same float32 sums in another order stay above."""


def normalize_gated(model: onnx.ModelProto, folder: Path) -> tuple[onnx.ModelProto, Normalized]:
    """``model`` after every pass, checked against ONNX Runtime on the model as it was given."""
    store, feed = WeightStore(folder), random_feed(model)
    done = normalize(ir.from_proto(model), ConstantEvaluator(folder), lambda m: run_model(m, store, feed))
    proto = nested(ir.to_proto(done.model))
    check_and_load(proto)
    want, got = run_reference(model, feed), run_reference(proto, feed)
    assert list(got) == list(want)
    assert all(sqnr(want[k], got[k]) > REORDERED_DB for k in want if want[k].dtype.kind == "f")
    return proto, done


@dataclass(frozen=True, eq=False)
class Rewritten:
    """A normalized model, with what the given model (``wanted``) and it (``got``) compute for one feed, ungated."""

    model: ir.Model
    wanted: Mapping[str, np.ndarray]
    got: Mapping[str, np.ndarray]

    @property
    def operators(self) -> list[str]:
        """In topological order."""
        return [n.op_type for n in self.model.graph]

    def assert_close(self, rtol: float, atol: float = 0.0) -> None:
        """All outputs are there, in order, and equal within the tolerances."""
        assert list(self.got) == list(self.wanted)
        for name, want in self.wanted.items():
            np.testing.assert_allclose(self.got[name], want, rtol=rtol, atol=atol)


def rewrite(model: onnx.ModelProto, folder: Path, step: Pass | None, feed: Feed | None = None) -> Rewritten:
    """``model`` normalized without a gate, for a target that asks for ``step`` alone, or for no rewrite at all."""
    given, store, feed = ir.from_proto(model), WeightStore(folder), random_feed(model) if feed is None else feed
    known = {r.apply: r for r in FLOAT_REWRITES}
    early = step in known and known[step].early
    rewrites = [] if step is None else [FloatRewrite(step.__name__, step, "", "", early=early)]
    done = normalize(given, ConstantEvaluator(folder), None, rewrites=rewrites)
    return Rewritten(done.model, run_model(given, store, feed), run_model(done.model, store, feed))


def no_roll_backs(done: Normalized) -> bool:
    """Whether every pass kept the outputs."""
    return not any(r.rolled_back for r in done.reports)
