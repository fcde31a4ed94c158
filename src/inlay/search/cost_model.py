"""What a labeling costs: learned from kernel profiles, corrected by whole-model times.

The latency of a labeling is modeled as a sum of normal parameters, which profiles show one by one
(:mod:`inlay.search.cost_prior`). A whole-model time is the sum of the parameters that its labeling pays, plus normal
noise, so it conditions all of them jointly: Bayesian linear regression. With few observations and many parameters that
is cheapest in observation space, and a sample of the posterior takes Matheron's rule (Wilson et al., *Efficiently
sampling functions from Gaussian process posteriors*, 2020). Nothing here is larger than parameters times observations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from inlay.search import policy
from inlay.search.cost_prior import CostParameters, CostPrior, NormalCosts
from inlay.search.labeling import LabelingProblem
from inlay.search.unit_graph import UnitGraph
from inlay.targets.base import KernelTime


@dataclass(frozen=True, eq=False)
class Observation:
    """A whole-model time."""

    paid: np.ndarray  # indices of the parameters that its labeling pays, shape (units + edges,)
    ns: float  # nanoseconds per inference
    stddev: float  # of that


@dataclass(frozen=True, eq=False)
class CostPosterior:
    """The parameters given everything."""

    prior: NormalCosts  # by profiles alone
    observations: Sequence[Observation]  # whole-model times
    outside: float  # nanoseconds of kernels that no parameter covers, in every labeling

    @cached_property
    def mean(self) -> np.ndarray:
        """Expected parameters, nanoseconds, shape (parameters,)."""
        return np.asarray(np.maximum(self.prior.mean + self._correction, policy.LEAST_CORRECTION * self.prior.mean))

    def predict(self, paid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Expected nanoseconds of many labelings, and their standard deviations; both of shape (labelings,).

        Args:
            paid: indices of the parameters that each labeling pays, shape (labelings, units + edges).
        """
        variance = self.prior.variance
        ns = (self.prior.mean + self._correction)[paid].sum(axis=1) + self.outside
        total = variance[paid].sum(axis=1)
        if self.observations:
            # covariance with each observation: that of the first labeling, and how the others differ from it
            first, observed = paid[0], self._observed
            labeling, position = np.nonzero(paid != first)
            own, base = paid[labeling, position], first[position]
            difference = np.where(observed[:, position] == own, variance[own], 0.0)
            difference -= np.where(observed[:, position] == base, variance[base], 0.0)
            covariance = np.where(observed == first, variance[first], 0.0).sum(axis=1)[:, None]
            covariance = covariance + np.array([np.bincount(labeling, row, len(paid)) for row in difference])
            total = total - np.einsum("ib,ij,jb->b", covariance, self._precision, covariance)
        return ns, np.sqrt(np.maximum(total, (policy.LEAST_PREDICTION * ns) ** 2))

    def sample(self, rng: np.random.Generator) -> np.ndarray:
        """One sample of all parameters, nanoseconds, shape (parameters,)."""
        prior = self.prior
        drawn = prior.mean + np.sqrt(prior.variance) * rng.standard_normal(prior.mean.size)
        if self.observations:
            noise = [o.stddev * rng.standard_normal() for o in self.observations]
            times = np.array([o.ns - e for o, e in zip(self.observations, noise, strict=True)])
            drawn += self._explain(times - self.outside - drawn[self._observed].sum(axis=1))
        return np.asarray(np.maximum(drawn, policy.LEAST_CORRECTION * prior.mean))

    @cached_property
    def _observed(self) -> np.ndarray:
        """Parameters of each observation, shape (observations, units + edges)."""
        return np.array([o.paid for o in self.observations], np.int64)

    @cached_property
    def _precision(self) -> np.ndarray:
        """Inverse of the covariance of the observations."""
        observed, variance = self._observed, self.prior.variance
        shared = [np.where(observed == row, variance[row], 0.0).sum(axis=1) for row in observed]
        return np.asarray(np.linalg.inv(np.array(shared) + np.diag([o.stddev**2 for o in self.observations])))

    @cached_property
    def _correction(self) -> np.ndarray:
        """Of the prior mean, by the observations; shape (parameters,)."""
        if not self.observations:
            return np.zeros_like(self.prior.mean)
        times = np.array([o.ns for o in self.observations])
        return self._explain(times - self.outside - self.prior.mean[self._observed].sum(axis=1))

    def _explain(self, gaps: np.ndarray) -> np.ndarray:
        """What to add to the parameters, so that the observations change by ``gaps``; shape (parameters,)."""
        added = np.zeros_like(self.prior.mean)
        for weight, row in zip(self._precision @ gaps, self._observed, strict=True):
            added[row] += self.prior.variance[row] * weight
        return added


@dataclass(frozen=True)
class Prediction:
    """A predicted latency: expected nanoseconds per inference, and their standard deviation."""

    mean: float
    stddev: float


class CostModel:
    """Learned costs of one model on one target.

    ``known`` ones are the :meth:`summary` of earlier runs, ``priced`` ones those of the processor's table, by parameter
    (:class:`~inlay.search.cost_prior.CostPrior`).
    """

    def __init__(
        self, graph: UnitGraph, known: Mapping[str, float] | None = None, priced: np.ndarray | None = None
    ) -> None:
        self.graph = graph
        self.parameters = CostParameters(graph)  # what has a cost
        self._prior = CostPrior(self.parameters, known or {}, priced)
        self._prior_costs: NormalCosts | None = None
        self._posterior: CostPosterior | None = None
        self._observations: list[Observation] = []
        self._log_scales: list[float] = []  # of whole-model time over the total of its profile
        self._outside = 0.0  # nanoseconds of kernels that no parameter covers, in the last profile
        self.unattributed: list[float] = []  # for each profile, the share of its time in kernels without a known cause

    @property
    def profiled(self) -> bool:
        """Whether any profile was taken in."""
        return not self._prior.empty

    def update_from_profile(
        self, labels: np.ndarray, kernels: Sequence[KernelTime], ns: float, relative_stddev: float = 0.0
    ) -> None:
        """Learn from the profile of a labeling whose whole-model time is ``ns``.

        Kernel times are scaled to add up to it, as profiling slows a model down. The less certain the whole-model time,
        the more the usual scale of the profiles counts.
        """
        total = sum(k.ns for k in kernels)
        if not total > 0.0:
            return
        log_scale = float(np.log(ns / total))
        certain = policy.PROFILE_TOTAL**2
        weight = certain / (relative_stddev**2 + certain) if self._log_scales else 1.0
        usual = float(np.median(self._log_scales)) if self._log_scales else log_scale
        self._log_scales.append(log_scale)
        scale = float(np.exp(weight * log_scale + (1.0 - weight) * usual))
        costs, outside = self.parameters.shares(self.paid(labels), kernels)
        self._outside = outside * scale
        self.unattributed.append(sum(k.ns for k in kernels if not k.attributed) / total)
        for at, cost in costs.items():
            self._prior.update(at, cost * scale)
        self._prior_costs = self._posterior = None

    def update_from_latency(self, labels: np.ndarray, ns: float, relative_stddev: float) -> None:
        """Learn from the whole-model time of a labeling."""
        stddev = ns * float(np.hypot(relative_stddev, policy.WHOLE_MODEL))
        self._observations.append(Observation(self.paid(labels), ns, stddev))
        self._posterior = None

    def paid(self, labels: np.ndarray) -> np.ndarray:
        """Indices of the parameters that a labeling pays, once propagated; shape (units + edges,)."""
        return self.parameters.paid(self.graph.propagate(labels))

    def predict(self, labels: np.ndarray) -> Prediction:
        """Latency of a labeling."""
        (mean,), (stddev,) = self.costs().predict(self.paid(labels)[None])
        return Prediction(float(mean), float(stddev))

    def expected_problem(self) -> LabelingProblem:
        """The labeling problem under the expected costs."""
        return self.parameters.problem(self.costs().mean)

    def sampled_problem(self, rng: np.random.Generator) -> LabelingProblem:
        """The labeling problem under costs sampled from their posterior: Thompson sampling."""
        return self.parameters.problem(self.costs().sample(rng))

    def summary(self) -> dict[str, float]:
        """Mean cost by signature of everything that was profiled, nanoseconds: for a later run."""
        return self._prior.summary()

    def costs(self) -> CostPosterior:
        """What profiles and whole-model times say of all parameters."""
        if self._prior_costs is None:
            self._prior_costs = self._prior.costs()
        if self._posterior is None:
            self._posterior = CostPosterior(self._prior_costs, tuple(self._observations), self._outside)
        return self._posterior
