"""Patches of an image in front of a convolution become a strided convolution on the image."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from inlay.targets.passes.image_patches import fold_focus
from inlay.testing import Builder
from tests.support.fixtures import RewriteModel

ORDER = ((0, 0), (1, 0), (0, 1), (1, 1))


def focus(order: Sequence[tuple[int, int]] = ORDER, step: int = 2, twice: bool = False) -> Builder:
    """Patches of an image, sliced along one axis after the other, before a convolution with uneven pads."""
    b = Builder(seed=5)
    x = b.input("x", (2, 3, 12, 18))
    end, patches = b.constant("end", np.array([np.iinfo(np.int64).max])), []
    by, rows, columns = (b.constant(n, np.array([v])) for n, v in (("by", step), ("rows", 2), ("columns", 3)))
    for number, starts in enumerate(order):
        value = x
        for axis, start in zip((rows, columns), starts, strict=True):
            first = b.constant(f"start_{number}_{axis}", np.array([start]))
            value = b.node(f"slice_{number}_{axis}", "Slice", [value, first, end, axis, by])
        patches.append(value)
    joined = b.node("cat", "Concat", patches, axis=1, channels=3 * len(order))
    weight = b.constant("w", b.rng.standard_normal((5, 3 * len(order), 3, 2)).astype(np.float32))
    bias = b.constant("b", b.rng.standard_normal(5).astype(np.float32))
    b.output(b.node("conv", "Conv", [joined, weight, bias], channels=5, pads=[1, 0, 2, 1], strides=[1, 2]))
    if twice:
        b.output(b.node("again", "Relu", [joined]))
    return b


THIRDS = tuple((i, j) for i in range(3) for j in range(3))


@pytest.mark.parametrize(("order", "step"), [(ORDER, 2), (ORDER[::-1], 2), (THIRDS, 3)])
def test_patches_of_an_image_are_folded_into_the_convolution(
    order: tuple[tuple[int, int], ...], step: int, rewritten: RewriteModel
) -> None:
    model = focus(order, step).model()
    feed = {"x": np.random.default_rng(0).normal(0, 1, (2, 3, 12, 18)).astype(np.float32)}
    done = rewritten(model, fold_focus, feed)
    assert done.operators == ["Conv"]
    done.assert_close(rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "b",
    [focus(ORDER[:3]), focus((*ORDER[:3], (0, 0))), focus(twice=True), focus(step=3)],
    ids=["a patch is missing", "one comes twice", "read elsewhere", "gaps"],
)
def test_patches_that_are_no_whole_image_stay(b: Builder, rewritten: RewriteModel) -> None:
    assert "Slice" in rewritten(b.model(), fold_focus).operators
