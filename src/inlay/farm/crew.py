"""Helpers of a cluster: as many actors as there are processors to spare, which observe a run's samples together."""

from __future__ import annotations

import contextlib
import itertools
import math
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from inlay.data import Feed
from inlay.errors import InlayError
from inlay.farm import policy
from inlay.farm.helper import VERSIONS, File, Helper
from inlay.farm.parcels import model_parcels
from inlay.farm.remote import Tell
from inlay.quant.observing import HelperLost, Helpers, Histograms, Observing


class Crew:
    """Helpers that answered, each in turn.

    Args:
        ray: the connected module.
        actors: of :class:`~inlay.farm.helper.Helper`.
    """

    def __init__(self, ray: Any, actors: Sequence[Any]) -> None:
        self._ray, self._next, self.width = ray, itertools.cycle(actors), len(actors)

    def observe(self, feeds: Sequence[Feed]) -> Future[Histograms]:
        """As of :class:`~inlay.quant.observing.Helpers`."""
        answer: Future[Histograms] = Future()
        asked = next(self._next).observe.remote(list(feeds)).future()
        asked.add_done_callback(lambda done: self._settle(answer, done))
        return answer

    def _settle(self, answer: Future[Histograms], done: Future[Histograms]) -> None:
        error = done.exception()
        if error is None:
            answer.set_result(done.result())
            return
        cause = getattr(error, "cause", None)  # where the helper's own code raised it
        answer.set_exception(cause if isinstance(cause, InlayError) else HelperLost(str(error).partition("\n")[0]))


@contextlib.contextmanager
def crew(ray: Any, job: Observing, root: str | None, tell: Tell) -> Iterator[Helpers | None]:
    """Helpers for a job, on all processors of the cluster that are free now; None where there are none.

    Where one is lost, Ray starts it again elsewhere and repeats what it was asked.

    Args:
        ray: the connected module.
        job: what is observed.
        root: where the actors make their folders, if not in their system's usual place.
        tell: hears how many help.
    """
    free = min(policy.MOST_HELPERS, math.floor(ray.available_resources().get("CPU", 0)))
    if not free:
        yield None
        return
    actors: list[Any] = []
    try:
        model, files = _sent(ray, job)
        options = {"num_cpus": 1, "max_restarts": policy.HELPER_LOSSES, "max_task_retries": policy.HELPER_LOSSES}
        kind = ray.remote(Helper).options(**options)
        limits, positions = ray.put(dict(job.limits)), ray.put(job.positions)
        actors += [kind.remote(root, model, files, limits, positions) for _ in range(free)]
        ready = _answering(ray, actors)
        tell(f"{len(ready)} helpers of the cluster observe samples")
        yield Crew(ray, ready) if ready else None
    finally:
        for actor in actors:
            with contextlib.suppress(Exception):
                actor.close.remote()
        with contextlib.suppress(Exception):
            ray.wait([actor.hello.remote() for actor in actors], num_returns=len(actors), timeout=policy.END_LIMIT_S)
        for actor in actors:
            with contextlib.suppress(Exception):
                ray.kill(actor)


def _sent(ray: Any, job: Observing) -> tuple[str, list[File]]:
    """The model's name in a helper's folder, and its files, whose pieces wait in the object store."""
    path: Path = job.store.folder / f"observed-{uuid.uuid4().hex}.onnx"
    path.write_bytes(job.proto.SerializeToString())
    try:
        model, parcels = model_parcels(path)
        return model, [(p.name, [(offset, ray.put(data)) for offset, data in p.chunks()]) for p in parcels]
    finally:
        path.unlink(missing_ok=True)


def _answering(ray: Any, actors: Sequence[Any]) -> list[Any]:
    """Those that are there soon, with the same versions as here."""
    hellos = {actor.hello.remote(): actor for actor in actors}
    there, _ = ray.wait([*hellos], num_returns=len(hellos), timeout=policy.HELPER_WAIT_S)
    found = []
    for hello in there:
        with contextlib.suppress(Exception):  # of any kind: it could not start on its node
            if tuple(ray.get(hello)) == VERSIONS:
                found.append(hellos[hello])
    return found
