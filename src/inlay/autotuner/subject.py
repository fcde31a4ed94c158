"""One model made ready for step-by-step tuning: prepared as ``tune`` does it, calibrated when first needed."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from inlay.calibrate import policy
from inlay.calibrate.choose import choose_calibration
from inlay.calibrate.clock import StepClock
from inlay.calibrate.scorer import TableScorer, in_process
from inlay.calibrate.tables import CalibrationChoice, observe
from inlay.data import Samples, bound, files_of, input_specs, random_samples, read_samples
from inlay.errors import ModelError
from inlay.model.graph import Graph
from inlay.model.load import ModelFile, load
from inlay.model.reference import Session
from inlay.model.store import embed_weights
from inlay.prepare.candidate_writer import metadata
from inlay.prepare.model import PreparedModel, prepare
from inlay.prepare.take_apart import take_apart
from inlay.quant.accuracy import Bound, Judge
from inlay.quant.qparams import QParamsTable
from inlay.targets.base import Capabilities
from inlay.types import Placement

_RANDOM_SAMPLES = 8
"""Random samples where none are given: ranges of random inputs mean little, whatever their number."""

Source = str | Path | onnx.ModelProto | ir.Model
SampleSource = str | Path | Iterable[Mapping[str, np.ndarray]]


class Subject:
    """The model under tuning.

    Args:
        source: path of a model, or a model in memory.
        target: what the target runs, and how it wants models written.
        samples: inputs to calibrate with, as ``--data`` takes them; without any, random ones.
        bind: sizes of dynamic dimensions by symbol.
        seed: of the random samples.

    Attributes:
        sha256: of the model file; a model in memory is written to a scratch file first.
        samples_kind: ``random`` when no samples were given; the outputs then mean nothing.
        files: the model and the samples, as far as they are files.
        prepared: the normalized model.

    Raises:
        ModelError: it cannot be read, or does not run.
        DataError: the samples do not fit it.
    """

    def __init__(
        self,
        source: Source,
        target: Capabilities,
        samples: SampleSource | None = None,
        bind: Mapping[str, int] | None = None,
        seed: int = 0,
    ) -> None:
        folder = Path(tempfile.mkdtemp(prefix="inlay-"))
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        file = _read(source, folder)
        specs = bound(input_specs(file.model), bind or {})
        rng = np.random.default_rng(seed)
        self._samples: Samples
        self._samples = random_samples(specs, rng, _RANDOM_SAMPLES) if samples is None else read_samples(samples, specs)
        self.samples_kind = self._samples.kind
        self.sha256 = file.sha256
        self.files = (*file.files, *files_of(samples))
        extraction = take_apart(file, self._samples.feeds, folder)
        self.prepared: PreparedModel = prepare(file, target, self._samples.feeds[0], folder, extraction=extraction)

    @property
    def graph(self) -> Graph:
        """The indexed view of the normalized model."""
        return self.prepared.graph

    def emit(self, placement: Placement) -> onnx.ModelProto:
        """A self-contained model with ``placement`` (below 2 GB)."""
        table, digest = self._calibrated
        facts = metadata("step by step", placement, digest) if len(placement) else {}
        return embed_weights(self.prepared.emitter.emit(placement, table, facts), self.prepared.store)

    @cached_property
    def _calibrated(self) -> tuple[QParamsTable, str]:
        """QParams chosen as :func:`~inlay.tune` does it, but in this process; and their digest."""
        prepared = self.prepared
        observed = observe(prepared, self._samples)
        if self.samples_kind == "random":
            return CalibrationChoice("minmax").table(prepared, observed), observed.digest
        some = self._samples.part(range(min(policy.SCORING_SAMPLES, len(self._samples))))
        reference = Session(prepared.emitter.base, prepared.store)
        judge = Judge([reference.run(feed) for feed in some.feeds], some, Bound(), margin=False)
        choice = choose_calibration(
            prepared,
            observed,
            prepared.label(frozenset(u.name for u in prepared.selectable)),
            self._samples.feeds,
            TableScorer(judge, in_process(prepared, some.feeds)).sqnr_db,
            policy.DEFAULT_SECONDS,
            clock=StepClock.for_model(prepared),
        )
        return choice.table(prepared, observed), choice.digest(observed)


def _read(source: Source, folder: Path) -> ModelFile:
    if isinstance(source, (str, Path)):
        return load(source)
    if not isinstance(source, (onnx.ModelProto, ir.Model)):
        raise ModelError(f"a path, an onnx.ModelProto or an onnx_ir.Model is needed, not {type(source).__name__}")
    path = folder / "source.onnx"
    if isinstance(source, ir.Model):
        ir.save(source, path, external_data="source.data")  # what is external elsewhere is copied
    else:
        path.write_bytes(source.SerializeToString(deterministic=True))
    return load(path)
