"""Rewrites are chosen by profiles, for each operator alone, whatever the machine did in between."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from inlay.search.rewrite_choice import RewriteChoice, choose_rewrites
from inlay.search.unit_graph import UnitGraph
from inlay.targets.base import KernelTime
from inlay.types import Placement, Port, PortRewrite, QType
from tests.search.test_guided import Bench, N
from tests.search.unit_graphs import chain


def rewrite(i: int, name: str = "other kernel") -> PortRewrite:
    return PortRewrite(Port(f"u{i}", 1), name)


REWRITES = frozenset(rewrite(i) for i in range(4))


def profile(graph: UnitGraph, ns: list[float]) -> list[KernelTime]:
    return [KernelTime(u.name, "Conv", t, nodes=u.nodes) for u, t in zip(graph.units, ns, strict=True)]


@pytest.mark.parametrize("pace", [0.7, 1.0, 1.6])
def test_each_is_chosen_alone_at_the_pace_of_what_ran_alike(pace: float) -> None:
    graph = chain(8)
    usual = [50e3, 50e3, 50e3, 5e3, 40e3, 30e3, 20e3, 60e3]
    other = [30e3, 90e3, 49e3, 4.5e3, 40e3, 30e3, 20e3, 60e3]  # half the time, twice, nothing to speak of, too short
    found = choose_rewrites(graph, REWRITES, profile(graph, usual), profile(graph, [pace * t for t in other]))
    assert found.rewrites == {rewrite(0)}
    assert found.ratios == {"u0": pytest.approx(0.6)}


def test_the_time_of_what_a_rewrite_takes_over_counts_as_saved() -> None:
    graph = chain(8)
    usual = [50e3, 30e3, 20e3, 50e3, 40e3, 30e3, 50e3, 60e3]
    other = profile(graph, [50e3, 30e3, 20e3, 80e3, 40e3, 30e3, 80e3, 60e3])
    without = [k for k in other if k.name not in ("u1", "u2")]  # which u3 computes, too
    found = choose_rewrites(graph, {rewrite(3), rewrite(6)}, profile(graph, usual), without)
    assert found.rewrites == {rewrite(3)}
    assert found.ratios == {"u3": pytest.approx(0.6)}


def test_what_was_profiled_in_the_usual_kernels_is_corrected_to_the_faster_ones() -> None:
    graph = chain(4)
    kernels = RewriteChoice(frozenset({rewrite(0), rewrite(1)}), {"u0": 0.5, "u1": 0.6})
    sites = [(Port(f"u{i}", 1), QType.INT8) for i in range(3)]
    placement = Placement(sites, [rewrite(1)])
    times = [*profile(graph, [10.0, 20.0, 30.0, 40.0]), KernelTime("q", "Q", 5.0, values=("v0",), kind="quantize")]
    assert [k.ns for k in kernels.applied(graph, placement, times)] == [5.0, 20.0, 30.0, 40.0, 5.0]


class TwoKernels(Bench):
    """With the rewrite, unit ``i`` takes ``gain[i]`` of its time in low precision."""

    def __init__(self, seed: int, gain: np.ndarray) -> None:
        super().__init__(seed, np.zeros(N + 1), 1.0)
        self.gain = gain
        self.rewrites = frozenset(PortRewrite(Port(u.name, 1), "other kernel") for u in self.graph.units)

    def label(self, names: Mapping[str, str]) -> Placement:
        return Placement(site for n in names for site in ((Port(n, 0), QType.UINT8), (Port(n, 1), QType.INT8)))

    def profile(self, placement: Placement) -> list[KernelTime]:
        factors = {u.name: g for u, g in zip(self.graph.units, self.gain, strict=True)}
        rewritten = {r.port.node for r in placement.rewrites}
        return [
            KernelTime(
                k.name,
                k.op_type,
                k.ns * (factors[k.name] if k.name in rewritten else 1.0),
                precision="",
                nodes=k.nodes,
                values=k.values,
                kind=k.kind,
            )
            for k in self.runtime.kernels(self.labels(placement))
        ]


@pytest.mark.parametrize("seed", range(4))
def test_every_later_candidate_is_in_the_faster_kernels(seed: int) -> None:
    gain = np.where(np.arange(N) % 2, 0.5, 1.5)
    bench = TwoKernels(seed, gain)
    bench.run()
    faster = {rewrite(i) for i in range(1, N, 2)}
    assert bench.guided.rewrites == faster
    later = [p for p in bench.asked if len(p)][1:]  # behind the anchor
    assert later
    assert all(p.rewrites == {r for r in faster if r.port in p} for p in later)


def test_where_the_other_kernels_are_slower_nothing_changes() -> None:
    bench, plain = TwoKernels(1, np.full(N, 1.3)), TwoKernels(1, np.full(N, 1.3))
    plain.rewrites = frozenset()
    bench.run()
    plain.run()
    assert bench.asked == plain.asked


def test_of_two_rewrites_of_one_unit_the_faster_is_taken() -> None:
    one = RewriteChoice(frozenset({rewrite(0, "a"), rewrite(1, "a")}), {"u0": 0.5, "u1": 0.9})
    two = RewriteChoice(frozenset({rewrite(1, "b"), rewrite(2, "b")}), {"u1": 0.6, "u2": 0.7})
    both = RewriteChoice(
        frozenset({rewrite(0, "a"), rewrite(1, "b"), rewrite(2, "b")}), {"u0": 0.5, "u1": 0.6, "u2": 0.7}
    )
    assert one | two == both == two | one
