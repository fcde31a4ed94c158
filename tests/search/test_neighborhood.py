"""Changes are named so that a line can hold them."""

from __future__ import annotations

from inlay.search.neighborhood import describe_units


def test_long_names_keep_their_two_ends() -> None:
    assert describe_units(["conv_1"]) == "conv_1"
    assert describe_units(["conv_1", "relu_1"]) == "2 units from conv_1"
    joined = ";".join(f"model/layer_{i}/Conv2D" for i in range(9))
    found = describe_units([joined])
    assert len(found) < 50 < len(joined)
    head, tail = found.split("…")
    assert joined.startswith(head)
    assert joined.endswith(tail)
    assert abs(len(head) - len(tail)) <= 1
