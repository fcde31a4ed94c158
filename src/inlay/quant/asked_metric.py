"""The metric that a caller asks for: one that is known by name, or the user's own, which may do anything."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from inlay.errors import DataError, InlayError, UsageError
from inlay.model.user_code import TRAVELS, user_function
from inlay.quant.metrics import AGREEMENTS, Agreement, Metric, Outputs, top1


def find_metric(name: str | Metric | None, labels: np.ndarray | None) -> Metric | None:
    """The metric called ``name``, ``module:function``, a function itself, or None for the SQNR alone.

    Raises:
        UsageError: no such metric, or it needs labels and there are none.
    """
    if name is None or name == "sqnr":
        return None
    if not isinstance(name, str):
        return name
    if name == "top1":
        if labels is None:
            raise UsageError("--metric top1 needs --labels FILE")
        return top1
    if name in AGREEMENTS:
        return AGREEMENTS[name]
    if ":" in name:
        return user_function(name, "--metric", partial(_one_number, f"--metric {name}"))
    raise UsageError(f"--metric {name}: give top1, {', '.join(AGREEMENTS)}, sqnr, or module:function")


def value_of(
    metric: Metric, outputs: Sequence[Outputs], reference: Sequence[Outputs], labels: np.ndarray | None
) -> float:
    """A metric of ``outputs``. Raises DataError where it fails, or is no finite number."""
    try:
        if isinstance(metric, Agreement):
            found = metric.of(outputs, reference)
        elif getattr(metric, TRAVELS, False):
            found = metric(outputs, labels)
        else:  # what it changes must not change what others are judged by
            found = metric(copy.deepcopy(outputs), copy.copy(labels))
        return _one_number("the metric", found)
    except InlayError:
        raise
    except (Exception, SystemExit) as error:  # the user's own code
        raise DataError(f"the metric failed: {type(error).__name__}: {error}") from error


def _one_number(who: str, found: Any) -> float:
    """What a metric of the user returned. Raises DataError where it is no finite number, or several."""
    try:
        value = float(found)
    except OverflowError:
        value = math.inf
    except Exception:  # an array of any library
        shape = getattr(found, "shape", None)
        given = f"{type(found).__name__}" + (f" of shape {tuple(shape)}" if isinstance(shape, tuple) else "")
        raise DataError(f"{who} must return one number, not {given}") from None
    if not math.isfinite(value):
        raise DataError(f"{who} gave {value}: it must be a finite number")
    return value
