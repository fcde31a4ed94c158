"""Integer graph to TOSA 1.0 flatbuffer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from inlay.tosa import layout
from inlay.tosa.emitter import Emitter, TosaTensor
from inlay.tosa.ir import Array, Op, Tensor
from inlay.tosa.operators import EMITTERS

TOSA_VERSION = "1.0.0"
"""Version that the flatbuffer declares."""


@dataclass(frozen=True, eq=False)
class TosaBinary:
    """A serialized TOSA graph.

    Attributes:
        data: the flatbuffer.
        inputs, outputs: in flatbuffer order.
        sources: ONNX node that each tensor of the flatbuffer stems from, by the tensor's name in it.
    """

    data: bytes
    inputs: tuple[TosaTensor, ...]
    outputs: tuple[TosaTensor, ...]
    sources: Mapping[str, str]


def serialize(
    ops: Sequence[Op],
    tensors: Mapping[str, Tensor],
    constants: Mapping[str, Array],
    inputs: Sequence[str],
    outputs: Sequence[str],
) -> TosaBinary:
    """Write ``ops`` (in topological order) as one TOSA basic block.

    Raises:
        UsageError: the extra ``arm`` is not installed.
    """
    emitter = Emitter(tensors, constants, layout.assign_layouts(ops, tensors, constants))
    for name in inputs:
        emitter.graph_input(name)
    for op in ops:
        emitter.source = op.source
        EMITTERS[type(op)](emitter, op)
    for name in outputs:
        emitter.graph_output(name)
    return TosaBinary(
        data=bytes(emitter.serializer.serialize()),
        inputs=tuple(emitter.boundary(n) for n in inputs),
        outputs=tuple(emitter.boundary(n) for n in outputs),
        sources=dict(emitter.sources),
    )
