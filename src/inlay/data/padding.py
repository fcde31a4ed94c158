"""Positions of samples that hold padding: they have no share in the accuracy, since nobody reads what comes out there.

Texts of different lengths are filled up to one, and an input says which positions count. By rule (:data:`AUTO`) that is
one of integers or booleans, of shape (batch, positions), whose name has the word ``mask``, and that holds ones and
zeros only, with at least one zero. An output has rows for its positions where its first two dimensions are those of the
mask in every sample, and further ones follow, or it holds integers (a class for each position). Floats of the mask's
own shape have rows only where the mask was named: a vector for the whole text may be as long as the text by chance.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from inlay.data.samples import AUTO_MASK, NO_MASK, Feed
from inlay.errors import UsageError

_WORD = re.compile(r"(^|[^a-z])mask($|[^a-z])")


@dataclass(frozen=True, eq=False)
class Padding:
    """What a mask says about the outputs of samples."""

    mask: str = ""  # name of the input; empty where there is none
    kept: tuple[np.ndarray, ...] = ()  # for each sample, which positions count, shape (batch, positions), bool
    outputs: frozenset[str] = field(default_factory=frozenset)  # names of the outputs that have a row for each position

    @classmethod
    def of(cls, feeds: Sequence[Feed], outputs: Sequence[Mapping[str, np.ndarray]], mask: str = AUTO_MASK) -> Padding:
        """The padding of samples with these outputs.

        Args:
            mask: the input that tells; or by the rule, or none.

        Raises:
            UsageError: there is no such input, or it is no mask.
        """
        for name, kept in cls.masks(feeds, mask):
            found = _with_rows(kept, outputs, mask != AUTO_MASK)
            if found and not all(k.all() for k in kept):
                return cls(name, kept, found)
        return cls()

    @classmethod
    def masks(cls, feeds: Sequence[Feed], mask: str = AUTO_MASK) -> Iterator[tuple[str, tuple[np.ndarray, ...]]]:
        """Inputs that may tell, with the positions that count in each sample, shape (batch, positions), bool.

        Raises:
            UsageError: there is no such input, or it is no mask.
        """
        named = mask not in (AUTO_MASK, NO_MASK)
        if not feeds or mask == NO_MASK:
            return
        if named and mask not in feeds[0]:
            raise UsageError(f"--mask {mask}: the model has no such input; it has {', '.join(feeds[0])}")
        for name in [mask] if named else [n for n in feeds[0] if _WORD.search(n.lower())]:
            masks = [feed[name] for feed in feeds]
            if any(m.ndim != 2 or not np.isin(m, (0, 1)).all() for m in masks):
                if named:
                    raise UsageError(f"--mask {name}: give an input of ones and zeros, of shape (batch, positions)")
                continue
            if not named and any(m.dtype.kind not in "iub" for m in masks):
                continue
            yield name, tuple(m.astype(bool) for m in masks)

    def without(self, number: int, outputs: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """The ``outputs`` of a sample without its padding: shape (kept positions, ...) where there are rows for them.

        An output of another shape than the mask tells stays as it is.
        """
        if not self.outputs:
            return outputs
        kept = self.kept[number]
        return {
            name: y[kept] if name in self.outputs and y.shape[:2] == kept.shape else y for name, y in outputs.items()
        }

    def without_each(self, outputs: Sequence[Mapping[str, np.ndarray]]) -> Sequence[Mapping[str, np.ndarray]]:
        """The same for every sample."""
        return [self.without(i, each) for i, each in enumerate(outputs)] if self.outputs else outputs


def _with_rows(kept: Sequence[np.ndarray], outputs: Sequence[Mapping[str, np.ndarray]], named: bool) -> frozenset[str]:
    """Outputs whose first dimensions are those of the masks, and that are no vectors of floats for a whole text."""
    return frozenset(
        name
        for name, first in (outputs[0] if outputs else {}).items()
        if (named or first.ndim > 2 or first.dtype.kind in "iub")
        and all(name in y and y[name].shape[:2] == k.shape for k, y in zip(kept, outputs, strict=True))
    )
