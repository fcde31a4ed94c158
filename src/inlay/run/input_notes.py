"""What people should know of inputs: the values and sizes that are fixed, and values that decide branches alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from inlay.data import Samples, input_specs
from inlay.data.fixed import shown
from inlay.model.load import ModelFile
from inlay.model.passes.branches import deciding_inputs

_MOST = 8  # numbers of an input that is suggested to be fixed


def limit_notes(file: ModelFile, frozen: str) -> Iterator[str]:
    """What a written model is for alone: the values of inputs that were fixed, and the sizes, ``frozen``, if any."""
    fixed = [f"{s.name}={shown(s.fixed)}" for s in input_specs(file.model) if s.fixed is not None]
    if fixed:
        yield f"the written model is for {', '.join(fixed)} only: whatever else a program feeds there has no effect"
    if frozen:
        yield f"the written model accepts no sizes other than {frozen}: its shapes are fixed"


def fixable_notes(file: ModelFile, samples: Samples) -> tuple[str, ...]:
    """What could be fixed: inputs that are the same in all samples and alone decide which branch of an If is taken."""
    specs = {s.name: s for s in input_specs(file.model)}
    found = []
    for name, nodes in deciding_inputs(file.model).items():
        spec, arrays = specs.get(name), [feed[name] for feed in samples.feeds if name in feed]
        if spec is None or spec.fixed is not None or spec.dtype.kind not in "fiub" or not arrays:
            continue
        first = arrays[0]
        if 0 < first.size <= _MOST and all(np.array_equal(first, a) for a in arrays[1:]):
            value = f"{name}={shown(first)}"
            found.append(
                f"input {name} alone decides which branch of {', '.join(nodes)} is taken, and is {shown(first)} in all "
                f"samples: --fix {value} makes a model for that value only, without the other branches"
            )
    return tuple(found)
