"""Half precision is computed in float32 where the target asks for it."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from inlay.model.normalize import HALF_NOISE_DB, FloatRewrite, normalize
from inlay.model.passes.half import widen_halves
from inlay.model.pieces import run_model
from inlay.model.reference import ConstantEvaluator
from inlay.model.store import WeightStore
from inlay.testing import random_feed, run_reference, small_model, sqnr
from tests.support.fixtures import MakeWorkspace, RewriteModel
from tests.support.float_rewrite_models import halves
from tests.support.normalizing import no_roll_backs
from tests.support.runtime import CAN_MOVE_8_BITS, check_and_load


@pytest.mark.parametrize("kept", [False, True])
def test_half_precision_is_computed_in_float32(kept: bool, rewritten: RewriteModel) -> None:
    model = halves(kept)
    onnx.checker.check_model(model, full_check=True)
    feed = random_feed(model)
    done = rewritten(model, widen_halves, feed)
    check_and_load(ir.to_proto(done.model))
    assert done.operators.count("Cast") == (0 if kept else 2)
    assert conv_dtypes(done.model) == {ir.DataType.FLOAT}
    (wanted,), (got,) = done.wanted.values(), done.got.values()
    assert got.dtype == wanted.dtype
    (exact,) = run_reference(small_model(), {k: v.astype(np.float32) for k, v in feed.items()}).values()
    assert sqnr(wanted.astype(np.float32), got.astype(np.float32)) > HALF_NOISE_DB
    assert sqnr(exact, got.astype(np.float32)) > sqnr(exact, wanted.astype(np.float32)) - 3.0
    assert ir.DataType.FLOAT16 in conv_dtypes(rewritten(model, None, feed).model), "it is for targets that ask for it"


@pytest.mark.parametrize("kept", [False, True])
def test_the_gate_allows_for_rounding_in_half_precision(kept: bool, tmp_path: Path) -> None:
    """The given model's own rounding sets its outputs apart from those in float32: that rolls nothing back."""
    model, store = halves(kept), WeightStore(tmp_path)
    run = partial(run_model, store=store, feed=random_feed(model))
    rewrites = [FloatRewrite("compute halves in float32", widen_halves, "", "")]
    done = normalize(ir.from_proto(model), ConstantEvaluator(tmp_path), run, rewrites=rewrites)
    assert no_roll_backs(done)
    assert conv_dtypes(done.model) == {ir.DataType.FLOAT}


def conv_dtypes(model: ir.Model) -> set[ir.DataType]:
    """What the convolutions read, as far as shape inference knows."""
    return {v.dtype for n in model.graph if n.op_type == "Conv" for v in n.inputs if v is not None and v.dtype}


@CAN_MOVE_8_BITS
def test_a_model_in_half_precision_gets_8_bits(workspace: MakeWorkspace) -> None:
    """Outputs in half precision count in the accuracy, too."""
    model = halves(kept=False)
    space = workspace(model)
    assert {u.op_type for u in space.prepared.selectable} >= {"Conv", "Add"}
    assert space.graph.float_outputs == tuple(space.graph.outputs)
    proto = space.emit(space.full())
    check_and_load(proto)
    (wanted,), (got,) = (run_reference(m, space.feeds[0]).values() for m in (model, proto))
    assert got.dtype == np.float16
    assert sqnr(wanted.astype(np.float32), got.astype(np.float32)) > 15.0
