"""ONNX Runtime's CPU provider as a target."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime as ort

from inlay.errors import CompileFailed, UsageError
from inlay.files import scratch
from inlay.targets.base import Artifact, Capabilities, Feed, Fingerprint, KernelTime, Lack, StatesCapabilities
from inlay.targets.machine import (
    USUAL_LEVEL2,
    cpu_facts,
    level2_bytes,
    processor_of,
    require_streams,
    require_threads,
    timed_at_once,
)
from inlay.targets.onnxruntime.processors import exact_limit, exact_limit_of, facts_of, named
from inlay.targets.onnxruntime.profile import Attribution, kernels, read_events
from inlay.targets.onnxruntime.session import (
    LIMIT_BYTES,
    WAITING,
    SessionExecutable,
    building,
    graph_digest,
    infer,
    settings,
    weight_bytes,
)
from inlay.types import ANY_INT8, QType

if TYPE_CHECKING:
    from inlay.quant.plain.graph import IntegerOperator
    from inlay.targets.preconditions import Precondition

_WARM_UP = 2
_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8", "asimddp", "i8mm", "sve")


def capabilities_for(
    machine: str | None = None,
    flags: frozenset[str] | None = None,
    level2: int | None = None,
    limit: int | None = None,
    version: str = "",
) -> Capabilities:
    """What the runtime runs on a CPU, and its rewrites.

    Args:
        machine: as of ``rules_for`` in :mod:`.rules`.
        flags: likewise.
        level2: bytes of its second-level cache; by default of this one.
        limit: of weights; by default the largest with which sums are exact.
        version: of the runtime; empty for the last one that is known.
    """
    # A worker never asks: it starts without these, and without the graph library behind them.
    from inlay.targets.onnxruntime.float_rewrites import FLOAT_REWRITES
    from inlay.targets.onnxruntime.rewrites import SpaceToDepth, rewrites_for
    from inlay.targets.onnxruntime.rules import lacks_blocks, rules_for

    rules = rules_for(machine, flags, limit, version)
    wraps = rules.activation is QType.INT8 and rules.exact_limit < ANY_INT8
    rewrites = rewrites_for(rules.absorbed, level2 or level2_bytes(), wraps)
    if lacks_blocks(version):
        rewrites = tuple(each for each in rewrites if not isinstance(each, SpaceToDepth))
    return Capabilities(rules, FLOAT_REWRITES, rewrites)


_COSTS = Path(__file__).parent / "costs"
"""Cost tables by machine and instructions, as ``inlay calibrate-machine`` wrote them."""
_SNIPPET = """\
import onnxruntime as ort

options = ort.SessionOptions()
options.intra_op_num_threads = {threads}
options.inter_op_num_threads = 1
{waiting}session = ort.InferenceSession("model.onnx", options, providers=["CPUExecutionProvider"])
outputs = session.run(None, feed)  # feed: an array for each input, by name
"""
"""What :func:`_options` sets besides messages."""


def nearest_costs(has: Sequence[str], names: Iterable[str]) -> str | None:
    """The table of most instructions of which the processor has all; None where each needs one that it lacks.

    With more instructions kernels may be faster than the table says, and integer ones more so. That is a better guess
    than none, and profiles of what is built correct it; a table of kernels that cannot run here is a worse one.

    Args:
        has: architecture and ISA flags of the processor.
        names: of tables, which are the same joined by ``-``.
    """
    split = [(name, name.split("-")) for name in sorted(names)]
    usable = [(len(flags), name) for name, flags in split if flags[0] == has[0] and set(flags) <= set(has)]
    return max(usable)[1] if usable else None


class OrtCpuTarget(StatesCapabilities):
    """ONNX Runtime on this machine's CPU, with all of its graph optimizations.

    Args:
        threads: intra-op threads; 0 lets the runtime choose.
        processor: another one that files are for, by its name in :data:`~.processors.PROCESSORS`, or several joined
            by ``+``: its rules and costs decide, its numerics are computed here, and nothing is timed.
        streams: inferences at once, each in a thread of the caller's; times are then of all of them, per inference.
        version: of the runtime on ``processor``, whose rules count; by default the one here.
    """

    name = "ort-cpu"
    heading = ("onnxruntime", "cpu", "processor", "threads", "streams")
    deterministic = False

    def __init__(self, threads: int = 1, processor: str = "", streams: int = 1, version: str = "") -> None:
        require_threads(threads)
        require_streams(streams)
        if version and not (processor and re.fullmatch(r"\d+\.\d+(\.\w+)*", version)):
            what = "the runtime's on a processor that is not here: name that with --for, and a version such as 1.26.0"
            raise UsageError(f"version={version}: it is {what}")
        self.threads, self.streams = threads, streams
        self.processor, self.version = processor, version
        self._facts: Mapping[str, str] | None = None  # of another machine
        if processor:
            self._facts = {"onnxruntime": version or ort.__version__, **facts_of(processor), "threads": str(threads)}

    @property
    def lacks(self) -> frozenset[Lack]:
        """Times, where it is for a processor that is not here."""
        return frozenset({"latency", "profile", "memory"}) if self.processor else frozenset()

    def each_processor(self) -> dict[str, OrtCpuTarget]:
        """The target for each processor that it is named for."""
        names = named(self.processor) if self.processor else []
        return {name: OrtCpuTarget(self.threads, name, version=self.version) for name in names}

    def on_device(self, facts: Mapping[str, str]) -> OrtCpuTarget:
        """The same target on the machine whose fingerprint has these facts."""
        there = OrtCpuTarget(self.threads, self.processor, self.streams, self.version)
        if facts != self.fingerprint().facts:
            there._facts = facts
        return there

    def fingerprint(self) -> Fingerprint:
        """Runtime version, CPU, the ISA flags that its kernels choose by, and threads."""
        if self._facts is not None:
            return Fingerprint(self.name, self._facts)
        facts = {"onnxruntime": ort.__version__, **cpu_facts(_FLAGS), "threads": str(self.threads)}
        streams = {} if self.streams == 1 else {"streams": str(self.streams)}
        return Fingerprint(self.name, {**facts, **streams})

    def capabilities(self) -> Capabilities:
        """What its CPU runs in 8 bits, and how it is written."""
        limit = exact_limit_of(self.processor) if self.processor else None
        level2 = None if self._facts is None else USUAL_LEVEL2
        version = self.fingerprint().facts["onnxruntime"]
        return capabilities_for(*processor_of(self._facts), level2, limit, version)

    def integer_operators(self) -> tuple[IntegerOperator, ...]:
        """All of :data:`~inlay.targets.onnxruntime.integer_operators.OPERATORS`."""
        from inlay.targets.onnxruntime.integer_operators import OPERATORS

        return OPERATORS

    def preconditions(self) -> tuple[Precondition, ...]:
        """What it asks of the Q/DQ nodes around an operator, on its CPU."""
        from inlay.targets.onnxruntime.preconditions import preconditions_for

        return preconditions_for(processor_of(self._facts)[0])

    def shipped_costs(self) -> Path | None:
        """The table of the processor that is the most like this one, with one thread: see :func:`nearest_costs`."""
        if self.threads != 1:
            return None
        facts = self.fingerprint().facts
        name = nearest_costs([facts["machine"], *facts["isa"].split()], [p.stem for p in _COSTS.glob("*.json")])
        return None if name is None else _COSTS / f"{name}.json"

    def run_with(self) -> str:
        """The lines that run a model with the options that it is measured with."""
        entry = ", ".join(f'"{part}"' for part in WAITING)
        waiting = "" if self.threads == 1 else f"options.add_session_config_entry({entry})\n"
        return _SNIPPET.format(threads=self.threads, waiting=waiting)

    def micro_models(self) -> list[onnx.ModelProto]:
        """All of :mod:`~inlay.targets.onnxruntime.micro_models`."""
        from inlay.targets.onnxruntime.micro_models import micro_models

        return micro_models()

    def compile(self, model: Artifact) -> OrtExecutable:
        """Build a session, of the exact form where this processor's sums fit less. Raises CompileFailed."""
        if self.processor and exact_limit(*processor_of(None)) < exact_limit_of(self.processor):
            with _without_saturation(model) as exact:
                return OrtExecutable(exact, self.threads, self.streams)
        return OrtExecutable(model, self.threads, self.streams)

    def compile_identified(self, model: Artifact) -> tuple[OrtExecutable, str]:
        """Build a session, and say what it executes: models with the same digest run alike.

        The digest is empty where it cannot be computed: for large models, or where the graph cannot be written.

        Raises:
            CompileFailed: the runtime does.
        """
        with scratch() as name:
            path = Path(name) / "optimized.onnx"
            try:
                small = _is_small(model.path) and not self.processor  # its exact form has another graph
                executable = OrtExecutable(model, self.threads, self.streams, path) if small else None
            except CompileFailed:  # a provider that compiles nodes cannot write its graph
                executable = None
            if executable is None:
                return self.compile(model), ""
            try:
                return executable, graph_digest(path)
            except (OSError, ValueError, KeyError):
                return executable, ""


@contextmanager
def _without_saturation(model: Artifact) -> Iterator[Artifact]:
    """The model in the form that no processor saturates in (:mod:`.exact_form`), beside the same weights for a while.

    Raises CompileFailed.
    """
    from inlay.targets.onnxruntime.exact_form import exact_form, has_int8

    with building(model.path):
        proto = onnx.load(model.path, load_external_data=False)
    if not has_int8(proto):
        yield model
        return
    if not exact_form(proto, model.path.parent):
        raise CompileFailed("its inputs, outputs or casts are int8, of which this processor's sums do not fit")
    path = model.path.with_name(f"exact-{model.path.name}")
    try:
        path.write_bytes(proto.SerializeToString())
        yield Artifact(path, f"{model.digest}-exact")
    finally:
        path.unlink(missing_ok=True)


def _is_small(model: Path) -> bool:
    try:
        return weight_bytes(model) <= LIMIT_BYTES
    except (OSError, ValueError):  # the runtime's own message on the file is the one to show
        return False


def _options(threads: int, optimized: Path | None = None) -> Any:
    """Settings of a session, which writes its graph to ``optimized`` with the weights in a file of their own."""
    options = settings(threads)
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights")
    return options


def _session(model: Artifact, options: Any) -> Any:
    with building(model.path):
        return ort.InferenceSession(str(model.path), options, providers=["CPUExecutionProvider"])


class OrtExecutable(SessionExecutable):
    """One session, which is thread-safe."""

    runs_at_once = True

    def __init__(self, model: Artifact, threads: int, streams: int = 1, optimized: Path | None = None) -> None:
        super().__init__(_session(model, _options(threads, optimized)))
        self._model = model
        self._threads, self._streams = threads, streams
        self._others = ThreadPoolExecutor(streams - 1, "stream") if streams > 1 else None

    def time(self, feed: Feed, repeats: int) -> np.ndarray:
        """Nanoseconds of each inference with all transfers, shape (repeats,); of all streams together, per inference.

        Raises:
            RunFailed: the runtime does, or the model was closed.
        """
        if self._others is None:
            return super().time(feed, repeats)
        session = self._open()
        return timed_at_once(lambda: infer(session, feed), repeats, self._others, self._streams)

    def close(self) -> None:
        """Drop the session and its streams."""
        super().close()
        if self._others is not None:
            self._others.shutdown()

    def profile(self, feed: Feed, repeats: int) -> list[KernelTime]:
        """Median time of every kernel, from the runtime's own profiler in a session of its own.

        Raises:
            CompileFailed, RunFailed: the runtime does, or the model was closed.
        """
        self._open()
        with scratch() as name:
            folder = Path(name)
            options = _options(self._threads, folder / "optimized.onnx")
            options.enable_profiling = True
            options.profile_file_prefix = str(folder / "profile")
            session = _session(self._model, options)
            for _ in range(_WARM_UP + repeats):
                infer(session, feed)
            trace = json.loads(Path(session.end_profiling()).read_text(encoding="utf8"))
            optimized = onnx.load(folder / "optimized.onnx", load_external_data=False)
        model = onnx.load(self._model.path, load_external_data=False)
        return kernels(read_events(trace, _WARM_UP + repeats), Attribution(model, optimized), _WARM_UP)
