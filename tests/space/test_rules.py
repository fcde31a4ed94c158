"""Rows of a target's table: what is not said asks for nothing, and what one kernel alone asks for stands apart."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from inlay.space.rules import OpRule, Recurrence

MOST_FIELDS = 12


def test_a_row_has_few_fields_and_names_them() -> None:
    assert len(fields(OpRule)) <= MOST_FIELDS
    assert [f.name for f in fields(OpRule) if not f.kw_only] == ["op_type"]


def test_a_row_asks_for_nothing_that_it_does_not_say() -> None:
    row = OpRule("Conv", weight=1)
    assert row.weights == (1,)
    assert not row.recurrence.joins_weights
    assert (row.recurrence.state, row.result.begins_at_zero, row.result.reach) == (0.0, False, None)


@pytest.mark.parametrize(
    "asked",
    [
        Recurrence(further_weights=(2,)),
        Recurrence(family=lambda graph, node: node.op_type),
        Recurrence(scale_groups=lambda graph, node: np.zeros(4, np.int64)),
    ],
)
def test_scales_depend_on_other_weights_where_a_row_says_so(asked: Recurrence) -> None:
    row = OpRule("LSTM", weight=1, recurrence=asked)
    assert row.weights == (1, *asked.further_weights)
    assert row.recurrence.joins_weights
    assert not Recurrence(state=1.0).joins_weights, "a state alone joins none"
