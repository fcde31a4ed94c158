"""Channel shuffles as exporters write them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inlay.testing import Builder


def shuffle(b: Builder, x: str, shape: Sequence[int], groups: int, flat: bool = False, name: str = "shuffle") -> str:
    """``x`` of this shape, its channels dealt out to ``groups``; ``flat``: with its pixels in one row meanwhile."""
    samples, channels, *sizes = shape
    inner = [int(np.prod(sizes))] if flat else sizes
    apart = b.constant(f"{name}_sizes", np.array([samples, groups, channels // groups, *inner]))
    together = b.constant(f"{name}_shape", np.array([samples, channels, *sizes]))
    parts = b.node(f"{name}_apart", "Reshape", [x, apart], channels=groups)
    turned = b.node(f"{name}_turn", "Transpose", [parts], perm=[0, 2, 1, *range(3, 3 + len(inner))], channels=channels)
    return b.node(f"{name}_together", "Reshape", [turned, together], channels=channels)
