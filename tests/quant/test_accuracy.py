"""What counts as an error: amounts by their energy, decisions by how many change."""

from __future__ import annotations

import numpy as np
import pytest

from inlay.data import Samples
from inlay.quant.accuracy import EXACT_DB, Bound, Judge
from inlay.trial import Accuracy


def judged(want: np.ndarray, got: np.ndarray, least_db: float = 20.0) -> Accuracy:
    """Of one output called y, in two samples."""
    reference, outputs = ([{"y": half} for half in np.array_split(y, 2)] for y in (want, got))
    samples = Samples(({}, {}), "feeds", "test")
    return Judge(reference, samples, Bound(min_sqnr_db=least_db), margin=False).judge(outputs)


@pytest.mark.parametrize("dtype", [np.int32, np.int64, bool])
def test_decisions_count_by_how_many_change(dtype: type[np.generic] | type[bool]) -> None:
    """Whatever the classes are called: numbers of classes are names."""
    rng = np.random.default_rng(0)
    want: np.ndarray = rng.integers(0, 2, 1000).astype(dtype)
    got = want.copy()
    got[::100] = 1 - got[::100] if dtype is not bool else ~got[::100]
    found = judged(want, got, least_db=20.5)
    assert found.sqnr_db == pytest.approx(20.0)
    assert found.reason == "1.0% of the integers in output y change: 20.0 dB, below 20.5 dB"
    if dtype is not bool:
        names: np.ndarray = np.array([7, 100_000], dtype)
        assert judged(names[want], names[got]).sqnr_db == pytest.approx(20.0)
    assert judged(want, want).sqnr_db == EXACT_DB


def test_amounts_count_by_their_energy() -> None:
    """Negative control: an image in 8 bits with every number off by one is near, although all of them change."""
    want = np.full(1000, 200, np.uint8)
    assert judged(want, want + np.uint8(1)).sqnr_db == pytest.approx(20 * np.log10(200))
    assert judged(want.astype(np.float32), want + np.float32(2)).sqnr_db == pytest.approx(40.0)
    found = judged(want, want // 2)
    assert "SQNR of output y is 6.0 dB" in found.reason
    assert not judged(want.astype(np.int64), want.astype(np.int64) + 1).feasible


def test_another_number_of_decisions_is_as_bad_as_can_be() -> None:
    found = judged(np.arange(10), np.arange(8))
    assert not found.feasible
    assert found.sqnr_db == -EXACT_DB
