"""The placement of a Q/DQ model of any origin, as one function."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

from inlay.autotuner.subject import SampleSource, Source
from inlay.autotuner.tuner import RANDOM_RANGES, QDQAutotuner
from inlay.patterns.scheme_import import ImportReport
from inlay.space.rules import Rules


def placement_of(
    qdq_model: Source,
    model: Source | None = None,
    *,
    rules: Rules | None = None,
    samples: SampleSource | None = None,
    bind: Mapping[str, int] | None = None,
) -> ImportReport:
    """Extract the placement of a Q/DQ model of any origin, with a report of every site.

    Args:
        qdq_model: the quantized model.
        model: the float model whose ports the placement is to have; by default the one inside ``qdq_model``. In both
            cases the ports are those of the normalized model, as :class:`QDQAutotuner` has it.
        rules: as of :class:`QDQAutotuner`.
        samples: likewise; they show where Q/DQ pairs saturate.
        bind: likewise.

    Returns:
        ``report.placement`` is the placement, ``print(report)`` the summary.

    Raises:
        ModelError: a model cannot be read, or the quantized one not be taken apart.
        UsageError: it holds no Q/DQ nodes, or is another network's.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", RANDOM_RANGES)  # no ranges are computed
        tuner = QDQAutotuner(qdq_model if model is None else model, rules=rules, samples=samples, bind=bind)
    tuner.initialize()
    return tuner.import_insertion_points(qdq_model)
