"""What a measuring program is asked, and what it answers: one JSON object each way, version 1.

A request comes as one line on standard input, and its plain fields as variables of the environment as well, which is
all that a shell script needs. The answer is a line on standard output; other lines that do not begin with ``{`` are
left alone. ``docs/targets.md`` describes every field.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from inlay.errors import BadReading, RunFailed, TargetError
from inlay.targets.process import Process

VERSION = 1
Gift = Literal["build", "latency", "outputs", "profile"]  # what a program can do
_LONGEST_VARIABLE = 100_000
"""Characters: Linux starts no program with longer variables. All inputs are in the request in any case."""
_WORDS = 500  # characters of an error that a program tells


@dataclass(frozen=True)
class Description:
    """What a program says of itself."""

    gives: frozenset[Gift]  # what it can do
    resident: bool = False  # it goes on reading requests after its first answer, and keeps one model
    deterministic: bool = False  # its times are estimates without noise
    facts: Mapping[str, str] = field(default_factory=dict)  # what its measurements depend on


class Program:
    """A measuring program, as a user names it: split like a shell's words, but no shell looks at it.

    Args:
        limit_s: seconds that one request may take.

    Raises:
        TargetError: there are no words in ``command``.
    """

    def __init__(self, command: str, limit_s: float) -> None:
        try:
            self.arguments = shlex.split(command)
        except ValueError as error:
            raise TargetError(f"the command {command!r} cannot be split into words: {error}") from error
        if not self.arguments:
            raise TargetError("the command is empty: name a program")
        self._limit_s = limit_s

    def describe(self) -> Description:
        """What it can do. Raises TargetError."""
        conversation = Conversation(self, resident=False)
        try:
            return _description(conversation.ask("describe"), self.arguments[0])
        except RunFailed as error:
            raise TargetError(str(error)) from error
        finally:
            conversation.end()

    def start(self, request: Mapping[str, Any]) -> Process:
        """Start it, with ``request`` in its environment."""
        return Process(self.arguments, _environment(request))

    @property
    def limit_s(self) -> float:
        """Seconds that one request may take."""
        return self._limit_s


class Conversation:
    """Requests about one model.

    Args:
        resident: whether one process answers all of them.
    """

    def __init__(self, program: Program, resident: bool) -> None:
        self._program, self._resident = program, resident
        self._process: Process | None = None

    def ask(self, do: str, **fields: Any) -> dict[str, Any]:
        """The answer to one request. Raises RunFailed, TimedOut."""
        request = {"inlay": VERSION, "do": do, **fields, "limit_s": self._program.limit_s}
        if self._process is None:
            self._process = self._program.start(request)
        try:
            line = self._process.ask(json.dumps(request), self._program.limit_s, is_last=not self._resident)
        except BaseException:
            self.end()
            raise
        if not self._resident:
            self.end()
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            raise RunFailed(f"the answer to {do} is not JSON: {line[:_WORDS]}") from None
        if "error" in answer:
            raise RunFailed(str(answer["error"])[:_WORDS] or f"{do} failed without a message")
        return dict(answer)

    def end(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.end()


def _environment(request: Mapping[str, Any]) -> dict[str, str]:
    """The plain fields of a request as variables: ``readings`` is ``INLAY_READINGS``."""
    plain = {k: v for k, v in request.items() if isinstance(v, (str, int, float)) and k != "inlay"}
    found = {f"INLAY_{k.upper()}": str(v) for k, v in plain.items()}
    inputs = ",".join(f"{i['name']}:{i['raw']}" for i in request.get("inputs", ()))
    named = {"INLAY_INPUTS": inputs} if len(inputs) <= _LONGEST_VARIABLE else {}
    return {**found, **named, "INLAY_PROTOCOL": str(VERSION)}


def _description(answer: Mapping[str, Any], name: str) -> Description:
    version = answer.get("inlay")
    if version != VERSION:
        raise RunFailed(f"{name} answers by version {version} of the protocol, this is version {VERSION}")
    gives, facts = answer.get("gives", ["latency"]), answer.get("facts", {})
    if not isinstance(gives, list) or not set(map(str, gives)) <= set(get_args(Gift)):
        raise RunFailed(f"{name} gives {gives!r}: a list of {', '.join(get_args(Gift))} was expected")
    if not isinstance(facts, dict):
        raise RunFailed(f"{name} gives the facts {facts!r}: an object was expected")
    text = {str(k): str(v) for k, v in facts.items()}
    return Description(frozenset(gives), answer.get("resident") is True, answer.get("deterministic") is True, text)


# --- arrays as files --------------------------------------------------------------------------------------------------


def save_inputs(feed: Mapping[str, np.ndarray], folder: Path) -> list[dict[str, Any]]:
    """Write inputs as ``.npy`` and as plain bytes (little-endian, last axis first); what a request says of them."""
    folder.mkdir(exist_ok=True)
    found = []
    for number, (name, given) in enumerate(feed.items()):
        array = np.ascontiguousarray(given)
        npy, raw = folder / f"{number}.npy", folder / f"{number}.bin"
        try:
            np.save(npy, array, allow_pickle=False)
        except ValueError as error:
            raise RunFailed(f"input {name} of type {array.dtype} cannot be written: {error}") from error
        data = array.tobytes()
        raw.write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        shape = [int(size) for size in np.shape(given)]
        files = {"npy": str(npy), "raw": str(raw), "digest": digest}
        found.append({"name": name, "dtype": str(array.dtype), "shape": shape, **files})
    return found


def read_outputs(answer: Mapping[str, Any], folder: Path) -> dict[str, np.ndarray]:
    """Outputs by name: each is told with a file, ``npy``, or ``raw`` with its ``dtype`` and ``shape``.

    Raises:
        RunFailed: they are told otherwise, or a file does not hold what is said.
    """
    rows = answer.get("outputs")
    if not isinstance(rows, list):
        raise RunFailed("the answer to run has no list of outputs")
    try:
        return {str(row["name"]): _array(row, folder) for row in rows}
    except (OSError, ValueError, TypeError, LookupError, AttributeError) as error:
        raise RunFailed(f"an output cannot be read: {error!r}") from error


def _array(row: Mapping[str, Any], folder: Path) -> np.ndarray:
    if "npy" in row:
        return np.asarray(np.load(folder / row["npy"], allow_pickle=False))
    dtype, shape = np.dtype(row["dtype"]), tuple(int(size) for size in row["shape"])
    if dtype.hasobject:
        raise ValueError(f"{dtype} is no type of numbers")
    return np.frombuffer((folder / row["raw"]).read_bytes(), dtype).reshape(shape)


def read_latencies(answer: Mapping[str, Any]) -> np.ndarray:
    """Nanoseconds of each inference, shape (readings,), as they are told: what they can be is checked by their reader.

    Raises:
        BadReading: they are no list of numbers.
    """
    told = answer.get("latencies_ms")
    if not isinstance(told, list) or not all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in told):
        raise BadReading(f"the answer to time has no list of numbers latencies_ms, but {str(told)[:_WORDS]}")
    ns = np.asarray(told, np.float64) * 1e6
    whole = np.isfinite(ns).all() and (np.abs(ns) < 2.0**62).all()
    return ns.round().astype(np.int64) if whole else ns
