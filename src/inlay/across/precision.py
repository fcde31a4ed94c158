"""Which of two: a target in its own precision, or in float32.

Where a runtime computes float32 operators in fewer bits, that is what users get, and usually faster, though not always.
Where the given model does not keep the bound so, hardly anything will, and what is in 8 bits beside float32 may be
faster still: a file type detector with 4.6 dB in bfloat16 took 1.76 ms so, and 1.53 ms in 8 bits beside float32, with
109.7 dB.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from inlay.across.comparing import Comparison
from inlay.across.result import GIVEN
from inlay.across.session import AcrossSession
from inlay.measure.journal import Fact
from inlay.measure.own_precision import FASTER
from inlay.targets.registry import in_float32
from inlay.trial import Accuracy, shown_sqnr

OWN: Fact[dict[str, str]] = Fact("own_precision", dict)
"""Why each target is not tuned for in its own precision; empty where the given model keeps the bound there."""


def one_of_each(
    session: AcrossSession, comparison: Comparison, screened: Mapping[str, float | str]
) -> dict[str, float | str]:
    """The first readings, with a reason in place of them for the one of two that is not tuned for.

    Args:
        session: of the command.
        comparison: judges the given model.
        screened: nanoseconds of the given model by target, or why there are none.
    """
    found, pairs = dict(screened), dict(_pairs(session, screened))
    if not pairs:
        return found
    lost = session.journal.once(OWN, lambda: {label: _lost(session, comparison, label) for label in pairs})
    for label, twin in pairs.items():
        if lost[label]:
            found[label] = lost[label]
        elif FASTER * float(screened[twin]) < float(screened[label]):
            found[label] = f"the given model is faster on {twin}"
        else:
            found[twin] = f"the given model keeps the bound in the precision of {label}"
    return found


def _pairs(session: AcrossSession, screened: Mapping[str, float | str]) -> Iterator[tuple[str, str]]:
    """Labels of targets that run the model, each with that of the same one in float32."""
    for label, spec in session.specs.items():
        exact = in_float32(spec)
        twin = next((other for other, theirs in session.specs.items() if theirs == exact), None)
        if twin is not None and not any(isinstance(screened[each], str) for each in (label, twin)):
            yield label, twin


def _lost(session: AcrossSession, comparison: Comparison, label: str) -> str:
    """Why a target in its own precision is out of the question; empty where the given model keeps the bound there."""
    with session.panel([label]) as panel:
        if label in panel.unusable:
            return str(panel.unusable[label])
        judged = comparison.accuracies(panel, {label: {GIVEN: session.given}}, verify=True)[GIVEN, label]
    if not isinstance(judged, Accuracy):
        return judged
    found = shown_sqnr(judged.sqnr_db)
    return "" if judged.feasible else f"in the target's own precision, the given model has {found} there"
