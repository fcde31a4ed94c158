"""How far a model is from what its processor can do: its time if every operator ran at measured peaks, and the gaps.

:mod:`~inlay.run.ceiling.counts` says how much each kernel has to do at least, :mod:`~inlay.run.ceiling.bound` what that
takes at the peaks of a processor, beside the profile of a model, and :mod:`~inlay.run.ceiling.measure` measures these
peaks with products and streams of several sizes.
"""

__all__ = ["bound", "counts", "measure"]
