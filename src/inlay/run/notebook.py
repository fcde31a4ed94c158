"""Results and progress in notebooks: HTML that escapes every name, since names in a model are text from a stranger."""

from __future__ import annotations

import importlib
import math
import sys
import time
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from inlay.deadline import Clock
from inlay.run.progress import Logged, Progress, SearchStep
from inlay.trial import SHOWN_AS_EXACT_DB, Measured, shown_ratio, shown_sqnr

_WIDTH, _HEIGHT, _EDGE = 420, 220, 40  # of the drawing, pixels
_APART_S = 0.5  # between two lines of progress: a page that is redrawn more often flickers


def shown(
    verdict: str, anchors: Sequence[Sequence[str]], front: Sequence[Mapping[str, Any]], notes: Sequence[str]
) -> str:
    """A run as HTML: its verdict, the front of speed and accuracy, the anchors, and its notes.

    Args:
        front: measured models as in ``result.json``, with ``speedup`` and ``sqnr_db``, fastest first.
    """
    head = ("anchor", "latency, ms", "speed-up", "SQNR over all samples")
    rows = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in anchors)
    titles = "".join(f"<th>{escape(each)}</th>" for each in head)
    listed = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return (
        f"<p><b>{escape(verdict)}</b></p>{drawn(front)}<table><tr>{titles}</tr>{rows}</table>"
        f"{f'<ul>{listed}</ul>' if listed else ''}"
    )


def drawn(front: Sequence[Mapping[str, Any]]) -> str:
    """The front as a drawing: speed-up to the right, SQNR upwards; empty for fewer than two points."""
    points = [(float(p["speedup"]), min(float(p["sqnr_db"]), SHOWN_AS_EXACT_DB), p) for p in front]
    points = [point for point in points if math.isfinite(point[0]) and math.isfinite(point[1])]
    if len(points) < 2:
        return ""
    left, right = min(x for x, _, _ in points), max(x for x, _, _ in points)
    low, high = min(y for _, y, _ in points), max(y for _, y, _ in points)

    def at(x: float, y: float) -> tuple[float, float]:
        across = (x - left) / (right - left or 1.0) * (_WIDTH - 2 * _EDGE)
        up = (y - low) / (high - low or 1.0) * (_HEIGHT - 2 * _EDGE)
        return _EDGE + across, _HEIGHT - _EDGE - up

    placed = [(*at(x, y), p) for x, y, p in points]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in placed)
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{"#1b7f79" if p.get("feasible", True) else "#b65a1e"}">'
        f"<title>{escape(str(p.get('origin', '')))}: {p['speedup']:.2f}x, {escape(shown_sqnr(p['sqnr_db']))}</title>"
        "</circle>"
        for x, y, p in placed
    )
    ends = "".join(
        f'<text x="{x:.1f}" y="{y}" font-size="11" text-anchor="{anchor}">{escape(text)}</text>'
        for x, y, anchor, text in (
            (_EDGE, _HEIGHT - 12, "middle", f"{left:.2f}x"),
            (_WIDTH - _EDGE, _HEIGHT - 12, "middle", f"{right:.2f}x"),
            (_EDGE - 6, _EDGE + 4, "end", shown_sqnr(high)),
            (_EDGE - 6, _HEIGHT - _EDGE + 4, "end", shown_sqnr(low)),
            (_WIDTH / 2, _HEIGHT - 12, "middle", "speed-up over the given model"),
        )
    )
    return (
        f'<svg width="{_WIDTH + 20}" height="{_HEIGHT}" viewBox="-20 0 {_WIDTH + 20} {_HEIGHT}" role="img" '
        'aria-label="speed and accuracy of the measured models">'
        f'<polyline points="{line}" fill="none" stroke="#888"/>{dots}{ends}</svg>'
    )


def usual() -> Progress:
    """What hears a call that names nobody: one line that changes in a notebook; otherwise the logger."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return InNotebook() if getattr(shell, "kernel", None) is not None else Logged()


class InNotebook(Logged):
    """One line below the cell: what is done, the best so far, how many were judged, and the time; and the logger."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        super().__init__(clock)
        display = importlib.import_module("IPython.display").display  # it is there: `usual` found it
        self._since, self._begun = clock, clock()
        self._stage = self._best = ""
        self._drawn_s = -math.inf
        self._line = display({"text/plain": "inlay"}, raw=True, display_id=True)

    def stage(self, text: str) -> None:
        """Show it."""
        super().stage(text)
        self._show(text, at_once=True)

    def doing(self, text: str) -> None:
        """Show it, a few times a second at most."""
        super().doing(text)
        self._show(text)

    def trial(self, step: SearchStep) -> None:
        """Show the best so far."""
        super().trial(step)
        outcome = step.incumbent.outcome
        gained = shown_ratio(outcome.latency.speedup) if isinstance(outcome, Measured) else ""
        self._best = f"{gained} by {step.incumbent.proposal.origin}, {step.judged} judged"
        self._show(self._stage, at_once=True)

    def _show(self, text: str, at_once: bool = False) -> None:
        self._stage, now = text, self._since()
        if self._line is None or (not at_once and now - self._drawn_s < _APART_S):
            return
        self._drawn_s = now
        said = " · ".join(filter(None, [text, self._best, f"{now - self._begun:.0f} s"]))
        self._line.update({"text/plain": said, "text/html": f"<code>{escape(said)}</code>"}, raw=True)
