"""A convolution of few groups as one: the same integers, and groups and shuffles again where it is undone."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inlay.quant.notes import inverted
from inlay.quant.qdq_graph import DEQUANTIZE, QUANTIZE
from inlay.quant.qparams import QParamsTable
from inlay.targets.base import Capabilities, Feed
from inlay.targets.onnxruntime.target import capabilities_for
from inlay.targets.rewrites.joined_groups import Joined, JoinedGroups
from inlay.testing import Builder
from inlay.types import Placement, QType
from tests.support.examples import examples
from tests.support.fixtures import MakeWorkspace
from tests.support.runtime import check_and_load
from tests.support.shuffles import shuffle
from tests.support.workspace import Workspace

_SIZE = 6


def only(rewrite: JoinedGroups) -> Capabilities:
    """ONNX Runtime's rules, with this rewrite alone."""
    own = capabilities_for("x86_64")
    return Capabilities(own.rules, (), (rewrite,))


def grouped(channels: int = 8, outputs: int = 8, groups: int = 2, shuffled: int = 4, twice: bool = False) -> Builder:
    """Conv, a shuffle, a grouped Conv called ``conv``, and another; ``twice``: the shuffled image has two readers."""
    b = Builder()
    x = b.conv("first", b.input("x", (1, 3, _SIZE, _SIZE)), channels)
    if shuffled > 1:
        x = shuffle(b, x, (1, channels, _SIZE, _SIZE), shuffled)
    y = b.conv("conv", x, outputs, kernel=1, group=groups)
    b.output(b.conv("last", b.concat("both", [y, x]) if twice else y, 4))
    return b


def joined(
    space: Workspace, placement: Placement | None = None, table: QParamsTable | None = None
) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """The quantized model without the rewrite and with it: equal results to the bit, and equal models once undone."""
    placement = space.full() if placement is None else placement
    selected = placement.with_rewrites(space.prepared.selectable_rewrites)
    assert selected.rewrites
    plain, rewritten = (space.emit(p, table) for p in (placement, selected))
    check_and_load(rewritten)
    for feed in space.feeds:
        (want,), (got,) = (run(m, feed) for m in (plain, rewritten))
        np.testing.assert_array_equal(got, want)
    before, found = space.extract(plain), space.extract(rewritten)
    assert not found.leftovers
    assert (before.placement, found.placement) == (placement, selected)
    assert [n.name for n in found.model.graph] == [n.name for n in before.model.graph]
    for name, weight in before.model.graph.initializers.items():
        assert weight.const_value is not None
        other = found.model.graph.initializers[name].const_value
        assert other is not None
        np.testing.assert_array_equal(other.numpy(), weight.const_value.numpy())
    return plain, rewritten


def run(model: onnx.ModelProto, feed: Feed) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options)
    return [np.asarray(y) for y in session.run(None, dict(feed))]


def kinds(model: onnx.ModelProto) -> list[str]:
    """Its operators but Q and DQ."""
    return [n.op_type for n in model.graph.node if n.op_type not in (QUANTIZE, DEQUANTIZE)]


@given(
    st.integers(1, 4), st.integers(1, 3), st.integers(2, 4), st.sampled_from([1, 2, 3, 4]), st.integers(0, 2**32 - 1)
)
def test_one_weight_holds_groups_and_a_shuffle(each: int, width: int, groups: int, shuffled: int, seed: int) -> None:
    rng, form = np.random.default_rng(seed), Joined(groups, shuffled)
    width *= shuffled  # so that the shuffle deals them out evenly
    weight = rng.integers(-9, 9, (groups * each, width, 1, 1))
    x = rng.integers(-9, 9, groups * width)
    dealt = x.reshape(shuffled, -1).T.ravel()
    want = [int(weight[o, :, 0, 0] @ dealt[o // each * width :][:width]) for o in range(groups * each)]
    whole_weight = form.weight(weight)
    assert (whole_weight[:, :, 0, 0] @ x).tolist() == want
    np.testing.assert_array_equal(inverted(whole_weight, form.inverse(weight.shape)), weight)


@settings(max_examples=examples(20), deadline=None)
@given(groups=st.sampled_from([2, 4]), shuffled=st.sampled_from([1, 2, 4, 8]), outputs=st.sampled_from([4, 8, 12]))
def test_results_are_the_same_integers_and_the_shuffle_is_gone(groups: int, shuffled: int, outputs: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        space = Workspace(grouped(8, outputs, groups, shuffled).model(), Path(folder), only(JoinedGroups()))
        plain, rewritten = joined(space)
        moves = [] if shuffled == 1 else ["Reshape", "Transpose", "Reshape"]
        assert kinds(plain) == ["Conv", *moves, "Conv", "Conv"]
        assert kinds(rewritten) == ["Conv"] * 3
        assert len(rewritten.graph.initializer) <= len(plain.graph.initializer)


def test_a_shuffle_of_floats_is_taken_out_as_well(workspace: MakeWorkspace) -> None:
    space = workspace(grouped().model(), only(JoinedGroups()))
    plain, rewritten = joined(space, space.label("first", "conv"))
    assert "Transpose" in kinds(plain)
    assert kinds(rewritten) == ["Conv"] * 3


def test_a_shuffle_that_others_read_stays(workspace: MakeWorkspace) -> None:
    space = workspace(grouped(twice=True).model(), only(JoinedGroups()))
    plain, rewritten = joined(space)
    assert kinds(rewritten) == kinds(plain)
    (conv,) = [n for n in rewritten.graph.node if n.name == "conv"]
    assert next(a.i for a in conv.attribute if a.name == "group") == 1


def test_a_shuffle_between_other_scales_stays(workspace: MakeWorkspace) -> None:
    space = workspace(grouped().model(), only(JoinedGroups()))
    value, qtype = "shuffle_turn_out", QType.UINT8
    scale, zero_point = space.table.params(value, qtype).scale, space.table.params(value, qtype).zero_point
    other = {**space.table.as_json(), "fixed": [[value, qtype.value, [2.0 * scale[0]], list(zero_point), None]]}
    table = QParamsTable.from_json(space.graph, space.prepared.rules, other)
    plain, rewritten = joined(space, table=table)
    assert kinds(rewritten) == kinds(plain)


@pytest.mark.parametrize(
    ("b", "most"),
    [
        (grouped(groups=8, outputs=8), 8),  # depthwise
        (grouped(groups=4), 2),
        (grouped(groups=1), 8),
    ],
)
def test_other_convolutions_keep_their_groups(b: Builder, most: int, workspace: MakeWorkspace) -> None:
    space = workspace(b.model(), only(JoinedGroups(most_groups=most)))
    assert not space.prepared.selectable_rewrites
