"""Work that is not measured, done by several processes: here call after call, or by a pool of workers elsewhere.

What is handed over is a call of a function of Inlay's own whose result depends on nothing but its arguments. So it does
not matter who answers, nor how many there are: outcomes come in the order of the calls. Pools come from executors
(:class:`~inlay.measure.lab.Lab`); without one, this is a loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import onnx

from inlay.errors import InlayError
from inlay.model.store import WeightStore

POOLED_FROM_S = 10.0  # seconds of work from which on a pool is opened: a process, and a model's way to it, take a few

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Stored:
    """A model as an argument of a call: where that is handed over, the weights that it needs go along, each once."""

    proto: onnx.ModelProto  # the model; its weights may be in `store`
    store: WeightStore  # where external weights are read from


class TaskLost(Exception):
    """Whoever did something is gone, or cannot do it: it is to be done again."""


class WorkerPool(Protocol):
    """Processes elsewhere that answer calls."""

    # for `map`: outputs of a model, from the target, the digest of the device's fingerprint, the model's file and
    # inputs; it raises `TaskLost` where the runtime there is not like the device's
    run_model: Callable[..., list[dict[str, Any]]]

    @property
    def width(self) -> int:
        """How many calls they answer at a time; whoever asks waits until that is known."""
        ...

    def submit(self, seconds: float, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """What ``function`` returns, some time.

        The future raises :class:`TaskLost`, or the :class:`~inlay.errors.InlayError` that doing it here would raise.

        Args:
            seconds: after which it is :class:`~inlay.errors.Late`.
            function: one that can be imported by its name.
            arguments: can be pickled, but for :class:`Stored` models.
        """
        ...

    def map(
        self, function: Callable[..., T], calls: Iterable[tuple[Any, ...]], here: Callable[..., T]
    ) -> Iterator[Future[T]]:
        """As :func:`each`, with a few more calls under way than were asked for; what is lost is done by ``here``."""
        ...


OpenPool = Callable[[], AbstractContextManager[WorkerPool | None]]
"""Opens a pool of as many workers as are free, and lets them go at the end; None where there are none."""


@dataclass(eq=False)
class _Pool:
    """A pool that is opened at most once, when it is first worth it."""

    stack: ExitStack
    open: OpenPool | None
    found: WorkerPool | None = None

    def opened(self) -> WorkerPool | None:
        if self.open is not None:
            open_pool, self.open = self.open, None
            self.found = self.stack.enter_context(open_pool())
        return self.found


_pool: ContextVar[_Pool | None] = ContextVar("pool", default=None)


@contextlib.contextmanager
def pooled(open_pool: OpenPool | None, seconds: float = 0.0) -> Iterator[None]:
    """Within this, calls are answered by a pool once it was opened; at the end it is closed.

    Args:
        open_pool: opens it; None where there can be none.
        seconds: of work that is known to come, as of :func:`open_early`.
    """
    if open_pool is None:
        yield
        return
    with ExitStack() as stack:
        token = _pool.set(_Pool(stack, open_pool))
        try:
            open_early(seconds)
            yield
        finally:
            _pool.reset(token)


def open_early(seconds: float) -> None:
    """So much work is known to come: where it is worth it, the pool is opened at once, and gets ready meanwhile."""
    if (pool := _pool.get()) is not None and seconds >= POOLED_FROM_S:
        pool.opened()


def may_have_pool() -> bool:
    """Whether there is a pool, or could be."""
    return _pool.get() is not None


def pool_for(seconds: float) -> WorkerPool | None:
    """The pool, for work that takes so many seconds; None where there is none, or it is not worth opening it."""
    open_early(seconds)
    pool = _pool.get()
    found = None if pool is None or seconds < POOLED_FROM_S else pool.found
    return found if found is not None and found.width else None


def several() -> WorkerPool | None:
    """The pool, where it is open and has two workers or more: one alone does nothing faster than this process."""
    pool = _pool.get()
    return None if pool is None or pool.found is None or pool.found.width < 2 else pool.found


def width() -> int:
    """How many calls are answered at a time: 1 without a pool."""
    pool = several()
    return 1 if pool is None else pool.width


def each(
    function: Callable[..., T], calls: Iterable[tuple[Any, ...]], here: Callable[..., T] | None = None
) -> Iterator[Future[T]]:
    """The outcome of ``function`` for the arguments in ``calls``, in turn: done, with its result or its error.

    Without a pool each call is answered here once it is asked for.

    Args:
        calls: the arguments of each, made when their turn comes. What making them raises is raised in their turn.
        here: what gives the same in this process; the function itself by default.
    """
    here, pool = here or function, several()
    if pool is not None:
        yield from pool.map(function, calls, here)
        return
    for call in calls:
        yield done(here, call)


def done(function: Callable[..., T], call: tuple[Any, ...]) -> Future[T]:
    """The outcome of a call that is answered here."""
    outcome: Future[T] = Future()
    try:
        outcome.set_result(function(*call))
    except InlayError as error:
        outcome.set_exception(error)
    return outcome
