"""The process of a worker: started for a target, asked one message after the other within limits, and ended.

Whoever holds it decides what is tried again: a run on this machine (:mod:`inlay.measure.client`), or a device that is
asked from elsewhere (:mod:`inlay.measure.remote.device`).
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from inlay.errors import BadReading, CompileFailed, Ended, RunFailed, TargetError, TimedOut
from inlay.measure import policy
from inlay.measure.worker import PROTOCOL, write_marker
from inlay.model.child import HERE, Child, ChildDied, Python
from inlay.targets.base import TargetSpec

_ENTRY = "inlay.measure.worker:main"
_ERRORS: dict[str, type[TargetError]] = {kind.stage: kind for kind in (CompileFailed, RunFailed, BadReading, TimedOut)}
_LIMITS = {"unload": policy.CLOSE_LIMIT_S, "target": policy.START_LIMIT_S}
"""Seconds that messages may take whatever the budget is."""


def checked(answer: dict[str, Any]) -> dict[str, Any]:
    """A worker's answer, unless it is an error. Raises that TargetError."""
    if "error" in answer:
        raise _ERRORS.get(answer["stage"], TargetError)(answer["error"])
    return answer


def first_message(spec: TargetSpec) -> dict[str, Any]:
    """What a worker is asked first: to choose its target."""
    reading = {} if spec.reading == "latency" else {"reading": spec.reading}
    return {"name": spec.name, "options": dict(spec.options), "protocol": PROTOCOL, **reading}


class Process:
    """The process; there is none before it is started, and none after it has ended.

    Args:
        folder: for temporary files: what a killed runtime leaves behind goes with it.

    Attributes:
        child: the process; None where there is none.
    """

    def __init__(self, folder: Path, python: Python = HERE) -> None:
        self._folder, self._python = folder, python
        self._marker = tempfile.TemporaryFile()  # noqa: SIM115  (it lives as long as the worker)
        self.child: Child | None = None

    def start(self) -> None:
        """Start it. Raises TargetError."""
        marker = self._marker.fileno()
        write_marker(marker, "")
        try:
            self.child = Child(_ENTRY, [marker], {"TMPDIR": str(self._folder.resolve())}, python=self._python)
        except OSError as error:
            raise TargetError(f"no process can be started for the runtime: {error}") from error

    def ask(self, do: str, arguments: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """The answer to a message. It is ended where there is none.

        Raises:
            TargetError: the answer, or that there is none, with the model that it was at work on as the culprit.
        """
        assert self.child is not None
        try:
            return checked(self._answer(self.child, do, arguments, min(limit_s, _LIMITS.get(do, math.inf))))
        except TargetError as error:
            error.culprit = os.pread(self._marker.fileno(), policy.MARKER_BYTES, 0).decode(errors="replace").strip()
            raise
        except BaseException:  # an interruption: the child is closed, or its answer would be read as that to the next
            self.end()
            raise

    def end(self) -> None:
        """End it; it can be started again."""
        child, self.child = self.child, None
        if child is not None:
            child.close()

    def close(self) -> None:
        """End it for good."""
        self.end()
        self._marker.close()

    def _answer(self, child: Child, do: str, arguments: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        try:
            (answer,) = child.ask([json.dumps({"do": do, "with": arguments}).encode()], limit_s)
        except ChildDied as error:
            self.end()
            words = f": {error.words}" if error.words else ""
            raise Ended(f"the runtime's process died in {do} ({error.how}){words}") from None
        except TimeoutError:
            self.end()
            if do == "target":
                raise TimedOut(
                    f"the runtime did not start within {limit_s:.0f} s and was ended: "
                    "the machine is busy, or the time left is too short: give a larger --budget"
                ) from None
            raise TimedOut(f"the runtime did not finish {do} within {limit_s:.0f} s and was ended") from None
        return dict(json.loads(bytes(answer)))
