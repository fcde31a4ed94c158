"""The calibration of a tuner kept in a file beside its state, so that a search that goes on need not calibrate again.

The file bears a key: a digest of all that the calibration follows from. Under another key it is not used.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from inlay.data import Samples, read_arrays, save_feed
from inlay.errors import DataError, UsageError
from inlay.files import replacing
from inlay.installed import __version__
from inlay.prepare.model import PreparedModel
from inlay.quant.gptq import Rounding
from inlay.quant.qparams import QParamsTable
from inlay.quant.rewrite import stated
from inlay.targets.base import Capabilities

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
    text = json.dumps([key, _sum(content), *content])
    head = np.frombuffer(text.encode(), np.uint8)
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
