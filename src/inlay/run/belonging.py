"""`inlay.check`: which target and processor a file was quantized for, and what is known of running it here instead.

A written model says in its metadata what its placement depends on. What differs there from here is told with what
follows from it: rules and weights are those of :class:`~inlay.space.rules.Rules` for both, so that a runtime says
itself whether products of full-range weights saturate, or which types it runs. Speed that was measured there is no
figure of this processor: only a measurement says. A file of others says nothing, but its weights do: whether sums of
their products are exact here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from inlay.errors import InlayError
from inlay.model.flow import in_bodies
from inlay.model.load import ModelSource, load
from inlay.model.products import PRODUCTS
from inlay.prepare.candidate_writer import tuned_for
from inlay.quant.plain.operators import OPERATORS
from inlay.quant.qdq_graph import DEQUANTIZE
from inlay.space.rules import Rules
from inlay.targets.base import TargetSpec
from inlay.targets.registry import create, known_operators
from inlay.types import ANY_INT8, QType

_PRODUCTS = frozenset({"Conv", "MatMul", "Gemm"})
_TOLD = ("machine", "isa", "cpu")
"""Facts of a processor, in the order in which they are told; the last only where it alone differs."""


@dataclass(frozen=True)
class Belonging:
    """Where a file belongs."""

    path: Path  # of the file
    # what it was quantized for, by name; empty where it does not say, as what others wrote
    tuned_for: Mapping[str, str]
    here: Mapping[str, str]  # the same of the target here
    differs: tuple[str, ...]  # what differs, and what follows from it, each as one line; empty where nothing does

    @property
    def fits(self) -> bool:
        """Whether nothing is known against it; also where it does not say what it was made for."""
        return not self.differs

    def __str__(self) -> str:
        """For people, in a line or two."""
        if not self.tuned_for:
            return "; ".join([f"{self.path} does not say what it was quantized for", *self.differs])
        return "; ".join(self.differs) or f"{self.path} is run where it was quantized for"


def check_file(model: ModelSource, spec: TargetSpec) -> Belonging:
    """What is known of running ``model`` on the target ``spec`` here. Raises InlayError."""
    file, target = load(model), create(spec)
    here, then = target.fingerprint().named_facts, tuned_for(file.model.metadata_props)
    return Belonging(file.path, then, here, differences(then, here) if then else inexact(file.model, target.rules()))


def inexact(model: ir.Model, rules: Rules, judged: Rules | None = None) -> tuple[str, ...]:
    """A line where sums of products with the int8 weights of a quantized model are not exact by ``rules``.

    Nothing where the model was judged on a processor whose rules, ``judged``, have the same limit.
    """
    told = rules.exact_limit < ANY_INT8 and (judged is None or judged.exact_limit != rules.exact_limit)
    if not told or (largest := _largest_weight(model)) <= rules.exact_limit:
        return ()
    return (
        f"weights in int8 go up to {largest} in magnitude, and sums of products do not fit beyond {rules.exact_limit} "
        "on that processor: OUTPUTS MAY DIFFER from those of others; quantize the float model for it",
    )


def _largest_weight(model: ir.Model) -> int:
    """The largest magnitude of a constant in int8 that is multiplied by integers; 0 where none is."""
    known = {(row.domain, row.op_type) for row in (*OPERATORS, *known_operators()) if row.plain in PRODUCTS}
    found = 0
    for node in in_bodies(model.graph):
        for value in node.inputs:
            tensor = None if value is None else ir.convenience.get_const_tensor(value)
            if tensor is None or tensor.dtype is not ir.DataType.INT8 or len(tensor.shape) < 2:
                continue
            if (node.domain, node.op_type) in known or _is_multiplied(node):
                array = tensor.numpy()
                found = max(found, -int(array.min(initial=0)), int(array.max(initial=0)))
    return found


def _is_multiplied(node: ir.Node) -> bool:
    """Whether what a DequantizeLinear gives is multiplied by what another one gives."""
    readers = [use.node for use in node.outputs[0].uses()] if node.op_type == DEQUANTIZE else []
    readers += [use.node for reader in readers if reader.op_type == "Transpose" for use in reader.outputs[0].uses()]
    data = [reader.inputs[0] for reader in readers if reader.op_type in _PRODUCTS]
    makers = [value.producer() for value in data if value is not None]
    return any(maker is not None and maker.op_type == DEQUANTIZE for maker in makers)


def differences(then: Mapping[str, str], here: Mapping[str, str]) -> tuple[str, ...]:
    """What differs in what a file was quantized for from what it runs on, as lines; none where it does not say."""
    if not then:
        return ()
    named = f"for {then.get('processor') or then.get('cpu') or then.get('target')}"
    if then.get("target") != here.get("target"):
        return (f"quantized for {then.get('target')}, and run on {here.get('target')}: other operators may pay there",)
    changed = [name for name in _TOLD if name in then and then[name] != here.get(name)]
    told = [f"{name} {then[name] or 'none'} there, {here.get(name) or 'none'} here" for name in changed]
    lines = []
    if changed:
        lines.append(f"quantized {named}: {', '.join(told[:2])}; inlay bench says what it gains here")
        lines += _consequences(then, here)
    versions = [n for n in then if n not in (*_TOLD, "target", "processor", "threads") and then[n] != here.get(n, "")]
    if versions:
        told = [f"{name} {then[name]} there, {here.get(name, 'none')} here" for name in versions]
        lines.append(f"other versions: {', '.join(told)}")
    return tuple(lines)


def _consequences(then: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """What the target's own rules say of the two processors."""
    spec = TargetSpec(then["target"])
    try:
        there, now = (create(spec, facts).rules() for facts in (then, here))
    except (InlayError, KeyError):
        return []
    found = []
    if there.weight_limit > now.weight_limit:
        found.append(
            f"its weights go up to {there.weight_limit}, and sums of products saturate here beyond "
            f"{now.weight_limit}: OUTPUTS MAY DIFFER from those that were judged; quantize it for this processor"
        )
    elif there.exact_limit > now.exact_limit and there.activation is QType.INT8:
        found.append(
            "where two activations are multiplied, sums of products of -128 and -128 wrap around here: OUTPUTS MAY "
            "DIFFER from those that were judged; quantize it for this processor"
        )
    if there.weight_limit < now.weight_limit:
        found.append("its weights have 7 bits, which are not needed here: accuracy is as it was judged")
    if there.activation is not now.activation:
        found.append(f"its activations are {there.activation.value}, where {now.activation.value} has the fast kernels")
    missing = sorted(there.ops.keys() - now.ops.keys())
    if missing:
        found.append(f"not run in 8 bits here: {', '.join(missing)}")
    return found
