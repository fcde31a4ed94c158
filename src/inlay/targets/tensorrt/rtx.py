"""TensorRT for RTX: engines that are built ahead of time for any of its GPUs, and timed where there is one."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from inlay.errors import CompileFailed, RunFailed, UsageError
from inlay.targets.base import Artifact, Feed, Fingerprint, KernelTime, Lack
from inlay.targets.model_file import BuiltByShapes, ModelFile, Shapes
from inlay.targets.tensorrt.bindings import RTX, load
from inlay.targets.tensorrt.engine import build, compute_capability, device_name, driver_version
from inlay.targets.tensorrt.estimate import GPUS, milliseconds
from inlay.targets.tensorrt.reports import clock_of, kernels_of, layers_in_log
from inlay.targets.tensorrt.rules import RTX_RULES, ExplicitQuantization
from inlay.targets.tensorrt.target import EngineExecutable, at_least_none, use

_USUAL = "SM89"
_OF_SERVERS = {"SM90": "H100 and H200", "SM100": "B200"}  # NVIDIA's GPUs that its compiler for RTX does not build for


class TensorRtRtxTarget(ExplicitQuantization):
    """TensorRT for RTX: on a GPU of this machine, or built for one that is elsewhere.

    Without the GPU nothing is timed: every candidate is built by the compiler, outputs are those of the numeric
    reference, and times are estimates (:mod:`.estimate`) of the kernels that the compiler has made.

    Args:
        capability: compute capability of the GPU that engines are for (``8.9``, ``sm89``); empty for the GPU of this
            machine, or 8.9 where there is none.
        device: number of the GPU.
        clock: ``device`` for the time of the kernels, ``host`` for that and the transfers of inputs and outputs.
        warm_up: inferences before the readings of a block, and before a profile.

    Raises:
        UsageError: there is no such capability or clock.
    """

    name = "tensorrt-rtx"
    table = RTX_RULES
    heading = ("tensorrt-rtx", "device", "capability")
    remark = "Built by its compiler without a GPU in this project's tests; nothing of it has been timed on one yet"

    def __init__(self, capability: str = "", device: int = 0, clock: str = "device", warm_up: int = 2) -> None:
        self._asked = _capability_of(capability)
        self._device, self.clock, self._warm_up = device, clock_of(clock), at_least_none(warm_up)

    @cached_property
    def _here(self) -> str:
        """The capability of this machine's GPU; empty where there is none that engines can be built for."""
        try:
            found = compute_capability(self._device)
        except (RunFailed, UsageError):
            return ""
        return found if found in GPUS else ""

    @property
    def capability(self) -> str:
        """The capability that engines are for."""
        return self._asked or self._here or _USUAL

    @property
    def deterministic(self) -> bool:
        """Whether times are estimates: the GPU that engines are for is not here."""
        return self.capability != self._here

    @property
    def lacks(self) -> frozenset[Lack]:
        """No outputs without the GPU, and with it not what a session takes of its memory."""
        return frozenset({"accuracy" if self.deterministic else "memory"})

    def fingerprint(self) -> Fingerprint:
        """Versions, and the GPU, or by which figures times are estimated.

        Raises:
            UsageError: the libraries are not installed.
        """
        facts = {"tensorrt-rtx": str(load(RTX).__version__), "capability": self.capability.lower()}
        if not self.deterministic:
            facts |= {"device": device_name(self._device), "cuda": driver_version(), "clock": self.clock}
            return Fingerprint(self.name, facts)
        gpu = GPUS[self.capability]
        return Fingerprint(
            self.name,
            {
                "kind": "estimate",
                **facts,
                "device": f"{gpu.like} (not here)",
                "measures": f"of the compiler's kernels on a {gpu.like}, by its data sheet: there is no such GPU here",
                "model": str(gpu),
                "outputs": "of ONNX Runtime without fusions",
                "memory": "of the engine and its activations",
            },
        )

    def compile(self, model: Artifact) -> EngineExecutable | EstimatedExecutable:
        """Build an engine; one of dynamic shapes when the first inputs are known. Raises CompileFailed."""
        load(RTX)
        if self.deterministic:
            return EstimatedExecutable(model, self.capability)
        use(self._device)
        return EngineExecutable(model, RTX, self.clock, self._warm_up, None, self.capability)


def _capability_of(text: str) -> str:
    found = "SM" + text.lower().removeprefix("sm").replace(".", "") if text else ""
    if found and found not in GPUS:
        known = ", ".join(f"{name[2:-1]}.{name[-1]}" for name in GPUS)
        lacks = f", not for {_OF_SERVERS[found]}; the target tensorrt does" if found in _OF_SERVERS else ""
        raise UsageError(f"--target-option capability={text}: TensorRT for RTX builds for {known}{lacks}")
    return found


@dataclass(frozen=True)
class Built:
    """An engine that no device of this machine can load.

    Attributes:
        memory: bytes of the engine and of its activations.
        kernels: the compiler's, with their estimated times.
    """

    memory: int
    kernels: tuple[KernelTime, ...]


class EstimatedExecutable(BuiltByShapes[Built]):
    """A model that the compiler has built, run by the numeric reference, with estimated times.

    Raises:
        CompileFailed: no engine can be built of it.
    """

    def __init__(self, model: Artifact, capability: str) -> None:
        self._capability, self._gpu = capability, GPUS[capability]
        super().__init__(ModelFile(model.path))

    def run(self, feed: Feed) -> dict[str, np.ndarray]:
        """Outputs by name, of ONNX Runtime without fusions. Raises RunFailed."""
        self._ready(feed)
        return self.file.reference(feed)

    def time(self, feed: Feed, repeats: int) -> np.ndarray:
        """The estimate in nanoseconds, ``repeats`` times: shape (repeats,), int64. Raises RunFailed."""
        return np.full(repeats, max(1, round(sum(k.ns for k in self._ready(feed).kernels))), np.int64)

    def profile(self, feed: Feed, repeats: int) -> list[KernelTime]:
        """The estimated time of every kernel; they add up to :meth:`time`. Raises RunFailed."""
        return list(self._ready(feed).kernels)

    def memory(self, feed: Feed) -> int:
        """Bytes of the engine and of its activations, as the builder states them. Raises RunFailed."""
        return self._ready(feed).memory

    def _build(self, shapes: Shapes) -> Built:
        plan = build(RTX, self.file.path.resolve(), shapes, None, self._capability)
        layers = layers_in_log(plan.layers)
        if not layers:
            raise CompileFailed(f"{self.file.path.name}: the compiler's log lists no kernels: no time can be estimated")
        times = {layer.name: milliseconds(layer, self._gpu) for layer in layers}
        return Built(int(plan.serialized.nbytes) + plan.activations, tuple(kernels_of(times, layers, self.file.names)))
