"""Work that is not measured, done by several processes: here one call after the other, or by whoever can be found.

What is handed over is a call of a function of Inlay's own whose result depends on nothing but its arguments. So it does
not matter who answers, nor how many there are: outcomes come in the order of the calls.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer  # the built-in one from Python 3.11 on
from contextlib import AbstractContextManager, ExitStack
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import onnx

from inlay.errors import InlayError
from inlay.model import policy
from inlay.model.guard import left_s
from inlay.model.store import WeightStore

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Stored:
    """A model as an argument of a call: where that is handed over, the weights that it needs go along, each once.

    Attributes:
        proto: the model; its weights may be in ``store``.
        store: where external weights are read from.
    """

    proto: onnx.ModelProto
    store: WeightStore


class HandLost(Exception):
    """Whoever did something is gone, or cannot do it: it is to be done again."""


class Hands(Protocol):
    """Processes elsewhere that answer calls."""

    @property
    def width(self) -> int:
        """How many calls they answer at a time; whoever asks waits until that is known."""
        ...

    def submit(self, seconds: float, function: Callable[..., T], *arguments: Any) -> Future[T]:
        """What ``function`` returns, some time.

        The future raises :class:`HandLost`, or the :class:`~inlay.errors.InlayError` that doing it here would raise.

        Args:
            seconds: after which it is :class:`~inlay.errors.Late`.
            function: one that can be imported by its name.
            arguments: can be pickled, but for :class:`Stored` models.
        """
        ...


Recruit = Callable[[], AbstractContextManager[Hands | None]]
"""Finds hands, as many as are free, and lets them go at the end; None where there are none."""


class _Recruited:
    """Hands, looked for at most once."""

    def __init__(self, recruit: Recruit, stack: ExitStack) -> None:
        self._recruit: Recruit | None = recruit
        self._stack = stack
        self.hands: Hands | None = None

    def look(self) -> Hands | None:
        if self._recruit is not None:
            recruit, self._recruit = self._recruit, None
            self.hands = self._stack.enter_context(recruit())
        return self.hands


_recruited: ContextVar[_Recruited | None] = ContextVar("recruited", default=None)


@contextlib.contextmanager
def helped(recruit: Recruit | None, seconds: float = 0.0) -> Iterator[None]:
    """Within this, calls are answered by hands once somebody looked for them; at the end they are let go.

    Args:
        recruit: finds them; None where there can be none.
        seconds: of work that is known to come, as of :func:`foresee`.
    """
    if recruit is None:
        yield
        return
    with ExitStack() as stack:
        recruited = _Recruited(recruit, stack)
        token = _recruited.set(recruited)
        try:
            foresee(seconds)
            yield
        finally:
            _recruited.reset(token)


def foresee(seconds: float) -> None:
    """So much work is known to come: where it is worth it, hands are looked for at once, and get ready meanwhile."""
    recruited = _recruited.get()
    if recruited is not None and seconds >= policy.HELPED_FROM_S:
        recruited.look()


def may_be_helped() -> bool:
    """Whether there are hands, or could be."""
    return _recruited.get() is not None


def width() -> int:
    """How many calls are answered at a time: 1 where nobody was found."""
    recruited = _recruited.get()
    found = None if recruited is None else recruited.hands
    return 1 if found is None else max(1, found.width)


def find_hands(seconds: float) -> Hands | None:
    """Whoever helps with work that takes so many seconds; None where nobody does, or it is not worth asking."""
    recruited = _recruited.get()
    found = None if recruited is None or seconds < policy.HELPED_FROM_S else recruited.look()
    return found if found is not None and found.width else None


def each(
    function: Callable[..., T], calls: Iterable[tuple[Any, ...]], here: Callable[..., T] | None = None
) -> Iterator[Future[T]]:
    """The outcome of ``function`` for the arguments in ``calls``, in turn: done, with its result or its error.

    Where several hands were found, a few more calls are under way than were asked for; otherwise each is answered here
    once it is asked for.

    Args:
        function: as of :meth:`Hands.submit`.
        calls: the arguments of each, made when their turn comes. What making them raises is raised in their turn.
        here: what gives the same in this process; the function itself by default.
    """
    here = here or function
    recruited = _recruited.get()
    found = None if recruited is None else recruited.hands
    if found is None or found.width < 2:  # one alone does nothing faster than this process
        for call in calls:
            yield _done(here, call)
        return
    rest, under_way = iter(calls), deque[tuple[tuple[Any, ...], Future[T]]]()
    stopped: BaseException | None = None
    try:
        while stopped is None or under_way:
            while stopped is None and len(under_way) <= found.width:
                try:
                    call = next(rest)
                except (Exception, StopIteration) as error:
                    stopped = error
                    break
                under_way.append((call, found.submit(left_s(), function, *call)))
            if under_way:
                call, asked = under_way.popleft()
                yield answered(asked, here, call)
        if not isinstance(stopped, StopIteration):
            raise stopped
    finally:
        for _, asked in under_way:
            asked.cancel()


def answered(asked: Future[T], function: Callable[..., T], call: tuple[Any, ...]) -> Future[T]:
    """The outcome of a call that was handed over; it is answered here where whoever was asked is lost or silent."""
    try:
        error = asked.exception(min(policy.PATIENCE_S, left_s()))
    except NoAnswer:
        asked.cancel()
        return _done(function, call)  # which raises Late where the time is over
    return _done(function, call) if isinstance(error, HandLost) else asked


def _done(function: Callable[..., T], call: tuple[Any, ...]) -> Future[T]:
    outcome: Future[T] = Future()
    try:
        outcome.set_result(function(*call))
    except InlayError as error:
        outcome.set_exception(error)
    return outcome
