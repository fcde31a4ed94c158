"""The actor of a helper: it observes samples on any node with a processor to spare, and measures nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Sequence
from typing import Any

import onnx
import onnxruntime

from inlay.data import Feed
from inlay.farm.scratch import own_folder, write_at
from inlay.model.pieces import PiecewiseSession
from inlay.model.store import WeightStore
from inlay.quant.observing import Histograms, Observing
from inlay.version import __version__

File = tuple[str, Sequence[tuple[int, Any]]]
"""Its name, and references to its pieces, each with its offset."""
VERSIONS = (__version__, str(onnxruntime.__version__))
"""What must agree, so that it does not matter where something is computed."""


class Helper:
    """Observes what a job says.

    It is made anew, with the same arguments, where its process or node is lost: all that it needs is in them.

    Args:
        root: where its folder is made; the system's place for temporary files by default.
        model: the name of the model among ``files``; its external data lies beside it.
        files: what it consists of.
        limits: of each value that is observed, and
        positions: what of them is padding, as of :class:`~inlay.quant.observing.Observing`.
    """

    def __init__(self, root: str | None, model: str, files: Iterable[File], limits: Any, positions: Any) -> None:
        import ray

        self._folder = own_folder(root)
        for name, pieces in files:
            for offset, piece in pieces:  # one at a time: a model may be larger than what is left of memory
                write_at(self._folder / name, offset, ray.get(piece))
        path = self._folder / model
        proto = onnx.load(path, load_external_data=False)
        self._job = Observing(proto, WeightStore.copied(path.parent), limits, positions)
        self._session: PiecewiseSession | None = None

    def hello(self) -> tuple[str, str]:
        """What answers here."""
        return VERSIONS

    def observe(self, feeds: Sequence[Feed]) -> Histograms:
        """Histograms of these samples. Raises what computing them raises."""
        os.environ["OMP_NUM_THREADS"] = "1"
        if self._session is None:
            self._session = self._job.session(threads=1)
        return self._job.add(self._session, feeds, self._job.histograms())

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)
