"""What removing a Q/DQ pair saves: a model is timed without the pair, beside the model as it is.

A profile shows what the kernels of a pair take, not what the pair keeps the runtime from. One between a Pad and the
Conv that would have taken the Pad in cost three times as much as its own kernels (MobileNetV2 on ONNX Runtime, *run*).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from inlay.deadline import Deadline
from inlay.errors import TargetError
from inlay.explanation import policy
from inlay.explanation.executed import written
from inlay.explanation.explanation import Waste
from inlay.measure.client import Worker
from inlay.measure.paired import Series, Timing, joined, speedup
from inlay.model.store import WeightStore
from inlay.quant.qdq_graph import DEQUANTIZE, QUANTIZE
from inlay.targets.base import Artifact


def without_pair(model: ir.Model, value: str) -> bool:
    """Take the Q and DQ nodes at ``value`` out: what reads them reads the value. False where they are not for reading.

    That is, where something else reads the integers, or where the model hands the result out.
    """
    pairs = [n for n in model.graph if n.op_type == QUANTIZE and n.inputs[0] is not None and n.inputs[0].name == value]
    readers = [use.node for quantize in pairs for use in quantize.outputs[0].uses()]
    handed = any(v.is_graph_output() for n in (*pairs, *readers) for v in n.outputs)
    if not pairs or handed or any(n.op_type != DEQUANTIZE for n in readers):
        return False
    for quantize in pairs:
        plain = quantize.inputs[0]
        assert plain is not None
        for dequantize in [use.node for use in quantize.outputs[0].uses()]:
            dequantize.outputs[0].replace_all_uses_with(plain)
            model.graph.remove(dequantize, safe=True)
        model.graph.remove(quantize, safe=True)
    return True


def timed(
    rows: Sequence[Waste], worker: Worker, model: ir.Model, folder: Path, feed: Path, deadline: Deadline
) -> tuple[Waste, ...]:
    """``rows`` with the prices of the dearest idle pairs measured, as far as the time reaches; the dearest first.

    No model is timed after the ``deadline``.
    """
    dear = [w for w in rows if w.kind == "idle-pair" and w.share >= policy.PAIR_SHARE][: policy.TIMED_PAIRS]
    if not dear or not deadline.left or "latency" in worker.lacks:
        return tuple(rows)
    folder.mkdir()
    store = WeightStore(folder)
    artifacts, tried = [written(model, store, folder, "with")], list[Waste]()
    for number, row in enumerate(dear):
        copy = model.clone()
        if without_pair(copy, row.value):
            artifacts.append(written(copy, store, folder, f"without-{number}"))
            tried.append(row)
    try:
        whole, *without = _timing(worker, artifacts, feed, deadline).models
    except TargetError:  # then what the profile says is what is known
        return tuple(rows)
    measured = {row: _measured(row, whole, model) for row, model in zip(tried, without, strict=True)}
    return tuple(sorted((measured.get(row, row) for row in rows), key=lambda row: -row.cost_ms))


def _timing(worker: Worker, artifacts: Sequence[Artifact], feed: Path, deadline: Deadline) -> Timing:
    """Blocks of models that are built anew in each round, in another order.

    Where a build happens to lie in memory makes one of two equal models up to 3 % faster for as long as it lives.
    """
    rounds, slot_ns = (1, 0) if worker.deterministic else (policy.PAIR_ROUNDS, policy.PAIR_SLOT_NS)
    found = list[Timing]()
    for number in range(rounds):
        order = np.random.default_rng(number).permutation(len(artifacts))
        try:
            some = worker.time(
                [artifacts[i] for i in order], feed, policy.PAIR_BLOCKS, slot_ns, number, lambda: deadline.left
            )
            found.append(some.only(np.argsort(order)))
        finally:
            for artifact in artifacts:
                worker.drop(artifact)
        if not deadline.left:
            break
    return joined(found)


def _measured(row: Waste, whole: Series, without: Series) -> Waste:
    share = max(0.0, 1.0 - 1.0 / speedup(whole, without).value)
    return replace(row, cost_ms=share * whole.median_ns / 1e6, share=share, timed=True)
