"""The parent's side of a worker: start it, send messages, enforce time limits, and restart it after a crash."""

from __future__ import annotations

import math
import shutil
import time
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from inlay.data import load_feed
from inlay.errors import CompileFailed, Ended, Late, TargetError, TimedOut, UsageError
from inlay.measure import policy
from inlay.measure.paired import Timing
from inlay.measure.process import Process, first_message
from inlay.measure.readings import Reading
from inlay.measure.serving import Load, Served
from inlay.model.pinned import pinned_file
from inlay.targets.base import Artifact, Fingerprint, KernelTime, Lack, TargetSpec

_REFUSALS = (CompileFailed, TimedOut)
"""What is not tried again: a runtime that refuses a model will refuse it again, and a hang has cost enough time."""

Limit = Callable[[], float]  # seconds that the next message may take


def usual_limit() -> float:
    """Seconds that a message may take in a command without a budget."""
    return policy.MESSAGE_LIMIT_S


T = TypeVar("T")


def kernel_times(rows: Sequence[Sequence[Any]]) -> list[KernelTime]:
    """Kernels from plain data, as a worker sends them and a journal keeps them."""
    return [
        KernelTime(n, o, ns, precision=p, nodes=tuple(nodes), values=tuple(values), kind=kind)
        for n, o, ns, p, nodes, values, kind in rows
    ]


class Worker:
    """A worker process for one target. Models stay resident until they are dropped or the process dies.

    What fails is tried once more in a fresh process, which has neither leaks nor anything else that the failed one had
    gathered; a model that ended two processes in a row while it was built is refused from then on. Errors tell which
    model the runtime was at work on (:attr:`~inlay.errors.TargetError.culprit`).

    Args:
        limit: seconds that one message may take before the worker is killed.

    Attributes:
        busy_s: seconds that messages took so far.
        spec: as above.
        took: the last of them by what they do: for each model in a block, each sample of a run, or the message.
        builds: models built so far, including those of profiles, and those that were built in its place.
        throttled: of each block during which heat held the processor back, what the machine said of itself; such a
            block counts as one of which others took all.
        machine: its clock, governor and temperature at the start, as far as the system tells.
        fingerprint: of the target.
        deterministic: whether the target measures the same each time.
        lacks: what the target cannot tell.

    Raises:
        TargetError: the target cannot be created.
    """

    def __init__(self, spec: TargetSpec, folder: Path, limit: Limit = usual_limit) -> None:
        self.spec = spec
        self._folder = folder
        self._limit = limit
        self._process = Process(folder)
        self._frees = True  # until the runtime took too long to free a model
        self._resident: set[str] = set()
        self._graphs: dict[str, str] = {}
        self._elsewhere: set[str] = set()  # models that were built before, in another place
        self._twins: dict[str, Artifact | None] = {}  # by digest; None where a model stands for itself
        self._deaths: defaultdict[str, list[Ended]] = defaultdict(list)  # by model, since it was built last
        self.busy_s = 0.0
        self.took: defaultdict[str, deque[float]] = defaultdict(partial(deque, maxlen=policy.RECENT_MESSAGES))
        self.builds = 0
        self.throttled: list[str] = []
        self.machine: Mapping[str, str] = {}
        self.fingerprint: Fingerprint
        self.deterministic: bool
        self.lacks: frozenset[Lack]
        try:
            try:
                self._insist(self._start)
            except TimedOut:  # once more than others, as no model is to blame
                self._kill()
                self._insist(self._start)
        except BaseException:  # also where it is interrupted: nobody else could end the process
            self.close()
            raise

    def must_time(self) -> None:
        """Raise UsageError where the target gives no times of inferences."""
        if "latency" in self.lacks:
            raise UsageError(
                f"target {self.spec.name} gives no latencies here, so models cannot be compared; "
                "inlay quantize needs none"
            )

    def load(self, artifact: Artifact, identify: bool = False) -> str:
        """Build a model, unless it is resident.

        Args:
            identify: also get the digest of the runtime's optimized graph.

        Returns:
            That digest; empty where it is not known.

        Raises:
            TargetError: it cannot be built.
        """
        return self._insist(lambda: self._load(artifact, identify))

    def built_elsewhere(self, artifact: Artifact) -> None:
        """Count a model that another process built; should this one build it too, that counts no more."""
        self.builds += 1
        self._elsewhere.add(artifact.digest)

    def _load(self, artifact: Artifact, identify: bool = False) -> str:
        if artifact.digest not in self._resident or not self._alive:
            if len(self._deaths[artifact.digest]) >= policy.MOST_DEATHS:
                raise self._deaths[artifact.digest][-1]
            self.builds += artifact.digest not in self._elsewhere
            self._elsewhere.discard(artifact.digest)
            more = {"identify": True} if identify else {}
            try:
                answer = self._ask("load", key=artifact.digest, path=str(artifact.path), digest=artifact.digest, **more)
            except Ended as error:
                self._deaths[artifact.digest].append(error)
                raise
            del self._deaths[artifact.digest]
            self._resident.add(artifact.digest)
            self._graphs[artifact.digest] = str(answer.get("graph", "")) or self._graphs.get(artifact.digest, "")
        return self._graphs.get(artifact.digest, "")

    def drop(self, artifact: Artifact) -> None:
        """Free a model; where the runtime fails to, its process is ended, which frees all.

        One that took too long once is not asked again: starting a process takes less.
        """
        twin = self._twins.pop(artifact.digest, None)
        if twin is not None:
            self.drop(twin)
            twin.path.unlink(missing_ok=True)
            if twin.path.parent != self._folder.resolve():
                shutil.rmtree(twin.path.parent, ignore_errors=True)
        self._elsewhere.discard(artifact.digest)
        self._unload(artifact.digest)

    def _unload(self, digest: str) -> None:
        if digest not in self._resident:
            return
        self._resident.discard(digest)
        if self._alive and self._frees:
            try:
                self._ask("unload", key=digest)
            except TargetError as error:
                self._frees = not isinstance(error, TimedOut)
                self._kill()
        elif self._alive:
            self._kill()

    def free(self) -> None:
        """Free all models, as :meth:`drop` does; where one is needed again, building it counts no more."""
        for digest in sorted(self._resident):
            self._unload(digest)
            self._elsewhere.add(digest)

    def run(self, artifact: Artifact, feeds: Sequence[Path]) -> list[dict[str, np.ndarray]]:
        """Outputs by name for every feed. Raises TargetError.

        A model that draws random numbers draws the same ones here in every run: see :mod:`inlay.model.pinned`.
        """
        twin = self._twin(artifact)
        return self._insist(lambda: self._run(twin, feeds))

    def running(self, artifact: Artifact, feeds: Sequence[Path]) -> Future[list[dict[str, np.ndarray]]]:
        """The same, begun: done already here, and on another machine while this one does something else."""
        outputs: Future[list[dict[str, np.ndarray]]] = Future()
        outputs.set_result(self.run(artifact, feeds))
        return outputs

    def _twin(self, artifact: Artifact) -> Artifact:
        """What stands for ``artifact`` where its outputs are computed: mostly itself."""
        if artifact.digest not in self._twins:
            is_ours = artifact.path.resolve().parent == self._folder.resolve()  # it may lie beside the same weights
            folder = self._folder if is_ours else self._folder / f"pinned-{artifact.digest}"
            twin = Artifact(folder.resolve() / f"pinned-{artifact.digest}.onnx", f"{artifact.digest}-pinned")
            self._twins[artifact.digest] = twin if pinned_file(artifact.path, twin.path) else None
        return self._twins[artifact.digest] or artifact

    def _run(self, artifact: Artifact, feeds: Sequence[Path]) -> list[dict[str, np.ndarray]]:
        self._load(artifact)
        out = self._folder / f"outputs-{uuid.uuid4().hex}.npz"
        try:
            self._ask("run", key=artifact.digest, feeds=[str(f) for f in feeds], out=str(out))
            results: list[dict[str, np.ndarray]] = [{} for _ in feeds]
            for key, array in load_feed(out).items():
                index, _, name = key.partition("/")
                results[int(index)][name] = array
        finally:
            out.unlink(missing_ok=True)
        return results

    def time(
        self,
        artifacts: Sequence[Artifact],
        feed: Path,
        blocks: int,
        slot_ns: int,
        seed: int,
        left_s: Callable[[], float] = lambda: math.inf,
        reading: Reading | None = None,
    ) -> Timing:
        """Time models in interleaved blocks: as many as asked for, or fewer where a model fails or the time ends.

        Args:
            feed: file of their inputs, or of a :class:`~inlay.data.Workload`.
            blocks: how many; one where readings have no noise.
            slot_ns: nanoseconds that one reading should take at least.
            seed: of the order within blocks.
            left_s: seconds that are left; no block but the first is begun that would take longer, and no model built
                that would take as long as the one before.
            reading: what is read; by default what the target was chosen for.

        Raises:
            TargetError: a model failed in the first block.
            Late: there was no time to build all of them.
        """
        found: list[dict[str, Any]] = []
        for each in np.random.default_rng(seed).integers(2**31, size=1 if self.deterministic else blocks):
            if found and left_s() < self.took["time"][-1] * len(artifacts):
                break
            try:
                found.append(self._insist(partial(self._block, artifacts, feed, slot_ns, int(each), left_s, reading)))
            except TargetError:
                if not found:
                    raise
                break
        return Timing.of(found, self.deterministic)

    def _block(
        self,
        artifacts: Sequence[Artifact],
        feed: Path,
        slot_ns: int,
        seed: int,
        left_s: Callable[[], float],
        reading: Reading | None,
    ) -> dict[str, Any]:
        for artifact in artifacts:
            built, took = artifact.digest in self._resident and self._alive, self.took["load"]
            if not built and took and left_s() < took[-1]:
                raise Late("the budget was spent while the models to be timed were built")
            self._load(artifact)
        keys, asked = [a.digest for a in artifacts], {} if reading is None else {"reading": reading}
        found = self._ask("time", keys=keys, feed=str(feed), slot_ns=slot_ns, seed=seed, **asked)
        if "throttled" in found:
            self.throttled.append(str(found["throttled"]))
        return found

    def serve(self, artifact: Artifact, feed: Path, load: Load) -> Served:
        """How a model serves. Raises TargetError where the target answers one request at a time, or the model fails."""
        return self._insist(lambda: self._serve(artifact, feed, load))

    def _serve(self, artifact: Artifact, feed: Path, load: Load) -> Served:
        self._load(artifact)
        return Served(**self._ask("serve", key=artifact.digest, feed=str(feed), load=asdict(load)))

    def memory(self, artifact: Artifact, feed: Path) -> int | None:
        """Bytes that a session of a model takes at most, if this process is fresh; None where nobody can tell.

        Raises:
            TargetError: it cannot be built, or does not run.
        """
        if "memory" in self.lacks:
            return None
        answer = self._ask(
            "memory", key=artifact.digest, path=str(artifact.path), digest=artifact.digest, feed=str(feed)
        )
        return None if answer["bytes"] is None else int(answer["bytes"])

    def profile(self, artifact: Artifact, feed: Path, repeats: int) -> list[KernelTime]:
        """Kernel times of a model. Raises TargetError."""
        return self._insist(lambda: self._profile(artifact, feed, repeats))

    def _profile(self, artifact: Artifact, feed: Path, repeats: int) -> list[KernelTime]:
        self._load(artifact)
        answer = self._ask("profile", key=artifact.digest, feed=str(feed), repeats=repeats)
        self.builds += bool(answer["built"])
        return kernel_times(answer["kernels"])

    def close(self) -> None:
        """End the process."""
        self._kill()
        self._process.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def _alive(self) -> bool:
        return self._process.child is not None

    def _insist(self, call: Callable[[], T]) -> T:
        """What ``call`` returns; where it fails, the second time, in a fresh process."""
        try:
            return call()
        except _REFUSALS:
            raise
        except TargetError:
            self._kill()
            return call()

    def _start(self) -> None:
        self._process.start()
        self._choose_target()

    def _choose_target(self) -> None:
        self._resident.clear()
        try:
            answer = self._ask("target", **first_message(self.spec))
        except TargetError:
            self._kill()  # without a target it is no use
            raise
        self.fingerprint = Fingerprint(answer["target"], answer["facts"])
        self.deterministic = bool(answer["deterministic"])
        self.lacks = frozenset(answer["lacks"])
        self.machine = answer.get("machine", {})

    def _kill(self) -> None:
        self._resident.clear()
        self._process.end()

    def _ask(self, do: str, **arguments: Any) -> dict[str, Any]:
        if not self._alive:
            self._start()
        begun = time.monotonic()
        try:
            return self._exchange(do, arguments)
        finally:
            self._record(do, arguments, time.monotonic() - begun)

    def _record(self, do: str, arguments: Mapping[str, Any], seconds: float) -> None:
        self.busy_s += seconds
        self.took[do].append(seconds / max(1, len(arguments.get("feeds", ())), len(arguments.get("keys", ()))))

    def _exchange(self, do: str, arguments: dict[str, Any]) -> dict[str, Any]:
        return self._process.ask(do, arguments, self._limit())
