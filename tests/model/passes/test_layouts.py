"""Transposes are moved to where fewest bytes are moved, and what models compute stays."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inlay.model.passes.layouts import settle_layouts
from inlay.testing import random_feed
from tests.support.channels_last import EXACT, ORIGINS, ROUNDED, ChannelsLast, residual_network
from tests.support.examples import examples
from tests.support.fixtures import NormalizeModel
from tests.support.normalizing import no_roll_backs
from tests.support.onnx_queries import ops
from tests.support.random_models import random_model
from tests.support.runtime import check_and_load, run_plain

_SAMPLES: tuple[int | str, ...] = (1, 2, "batch")


def turned(model: onnx.ModelProto) -> tuple[int, int]:
    """Bytes that the Transposes of a float32 model move, and how many there are; unknown sizes count as 1."""
    known = {v.name: v for v in onnx.shape_inference.infer_shapes(model).graph.value_info}
    known |= {v.name: v for v in (*model.graph.input, *model.graph.output)}
    outputs = [n.output[0] for n in model.graph.node if n.op_type == "Transpose"]
    shapes = [[d.dim_value or 1 for d in known[o].type.tensor_type.shape.dim] for o in outputs]
    return sum(4 * int(np.prod(s)) for s in shapes if sum(d > 1 for d in s) > 1), len(outputs)


def settled(model: onnx.ModelProto, exact: bool = True) -> onnx.ModelProto:
    """The model after the pass, which keeps the outputs, moves no more than before, and has nothing to do again."""
    done, edits = settle_layouts(ir.from_proto(model))
    proto = ir.to_proto(done)
    check_and_load(proto)
    feed = random_feed(model)
    want, got = run_plain(model, feed), run_plain(proto, feed)
    assert list(got) == list(want)
    for name in want:
        np.testing.assert_allclose(got[name], want[name], rtol=0 if exact else 1e-4, atol=0 if exact else 1e-5)
    before, after = turned(model), turned(proto)
    assert all(a <= b for a, b in zip(after, before, strict=True))
    assert edits or after == before
    assert settle_layouts(done)[1] == 0
    return proto


@settings(max_examples=examples(120))
@given(data=st.data())
def test_networks_of_three_origins_keep_their_outputs(data: st.DataObject) -> None:
    steps = EXACT if data.draw(st.booleans()) else {**EXACT, **ROUNDED}
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    net = ChannelsLast(data.draw(st.sampled_from(ORIGINS)), rng, data.draw(st.sampled_from(_SAMPLES)))
    image = net.input(9, 8, 3)
    images = [image]
    for step in data.draw(st.lists(st.sampled_from(list(steps)), min_size=1, max_size=6)):
        image = steps[step](net, image)
        if min(image[1][:2]) < 3 or image[1][2] < 2:
            image = images[-1]
        images.append(image)
    heads = data.draw(st.lists(st.sampled_from(["last", "first", "classes", "sizes"]), min_size=1, max_size=2))
    for head in heads:
        image = data.draw(st.sampled_from(images[1:]))
        match head:
            case "last":
                net.b.output(net.function(image)[0])
            case "first":
                net.b.output(net.turned(image[0], (0, 3, 1, 2)))
            case "classes":
                net.b.output(net.classifier(image))
            case _:
                net.b.output(net.sizes(image))
    settled(net.b.model(), exact=steps is EXACT and "classes" not in heads)  # which adds up pixels


@pytest.mark.parametrize("seed", range(examples(100)))
def test_random_models_keep_their_outputs(seed: int) -> None:
    settled(random_model(np.random.default_rng(seed))[0], exact=False)


@pytest.mark.parametrize("origin", ORIGINS)
def test_of_a_network_convolutions_with_their_activations_are_left(origin: str, normalized: NormalizeModel) -> None:
    given = residual_network(origin, samples="batch")
    proto, done = normalized(given)
    assert no_roll_backs(done)
    left = ops(proto)
    assert left.count("Transpose") <= 2 < ops(given).count("Transpose")
    assert not {"Cast", "Sub", "Div", "Pad"} & set(left)
    assert left.count("Add") == 2
    assert left.count("Mul") == 2
    assert left.count("Conv") == ops(given).count("Conv")
