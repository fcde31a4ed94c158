"""One operator between Q/DQ nodes, lowered and compared three ways; hypothesis strategies for its qparams."""

from __future__ import annotations

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st

from inlay.tosa.lowering import lower
from tests.support.examples import examples
from tests.tosa.comparison import run_ort, three_ways
from tests.tosa.nets import Net, normal_feed

few = settings(max_examples=examples(25), deadline=None)
zero = st.integers(-128, 127)
scale = st.floats(0.004, 0.2).map(lambda s: float(np.float32(s)))
ScaleZero = tuple[float, int]
"""Scale and zero point."""

scale_zeros = st.tuples(scale, zero)
seeds = st.integers(0, 2**31)


def check(n: Net, out: str, to: ScaleZero, seed: int, limit: float = 1.0) -> None:
    """Quantize ``out``, lower everything into one TOSA partition, and compare three ways."""
    n.output(n.qdq(out, *to))
    model = n.model()
    lowered = lower(model)
    assert not lowered.not_lowered, lowered.not_lowered
    assert [p.kind for p in lowered.partitions] in (["tosa"], [])  # nothing is left of a movement that moves nothing
    three_ways(model, normal_feed(model, seed, deviation=3), lsb=to[0], limit=limit)


def covering(n: Net, out: str, zp: int) -> ScaleZero:
    """Qparams that cover what ``out`` takes on, so that the comparison is not one of saturated values."""
    probe = Net(n.opset)
    probe.nodes, probe.initializers, probe.inputs = n.nodes, n.initializers, n.inputs
    probe.output(out)
    model = probe.model()
    value = run_ort(model, normal_feed(model, 1, deviation=3))[0]
    return float(np.float32(max(float(np.abs(value).max()), 1e-3) / 110)), zp
