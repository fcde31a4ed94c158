"""What a Concat costs on Ethos-U: shared numbers, requantized, and left in float between two NPU partitions.

    python benchmarks/ethos_concat.py [--json FILE]

A convolution with a Relu on each of two branches, joined (zero point −111: the activation cannot be folded).
All figures are estimates: Vela's cycles, plus the stated model for host operators and NPU calls (``hostcost.py``).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from inlay.targets.ethos_u import vela
from inlay.targets.ethos_u.partitions import compile_partitions

ACCELERATORS = ("ethos-u55-128", "ethos-u85-256")
SCALE, ZERO_POINT = 0.003929885104298592, -111


class Net:
    """The few builders that the benchmark needs."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def op(self, kind: str, inputs: list[str], **attributes: object) -> str:
        """Append a node; returns its output."""
        out = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [out], name=f"n_{out}", **attributes))
        return out

    def const(self, value: np.ndarray) -> str:
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
}


def measure() -> list[dict[str, object]]:
    """One row per network and accelerator."""
    rows = []
    for name, (channels, size, out, rounds) in NETWORKS.items():
        shared, joins = network(channels, size, out, False, rounds)
        requantized, _ = network(channels, size, out, True, rounds)
        for accelerator in ACCELERATORS:
            npu = vela.Accelerator.of(accelerator)
            cost = {
                "shared": compile_partitions(shared, npu)[1],
                "requantized": compile_partitions(requantized, npu)[1],
                "float": compile_partitions(shared, npu, dict.fromkeys(joins, "left in float"))[1],
            }
            row: dict[str, object] = {"network": name, "accelerator": accelerator, "vela": vela.version()}
            for how, c in cost.items():
                row[how] = {"npu": c.npu, "host": c.host, "crossing": c.crossing, "total": c.cycles}
            rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures here as well")
    path = parser.parse_args().json
    rows = measure()
    print(f"{'network':36} {'accelerator':14} {'shared':>10} {'requantized':>12} {'float NPU':>11} {'float total':>12}")
    for row in rows:
        shared, other, split = (row[k] for k in ("shared", "requantized", "float"))
        print(
            f"{row['network']:36} {row['accelerator']:14} {shared['npu']:10,.0f} {other['npu']:12,.0f} "
            f"{split['npu']:11,.0f} {split['total']:12,.0f}  ({split['total'] / shared['total'] - 1:+.0%} over shared)"
        )
    print("estimates: cycles by Vela; totals with the stated host model")
    if path:
        path.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
