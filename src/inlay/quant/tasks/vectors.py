"""Embeddings: whether what is alike for the float model is alike for another one (rank correlation)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from inlay.quant.metrics import Agreement, Outputs

_LEAST_VECTORS = 5  # ten pairs
_MOST_VECTORS = 512


def rank_correlation(output: str) -> Agreement:
    """Spearman's correlation of the cosines between all pairs of samples; NaN of fewer than five."""

    def of(outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> float:
        ours, theirs = _vectors(reference, output, reference), _vectors(outputs, output, reference)
        if len(ours) < _LEAST_VECTORS or ours.shape != theirs.shape:
            return float("nan")
        pairs = np.triu_indices(len(ours), 1)
        ranks = [_ranks((v @ v.T)[pairs]) for v in (ours, theirs)]
        spread = float(np.prod([r.std() for r in ranks]))
        return float(((ranks[0] - ranks[0].mean()) * (ranks[1] - ranks[1].mean())).mean() / spread) if spread else 1.0

    return Agreement(of)


def _vectors(outputs: Sequence[Outputs], name: str, reference: Sequence[Outputs]) -> np.ndarray:
    """One vector for each sample, or each row of its batch, of length 1: the mean over positions where there are."""
    found = []
    for each, want in zip(outputs, reference, strict=True):
        array = each.get(name)
        width = reference[0][name].shape[-1]
        if array is None or not array.size or array.ndim != want[name].ndim or array.shape[-1] != width:
            return np.empty((0, 0))
        wide = array.astype(np.float64)
        found.append(wide if wide.ndim == 2 else wide.reshape(wide.shape[0], -1, wide.shape[-1]).mean(axis=1))
    vectors = np.nan_to_num(np.concatenate(found)[:_MOST_VECTORS])
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-30))


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks, equal values sharing the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2.0)[inverse.ravel()])
