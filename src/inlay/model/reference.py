"""The numeric oracle: runs a graph with ONNX Runtime's CPU provider, by default without fusions.

It computes values (for calibration, constant folding and the numeric check of normalization) and is never timed. This
is, with :mod:`inlay.model.native`, the one generic file that names a runtime, and the runtime works in the guarded
process (:mod:`inlay.model.guard`) only. Models are passed as small files that refer to a shared
:class:`~inlay.model.store.WeightStore`.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import onnx
import onnx_ir as ir

from inlay.model.guard import BYTE_SECONDS, BYTES_PER_FEED_BYTE, Limits, Resident, call, limits_for
from inlay.model.native import NativeSession, multiplies_integers, run_whole, signature
from inlay.model.nesting import nested
from inlay.model.pinned import pinned, pinned_file
from inlay.model.pool import Stored, each, width
from inlay.model.store import WeightStore, externalize_weights

T = TypeVar("T")


class Session:
    """One ONNX Runtime session, in the guarded process.

    Args:
        optimize: enable all graph optimizations of the runtime; otherwise only the basic ones; None disables these too.
        fuse_qdq: fuse operators between Q and DQ nodes into integer kernels; otherwise these nodes only round values
            and all kernels are float.
        threads: of one inference; by default as many as there are cores.
        briefly: it runs a few feeds. Weights are left as they lie: to arrange them for the kernels takes as long as ten
            inferences of a transformer of 355 MB (1.0 s and 0.2 s of 0.25), each of which gains a fifth by it.

    Attributes:
        outputs: names of the outputs.
        types: type of each output in ONNX Runtime's notation, by name.

    Raises:
        CompileFailed: the runtime rejects the model.
        Crashed, TimedOut: building it ends the process, or takes too much time or memory.
    """

    def __init__(
        self,
        proto: onnx.ModelProto,
        store: WeightStore,
        optimize: bool | None = False,
        fuse_qdq: bool = True,
        threads: int | None = None,
        briefly: bool = False,
    ) -> None:
        proto = nested(proto)
        data = pinned(proto).SerializeToString()
        path = store.folder.resolve() / f"reference-{uuid.uuid4().hex}.onnx"
        path.write_bytes(data)  # it stays: a new process would have to build it again
        weakref.finalize(self, path.unlink, missing_ok=True)
        size = len(data) + (store.path.stat().st_size if store.path.exists() else 0)
        del data  # hundreds of megabytes may lie in it, and the other process is about to need as many
        self._limits = limits_for(size, len(proto.graph.node))
        options = optimize, fuse_qdq, threads or _usable_cores(), multiplies_integers(proto.graph), briefly
        self._native = Resident(NativeSession, str(path), *options)
        self.outputs, self.types = call("building the model", signature, self._native, limits=self._limits)

    @classmethod
    def of_file(cls, path: Path, size: int, nodes: int) -> Session:
        """Of a model where it lies, with all optimizations; ``size`` is that of all its files in bytes."""
        session = cls.__new__(cls)
        session._limits = limits_for(size, nodes)
        folder = tempfile.mkdtemp()  # it stays as well
        weakref.finalize(session, shutil.rmtree, folder, ignore_errors=True)
        twin = Path(folder) / "model.onnx"
        path = twin if pinned_file(path, twin) else path
        session._native = Resident(NativeSession, str(path.resolve()), True, True, _usable_cores())
        session.outputs, session.types = call("building the model", signature, session._native, limits=session._limits)
        return session

    def run(self, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Every output by name. Raises RunFailed, Crashed, TimedOut."""
        return self.inside([feed], NativeSession.run, dict(feed))

    def inside(self, feeds: Sequence[Mapping[str, np.ndarray]], function: Callable[..., T], *arguments: Any) -> T:
        """What ``function`` returns for the session itself and ``arguments``, where it lives: outputs need not travel.

        It can be imported by its name, and they can be pickled; limits go by ``feeds``.

        Raises:
            RunFailed: the runtime fails.
            Crashed, TimedOut: it ends its process, or takes too much time or memory.
        """
        bytes_of = [sum(array.nbytes for array in feed.values()) for feed in feeds]
        seconds = len(feeds) * self._limits.seconds + BYTE_SECONDS * sum(bytes_of)
        memory = self._limits.memory + BYTES_PER_FEED_BYTE * max(bytes_of, default=0) + sum(bytes_of)
        return call("running the model", function, self._native, *arguments, limits=Limits(seconds, memory))


class SharedSession:
    """A session that whoever helps has as well, so that several feeds are run at a time.

    Arguments are those of :class:`Session`.

    Raises:
        CompileFailed, Crashed, TimedOut: as of :class:`Session`; where somebody helps, when it first runs.
    """

    def __init__(
        self, proto: onnx.ModelProto, store: WeightStore, optimize: bool | None, fuse_qdq: bool = True
    ) -> None:
        self._model, self._options = Stored(proto, store), (optimize, fuse_qdq)
        self._own = None if width() > 1 else self._build()

    def each(self, feeds: Iterable[Mapping[str, np.ndarray]]) -> Iterator[dict[str, np.ndarray]]:
        """Every output by name for each of ``feeds`` in turn, of which a few more are taken than are asked for.

        Raises:
            RunFailed, Crashed, TimedOut: as of :meth:`Session.run`.
        """
        calls = ((self._model, self._options, dict(feed)) for feed in feeds)
        return (outcome.result() for outcome in each(_answer, calls, self._here))

    def _here(self, _model: Stored, _options: tuple[bool | None, bool], feed: dict[str, np.ndarray]) -> Any:
        self._own = self._own or self._build()
        return self._own.run(feed)

    def _build(self) -> Session:
        return Session(self._model.proto, self._model.store, *self._options)


_answering: weakref.WeakKeyDictionary[Stored, Session] = weakref.WeakKeyDictionary()  # where this process helps


def _answer(model: Stored, options: tuple[bool | None, bool], feed: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """One run of a shared session, in a process that helps: a model is always asked with the same options."""
    if model not in _answering:
        _answering[model] = Session(model.proto, model.store, *options)
    return _answering[model].run(feed)


def outputs_of(
    model: Stored, feeds: Sequence[Mapping[str, np.ndarray]], briefly: bool = False
) -> list[dict[str, np.ndarray]]:
    """Every output by name, for each of ``feeds``. Raises CompileFailed, RunFailed, Crashed, TimedOut.

    Briefly, as of :class:`Session`, the last digits are those of others that were run so.
    """
    # not fused: large weights are dequantized once, not for each feed
    session = Session(model.proto, model.store, fuse_qdq=False, briefly=briefly)
    return [session.run(feed) for feed in feeds]


def _usable_cores() -> int:
    """Cores that this process may use; 0 (the runtime's default) where the system does not say.

    ``OMP_NUM_THREADS``, which limits libraries that count cores themselves, limits this too.
    """
    limit = os.environ.get("OMP_NUM_THREADS", "")
    if limit.isdecimal() and int(limit):
        return int(limit)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0


def run_once(proto: onnx.ModelProto, feed: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Outputs of a small model that holds its weights itself, with all optimizations of the runtime.

    Raises:
        CompileFailed, RunFailed, Crashed, TimedOut: as of :class:`Session`.
    """
    data = pinned(proto).SerializeToString()
    limits = limits_for(len(data), len(proto.graph.node))
    return call("running the model", run_whole, data, dict(feed), limits=limits)


class ConstantEvaluator:
    """Computes constants: runs models without inputs, with weights in scratch folders inside ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, model: ir.Model, names: list[str]) -> dict[str, np.ndarray]:
        """The outputs ``names`` of ``model``, which has no inputs."""
        inner = self._folder / f"constants-{uuid.uuid4().hex}"
        inner.mkdir()
        try:
            store = WeightStore(inner)
            outputs = Session(externalize_weights(model, store), store).run({})
        finally:
            with contextlib.suppress(OSError):
                for file in inner.iterdir():
                    file.unlink()
                inner.rmdir()
        return {name: outputs[name] for name in names}


def with_outputs(proto: onnx.ModelProto, values: Sequence[str]) -> onnx.ModelProto:
    """A copy of ``proto`` with ``values`` of its main graph as outputs; the runtime infers their types."""
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    del copy.graph.output[:]
    for value in values:
        copy.graph.output.add(name=value)
    return copy


def in_batches(values: Sequence[str], sizes: Mapping[str, int], limit: int) -> Iterator[list[str]]:
    """Split ``values`` into batches of at most ``limit`` bytes, or of a single larger value."""
    batch: list[str] = []
    total = 0
    for value in values:
        size = sizes.get(value, 0)
        if batch and total + size > limit:
            yield batch
            batch, total = [], 0
        batch.append(value)
        total += size
    if batch:
        yield batch
