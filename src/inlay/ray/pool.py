"""Helpers of a cluster: as many actors as there are processors to spare, which answer a run's calls together."""

from __future__ import annotations

import contextlib
import math
import threading
import uuid
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer  # the built-in one from Python 3.11 on
from functools import cached_property
from typing import Any, TypeVar

from inlay.errors import InlayError
from inlay.measure.remote.held import Tell
from inlay.measure.remote.transfer import FileRange, ranges_of_model
from inlay.model.guard import left_s
from inlay.model.pool import Stored, TaskLost, WorkerPool, done
from inlay.ray import policy
from inlay.ray.helper import VERSIONS, Helper, Piece, Sent, stand_in
from inlay.ray.remote import losses
from inlay.targets.base import Artifact

T = TypeVar("T")


class HelperPool:
    """Helpers that answered; the one with the least to do is asked, of several in turn.

    One that is lost, which Ray starts again where there is room, is asked again once it answers; where none answers,
    all is lost at once.

    Args:
        actors: of :class:`~inlay.ray.helper.Helper`, perhaps still starting: they are waited for when help is needed.
    """

    def __init__(self, ray: Any, actors: Sequence[Any], tell: Tell) -> None:
        self._ray, self._tell = ray, tell
        self._hellos = {actor.hello.remote(): actor for actor in actors}
        self._asked, self._lock = [0] * len(actors), threading.Lock()  # answers come in another thread
        self._turn, self._away = 0, set[int]()
        self._weights: dict[tuple[str, int, int], Piece] = {}  # external data: models share it
        self._models: OrderedDict[Stored | Artifact, Sent] = OrderedDict()

    @cached_property
    def _actors(self) -> Sequence[Any]:
        """Those that are there soon, with the same versions as here."""
        there, _ = self._ray.wait([*self._hellos], num_returns=len(self._hellos), timeout=policy.HELPER_WAIT_S)
        found, absent = [], Counter[str]()
        for hello in there:
            try:
                versions = tuple(self._ray.get(hello))
            except losses(self._ray) as error:
                absent[str(error).partition("\n")[0]] += 1
                continue
            if versions == VERSIONS:
                found.append(self._hellos[hello])
            else:
                absent[f"they have Inlay and ONNX Runtime {' and '.join(versions)}, not {' and '.join(VERSIONS)}"] += 1
        for why, count in absent.items():
            self._tell(f"{count} processors of the cluster do not help: {why}")
        if len(found) > 1:  # one alone is asked nothing
            self._tell(f"{len(found)} helpers of the cluster prepare the model")
        return found

    run_model = staticmethod(stand_in)

    @property
    def width(self) -> int:
        """How many there are."""
        return len(self._actors)

    def submit(self, seconds: float, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """As of :class:`~inlay.model.pool.WorkerPool`; an :class:`~inlay.targets.base.Artifact` is sent as its file."""
        given = [self._sent(each) if isinstance(each, Stored | Artifact) else each for each in arguments]
        with self._lock:
            there = [i for i in range(self.width) if i not in self._away]
            number = min(there, key=lambda i: (self._asked[i], (i - self._turn) % self.width), default=None)
            if number is None:
                return _lost("no helper answers")
            self._turn = number + 1
            self._asked[number] += 1
        answer: Future[T] = Future()
        asked = self._actors[number].call.remote(seconds, function, given).future()
        asked.add_done_callback(lambda done: self._settle(number, answer, done))
        return answer

    def map(
        self, function: Callable[..., T], calls: Iterable[tuple[Any, ...]], here: Callable[..., T]
    ) -> Iterator[Future[T]]:
        """As of :class:`~inlay.model.pool.WorkerPool`."""
        return mapped(self, function, calls, here)

    def _settle(self, number: int, answer: Future[T], done: Future[T]) -> None:
        with self._lock:
            self._asked[number] -= 1
        error = done.exception()
        cause = getattr(error, "cause", None)  # where the helper's own code raised it
        if error is not None and cause is None:
            self._lose(number)  # a call is not repeated: it would wait for room, and whoever asked can do it
        if not answer.set_running_or_notify_cancel():
            return
        if error is None:
            answer.set_result(done.result())
            return
        if cause is not None and not isinstance(cause, InlayError):  # done again here, it may not fail
            self._tell(f"a helper of the cluster failed, and its work is done here: {type(cause).__name__}: {cause}")
        answer.set_exception(cause if isinstance(cause, InlayError) else TaskLost(str(error).partition("\n")[0]))

    def _lose(self, number: int) -> None:
        """Ask a helper nothing until it answers again."""
        with self._lock:
            if number in self._away:
                return
            self._away.add(number)
        hello = self._actors[number].hello.options(max_task_retries=policy.HELPER_LOSSES)
        hello.remote().future().add_done_callback(lambda done: self._back(number, done))

    def _back(self, number: int, hello: Future[tuple[str, str]]) -> None:
        if hello.exception() is None and tuple(hello.result()) == VERSIONS:
            with self._lock:
                self._away.discard(number)

    def _sent(self, model: Stored | Artifact) -> Sent:
        """The model with its pieces in the object store; those that other models share are there once."""
        if model not in self._models:
            if isinstance(model, Artifact):
                name, ranges = ranges_of_model(model.path)
                self._models[model] = self._pieces(name, ranges, model.digest)
            else:
                path = model.store.folder / f"handed-{uuid.uuid4().hex}.onnx"
                path.write_bytes(model.proto.SerializeToString())
                try:
                    self._models[model] = self._pieces(*ranges_of_model(path))
                finally:
                    path.unlink(missing_ok=True)
            if len(self._models) > policy.KEPT_MODELS:
                self._models.popitem(last=False)
        return self._models[model]

    def _pieces(self, name: str, ranges: Sequence[FileRange], digest: str = "") -> Sent:
        pieces = []
        for each in ranges:
            piece = self._weights.get(each.key) or Piece(
                *each.key, [(at, self._ray.put(data)) for at, data in each.chunks()]
            )
            if each.name != name:
                self._weights[each.key] = piece
            pieces.append(piece)
        return Sent(name, pieces, digest)


def mapped(
    pool: WorkerPool, function: Callable[..., T], calls: Iterable[tuple[Any, ...]], here: Callable[..., T]
) -> Iterator[Future[T]]:
    """``map`` of a pool, by its ``submit``: one call more than it has workers is under way."""
    rest, under_way = iter(calls), deque[tuple[tuple[Any, ...], Future[T]]]()
    stopped: BaseException | None = None
    try:
        while stopped is None or under_way:
            while stopped is None and len(under_way) <= pool.width:
                try:
                    call = next(rest)
                except (Exception, StopIteration) as error:
                    stopped = error
                    break
                under_way.append((call, pool.submit(left_s(), function, *call)))
            if under_way:
                call, asked = under_way.popleft()
                yield _answered(asked, here, call)
        if not isinstance(stopped, StopIteration):
            raise stopped
    finally:
        for _, asked in under_way:
            asked.cancel()


def _answered(asked: Future[T], here: Callable[..., T], call: tuple[Any, ...]) -> Future[T]:
    """The outcome of a call that was handed over; it is answered here where whoever was asked is lost or silent."""
    try:
        error = asked.exception(min(policy.PATIENCE_S, left_s()))
    except NoAnswer:
        asked.cancel()
        return done(here, call)  # which raises Late where the time is over
    return done(here, call) if isinstance(error, TaskLost) else asked


def _lost(why: str) -> Future[Any]:
    found: Future[Any] = Future()
    found.set_exception(TaskLost(why))
    return found


@contextlib.contextmanager
def helper_pool(ray: Any, root: str | None, tell: Tell) -> Iterator[WorkerPool | None]:
    """Helpers on all processors of the cluster that are free now; None where there are none."""
    free = min(policy.MOST_HELPERS, math.floor(ray.available_resources().get("CPU", 0)))
    if not free:
        yield None
        return
    actors: list[Any] = []
    try:
        kind = ray.remote(Helper).options(num_cpus=1, max_restarts=policy.HELPER_LOSSES)
        actors += [kind.remote(root) for _ in range(free)]
        yield HelperPool(ray, actors, tell)
    finally:
        for actor in actors:
            with contextlib.suppress(*losses(ray)):
                actor.close.remote()
        with contextlib.suppress(*losses(ray)):
            ray.wait([actor.hello.remote() for actor in actors], num_returns=len(actors), timeout=policy.END_LIMIT_S)
        for actor in actors:
            with contextlib.suppress(*losses(ray)):
                ray.kill(actor)
