"""TensorRT through its Python bindings."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from inlay.errors import CompileFailed, RunFailed, TargetError, UsageError
from inlay.targets.base import Artifact, Feed, Fingerprint, KernelTime, Lack
from inlay.targets.model_file import BuiltByShapes, ModelFile, Shapes
from inlay.targets.tensorrt.bindings import TENSORRT, Library, load
from inlay.targets.tensorrt.engine import (
    Engine,
    build,
    choose_device,
    device_name,
    driver_version,
    load_plugins,
)
from inlay.targets.tensorrt.reports import Clock, clock_of, kernels_of, read_layers
from inlay.targets.tensorrt.reports import timing_cache as cache_file
from inlay.targets.tensorrt.rules import REMARK, ExplicitQuantization


class TensorRtTarget(ExplicitQuantization):
    """TensorRT 11 on a GPU of this machine.

    Args:
        device: number of the GPU.
        plugins: shared libraries of plugins, separated by commas.
        timing_cache: file that keeps what the builder learned, across candidates and runs; by default one per run.
        clock: ``device`` for the time of the kernels, ``host`` for that and the transfers of inputs and outputs.
        warm_up: inferences before the readings of a block, and before a profile.

    Raises:
        UsageError: there is no such clock, or no folder for the cache.
    """

    name = "tensorrt"
    heading = ("tensorrt", "device", "clock")
    deterministic = False
    lacks: frozenset[Lack] = frozenset({"memory"})
    remark = REMARK

    def __init__(
        self, device: int = 0, plugins: str = "", timing_cache: str = "", clock: str = "device", warm_up: int = 2
    ) -> None:
        self.clock, self._warm_up = clock_of(clock), at_least_none(warm_up)
        self._device = device
        self._plugins = [Path(p) for p in plugins.split(",") if p]
        self._cache = cache_file(timing_cache)

    def fingerprint(self) -> Fingerprint:
        """Versions, the GPU, the plugins and the clock.

        Raises:
            UsageError: the libraries are not installed.
            TargetError: there is no such GPU.
        """
        facts = {"tensorrt": str(load(TENSORRT).__version__), "clock": self.clock}
        facts |= {"device": device_name(self._device), "cuda": driver_version()}
        return Fingerprint(self.name, {**facts, "plugins": ", ".join(p.name for p in self._plugins)})

    def compile(self, model: Artifact) -> EngineExecutable:
        """Build an engine; one of dynamic shapes when the first inputs are known. Raises CompileFailed."""
        use(self._device)
        load_plugins(TENSORRT, self._plugins)
        return EngineExecutable(model, TENSORRT, self.clock, self._warm_up, self._cache)


def at_least_none(warm_up: int) -> int:
    """The number as it is. Raises UsageError where it is negative."""
    if warm_up < 0:
        raise UsageError(f"--target-option warm_up={warm_up}: give 0 or more")
    return warm_up


def use(device: int) -> None:
    """Use a GPU in this thread. Raises CompileFailed where there is none."""
    try:
        choose_device(device)
    except RunFailed as error:
        raise CompileFailed(str(error)) from error


class EngineExecutable(BuiltByShapes[Engine]):
    """A model with an engine on the GPU for each set of shapes that it was given.

    Raises:
        CompileFailed: no engine can be built of it.
    """

    def __init__(
        self, model: Artifact, library: Library, clock: Clock, warm_up: int, cache: Path | None, capability: str = ""
    ) -> None:
        self._library, self._clock, self._warm_up = library, clock, warm_up
        self._cache, self._capability = cache, capability
        super().__init__(ModelFile(model.path))

    def run(self, feed: Feed) -> dict[str, np.ndarray]:
        """Outputs by name. Raises RunFailed."""
        found = self._ready(feed).run(feed)
        return {name: found[name].astype(dtype, copy=False) for name, dtype in self.file.outputs.items()}

    def time(self, feed: Feed, repeats: int) -> np.ndarray:
        """Nanoseconds of each inference by the target's clock. Raises RunFailed."""
        return self._ready(feed).time(feed, self._warm_up + repeats, self._clock)[self._warm_up :]

    def profile(self, feed: Feed, repeats: int) -> list[KernelTime]:
        """The median time of every layer, with the nodes that it was made of. Raises RunFailed."""
        engine = self._ready(feed)
        found = engine.profile(feed, repeats, self._warm_up)
        return kernels_of(found, read_layers(engine.describe()), self.file.names)

    def close(self) -> None:
        """Give the engines back."""
        for engine in self._built.values():
            engine.close()
        super().close()

    def _build(self, shapes: Shapes) -> Engine:
        try:
            plan = build(self._library, self.file.path.resolve(), shapes, self._cache, self._capability)
            return Engine(self._library, plan, shapes)
        except CompileFailed:
            raise
        except TargetError as error:
            raise CompileFailed(str(error)) from error
