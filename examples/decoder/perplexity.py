"""Perplexity as a metric of ``inlay tune``: ``--metric examples.decoder.perplexity:negative --labels tokens.npy``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np


def negative(outputs: Sequence[Mapping[str, np.ndarray]], labels: np.ndarray | None) -> float:
    """Minus the perplexity of the tokens that follow, as larger metrics are better: ``-exp(mean(-log p(token)))``.

    Args:
        outputs: of each step, with ``logits`` of shape (1, 1, vocabulary).
        labels: the token that follows each step.
    """
    assert labels is not None, "give --labels"
    losses = []
    for step, token in zip(outputs, np.ravel(labels), strict=True):
        scores = step["logits"].ravel().astype(np.float64)
        greatest = scores.max()
        losses.append(greatest + np.log(np.exp(scores - greatest).sum()) - scores[int(token)])
    return -float(np.exp(np.mean(losses)))
