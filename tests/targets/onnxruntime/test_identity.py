"""Models of which the runtime makes the same graph are told apart from all others, and are measured once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from inlay.data import Samples
from inlay.measure.client import Worker
from inlay.measure.journal import Journal
from inlay.measure.race import Meter
from inlay.prepare.candidate_writer import CandidateWriter
from inlay.prepare.protocol import Protocol
from inlay.quant.accuracy import EXACT_DB, Bound, Judge
from inlay.run.evaluate import Candidate, Evaluator
from inlay.targets.base import Artifact, TargetSpec
from inlay.targets.onnxruntime.session import graph_digest
from inlay.targets.onnxruntime.target import OrtCpuTarget
from inlay.testing import Builder
from inlay.trial import Accuracy, Interval, Latency, Measured, Proposal, Trial
from inlay.types import Placement
from tests.support.workspace import Workspace


def pooled(weight: float = 1.0) -> Builder:
    """conv "first", MaxPool "pool", conv "second": Q and DQ pass through the pool."""
    b = Builder()
    first = b.conv("first", b.input("x", (1, 8, 12, 12)), 8, relu=True)
    pool = b.node("pool", "MaxPool", [first], kernel_shape=[2, 2], strides=[2, 2])
    b.output(b.conv("second", pool, 4, relu=True))
    return b


def digest(space: Workspace, *names: str) -> str:
    path = space.path.with_name("asked.onnx")
    path.write_bytes(space.emit(space.label(*names)).SerializeToString())
    return OrtCpuTarget(1).compile_identified(Artifact(path, "asked"))[1]


def test_placements_with_one_graph_have_one_digest(tmp_path: Path) -> None:
    space = Workspace(pooled().model(), tmp_path)
    assert space.label("first") != space.label("first", "pool")
    assert digest(space, "first") == digest(space, "first", "pool") != ""
    assert digest(space, "second") == digest(space, "second", "pool")
    others = [digest(space, *names) for names in ([], ["first"], ["second"], ["first", "second"])]
    assert len(set(others)) == len(others)


def _twin(weight: float, suffix: str, axis: int, bias: bool, swapped: bool) -> onnx.ModelProto:
    """Two branches that end in a Concat; everything is called otherwise, with the same meaning."""
    array = np.full((4, 4, 1, 1), weight, np.float32)
    nodes = [
        helper.make_node("Conv", ["x", f"w{suffix}"], [f"a{suffix}"], f"conv{suffix}"),
        helper.make_node("Sigmoid", ["x"], [f"b{suffix}"], f"sigmoid{suffix}"),
    ]
    joined = [f"a{suffix}", f"b{suffix}"]
    nodes = nodes[::-1] if suffix else nodes
    nodes.append(helper.make_node("Concat", joined[::-1] if swapped else joined, ["y"], f"cat{suffix}", axis=axis))
    shapes = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("x", "y")]
    shapes[0] = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 3, 3])
    weights = [numpy_helper.from_array(array, f"w{suffix}")]
    if bias:
        weights.append(numpy_helper.from_array(np.ones(4, np.float32), f"bias{suffix}"))
        conv = next(n for n in nodes if n.op_type == "Conv")
        conv.input.append(f"bias{suffix}")
    return helper.make_model(helper.make_graph(nodes, f"g{suffix}", shapes[:1], shapes[1:], weights))


PLAIN = (0.5, "", 1, False, False)


@pytest.mark.parametrize(
    ("same", "other"),
    [
        (True, (0.5, "_other", 1, False, False)),
        (False, (0.25, "", 1, False, False)),
        (False, (0.5, "", 2, False, False)),
        (False, (0.5, "", 1, True, False)),
        (False, (0.5, "", 1, False, True)),
    ],
    ids=["names and order", "weight", "attribute", "more inputs", "inputs swapped"],
)
@pytest.mark.parametrize("external", [False, True])
def test_names_and_order_do_not_count_but_all_else_does(
    same: bool, other: tuple[float, str, int, bool, bool], external: bool, tmp_path: Path
) -> None:
    digests = []
    for number, options in enumerate((PLAIN, other)):
        path = tmp_path / f"{number}.onnx"
        onnx.save(
            _twin(*options),
            path,
            save_as_external_data=external,
            location=f"{number}.data",
            size_threshold=0,
            convert_attribute=False,
        )
        digests.append(graph_digest(path))
    assert (digests[0] == digests[1]) == same


class Fixture:
    """An evaluator on the real runtime, with races of few blocks."""

    def __init__(self, folder: Path) -> None:
        self.space = Workspace(pooled().model(), folder)
        self.candidates = CandidateWriter(self.space.prepared, self.space.table, "table", "target")
        self.worker = Worker(TargetSpec("ort-cpu", {"threads": 1}), folder)
        self.journal = Journal(folder / "run.sqlite", {"run": "test"})
        feed = folder / "feed.npz"
        np.savez(feed, **self.space.feeds[0])
        base = Artifact(self.space.path, "given")
        reference = list(self.worker.run(base, [feed]))
        judge = Judge(reference, Samples((dict(self.space.feeds[0]),), "feeds", "test"), Bound(min_sqnr_db=1.0))
        protocol = Protocol(first_blocks=2, most_blocks=2, slot_ns=100_000)
        meter = Meter(self.worker, self.journal, feed, protocol, 0, lambda s: None)
        exact = Measured(Latency(1e5, Interval(1.0, 1.0, 1.0), 1), Accuracy(True, EXACT_DB))
        first = Candidate("given", Trial(Proposal(Placement(), "original"), exact), lambda: base, source=base.path)
        self.evaluator = Evaluator(self.worker, meter, judge, self.journal, [feed], first, base)

    def judge(self, *names: str) -> Trial:
        placement = self.space.label(*names)
        proposal = Proposal(placement, "test")
        return self.evaluator.evaluate(
            proposal, self.candidates.key(placement), lambda: self.candidates.write(placement)
        )

    def close(self) -> None:
        self.worker.close()
        self.journal.close()


def test_equal_graphs_are_measured_once_and_a_resumed_run_knows_it(tmp_path: Path) -> None:
    fixture = Fixture(tmp_path)
    try:
        first = fixture.judge("first")
        races = fixture.evaluator.tally.measurements
        again = fixture.judge("first", "pool")
        assert isinstance(first.outcome, Measured)
        assert isinstance(again.outcome, Measured)
        assert again.outcome.latency == first.outcome.latency
        assert again.outcome.equal_to == fixture.candidates.key(fixture.space.label("first"))
        assert not again.accepted
        assert (fixture.evaluator.tally.equal_graphs, fixture.evaluator.tally.measurements) == (1, races)
        other = fixture.judge("second")
        assert isinstance(other.outcome, Measured)
        assert other.outcome.equal_to == ""
        assert fixture.evaluator.tally.measurements == races + 1
    finally:
        fixture.close()
    resumed = Fixture(tmp_path)
    try:
        known = resumed.judge("first", "pool")
        assert known.outcome == again.outcome
        assert resumed.evaluator.tally.equal_graphs == 1
        assert resumed.evaluator.tally.replayed == 1
        fresh = resumed.judge("second", "pool")
        assert isinstance(fresh.outcome, Measured)
        assert fresh.outcome.equal_to == ""  # "second" was not asked for in this run
        resumed.judge("first")
    finally:
        resumed.close()
