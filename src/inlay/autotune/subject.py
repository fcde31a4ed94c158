"""One model made ready for step-by-step tuning: prepared as ``tune`` does it, calibrated when first needed.

Its calibration is kept in a file beside the tuner's state, so that a search that goes on need not calibrate again. The
file bears a key: a digest of all that the calibration follows from. Under another key it is not used.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import shutil
import warnings
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir

from inlay.calibrate import policy
from inlay.calibrate.choose import choose_calibration
from inlay.calibrate.observe import observe
from inlay.calibrate.scorer import in_process, score_by
from inlay.calibrate.table_search import CalibrationTask
from inlay.calibrate.tables import CalibrationChoice
from inlay.data import Samples, files_of, input_specs, random_samples, read_arrays, read_samples, save_feed, split
from inlay.data import bound as with_sizes
from inlay.errors import DataError, ModelError, TargetError, UsageError
from inlay.files import replacing, scratch, scratch_folder
from inlay.installed import __version__
from inlay.model.graph import Graph
from inlay.model.held import changed_since, held
from inlay.model.joins import joined
from inlay.model.load import ModelFile, load
from inlay.model.nesting import nested
from inlay.model.reference import Session
from inlay.model.store import embed_weights
from inlay.model.user_code import user_function
from inlay.prepare.candidate_writer import metadata
from inlay.prepare.model import PreparedModel, prepare
from inlay.prepare.qdq_import import import_qdq, require_baseline
from inlay.prepare.strip_qdq import strip_qdq
from inlay.quant.accuracy import EXACT_DB, Bound, Judge, find_metric
from inlay.quant.gptq import NEAREST, Rounding
from inlay.quant.plain.graph import Leftover
from inlay.quant.qparams import QParamsTable
from inlay.quant.rewrite import stated
from inlay.targets.base import Capabilities
from inlay.trial import Accuracy
from inlay.types import Placement

_HEAD = "calibration"  # the member that is no weight's: their names hold "|"


@dataclass(frozen=True, eq=False)
class Calibration:
    """What candidates are written with."""

    table: QParamsTable  # the quantization parameters
    rounding: Rounding  # which weights the table does not round to nearest
    digest: str  # identifies both


def beside(state: Path) -> Path:
    """Where the calibration is kept of a tuner whose state is at ``state``."""
    return state.with_name(f"{state.stem}.calibration.npz")


def key_of(prepared: PreparedModel, target: Capabilities, samples: Samples) -> str:
    """A digest of all that a calibration follows from: the model, the samples, the target, and who calibrates."""
    everything = prepared.label(frozenset(u.name for u in prepared.selectable))
    facts = [
        __version__,
        *(f"{name} {importlib.metadata.version(name)}" for name in ("onnx", "numpy", "onnxruntime")),
        prepared.file.sha256,
        samples.digest,
        samples.mask,
        samples.kind,
        stated(prepared.rules),
        *(stated(each) for each in (target.float_rewrites, target.rewrites, target.max_opset)),
        everything.digest,
    ]
    return hashlib.sha256("\n".join(facts).encode()).hexdigest()


def keep(path: Path, key: str, calibration: Calibration) -> None:
    """Write a calibration under its key. Raises UsageError when it cannot be written."""
    content = [calibration.digest, calibration.table.as_json(), calibration.rounding.digest]
    head = np.frombuffer(json.dumps([key, _sum(content), *content]).encode(), np.uint8)
    with replacing(path, UsageError) as fresh:
        save_feed(fresh, {_HEAD: head, **calibration.rounding.as_arrays()}, compressed=True)


def kept(path: Path, key: str, prepared: PreparedModel) -> Calibration | None:
    """The calibration kept under this key; None without one, with a warning where the file is damaged."""
    if not path.is_file():
        return None
    try:
        arrays = read_arrays(path)
        found, checksum, *content = json.loads(arrays.pop(_HEAD).tobytes())
        if found != key:
            return None
        rounding = Rounding.from_arrays(arrays)
        if checksum != _sum(content) or rounding.digest != content[2]:
            raise ValueError("its parts do not belong together")
        table = QParamsTable.from_json(prepared.graph, prepared.rules, content[1], rounding)
        return Calibration(table, rounding, str(content[0]))
    except DataError as error:
        reason = str(error)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        reason = f"{path} is damaged ({type(error).__name__}: {error})"
    warnings.warn(f"{reason}: the model is calibrated again", stacklevel=2)
    return None


def _sum(content: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


_RANDOM_SAMPLES = 8  # random samples where none are given: ranges of random inputs mean little, whatever their number

Source = str | Path | onnx.ModelProto | ir.Model
SampleSource = str | Path | Iterable[Mapping[str, np.ndarray]]


class Subject:
    """The model under tuning.

    Args:
        samples: inputs to calibrate with, as ``--data`` takes them; without any, random ones.
        bound: what candidates must keep, judged on samples that ranges do not come from: the least SQNR in dB, or more
            than that; None for no bound.
        labels: one per sample, for the metric of ``bound``.
        seed: of the random samples, and of the split of labelled ones.

    Raises:
        ModelError: it cannot be read, or does not run.
        DataError: the samples do not fit it.
        UsageError: a bound without samples, or a metric that is not known.
    """

    def __init__(
        self,
        source: Source,
        target: Capabilities,
        samples: SampleSource | None = None,
        bind: Mapping[str, int] | None = None,
        bound: Bound | float | None = None,
        labels: np.ndarray | None = None,
        seed: int = 0,
    ) -> None:
        folder = scratch_folder()
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        file = _read(source, folder)
        specs = with_sizes(input_specs(file.model), bind or {})
        rng = np.random.default_rng(seed)
        given = (
            random_samples(specs, rng, _RANDOM_SAMPLES)
            if samples is None
            else read_samples(samples, specs, find=user_function)
        )
        self._samples: Samples = joined(given, file.model)
        self.samples_kind = self._samples.kind  # `random` when no samples were given; the outputs then mean nothing
        self._bound = Bound(float(bound)) if isinstance(bound, (int, float)) else bound
        self._metric = None if self._bound is None else find_metric(self._bound.metric, labels)
        if self._bound is not None:
            if samples is None:
                raise UsageError("an accuracy bound without samples: accuracy on random inputs means nothing")
            parts = split(replace(self._samples, labels=labels), rng)
            self._samples, self._selection = parts.calibration, parts.selection
        self.sha256 = file.sha256  # of the model file; a model in memory is written to a scratch file first
        self.files = (*file.files, *files_of(samples))  # the model and the samples, as far as they are files
        self._file = file
        self._folder, self._target = folder, target
        self._kept: Path | None = None
        extraction = strip_qdq(file, self._samples.feeds, folder)
        self.prepared: PreparedModel = prepare(file, target, self._samples.feeds[0], folder, extraction=extraction)

    @property
    def graph(self) -> Graph:
        """The indexed view of the normalized model."""
        return self.prepared.graph

    def warn_of_change(self) -> None:
        """Warn where the given file is no longer what was read of it: all that comes of it is of what was read."""
        if changed := changed_since(self._file):
            warnings.warn(changed, stacklevel=3)

    def emit(self, placement: Placement) -> onnx.ModelProto:
        """A self-contained model with ``placement`` (below 2 GB)."""
        found = self._calibrated
        facts = metadata("step by step", placement, found.digest) if len(placement) else {}
        return embed_weights(nested(self.prepared.emitter.emit(placement, found.table, facts)), self.prepared.store)

    def keep_calibration(self, path: Path) -> None:
        """Use the calibration that is kept at ``path`` where it is this one; otherwise keep it there, once it is made.

        Raises:
            UsageError: it cannot be written.
        """
        if path != self._kept:
            self._kept = path
            if "_calibrated" in self.__dict__:
                keep(path, self._key, self._calibrated)

    def quantize_as(self, name: str) -> None:
        """Use the type called ``name`` for activations from now on. Raises UsageError where the target lacks it."""
        self.prepared = replace(self.prepared, rules=self.prepared.rules.in_type(name, "default_quant_type"))
        self.__dict__.pop("_calibrated", None)

    def judge(self, placement: Placement) -> Accuracy | None:
        """Accuracy of a placement on samples that its ranges do not come from; None without a bound."""
        if self._bound is None:
            return None
        try:
            session = Session(self.emit(placement), self.prepared.store)
            return self._judge.judge([session.run(feed) for feed in self._selection.feeds])
        except TargetError as error:
            return Accuracy(False, -EXACT_DB, reason=f"it does not run: {error}")

    def placement_in(self, source: Source) -> tuple[Placement, tuple[Leftover, ...]]:
        """The placement of a Q/DQ model of the same network, as ports of this one, and the sites that have none.

        Raises:
            ModelError: it cannot be read, or does not run.
            UsageError: it holds no Q/DQ nodes, or its inputs and outputs are others.
        """
        with scratch(self._folder) as work:
            file = _read(source, work)
            require_baseline(file, self.prepared.file)
            prepared = replace(self.prepared, extraction=None)
            imported = import_qdq(prepared, file, self._target.float_rewrites, self._samples.feeds, work)
        ((_, placement),) = imported.placements
        return placement, imported.missing

    @cached_property
    def _judge(self) -> Judge:
        assert self._bound is not None, "there is no bound"
        reference = Session(self.prepared.emitter.base, self.prepared.store)
        outputs = [reference.run(feed) for feed in self._selection.feeds]
        judge = Judge(outputs, self._selection, self._bound, self._metric)
        judge.refuse_idle_bound()
        return judge

    @property
    def _key(self) -> str:
        return key_of(self.prepared, self._target, self._samples)

    @cached_property
    def _calibrated(self) -> Calibration:
        """As it was kept, or made now and kept."""
        found = None if self._kept is None else kept(self._kept, self._key, self.prepared)
        if found is None:
            found = self._calibrate()
            if self._kept is not None:
                keep(self._kept, self._key, found)
        return found

    def _calibrate(self) -> Calibration:
        """QParams chosen as :func:`~inlay.tune` does it, but in this process."""
        prepared = self.prepared
        observed = observe(prepared, self._samples)
        if self.samples_kind == "random":
            return Calibration(CalibrationChoice("minmax").table(prepared, observed), NEAREST, observed.digest)
        some = self._samples.part(range(min(policy.SCORING_SAMPLES, len(self._samples))))
        reference = Session(prepared.emitter.base, prepared.store)
        judge = Judge([reference.run(feed) for feed in some.feeds], some, Bound(), confidence=None)
        task = CalibrationTask(
            prepared=prepared,
            observed=observed,
            placement=prepared.label(frozenset(u.name for u in prepared.selectable)),
            feeds=self._samples.feeds,
            score=score_by(judge, in_process(prepared, some.feeds)),
        )
        choice = choose_calibration(task, policy.DEFAULT_SECONDS)
        return Calibration(choice.table(prepared, observed), choice.rounding, choice.digest(observed))


def _read(source: Source, folder: Path) -> ModelFile:
    if isinstance(source, (str, Path)):
        return held(load(source), folder / "given")
    if not isinstance(source, (onnx.ModelProto, ir.Model)):
        raise ModelError(f"a path, an onnx.ModelProto or an onnx_ir.Model is needed, not {type(source).__name__}")
    path = folder / "source.onnx"
    if isinstance(source, ir.Model):
        ir.save(source, path, external_data="source.data")  # what is external elsewhere is copied
    else:
        path.write_bytes(source.SerializeToString(deterministic=True))
    return load(path)
