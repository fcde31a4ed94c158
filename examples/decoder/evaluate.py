"""Perplexity of model files on a text, each with its own cache: ``python -m examples.decoder.evaluate FLOAT OTHER...``.

Unlike samples, whose caches came from the float model, this feeds back what each model itself put into its cache.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
import onnxruntime
from examples.decoder.make import Feed, slid, steps
from examples.decoder.perplexity import negative

STEPS, SEED = 256, 1  # another text than the samples'


def outputs_of(path: str, first: Feed, tokens: Sequence[int]) -> list[Feed]:
    """Outputs of each step of a text, the cache handed on from step to step."""
    session = onnxruntime.InferenceSession(path)
    names = [o.name for o in session.get_outputs()]
    feed, found = first, []
    for token in tokens:
        found.append(dict(zip(names, session.run(None, feed), strict=True)))
        feed = {"input_ids": np.array([[token]]), **slid(found[-1])}
    return found


def main(paths: Sequence[str]) -> None:
    """Print a line for each file."""
    text = list(steps(onnxruntime.InferenceSession(paths[0]), 2 * STEPS, SEED))
    tokens = [token for _, token in text]
    runs = {path: outputs_of(path, text[0][0], tokens) for path in paths}
    said = {path: np.array([step["logits"].argmax() for step in run]) for path, run in runs.items()}
    for path, run in runs.items():
        perplexity, same = -negative(run, np.array(tokens)), np.mean(said[path] == said[paths[0]])
        print(f"{path}: perplexity {perplexity:.2f}, {same:.1%} of greedy tokens as {paths[0]}")


if __name__ == "__main__":
    main(sys.argv[1:])
