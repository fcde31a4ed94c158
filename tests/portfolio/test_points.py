"""Which points of several fronts are chosen, against all choices that there are."""

from __future__ import annotations

from itertools import pairwise, product

from hypothesis import given
from hypothesis import strategies as st

from inlay.portfolio.points import Choice, Point, fastest_kept, front, ladder, total_ms
from inlay.trial import noise_of

POINTS = st.lists(st.tuples(st.integers(1, 50), st.integers(10, 60)), min_size=1, max_size=5)
PARTS = st.lists(st.tuples(POINTS, st.integers(1, 9)), min_size=1, max_size=4)
Drawn = list[tuple[list[tuple[int, int]], int]]


def fronts_of(drawn: Drawn) -> tuple[list[tuple[Point, ...]], list[float]]:
    """Of each part the front of its points and the given model."""
    fronts = [
        front([*(Point("q", ms, db) for ms, db in points), Point("original", 60.0, 300.0)]) for points, _ in drawn
    ]
    return fronts, [float(runs) for _, runs in drawn]


@given(POINTS)
def test_a_front_is_what_no_other_point_beats(drawn: list[tuple[int, int]]) -> None:
    points = [Point("q", ms, db) for ms, db in drawn]
    beaten = {p for p in points for q in points if q != p and q.ms <= p.ms and q.sqnr_db >= p.sqnr_db}
    assert set(front(points)) == set(points) - beaten
    assert list(front(points)) == sorted(front(points), key=lambda p: p.ms)


@given(PARTS)
def test_a_ladder_leads_from_the_fastest_to_the_given_in_single_steps(drawn: Drawn) -> None:
    fronts, runs = fronts_of(drawn)
    rungs = ladder(fronts, runs)
    assert rungs[0] == (0,) * len(fronts)
    assert rungs[-1] == tuple(len(points) - 1 for points in fronts)
    for one, other in pairwise(rungs):
        assert sorted(b - a for a, b in zip(one, other, strict=True)) == [0] * (len(fronts) - 1) + [1]


@given(PARTS, st.data())
def test_what_is_chosen_keeps_the_bound_and_is_near_the_best(drawn: Drawn, data: st.DataObject) -> None:
    """A bound as evaluations have them: on a weighted sum of the parts' noise, with weights that nobody knows."""
    fronts, runs = fronts_of(drawn)
    weights = [data.draw(st.sampled_from([0.0, 0.1, 1.0, 10.0])) for _ in fronts]
    most = data.draw(st.sampled_from([0.0, 1e-4, 1e-3, 1e-2, 1.0]))
    asked: list[Choice] = []

    def keeps(choice: Choice) -> bool:
        noise = sum(w * noise_of(p[at].sqnr_db) for w, p, at in zip(weights, fronts, choice, strict=True))
        return noise <= most + 1e-20

    def ask(choice: Choice) -> bool:
        asked.append(choice)
        return keeps(choice)

    found = fastest_kept(fronts, runs, ask)
    given_one = tuple(len(points) - 1 for points in fronts)
    assert keeps(found) or found == given_one
    assert len(asked) == len(set(asked)) <= 2 + len(ladder(fronts, runs)).bit_length() + 2 * len(fronts)
    every = [c for c in product(*(range(len(p)) for p in fronts)) if keeps(c)]
    if len(fronts) == 1 and every:
        assert total_ms(fronts, runs, found) == min(total_ms(fronts, runs, c) for c in every)
    if any(c == (0,) * len(fronts) for c in every):
        assert found == (0,) * len(fronts)


def test_an_innocent_part_gets_its_speed_back() -> None:
    """The noisy first part is innocent: it goes first on the ladder, and comes back once the other one has gone."""
    fronts = [
        (Point("a", 1.0, 20.0), Point("original", 2.0, 300.0)),
        (Point("b", 1.0, 30.0), Point("original", 2.0, 300.0)),
    ]
    assert ladder(fronts, [1.0, 1.0]) == [(0, 0), (1, 0), (1, 1)]
    assert fastest_kept(fronts, [1.0, 1.0], lambda c: c[1] == 1) == (0, 1)
    assert fastest_kept(fronts, [1.0, 1.0], lambda c: c[0] == 1) == (1, 0), "the control: here it is not innocent"
