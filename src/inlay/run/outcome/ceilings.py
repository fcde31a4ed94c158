"""How far the delivered model, and the one in float, are from what the processor can do, where its peaks are known."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from inlay.run.ceiling.bound import NO_CEILINGS, Ceilings
from inlay.run.ceiling.measure import SHORT_S, has_peaks, judged, peaks_here
from inlay.run.confirm.delivered import Confirmed
from inlay.run.preparation import Calibrated
from inlay.run.session import Session
from inlay.targets.base import KernelTime

_PEAKS_SHARE = 0.01  # of the budget, that the short form of measuring peaks may take


def ceilings(
    session: Session, model: Calibrated, confirmed: Confirmed, profile: Callable[[], Iterable[Sequence[KernelTime]]]
) -> Ceilings:
    """Those of a run, as far as there is time and the models were profiled on one feed.

    Args:
        profile: the kernels of the delivered and of the float model, none where there is no profile.
    """
    workload, graph = session.inputs.workload, model.prepared.graph
    sizes = {name: tuple(a.shape) for name, a in workload.feeds[0].items()}
    if len(workload.feeds) > 1 or any(graph.shape(name) != shape for name, shape in sizes.items()):
        return NO_CEILINGS
    plan = session.plan
    share_s = _PEAKS_SHARE * plan.seconds if plan.is_limited else SHORT_S
    peaks = peaks_here(session.worker, session.work / "peaks", plan.before_writing, share_s)
    if peaks is None:
        return Ceilings(unmeasured=has_peaks(session.worker))
    best = confirmed.best
    delivered, in_float = profile()
    delivered_ns = 1e6 * best.latency_ms
    float_ns = delivered_ns * best.over_float.value if best.over_float.is_told else 0.0
    if not float_ns > 0.0:
        in_float = []
    found = judged(session.worker, peaks, [(delivered, graph, delivered_ns), (in_float, graph, float_ns)])
    return Ceilings(peaks, found[0], found[1])
