"""auto_pad becomes explicit pads."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from inlay.testing import Builder
from tests.support.examples import examples
from tests.support.normalizing import rewrite


@settings(max_examples=examples(150), deadline=None)
@given(
    st.sampled_from(["Conv", "ConvTranspose", "MaxPool", "AveragePool"]),
    st.sampled_from(["NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"]),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.integers(1, 2),
    st.tuples(st.integers(9, 12), st.integers(9, 12)),
    st.booleans(),
)
def test_automatic_pads_are_the_numbers_that_they_stand_for(
    op_type: str,
    mode: str,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    dilation: int,
    size: tuple[int, int],
    dynamic: bool,
) -> None:
    """Against ONNX Runtime; where the size is not known, only what does not depend on it."""
    pool = op_type.endswith("Pool")
    # the runtime refuses the others
    assume(not pool or all(k >= s for k, s in zip(kernel, strides, strict=True)))
    assume(dilation == 1 or mode in ("NOTSET", "VALID"))
    b = Builder()
    x = b.input("x", (1, 2, "height", "width") if dynamic else (1, 2, *size))
    inputs = [x] if pool else [x, b.constant("w", b.rng.standard_normal((2, 2, *kernel)))]
    more: dict[str, Any] = {"kernel_shape": list(kernel)} if pool else {"dilations": [dilation] * 2}
    b.output(b.node("op", op_type, inputs, auto_pad=mode, strides=list(strides), **more))
    model = b.model()
    feed = {"x": np.random.default_rng(0).standard_normal((1, 2, *size)).astype(np.float32)}
    with tempfile.TemporaryDirectory() as folder:
        done = rewrite(model, Path(folder), None, feed)
    (node,) = done.model.graph
    known = max(strides) == 1 or (not dynamic and op_type != "ConvTranspose") or mode in ("NOTSET", "VALID")
    if op_type == "ConvTranspose" and mode.startswith("SAME"):
        known = all((k - 1) * dilation + 1 >= s for k, s in zip(kernel, strides, strict=True))
    assert ("auto_pad" not in node.attributes) == known
    done.assert_close(rtol=1e-5, atol=1e-6)
