"""Reasons why operators stay float, counted for people."""

from __future__ import annotations

from inlay.space.rules import OpRule
from inlay.space.units import Unit, rejection_counts


def counted(*reasons: str) -> dict[str, int]:
    return dict(
        rejection_counts([Unit(f"n{i}", (f"n{i}",), "Add", OpRule("Add"), each) for i, each in enumerate(reasons)])
    )


def test_reasons_that_name_other_values_are_one() -> None:
    masks = [f"view_{i} holds a mask, far below the scores" for i in range(3)]
    read = [f"a subgraph reads its output {v}, which therefore must stay float" for v in ("a/b:0", "c,d")]
    kernel = "Gelu has no low-precision form on this target"
    assert counted(*masks, *read, kernel, kernel, "") == {
        "view_0, for one, holds a mask, far below the scores": 3,
        "a subgraph reads its output a/b:0, for one, which therefore must stay float": 2,
        kernel: 2,
    }


def test_a_single_value_is_named_as_it_is() -> None:
    """Also where several operators read the same one."""
    mask = "view_0 holds a mask, far below the scores"
    assert counted(mask) == {mask: 1}
    assert counted(mask, mask) == {mask: 2}
