"""Channel shuffles are taken out, or moved to where there is least to move."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inlay.model.passes.steps import is_standard
from inlay.targets.passes.shuffles import settle_shuffles
from inlay.testing import Builder
from tests.support.examples import examples
from tests.support.fixtures import RewriteModel
from tests.support.runtime import check_and_load
from tests.support.shuffles import shuffle

_CHANNELS, _ROWS, _COLUMNS = 12, 8, 6
_SHUFFLE = ["Reshape", "Transpose", "Reshape"]


def settled(b: Builder, y: str, rewritten: RewriteModel) -> list[str]:
    """Operators after the pass, whose outputs are checked against the original's."""
    b.output(y)
    done = rewritten(b.model(), settle_shuffles)
    done.assert_close(rtol=1e-5, atol=1e-5)
    proto = ir.to_proto(done.model)
    check_and_load(proto)
    return done.operators


def start(samples: int = 1) -> tuple[Builder, str]:
    """An image of 12 channels."""
    b = Builder()
    return b, b.input("x", (samples, _CHANNELS, _ROWS, _COLUMNS))


def shuffled(b: Builder, x: str, groups: int = 3, flat: bool = False, samples: int = 1) -> str:
    """The channels of such an image, dealt out."""
    return shuffle(b, x, (samples, _CHANNELS, _ROWS, _COLUMNS), groups, flat)


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_what_a_shuffled_model_computes_stays(data: st.DataObject, rewritten: RewriteModel) -> None:
    samples, groups = data.draw(st.sampled_from([1, 2])), data.draw(st.sampled_from([2, 3, 4, 6]))
    b, y = start(samples)
    y = b.conv("before", y, _CHANNELS, group=data.draw(st.sampled_from([1, 3, 12])), bias=data.draw(st.booleans()))
    if data.draw(st.booleans()):
        y = b.node("relu", "Relu", [y])
    y = shuffled(b, y, groups, data.draw(st.booleans()), samples)
    for i, step in enumerate(
        data.draw(st.lists(st.sampled_from(["depthwise", "strided", "Tanh", "pool"]), max_size=3))
    ):
        match step:
            case "depthwise" | "strided":
                y = b.conv(f"step_{i}", y, _CHANNELS, group=_CHANNELS, stride=1 + (step == "strided"))
            case "pool":
                y = b.node(f"step_{i}", "MaxPool", [y], kernel_shape=[3, 3], pads=[1] * 4)
            case _:
                y = b.node(f"step_{i}", step, [y])
    y = b.conv("behind", y, 12, group=data.draw(st.sampled_from([1, 2, 12])), kernel=1)
    settled(b, y, rewritten)


@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize("flat", [False, True])
def test_a_convolution_before_holds_the_shuffle(flat: bool, samples: int, rewritten: RewriteModel) -> None:
    b, x = start(samples)
    y = b.conv("depthwise", b.conv("first", x, _CHANNELS, relu=True), _CHANNELS, group=_CHANNELS)
    y = shuffled(b, y, flat=flat, samples=samples)
    assert settled(b, b.conv("last", y, 6, group=3, kernel=1), rewritten) == ["Conv", "Relu", "Conv", "Conv"]


def test_a_convolution_behind_holds_the_shuffle(rewritten: RewriteModel) -> None:
    b, x = start()
    y = b.conv("depthwise", shuffled(b, x), _CHANNELS, group=_CHANNELS, relu=True)
    assert settled(b, b.conv("last", y, 5), rewritten) == ["Conv", "Relu", "Conv"]


def test_a_shuffle_is_behind_the_stride_and_at_the_groups_then(rewritten: RewriteModel) -> None:
    b, x = start()
    y = b.conv("depthwise", shuffled(b, x), _CHANNELS, group=_CHANNELS, stride=2)
    assert settled(b, b.conv("last", y, 6, group=3, kernel=1), rewritten) == ["Conv", *_SHUFFLE, "Conv"]


def test_a_shuffle_is_not_moved_to_where_the_image_is_larger(rewritten: RewriteModel) -> None:
    b, x = start()
    weight = b.constant("w", b.rng.standard_normal((_CHANNELS, 1, 3, 3)))
    y = b.node("depthwise", "Conv", [shuffled(b, x), weight], pads=[2] * 4, group=_CHANNELS)
    assert settled(b, b.conv("last", y, 6, group=3, kernel=1), rewritten) == [*_SHUFFLE, "Conv", "Conv"]


@pytest.mark.parametrize("what", ["read twice", "output", "rows", "outputs of groups", "two readers of the image"])
def test_what_cannot_hold_or_pass_a_shuffle_does_not(what: str, rewritten: RewriteModel) -> None:
    b, x = start()
    match what:
        case "read twice":
            y = shuffled(b, x)
            y = b.node("sum", "Add", [b.conv("last", y, _CHANNELS), y])
            assert settled(b, y, rewritten) == [*_SHUFFLE, "Conv", "Add"]
        case "output":
            y = shuffled(b, x)
            b.output(y)
            assert settled(b, b.conv("last", y, 6), rewritten) == [*_SHUFFLE, "Conv"]
        case "rows":  # the transpose is of rows and columns
            parts = b.node("apart", "Reshape", [x, b.constant("sizes", [1, _CHANNELS, _COLUMNS, _ROWS])])
            turned = b.node("turn", "Transpose", [parts], perm=[0, 1, 3, 2])
            y = b.node("together", "Reshape", [turned, b.constant("s", [1, _CHANNELS, _ROWS, _COLUMNS])], channels=12)
            assert settled(b, b.conv("last", y, 6), rewritten) == [*_SHUFFLE, "Conv"]
        case "outputs of groups":
            y = shuffled(b, b.conv("first", x, _CHANNELS, group=2))
            y = b.node("sum", "Add", [y, x])
            assert settled(b, y, rewritten) == ["Conv", *_SHUFFLE, "Add"]
        case "two readers of the image":
            first = b.conv("first", x, _CHANNELS)
            y = b.node("sum", "Add", [shuffled(b, first), first])
            assert settled(b, y, rewritten) == ["Conv", *_SHUFFLE, "Add"]


def test_a_weight_that_others_read_is_theirs_as_it_was(rewritten: RewriteModel) -> None:
    b, x = start()
    weight = b.constant("w", b.rng.standard_normal((_CHANNELS, _CHANNELS, 1, 1)))
    y = b.node("first", "Conv", [shuffled(b, x), weight], channels=_CHANNELS)
    operators = settled(b, b.node("second", "Conv", [y, weight], channels=_CHANNELS), rewritten)
    assert operators == ["Conv", "Conv"]


def test_names_stay(rewritten: RewriteModel) -> None:
    b, x = start()
    y = b.conv("depthwise", shuffled(b, x), _CHANNELS, group=_CHANNELS)
    b.output(b.conv("last", y, 6, group=3, kernel=1))
    model = b.model()
    done = rewritten(model, settle_shuffles).model
    assert {n.name for n in done.graph} == {n.name for n in model.graph.node}
    order = [n.name for n in done.graph if is_standard(n, "Conv", "Transpose")]
    assert order == ["depthwise", "shuffle_turn", "last"]
