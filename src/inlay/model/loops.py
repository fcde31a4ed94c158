"""Loops that carry more than they did: what their turns compute gets out of them, whatever its shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Loop:
    """A Loop or Scan whose node and body are being written, apart from each other.

    Args:
        made: the node, without its body; is changed, like ``body``.
        body: it.
        free: gives values names.

    Attributes:
        before, after: nodes that belong before and behind it.
    """

    def __init__(self, made: onnx.NodeProto, body: onnx.GraphProto, free: Callable[[str], str]) -> None:
        self._made, self._body, self._free = made, body, free
        self.before: list[onnx.NodeProto] = []
        self.after: list[onnx.NodeProto] = []

    def carry(
        self, given: str, dtype: int, taken: str, resulting: str | Callable[[str], onnx.NodeProto], output: str
    ) -> None:
        """Carry one more sequence, in a Loop.

        Args:
            given: it before the first turn; a new one where that is empty.
            dtype: of its elements.
            taken: what it is called in the body.
            resulting: what it is called there at the end of a turn, or what makes that of such a name.
            output: what it is called behind the Loop.
        """
        if not given:
            given = self._free(f"{output}_none")
            self.before.append(helper.make_node("SequenceEmpty", [], [given], given, dtype=dtype))
        if not isinstance(resulting, str):
            name = self._free(f"{output}_longer")
            self._body.node.append(resulting(name))
            resulting = name
        self._made.input.extend([""] * (2 - len(self._made.input)))  # without a condition, or anything else to carry
        states = len(self._made.input) - 2
        self._made.input.append(given)
        self._made.output.insert(states, output)
        self._body.input.append(helper.make_tensor_sequence_value_info(taken, dtype, None))
        results = list(self._body.output)
        results.insert(1 + states, helper.make_tensor_sequence_value_info(resulting, dtype, None))
        del self._body.output[:]
        self._body.output.extend(results)

    def replace_scan(self) -> None:
        """Write a Scan as a Loop, which may carry sequences: each turn takes its part of what is scanned."""
        made, body = self._made, self._body
        attributes: dict[str, Any] = {a.name: helper.get_attribute_value(a) for a in made.attribute}
        states = len(made.input) - attributes["num_scan_inputs"]
        scanned, slices = list(made.input[states:]), list(body.input[states:])
        turn, going, goes_on, turns = map(
            self._free, (f"{made.name}_{n}" for n in ("turn", "going", "goes_on", "turns"))
        )
        axes = attributes.get("scan_input_axes") or [0] * len(scanned)
        backwards = attributes.get("scan_input_directions") or [0] * len(scanned)
        sizes = self._free(f"{made.name}_sizes")
        self.before.append(helper.make_node("Shape", scanned[:1], [sizes], sizes))
        self.before.append(helper.make_node("Gather", [sizes, self._number(axes[0], self.before)], [turns], turns))
        begin: list[onnx.NodeProto] = []
        for value, info, axis, is_backwards in zip(scanned, slices, axes, backwards, strict=True):
            index = turn
            if is_backwards:
                left, index = self._free(f"{info.name}_left"), self._free(f"{info.name}_index")
                begin.append(helper.make_node("Sub", [turns, turn], [left], left))
                begin.append(helper.make_node("Sub", [left, self._number(1, begin)], [index], index))
            begin.append(helper.make_node("Gather", [value, index], [info.name], info.name, axis=axis))
        begin.append(helper.make_node("Identity", [going], [goes_on], goes_on))
        nodes, given, results = list(body.node), list(body.input[:states]), list(body.output)
        del body.node[:], body.input[:], body.output[:]
        body.node.extend([*begin, *nodes])
        body.input.append(helper.make_tensor_value_info(turn, TensorProto.INT64, []))
        body.input.append(helper.make_tensor_value_info(going, TensorProto.BOOL, []))
        body.input.extend(given)
        body.output.append(helper.make_tensor_value_info(goes_on, TensorProto.BOOL, []))
        body.output.extend(results[:states])
        outputs = list(made.output)
        made.op_type, made.input[:], made.output[:] = "Loop", [turns, "", *made.input[:states]], outputs[:states]
        del made.attribute[:]
        self._collect(results[states:], outputs[states:], attributes)

    def _collect(
        self, results: Sequence[onnx.ValueInfoProto], outputs: Sequence[str], attributes: dict[str, Any]
    ) -> None:
        """Put together what the turns of a Scan result in, along its axes and in its directions."""
        axes = attributes.get("scan_output_axes") or [0] * len(results)
        backwards = attributes.get("scan_output_directions") or [0] * len(results)
        for info, output, axis, is_backwards in zip(results, outputs, axes, backwards, strict=True):
            taken, whole = self._free(f"{output}_so_far"), self._free(f"{output}_turns")
            at = [self._number(0, self.before)] if is_backwards else []

            def longer(name: str, reads: Sequence[str] = (taken, info.name, *at)) -> onnx.NodeProto:
                return helper.make_node("SequenceInsert", reads, [name], name)

            self.carry("", info.type.tensor_type.elem_type, taken, longer, whole)
            self.after.append(helper.make_node("ConcatFromSequence", [whole], [output], output, axis=axis, new_axis=1))

    def _number(self, number: int, nodes: list[onnx.NodeProto]) -> str:
        name = self._free(f"{self._made.name}_number")
        tensor = numpy_helper.from_array(np.array(number, np.int64))
        nodes.append(helper.make_node("Constant", [], [name], name, value=tensor))
        return name
