"""Best-first splitting: parts partition a group, and the members that matter are found with few questions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inlay.quant.group_split import PARTS, Group, GroupQueue


def descend(weights: list[float], budget: int | None = None) -> tuple[list[int], int]:
    """Single members in the order in which they are reached, and how many groups were asked about."""
    queue = GroupQueue([Group((-sum(weights),), tuple(range(len(weights))))])
    reached: list[int] = []
    asked = 1
    while queue and (budget is None or asked < budget):
        group = queue.pop()
        if len(group.members) == 1:
            reached += group.members
        for part in group.split():
            queue.push(Group((-sum(weights[i] for i in part),), part))
            asked += 1
    return reached, asked


@given(st.lists(st.integers(), min_size=1, max_size=100))
def test_parts_are_runs_of_the_group(members: list[int]) -> None:
    parts = Group((0,), tuple(members)).split()
    if len(members) == 1:
        assert not parts
        return
    assert [m for part in parts for m in part] == members
    assert 2 <= len(parts) <= PARTS
    assert len({len(part) for part in parts[:-1]}) <= 1
    assert 1 <= len(parts[-1]) <= len(parts[0])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=40))
def test_the_most_promising_group_comes_first(keys: list[tuple[int, int]]) -> None:
    queue = GroupQueue[int]()
    for i, key in enumerate(keys):
        queue.push(Group(key, (i,)))
    assert sorted(g.members[0] for g in queue) == list(range(len(keys)))
    popped = []
    while queue:
        first = queue.first
        popped.append(queue.pop())
        assert popped[-1] is first
    assert [g.key for g in popped] == sorted(keys)
    assert sorted(g.members[0] for g in popped) == list(range(len(keys)))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60))
def test_a_whole_descent_reaches_every_member_once(weights: list[float]) -> None:
    reached, asked = descend(weights)
    assert sorted(reached) == list(range(len(weights)))
    assert asked <= 2 * len(weights)
    assert (reached, asked) == descend(weights)


@given(st.integers(0, 255), st.integers(2, 256))
def test_one_member_that_matters_takes_a_few_questions_for_each_level(at: int, count: int) -> None:
    weights = [0.0] * count
    weights[at % count] = 1.0
    levels = next(n for n in range(1, 10) if PARTS**n >= count)
    reached, _ = descend(weights, budget=PARTS * levels + 2)
    assert reached[0] == at % count
