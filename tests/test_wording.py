"""What is said of counts, and of figures over several samples beside figures of single ones."""

from __future__ import annotations

from inlay.cli.render import _accuracy
from inlay.quant.tolerance import state
from inlay.trial import Accuracy, counted, together


def test_one_is_one_and_all_others_are_many() -> None:
    assert counted(1, "sample") == "1 sample"
    assert [counted(n, "sample") for n in (0, 2)] == ["0 samples", "2 samples"]
    assert counted(2, "fresh process", "fresh processes") == "2 fresh processes"


def test_a_figure_over_all_samples_does_not_read_as_one_of_each() -> None:
    """24.9 dB over all beside 12 dB of a single one is no contradiction, where both say what they are of."""
    pooled = _accuracy(Accuracy(True, 24.9, samples=8), True)
    assert pooled == "SQNR 24.9 dB over 8 unseen samples together"
    assert "together" not in _accuracy(Accuracy(True, 24.9, samples=1), True)
    for each_db in ([12.0, *[25.0] * 7], [12.0, *[25.0] * 60]):
        said = str(state(each_db, 20.0))
        assert "dB each" in said
        assert "one by one" in said
    assert together(3) == "over 3 samples together"
