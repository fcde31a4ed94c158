"""What the steps of one command cost, in seconds: assumed by one inference, then learned from what steps took."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from inlay.measure import policy

Of = Callable[[Sequence[float]], Any]
"""What counts of several durations: their median, or the least."""

_OBSERVING = 4
"""Inferences that a sample takes in calibration, about: all values are wanted, and they become histograms."""
PROFILED = 20  # inferences of a profile that is compared with others
_WARMING = 5  # inferences that tell how many of them fill a slot


@dataclass(frozen=True, kw_only=True)
class Ending:
    """What the winner has to go through besides readings in fresh processes."""

    unseen: int = 0  # samples that it is judged on
    crossed: int = 0  # samples beside these that it is judged on, some of them with the ranges of others
    rounding_s: float = 0.0  # rounding the weights once more, as these others ask for
    evaluating_s: float = 0.0  # what the user's own evaluation of one finalist takes
    evaluating_more_s: float = 0.0  # and of those that take its place where it is refused


@dataclass(frozen=True)
class Costs:
    """Seconds that steps take here, as this run found out: at first by one inference, later by the latest messages."""

    worker_s: float  # starting a process for the runtime
    build_s: float  # building the given model in it
    candidate_build_s: float  # building a candidate
    inference_s: float  # one inference of the given model, by itself
    sample_s: float  # one inference whose outputs are wanted
    turn_s: float  # one model in one block
    ending: Ending = Ending()  # what these are spent on once the winner is known
    deterministic: bool = False  # one block in one process tells all
    feeds: int = 1  # that latency is measured on, of a shape each

    @classmethod
    def assumed(
        cls,
        worker_s: float,
        build_s: float,
        inference_s: float,
        slot_ns: int,
        deterministic: bool = False,
        feeds: int = 1,
    ) -> Costs:
        """By what is known after the first inference, and readings of at least ``slot_ns`` nanoseconds in all feeds."""
        slot_s = slot_ns * 1e-9 / feeds
        is_long = inference_s > policy.LONG_INFERENCE_SLOTS * slot_s
        reading_s = inference_s if is_long else max(slot_s, 2.0 * inference_s) + inference_s
        # the first build, which also reads the model for the first time, takes no less than that of a candidate
        turn_s = 2.0 * feeds * reading_s
        ahead = cls(worker_s, build_s, build_s, inference_s, inference_s, turn_s)
        return replace(ahead, deterministic=deterministic, feeds=feeds)

    def learned(self, took: Mapping[str, Sequence[float]], of: Of = np.median) -> Costs:
        """The same by what messages of workers took lately (:attr:`~inlay.measure.client.Worker.took`).

        A busy machine takes longer than the inference itself, and the first build and process longer than later ones.

        Args:
            took: seconds by what the messages do.
            of: what counts of several; min for a machine that other work holds up only now and then.
        """

        def typical(do: str, known: float) -> float:
            return float(of(took[do])) if took.get(do) else known

        builds = list(took.get("load", ()))[1:]  # the first one is of the given model
        return replace(
            self,
            worker_s=typical("target", self.worker_s),
            candidate_build_s=float(of(builds)) if builds else self.candidate_build_s,
            sample_s=typical("run", self.sample_s),
            turn_s=typical("time", self.turn_s),
        )

    @property
    def float_more_s(self) -> float:
        """What building a model in float takes beyond a candidate, whose weights may have a quarter of its bytes."""
        return max(0.0, self.build_s - self.candidate_build_s)

    def block_s(self, models: int) -> float:
        """One block of so many models."""
        return models * self.turn_s

    def judge_s(self, samples: int) -> float:
        """Building a candidate, and judging it on so many samples."""
        return self.candidate_build_s + samples * self.sample_s

    def crossing_s(self, judged: int, observed: int) -> float:
        """Judging so many samples on two models, one of which is new and made from so many observed ones."""
        if judged <= 0:
            return 0.0
        anew_s = self.judge_s(_OBSERVING * observed) + self.ending.rounding_s if observed else 0.0
        return 2 * self.judge_s(judged) + anew_s

    @property
    def crossed_s(self) -> float:
        """That of all samples that are to be judged so."""
        return self.crossing_s(self.ending.crossed, self.ending.crossed)

    def trial_s(self, samples: int, blocks: int) -> float:
        """Judging a candidate on so many samples, and so many blocks of a race."""
        return self.judge_s(samples) + blocks * self.block_s(3)

    def profile_s(self, models: int) -> float:
        """Profiles of so many candidates: each is built twice."""
        return models * (2 * self.candidate_build_s + PROFILED * self.sample_s)

    def process_s(self, models: int, blocks: int) -> float:
        """So many blocks in a fresh process: of the given model, float, and others."""
        loads_s = models * self.candidate_build_s + min(models, 2) * self.float_more_s
        return self.worker_s + loads_s + models * _WARMING * self.sample_s + blocks * self.block_s(models)

    def beside_s(self, blocks: int, slot_ns: int) -> float:
        """So many blocks of the given model here and in one fresh process, in turn, before many were measured.

        By one inference: of few messages, the first ones say how long a model takes that is not warm.
        """
        turn_s = Costs.assumed(self.worker_s, self.build_s, self.inference_s, slot_ns, False, self.feeds).turn_s
        ready_s = self.build_s + self.sample_s + 2 * self.feeds * _WARMING * self.inference_s
        return self.worker_s + ready_s + 2 * (1 + blocks) * turn_s


FREE = Costs.assumed(0.0, 0.0, 0.0, 0)  # where nothing takes time
