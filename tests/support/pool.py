"""WorkerPool that are this process itself."""

from __future__ import annotations

import contextlib
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import Any

from inlay.errors import InlayError
from inlay.model.pool import Stored, TaskLost, WorkerPool
from inlay.ray.helper import let_go, stand_in
from inlay.ray.pool import mapped


class PoolHere:
    """WorkerPool that answer at once, from arguments that have travelled; the last calls are lost.

    Args:
        width: how many they are.
        sound: calls that they answer.

    Attributes:
        asked: how often, by the function's name.
        let_go: the run is done with them.
    """

    run_model = staticmethod(stand_in)

    def __init__(self, width: int, sound: int = 1_000_000) -> None:
        self.width, self.sound = width, sound
        self.asked: Counter[str] = Counter()
        self.let_go = False

    def submit(self, seconds: float, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """As of :class:`~inlay.model.pool.WorkerPool`."""
        answer: Future[Any] = Future()
        self.asked[function.__name__] += 1
        if self.asked.total() > self.sound:
            answer.set_exception(TaskLost("its node no longer exists"))
            return answer
        try:
            answer.set_result(function(*(a if isinstance(a, Stored) else _travelled(a) for a in arguments)))
        except (InlayError, TaskLost) as error:
            answer.set_exception(error)
        return answer

    def map(
        self, function: Callable[..., Any], calls: Iterable[tuple[Any, ...]], here: Callable[..., Any]
    ) -> Iterator[Future[Any]]:
        """As of :class:`~inlay.model.pool.WorkerPool`."""
        return mapped(self, function, calls, here)

    @contextlib.contextmanager
    def open_pool(self) -> Iterator[WorkerPool]:
        """As of :data:`~inlay.model.pool.OpenPool`."""
        try:
            yield self
        finally:
            let_go()
        self.let_go = True


def _travelled(argument: Any) -> Any:
    return pickle.loads(pickle.dumps(argument))
