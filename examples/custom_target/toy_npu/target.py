"""A simulated accelerator: its times are sums of the prices in ``costs.yaml``, its results are computed for real."""

from __future__ import annotations

import hashlib
import tempfile
from importlib import resources
from math import prod
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import yaml

from inlay.errors import CompileFailed, RunFailed
from inlay.model.reference import Session
from inlay.model.store import WeightStore
from inlay.space.rules import OpRule, Rules
from inlay.targets.base import Artifact, Feed, Fingerprint, KernelTime
from inlay.types import QType

from .rewrite import FullLanes

COSTS = yaml.safe_load(resources.files(__package__).joinpath("costs.yaml").read_text(encoding="utf8"))
ABSORBED = ("Relu", "Clip")  # free behind an int8 kernel
_Q, _DQ = "QuantizeLinear", "DequantizeLinear"


class ToyNpu:
    """See the module."""

    name, deterministic = "toy-npu", True

    def fingerprint(self) -> Fingerprint:
        """The digest of the table: measurements at other prices are no longer comparable."""
        return Fingerprint(self.name, {"costs": hashlib.sha256(repr(COSTS).encode()).hexdigest()[:16]})

    def rules(self) -> Rules:
        """What the table says."""
        ops = {op: OpRule(op, source="costs.yaml", **row) for op, row in COSTS["rules"].items()}
        return Rules(QType.INT8, ops, absorbed=frozenset(ABSORBED), share=frozenset({"Concat"}))

    def float_rewrites(self) -> tuple[()]:
        """None."""
        return ()

    def rewrites(self) -> tuple[FullLanes, ...]:
        """Whole lanes of output channels."""
        return (FullLanes(COSTS["lanes"], ABSORBED),)

    def compile(self, model: Artifact) -> PricedModel:
        """Price the model. Raises CompileFailed."""
        try:
            onnx.checker.check_model(str(model.path))
            return PricedModel(onnx.load(str(model.path)))
        except Exception as error:  # the checker and protobuf raise several types
            raise CompileFailed(f"{model.path.name}: {' '.join(str(error).split())}") from error


class PricedModel:
    """A model with the price of each node."""

    def __init__(self, proto: onnx.ModelProto) -> None:
        self._kernels = [price(n) for n in ir.from_proto(onnx.shape_inference.infer_shapes(proto)).graph]
        with tempfile.TemporaryDirectory() as folder:
            self._session: Session | None = Session(proto, WeightStore(Path(folder)))

    def run(self, feed: Feed) -> dict[str, np.ndarray]:
        """Outputs by name. Raises RunFailed."""
        if self._session is None:
            raise RunFailed("the model was closed")
        return self._session.run(feed)

    def time(self, feed: Feed, repeats: int) -> np.ndarray:
        """The sum of the prices in nanoseconds, ``repeats`` times. Raises RunFailed."""
        return np.full(repeats, round(sum(k.ns for k in self.profile(feed, repeats))), np.int64)

    def profile(self, feed: Feed, repeats: int) -> list[KernelTime]:
        """The price of each node. Raises RunFailed."""
        if self._session is None:
            raise RunFailed("the model was closed")
        return self._kernels

    def close(self) -> None:
        """No more calls."""
        self._session = None


def price(node: ir.Node) -> KernelTime:
    """The kernel of a node; a Q, a DQ or an activation that an int8 kernel takes in is free."""
    op_type, before, upstream = node.op_type, _before(node), _before(node, _Q, *ABSORBED)
    shape = [d if isinstance(d, int) else 1 for d in node.outputs[0].shape or ()]  # an unknown size counts as 1
    row = COSTS["operators"].get(op_type, COSTS["operators"]["other"])
    precision = "int8" if _is_int8(node) else "float32"
    full = precision == "int8" and len(shape) > 1 and shape[1] % COSTS["lanes"] == 0
    per_element = row.get("int8_full_lanes", row["int8"]) if full else row[precision]
    taken_in = all(map(_is_int8, _readers(node) or [None])) if op_type == _DQ else _is_int8(upstream)
    free = taken_in and op_type in (_Q, _DQ, *ABSORBED)
    ns = 0.0 if free else COSTS["call"] + per_element * prod(shape)
    if op_type in (_Q, _DQ):
        value = (node if op_type == _Q else before or node).inputs[0].name
        return KernelTime(node.name, op_type, ns, values=(value,), kind="quantize" if op_type == _Q else "dequantize")
    owner = upstream if op_type == "Slice" and before.op_type == _Q else node  # the rewrite's Slice is its Conv's
    return KernelTime(node.name, op_type, ns, precision, (owner.name,))


def _is_int8(node: ir.Node | None) -> bool:
    """Whether an operator with an int8 price reads integers, and only Q read its result."""
    before = None if node is None or "int8" not in COSTS["operators"].get(node.op_type, ()) else _before(node)
    reads = "" if before is None else before.op_type
    return reads == _Q or (reads == _DQ and {n.op_type for n in _readers(node)} == {_Q})


def _before(node: ir.Node, *through: str) -> ir.Node | None:
    """What computes the first input of ``node``, before operators of the types ``through``."""
    found = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
    return _before(found, *through) if found is not None and found.op_type in through else found


def _readers(node: ir.Node) -> list[ir.Node]:
    """What reads the results of ``node``, behind activations."""
    found = [use.node for v in node.outputs for use in v.uses()]
    return [m for n in found for m in (_readers(n) if n.op_type in ABSORBED else [n])]
