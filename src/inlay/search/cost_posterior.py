"""Costs given profiles and whole-model times: Bayesian linear regression in observation space.

A whole-model time is the sum of the parameters that its labeling pays, plus normal noise, so it conditions all of them
jointly. With few observations and many parameters it is cheapest in observation space, and a sample of the posterior
takes Matheron's rule (Wilson et al., *Efficiently sampling functions from Gaussian process posteriors*, 2020). Nothing
here is larger than parameters times observations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from inlay.search import policy
from inlay.search.cost_prior import NormalCosts


@dataclass(frozen=True, eq=False)
class Observation:
    """A whole-model time.

    Attributes:
        paid: indices of the parameters that its labeling pays, shape (units + edges,).
        ns: nanoseconds per inference.
        stddev: of that.
    """

    paid: np.ndarray
    ns: float
    stddev: float


@dataclass(frozen=True, eq=False)
class CostPosterior:
    """The parameters given everything.

    Attributes:
        prior: by profiles alone.
        observations: whole-model times.
        outside: nanoseconds of kernels that no parameter covers, in every labeling.
    """

    prior: NormalCosts
    observations: Sequence[Observation]
    outside: float

    @cached_property
    def mean(self) -> np.ndarray:
        """Expected parameters, nanoseconds, shape (parameters,)."""
        return np.asarray(np.maximum(self.prior.mean + self._correction, policy.LEAST_CORRECTION * self.prior.mean))

    def predict(self, paid: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Expected nanoseconds of labelings, and their standard deviations; both of shape (labelings,).

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
