"""Calls of native code on a model that nobody vouches for, in a process that can be killed.

A function of Inlay's own runs there with the given arguments; what it returns, or the error it raises, comes back. A
crash, a hang and memory without end become errors too, and the next call finds a new process. Objects that cannot
travel (sessions of a runtime) stay there; the parent holds a :class:`Resident`.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import pickle
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Generic, NamedTuple, TypeVar

from inlay import errors
from inlay.errors import Crashed, InlayError, Late, RunFailed, TimedOut
from inlay.model.child import Child, ChildDied, Part, limit_memory, serve

CALL_SECONDS = 60.0
"""Seconds that one call may take, and each inference of a call with several. Building and running a real model once
takes seconds; on a busy machine, ten times as long. A loop without end is told after a minute."""

START_SECONDS = 120.0  # for the process itself to start: about one, and much more on a busy machine
NODE_SECONDS = 0.01  # more seconds for each node: runtimes build 100,000 nodes in minutes, not in seconds
BYTE_SECONDS = 60e-9  # more seconds for each byte of model and feed: a slow disk reads a gigabyte in a minute

CALL_BYTES = 4 << 30
"""Bytes of memory that a call may take beyond what the process has: what a small machine has, and far more than any
small model needs."""

BYTES_PER_MODEL_BYTE = 8  # more for each byte of the model: weights are copied, packed and converted
BYTES_PER_FEED_BYTE = 1024
"""More for each byte of a feed: all values of an image network together take 200 times as much as its input
(ResNet-50), and in the form that convolutions work on, several times that."""


T = TypeVar("T")


class Limits(NamedTuple):
    """What one call may take."""

    seconds: float = CALL_SECONDS  # until it is ended
    memory: int = CALL_BYTES  # bytes, beyond what the process has


def limits_for(size: int, nodes: int) -> Limits:
    """Limits of calls on a model of ``size`` bytes, weights included."""
    return Limits(
        CALL_SECONDS + NODE_SECONDS * nodes + BYTE_SECONDS * size,
        CALL_BYTES + BYTES_PER_MODEL_BYTE * size,
    )


class Resident(Generic[T]):
    """An object in the guarded process, which a function of Inlay's makes from arguments; made again where it got lost.

    As an argument of a call it stands for the object itself. It is freed when the last reference to this is gone.
    """

    def __init__(self, make: Callable[..., T], *arguments: Any) -> None:
        self.key = next(_KEYS)
        self.recipe = (make, arguments)
        weakref.finalize(self, _FREED.append, self.key)

    def __reduce__(self) -> tuple[Callable[[int], Any], tuple[int]]:
        return _resident, (self.key,)


_ENTRY = "inlay.model.native:main"  # it loads what nearly every call needs before the first one comes
_KEYS = itertools.count()
_FREED: list[int] = []  # keys of residents that the parent has forgotten, until the next call frees them
_ceiling: ContextVar[Callable[[], float]] = ContextVar("ceiling", default=lambda: float("inf"))


@contextlib.contextmanager
def limited(seconds: Callable[[], float]) -> Iterator[None]:
    """Within this, no call takes longer than ``seconds`` says as it begins: what is left of a budget, for instance."""
    outer = _ceiling.get()
    token = _ceiling.set(lambda: min(seconds(), outer()))
    try:
        yield
    finally:
        _ceiling.reset(token)


def left_s() -> float:
    """Seconds that a call may take by :func:`limited`; infinite where there is no limit."""
    return _ceiling.get()()


def call(doing: str, function: Callable[..., T], *arguments: Any, limits: Limits | None = None) -> T:
    """What ``function`` returns in the guarded process.

    Args:
        doing: what it does, for messages ("running the model").
        function: one that can be imported by its name.
        arguments: residents, or values that can be pickled.

    Raises:
        InlayError: raised by ``function``.
        RunFailed: it raised anything else.
        Crashed: it ended the process, or ran out of memory.
        TimedOut: it took too long.
        Late: it was not over by the time that :func:`limited` allows.
    """
    with _lock:
        return _guard.call(doing, function, arguments, limits or Limits())


class Guard:
    """A guarded process, started when it is first needed.

    Args:
        entry: ``module:function`` of its program, which calls :func:`answer_calls`.
        starts_others: what it runs may start processes, which end with this one.
    """

    def __init__(self, entry: str, starts_others: bool = False) -> None:
        self._entry, self._starts_others = entry, starts_others
        self._child: Child | None = None
        self._owner = 0
        self._made: set[int] = set()
        self._ready = False

    def call(self, doing: str, function: Callable[..., T], arguments: Sequence[Any], limits: Limits) -> T:
        """See :func:`call`; limits without memory leave that as it is."""
        left = left_s()
        if left <= 0.0:
            raise Late(f"{doing}: there is no time left for it")
        child = self._waited_for(self.start())
        missing = [a for a in arguments if isinstance(a, Resident) and a.key not in self._made]
        freed = [_FREED.pop() for _ in range(len(_FREED))]
        buffers: list[pickle.PickleBuffer] = []
        first = pickle.dumps((freed, [(r.key, *r.recipe) for r in missing], limits.memory))
        second = pickle.dumps((function, arguments), protocol=5, buffer_callback=buffers.append)
        seconds = min(limits.seconds, left)
        try:
            head, *rest = child.ask([first, second, *(b.raw() for b in buffers)], seconds)
            kind, *answer = pickle.loads(head, buffers=rest)
        except ChildDied as error:
            raise Crashed(f"{doing} ended its process ({error})") from None
        except TimeoutError:
            kind_of = Late if left < limits.seconds else TimedOut
            raise kind_of(f"{doing} took more than {round(seconds, 1):g} s and was ended") from None
        except (pickle.UnpicklingError, ValueError, AttributeError, ImportError) as error:
            child.close()
            raise Crashed(f"{doing} gave an answer that cannot be read: {type(error).__name__}") from None
        if kind == "returned":
            self._made.update(r.key for r in missing)
            self._made.difference_update(freed)
            return answer[0]  # type: ignore[no-any-return]
        if kind == "memory":
            most = (
                f"more than {round(limits.memory / 2**30, 2):g} GiB of memory"
                if limits.memory
                else "more memory than there is"
            )
            raise Crashed(f"{doing} needs {most}")
        raise getattr(errors, answer[0])(answer[1])

    def start(self) -> Child:
        """The process; a new one where it ended, or belongs to the process that this one was forked from."""
        if self._child is None or self._owner != os.getpid() or not self._child.alive:
            if self._child is not None and self._owner == os.getpid():
                self._child.close()
            self._child, self._owner = Child(self._entry, starts_others=self._starts_others), os.getpid()
            self._made.clear()
            self._ready = False
        return self._child

    def _waited_for(self, child: Child) -> Child:
        """``child`` once it has loaded its modules, which no call is charged with."""
        try:
            if not self._ready:
                child.ask([], START_SECONDS)
                self._ready = True
        except (ChildDied, TimeoutError) as error:
            raise Crashed(f"the process for native code did not start ({error})") from None
        return child

    @property
    def pid(self) -> int:
        """Number of the process; 0 where there is none."""
        return self._child.pid if self._child is not None and self._owner == os.getpid() else 0

    def close(self) -> None:
        """End it."""
        if self._child is not None and self._owner == os.getpid():
            self._child.close()
        self._child = None


_guard = Guard(_ENTRY)
_lock = threading.RLock()
atexit.register(_guard.close)


def pid() -> int:
    """Number of the guarded process of this one; 0 where there is none."""
    return _guard.pid


def start() -> None:
    """Start the process in advance: it loads its modules while the caller does other work."""
    with _lock:
        _guard.start()


def end() -> None:
    """End the process, and free what it holds: the next call starts another, which makes its residents again."""
    with _lock:
        _guard.close()


# --- the guarded process ----------------------------------------------------------------------------------------------

_residents: dict[int, Any] = {}
_limited = [0]  # the limit in force


def answer_calls() -> None:
    """Answer calls until the parent is done."""
    serve(_answer)


def _answer(parts: list[Part]) -> Sequence[Part]:
    if not parts:
        return []
    buffers: list[pickle.PickleBuffer] = []
    try:
        head = pickle.dumps(_result(parts), protocol=5, buffer_callback=buffers.append)
    except MemoryError:
        return [pickle.dumps(("memory",))]
    return [head, *(b.raw() for b in buffers)]


def _result(parts: list[Part]) -> tuple[Any, ...]:
    try:
        freed, missing, memory = pickle.loads(parts[0])
        for key in freed:
            _residents.pop(key, None)
        if missing or memory != _limited[-1]:
            limit_memory(memory)
            _limited[:] = [memory]
        for key, make, arguments in missing:
            _residents[key] = make(*arguments)
        function, arguments = pickle.loads(parts[1], buffers=parts[2:])
        return "returned", function(*arguments)
    except InlayError as error:
        return "raised", type(error).__name__, str(error)
    except MemoryError:
        raise
    except Exception as error:  # native code raises anything
        return "raised", RunFailed.__name__, f"{type(error).__name__}: {error}"


def _resident(key: int) -> Any:
    return _residents[key]
