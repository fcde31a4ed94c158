"""Cost tables: fits find the parts that made the times, families stand in, and files hold what they should."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from inlay.search.cost_table import CostTable, Reading, fit_table
from inlay.search.workload import Workload

RNG = np.random.default_rng(7)


def _readings(kind: str, state: str, parts: tuple[float, float, float, float], noise: float = 0.0) -> list[Reading]:
    found = []
    for _ in range(30):
        work = Workload((kind, "compute"), *(10.0 ** RNG.uniform(2, 7, 3)).tolist())
        found.append(Reading(work, state, float(np.dot(parts, work.features)) * float(np.exp(RNG.normal(0.0, noise)))))
    return found


def test_a_fit_finds_what_made_the_times() -> None:
    parts = (2000.0, 0.02, 0.5, 0.1)
    table = fit_table(_readings("Conv", "float", parts))
    assert table.fits["Conv", "float"].ns == pytest.approx(parts, rel=0.02)
    assert table.fits["Conv", "float"].error < 0.01


def test_a_few_wild_readings_do_not_move_a_fit() -> None:
    """As they come from a busy machine: least squares alone would follow them."""
    parts = (2000.0, 0.02, 0.5, 0.1)
    readings = _readings("Conv", "float", parts)
    wild = [r._replace(ns=r.ns * 20.0) if i % 10 == 0 else r for i, r in enumerate(readings)]
    work = Workload(("Conv",), 1e6, 1e5, 1e4)
    assert fit_table(wild).ns(work, "float") == pytest.approx(float(np.dot(parts, work.features)), rel=0.1)


def test_what_is_free_in_most_places_costs_its_mean() -> None:
    """A conversion that is fused in two places of three; the median would be zero."""
    works = [Workload(("value",), moved=1e5 * i) for i in range(1, 11)]
    table = fit_table([Reading(work, "dequantize", ns) for work in works for ns in (0.0, 0.0, 30_000.0)])
    assert table.ns(works[4], "dequantize") == pytest.approx(10_000.0, rel=0.1)


def test_nothing_costs_less_than_nothing() -> None:
    falling = [Reading(Workload(("Conv",), 1e6 * i), "float", 1e6 / i) for i in range(1, 9)]
    fit = fit_table(falling).fits["Conv", "float"]
    assert min(fit.ns) >= 0.0


def test_what_was_not_measured_costs_what_its_family_does() -> None:
    table = fit_table([*_readings("Conv", "float", (0.0, 1.0, 0.0, 0.0)), *_readings("Conv", "low", (0, 0.25, 0, 0))])
    unseen = Workload(("ConvTranspose", "compute"), 1e6)
    assert table.ns(unseen, "float") == pytest.approx(1e6, rel=0.02)
    assert table.ns(unseen, "low behind float") == pytest.approx(0.25e6, rel=0.02), "no such reading: as other low ones"
    assert table.ns(unseen, "dynamic") is None
    assert table.ns(Workload(("elements",), 1.0), "float") is None


def test_readings_of_few_sizes_say_nothing_of_others() -> None:
    readings = _readings("compute", "float", (0.0, 1.0, 0.0, 0.0))
    alike = [Reading(Workload(("Conv", "compute"), 1e6), "float", 7e6) for _ in range(20)]
    assert ("Conv", "float") not in fit_table([*readings, *alike]).fits


def test_a_table_survives_its_file() -> None:
    table = fit_table(_readings("Conv", "float", (2000.0, 0.02, 0.5, 0.1)))
    assert CostTable.from_json(json.loads(json.dumps(table.as_json()))) == table


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        [["Conv", "float"]],
        [["Conv", 3, [1, 2, 3, 4], 0.1, 5]],
        [["Conv", "float", [1, 2, 3], 0.1, 5]],
        [["Conv", "float", [1, 2, 3, -4], 0.1, 5]],
        [["Conv", "float", [1, 2, 3, float("nan")], 0.1, 5]],
        [["Conv", "float", [1, 2, 3, float("inf")], 0.1, 5]],
        [["Conv", "float", [1, 2, 3, True], 0.1, 5]],
        [["Conv", "float", "1234", 0.1, 5]],
    ],
)
def test_what_is_no_table_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match="fit"):
        CostTable.from_json(data)
