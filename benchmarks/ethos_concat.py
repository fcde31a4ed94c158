"""What a Concat costs on Ethos-U: shared numbers, requantized, and left in float between two NPU partitions.

    python benchmarks/ethos_concat.py [--json FILE]

A convolution with a Relu on each of two branches, joined (zero point −111: the activation cannot be folded).
All figures are estimates: Vela's cycles, plus the stated model for host operators and NPU calls (``hostcost.py``).
NPU columns leave the host out, as published comparisons of such nets do: for one of unknown shape 13,744 cycles by a
well-known exporter against 7,591 by direct lowering on U55-128 (8,900 against 3,990 on U85-256), +31 % (+18 %) with the
Concat in float, and 514,692 shared against 646,212 requantized with branches of 32 channels. The nets here are this
benchmark's own: the relations can be compared with those, not the cycles.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from inlay.tosa.ethos_u import vela
from inlay.tosa.ethos_u.partitions import compile_partitions

ACCELERATORS = ("ethos-u55-128", "ethos-u85-256")
SCALE, ZERO_POINT = 0.003929885104298592, -111


class Net:
    """The few builders that the benchmark needs."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def op(self, kind: str, inputs: list[str], **attributes: Any) -> str:
        """Append a node; returns its output."""
        out = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [out], name=f"n_{out}", **attributes))
        return out

    def const(self, value: np.ndarray | np.generic) -> str:
        """Add an initializer."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def qdq(self, value: str, scale: float, zp: int) -> str:
        """A Q/DQ pair."""
        numbers = [self.const(np.float32(scale)), self.const(np.int8(zp))]
        return self.op("DequantizeLinear", [self.op("QuantizeLinear", [value, *numbers]), *numbers])

    def conv(self, x: str, x_scale: float, w: np.ndarray) -> str:
        """A quantized convolution of the same size."""
        ws = np.full(len(w), 0.002, np.float32)
        zeros = np.zeros(len(w), np.int8)
        weight = self.op("DequantizeLinear", [self.const(w), self.const(ws), self.const(zeros)], axis=0)
        bias = self.op(
            "DequantizeLinear",
            [
                self.const(np.arange(len(w), dtype=np.int32)),
                self.const(np.float32(x_scale) * ws),
                self.const(zeros.astype(np.int32)),
            ],
            axis=0,
        )
        return self.op("Conv", [x, weight, bias], pads=[w.shape[2] // 2] * 4)


def network(
    channels: int, size: int, out: int, requantized: bool, rounds: int = 1
) -> tuple[onnx.ModelProto, list[str]]:
    """``rounds`` x (two 3x3 branches → Concat [→ 1x1 between rounds]), and the names of the Concats."""
    rng = np.random.default_rng(0)
    net = Net()
    value, scale, wide, joins = net.qdq("x", 0.02, 3), 0.02, channels, []
    for index in range(rounds):
        parts = []
        for branch in range(2):
            w = rng.integers(-127, 128, (out, wide, 3, 3)).astype(np.int8)
            own = SCALE * (1 + 0.3 * branch) if requantized else SCALE
            parts.append(net.qdq(net.op("Relu", [net.conv(value, scale, w)]), own, ZERO_POINT))
        joined = net.op("Concat", parts, axis=1)
        joins.append(net.nodes[-1].name)
        value, scale, wide = net.qdq(joined, SCALE, ZERO_POINT), SCALE, 2 * out
        if index < rounds - 1:
            w = rng.integers(-127, 128, (out, wide, 1, 1)).astype(np.int8)
            value, scale, wide = net.qdq(net.op("Relu", [net.conv(value, scale, w)]), 0.02, -128), 0.02, out
    graph = helper.make_graph(
        net.nodes, "concat",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, channels, size, size])],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, None)],
        net.constants,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), joins


NETWORKS = {
    "3x16x16, branches of 4, 1 join": (3, 16, 4, 1),
    "8x16x16, branches of 8, 3 joins": (8, 16, 8, 3),
    "32x32x32, branches of 32, 2 joins": (32, 32, 32, 2),
    "32x64x64, branches of 32, 1 join": (32, 64, 32, 1),
}


@dataclass(frozen=True)
class Row:
    """One network on one accelerator: for ``shared``, ``requantized`` and ``float`` the cycles by where they arise."""

    network: str
    accelerator: str
    vela: str
    costs: Mapping[str, Mapping[str, float]]


def measure() -> list[Row]:
    """One row per network and accelerator."""
    rows = []
    for name, (channels, size, out, rounds) in NETWORKS.items():
        shared, joins = network(channels, size, out, False, rounds)
        requantized, _ = network(channels, size, out, True, rounds)
        for accelerator in ACCELERATORS:
            npu = vela.Accelerator.of(accelerator)
            costs = {
                "shared": compile_partitions(shared, npu)[1],
                "requantized": compile_partitions(requantized, npu)[1],
                "float": compile_partitions(shared, npu, dict.fromkeys(joins, "left in float"))[1],
            }
            parts = {
                how: {"npu": c.npu, "host": c.host, "crossing": c.crossing, "total": c.cycles}
                for how, c in costs.items()
            }
            rows.append(Row(name, accelerator, vela.version(), parts))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    path = parser.parse_args().json
    rows = measure()
    print(f"{'network':34} {'accelerator':14} {'shared':>9} {'requantized':>18} {'float, NPU':>18} {'with host':>20}")
    for row in rows:
        shared, other, split = (row.costs[k] for k in ("shared", "requantized", "float"))
        print(
            f"{row.network:34} {row.accelerator:14} {shared['npu']:9,.0f} "
            f"{other['npu']:9,.0f} ({other['npu'] / shared['npu'] - 1:+6.0%}) "
            f"{split['npu']:9,.0f} ({split['npu'] / shared['npu'] - 1:+6.0%}) "
            f"{split['total']:11,.0f} ({split['total'] / shared['total'] - 1:+6.0%})"
        )
    print("estimates: cycles by Vela; totals with the stated host model")
    if path:
        path.write_text(json.dumps([asdict(r) for r in rows], indent=1) + "\n")


if __name__ == "__main__":
    main()
