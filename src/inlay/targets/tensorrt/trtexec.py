"""TensorRT through its command-line tool: engines are built, timed and profiled by ``trtexec``.

``trtexec --remoteAutoTuningConfig=ssh://USER[:PASSWORD]@HOST[:PORT]?remote_exec_path=PATH&remote_lib_path=PATH --safe
--skipInference`` builds an engine with the times of the remote device. The engine is then copied there, and timed by
``trtexec_safe`` beside the program of that path.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from shlex import quote
from urllib.parse import parse_qs, urlsplit

import numpy as np

from inlay.errors import CompileFailed, RunFailed, TargetError, UsageError
from inlay.files import scratch_folder
from inlay.targets.base import Artifact, Feed, Fingerprint, KernelTime, Lack
from inlay.targets.model_file import BuiltByShapes, ModelFile, Shapes
from inlay.targets.process import Process
from inlay.targets.tensorrt import reports
from inlay.targets.tensorrt.bindings import TENSORRT
from inlay.targets.tensorrt.reports import kernels_of
from inlay.targets.tensorrt.rules import REMARK, ExplicitQuantization
from inlay.targets.tensorrt.target import at_least_none

_OPTION = "--remoteAutoTuningConfig"
_PASSWORD = re.compile(r"(://[^/@:\s]*):[^@\s]*@")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_SSH = ("-o", "BatchMode=yes", "-o", "ConnectTimeout=20")
"""Keys only: a password would have to stand on a command line that every user of the machine can read."""


@dataclass(frozen=True)
class Remote:
    """The machine that times engines."""

    user: str
    host: str
    port: int
    programs: PurePosixPath
    libraries: PurePosixPath

    def copy(self, engine: str, name: str) -> list[str]:
        """The command that copies an engine there."""
        return ["scp", "-P", str(self.port), *_SSH, engine, f"{self.user}@{self.host}:{quote(self._path(name))}"]

    def run(self, name: str, arguments: Sequence[str]) -> list[str]:
        """The command that times it there."""
        program = [str(self.programs / "trtexec_safe"), f"--loadEngine={self._path(name)}", *arguments]
        line = " ".join(["env", f"LD_LIBRARY_PATH={quote(str(self.libraries))}", *map(quote, program)])
        return ["ssh", "-p", str(self.port), *_SSH, f"{self.user}@{self.host}", line]

    def remove(self, name: str) -> list[str]:
        """The command that removes it there."""
        return ["ssh", "-p", str(self.port), *_SSH, f"{self.user}@{self.host}", f"rm -f {quote(self._path(name))}"]

    @staticmethod
    def _path(name: str) -> str:
        return f"/tmp/{name}"


def remote_in(arguments: Sequence[str]) -> Remote | None:
    """The machine that the arguments of ``trtexec`` name; None where they name none.

    Raises:
        UsageError: they name several, or one in another form.
    """
    found = [_value(arguments, i) for i, a in enumerate(arguments) if a == _OPTION or a.startswith(f"{_OPTION}=")]
    if not found:
        return None
    if len(found) > 1:
        raise UsageError(f"{_OPTION} is given {len(found)} times")
    form = "ssh://USER@HOST[:PORT]?remote_exec_path=PATH&remote_lib_path=PATH"
    try:
        parts = urlsplit(found[0])
        query = parse_qs(parts.query, strict_parsing=True)
        (program,), (libraries,) = query["remote_exec_path"], query["remote_lib_path"]
        user, host, port = parts.username or "", parts.hostname or "", parts.port or 22
    except (ValueError, KeyError):
        raise UsageError(f"{_OPTION}={without_password(found[0])}: give {form}") from None
    if parts.scheme != "ssh" or not _NAME.fullmatch(user) or not _NAME.fullmatch(host):  # ssh takes -x for an option
        raise UsageError(f"{_OPTION}={without_password(found[0])}: give {form}")
    return Remote(user, host, port, PurePosixPath(program).parent, PurePosixPath(libraries))


def without_password(text: str) -> str:
    """``text`` with the passwords of addresses left out."""
    return _PASSWORD.sub(r"\1@", text)


def _value(arguments: Sequence[str], index: int) -> str:
    _, equals, value = arguments[index].partition("=")
    if equals:
        return value
    return arguments[index + 1] if index + 1 < len(arguments) else ""


_QUICK_S = 60.0  # seconds for a question that needs no device
_OWN = frozenset(
    f"--{name}"
    for name in (
        "onnx", "saveEngine", "loadEngine", "iterations", "duration", "warmUp", "avgRuns", "shapes", "minShapes",
        "optShapes", "maxShapes", "loadInputs", "exportTimes", "exportOutput", "exportProfile", "exportLayerInfo",
        "timingCacheFile", "staticPlugins",
    )
)  # fmt: skip
"""Options that the target sets itself."""


class TrtexecTarget(ExplicitQuantization):
    """TensorRT on the device that ``trtexec`` chooses, or that its arguments name.

    Args:
        program: the tool.
        arguments: further arguments of every call (``--device=1 --useCudaGraph``). With ``--safe``, or where
            ``--remoteAutoTuningConfig`` names another machine, engines give their latency only.
        plugins: shared libraries of plugins, separated by commas.
        timing_cache: file that keeps what the builder learned, across candidates and runs; by default one per run.
        clock: ``device`` for the time of the kernels, ``host`` for that and the transfers of inputs and outputs.
        warm_up: milliseconds of inferences before readings: clocks of a device rise within them.
        limit_s: seconds that one call may take.

    Raises:
        UsageError: options contradict each other, or name what the target sets itself.
    """

    name = "trtexec"
    heading = ("tensorrt", "device", "clock")
    deterministic = False
    remark = REMARK

    def __init__(
        self,
        program: str = "trtexec",
        arguments: str = "",
        plugins: str = "",
        timing_cache: str = "",
        clock: str = "device",
        limit_s: float = 1800.0,
        warm_up: int = 50,
    ) -> None:
        try:
            self._arguments = shlex.split(arguments)
        except ValueError as error:
            raise UsageError(f"--target-option arguments={arguments}: {error}") from error
        own = [a for a in self._arguments if a.partition("=")[0] in _OWN]
        if own:
            raise UsageError(f"--target-option arguments: the target sets {own[0].partition('=')[0]} itself")
        self.remote = remote_in(self._arguments)
        self._program, self.limit_s = program, limit_s
        self.clock, self._warm_up = reports.clock_of(clock), at_least_none(warm_up)
        self._plugins = [Path(p) for p in plugins.split(",") if p]
        self._cache = reports.timing_cache(timing_cache)

    @property
    def is_safe(self) -> bool:
        """Whether engines are those of the safety runtime, which tells latencies and nothing else."""
        return self.remote is not None or "--safe" in self._arguments

    @property
    def lacks(self) -> frozenset[Lack]:
        """What these arguments leave out."""
        if self.is_safe:
            return frozenset({"accuracy", "profile"})
        return frozenset({"accuracy", "profile", "latency"}) if "--skipInference" in self._arguments else frozenset()

    @cached_property
    def version(self) -> str:
        """Of the tool.

        Raises:
            TargetError: it is not there, or is something else.
        """
        if shutil.which(self._program) is None:
            raise TargetError(
                f"{self._program} is not on the path: install TensorRT 11 (the tool is in the package libnvinfer-bin), "
                "or name it with --target-option program=PATH"
            )
        _, text = run([self._program, "--help"], _QUICK_S)
        version = reports.version_in(text)
        if not version:
            raise TargetError(f"{self._program} does not tell the version of TensorRT: it is not trtexec")
        if int(version.partition(".")[0]) < TENSORRT.least:
            raise TargetError(
                f"{self._program} is of TensorRT {version}, whose networks are weakly typed: "
                f"target trtexec needs version {TENSORRT.least} or later"
            )
        return version

    def fingerprint(self) -> Fingerprint:
        """Versions, device, arguments, plugins and the clock. Raises TargetError where the tool is missing."""
        plugins = [f"{p.name} {_digest(p)}" for p in self._plugins]
        facts = {
            "tensorrt": self.version,
            "clock": self.clock,
            "arguments": without_password(" ".join(self._arguments)),
        }
        facts["device"] = f"{self.remote.host}:{self.remote.port}" if self.remote else _devices()
        if "accuracy" in self.lacks:
            facts["outputs"] = "of ONNX Runtime without fusions, as safe engines give none"
        return Fingerprint(self.name, {**facts, "plugins": ", ".join(plugins)})

    def compile(self, model: Artifact) -> TrtexecExecutable:
        """Build an engine; one of dynamic shapes when the first inputs are known. Raises CompileFailed."""
        return TrtexecExecutable(model, self)

    def build(self, model: Path, engine: Path, shapes: Shapes, layers: Path) -> None:
        """Build an engine for ``shapes`` alone: TensorRT then chooses kernels for them. Raises CompileFailed."""
        locked = ",".join(f"{name}:{'x'.join(map(str, shape))}" for name, shape in shapes)
        modes = ["minShapes", "optShapes", "maxShapes"] if locked else []
        extra = [a for a in self._arguments if a not in ("--safe", "--skipInference")]
        detailed = [] if self.is_safe else ["--profilingVerbosity=detailed", f"--exportLayerInfo={layers}"]
        self._call(
            [
                f"--onnx={model}",
                f"--saveEngine={engine}",
                "--skipInference",
                f"--timingCacheFile={self._cache}",
                *detailed,
                *(["--safe"] if self.is_safe else []),
                *(f"--{mode}={locked}" for mode in modes),
                *extra,
            ],
            CompileFailed,
        )
        if not engine.exists():
            raise CompileFailed(f"{self._program} wrote no engine")

    def infer(self, engine: Path, count: int, more: Sequence[str] = ()) -> str:
        """Run an engine ``count`` times after a warm-up; what the tool printed. Raises RunFailed."""
        extra = [a for a in self._arguments if a != "--skipInference"]
        times = [f"--iterations={count}", f"--warmUp={self._warm_up}", "--duration=0", "--avgRuns=1"]
        if self.remote is not None:
            return self._there(self.remote, engine, times)
        return self._call([f"--loadEngine={engine}", *times, *more, *extra], RunFailed)

    def _there(self, remote: Remote, engine: Path, times: Sequence[str]) -> str:
        name = f"inlay-{_digest(engine)}.engine"
        copied = engine.with_suffix(".copied")
        if not copied.exists():
            _checked(remote.copy(str(engine), name), self.limit_s, RunFailed)
            copied.touch()
        return _checked(remote.run(name, times), self.limit_s, RunFailed)

    def forget(self, engine: Path) -> None:
        """Remove an engine from the other machine, if it is there."""
        if self.remote is not None and engine.with_suffix(".copied").exists():
            with contextlib.suppress(TargetError):
                run(self.remote.remove(f"inlay-{_digest(engine)}.engine"), _QUICK_S)

    def _call(self, arguments: Sequence[str], kind: type[TargetError]) -> str:
        missing = [p for p in self._plugins if not p.exists()]
        if missing:
            raise kind(f"there is no plugin library {missing[0]}")
        plugins = [f"--staticPlugins={p.resolve()}" for p in self._plugins]
        return _checked([self._program, *arguments, *plugins], self.limit_s, kind)


class TrtexecExecutable(BuiltByShapes[Path]):
    """A model with an engine for each set of shapes that it was given.

    Raises:
        CompileFailed: no engine can be built of it.
    """

    measured_elsewhere = True
    warms_up = True  # the tool does, before its first reading

    def __init__(self, model: Artifact, target: TrtexecTarget) -> None:
        file = ModelFile(model.path)
        self._target, self._folder = target, scratch_folder()
        super().__init__(file)

    def run(self, feed: Feed) -> dict[str, np.ndarray]:
        """Outputs by name; of a safe engine those of the numeric reference. Raises RunFailed."""
        engine = self._ready(feed)
        if "accuracy" in self._target.lacks:
            return self.file.reference(feed)
        exported = self._folder / "outputs.json"
        self._target.infer(engine, 1, [self._inputs(feed), f"--exportOutput={exported}"])
        return reports.read_outputs(exported, self.file.outputs)

    def time(self, feed: Feed, repeats: int) -> np.ndarray:
        """Nanoseconds of each inference by the target's clock. Raises RunFailed, BadReading."""
        engine = self._ready(feed)
        if "latency" in self._target.lacks:
            raise RunFailed("the arguments of trtexec skip the inference")
        if self._target.is_safe:
            return reports.read_safe_times(self._target.infer(engine, repeats), repeats)
        exported = self._folder / "times.json"
        self._target.infer(engine, repeats, [self._inputs(feed), f"--exportTimes={exported}"])
        return reports.read_times(exported, self._target.clock, repeats)

    def profile(self, feed: Feed, repeats: int) -> list[KernelTime]:
        """The median time of every layer, with the nodes that it was made of. Raises RunFailed, BadReading."""
        engine = self._ready(feed)
        if "profile" in self._target.lacks:
            raise RunFailed("safe engines are not profiled")
        exported = self._folder / "profile.json"
        self._target.infer(engine, repeats, [self._inputs(feed), f"--exportProfile={exported}"])
        described = engine.with_suffix(".json")
        layers = reports.read_layers(described.read_text(encoding="utf8")) if described.exists() else []
        return kernels_of(reports.read_profile(exported), layers, self.file.names)

    def close(self) -> None:
        """Remove the engines."""
        for engine in self._built.values():
            self._target.forget(engine)
        super().close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _build(self, shapes: Shapes) -> Path:
        engine = self._folder / f"{len(self._built)}.engine"
        self._target.build(self.file.path.resolve(), engine, shapes, engine.with_suffix(".json"))
        return engine

    def _inputs(self, feed: Feed) -> str:
        return "--loadInputs=" + ",".join(f"{n}:{p}" for n, p in _saved(feed, self.file.inputs, self._folder).items())


def _saved(feed: Feed, names: Mapping[str, object], folder: Path) -> dict[str, Path]:
    paths = {}
    for number, name in enumerate(names):
        paths[name] = folder / f"input{number}.bin"
        paths[name].write_bytes(np.ascontiguousarray(feed[name]).tobytes())
    return paths


def run(arguments: Sequence[str], limit_s: float) -> tuple[int, str]:
    """The exit code of a program, and what it printed. Raises RunFailed, TimedOut."""
    return Process(arguments, is_asked=False).finish(limit_s)


def _checked(arguments: Sequence[str], limit_s: float, kind: type[TargetError]) -> str:
    code, text = run(arguments, limit_s)
    if code != 0:
        raise kind(f"{Path(arguments[0]).name}: {without_password(reports.error_in(text, code))}")
    return text


def _devices() -> str:
    """The names and drivers of the GPUs, where the system's tool tells."""
    if shutil.which("nvidia-smi") is None:
        return "unknown"
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        found = subprocess.run(query, capture_output=True, text=True, timeout=_QUICK_S, check=False)
        return "; ".join(line.strip() for line in found.stdout.splitlines() if line.strip()) or "unknown"
    return "unknown"


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16] if path.exists() else "missing"
