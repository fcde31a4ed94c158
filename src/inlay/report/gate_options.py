"""What a gate is asked for, and what the run in its folder says: models, target, samples and limits."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np

from inlay.data import AUTO_MASK, Feed, Images
from inlay.errors import JournalError, NoSuchFile, UsageError
from inlay.measure.journal import Journal
from inlay.model.load import ModelFile, file_sha256, load
from inlay.prepare import options
from inlay.prepare.declare import Option, Options, documented
from inlay.run.facts import CALIBRATION
from inlay.run.finished import reading_result
from inlay.run.options import DataSource
from inlay.run.progress import Progress
from inlay.targets.base import TargetSpec
from inlay.targets.registry import target_of

FAIL_BELOW = Option(
    "The least speed-up over the given model, such as 1.1x: the interval that is measured must reach it.",
    "As a number, or as text.",
    metavar="RATIO",
)
FAIL_DROP = Option(
    "Most that the metric may fall below the given model's on these samples: 0.5% or 0.005. Without --metric it is the "
    "run's, or what the model is for.",
    metavar="DROP",
)
FAIL_SQNR = Option("Least SQNR of the worst output against the given model.", "In dB.", metavar="DB", type=float)
GIVEN = Option("The given model, where it is no longer where it was in the run.", metavar="MODEL", type=Path)
SAMPLES = Option(
    "Samples that accuracy is judged and latency is measured on; by default those of the run, where they are files.",
    "As for ``inlay.tune``.",
    metavar="SAMPLES",
    show_default=False,
)
UNPROVEN_PASSES = Option(
    "Exit with code 0, not 3, where the interval does not say whether the limit is kept.", type=bool
)


@documented
@dataclass(frozen=True, kw_only=True, eq=False)
class GateOptions(Options):
    """What a call of :func:`inlay.gate` asks for."""

    fail_below: Annotated[str | float | None, FAIL_BELOW] = None
    fail_drop: Annotated[str | float | None, FAIL_DROP] = None
    fail_sqnr: Annotated[float | None, FAIL_SQNR] = None
    accept_unproven: Annotated[bool, UNPROVEN_PASSES] = False
    given: Annotated[str | Path | None, GIVEN] = None
    data: Annotated[DataSource, SAMPLES] = None
    images: Annotated[Images | None, options.IMAGES] = None
    labels: Annotated[str | Path | np.ndarray | None, options.LABELS] = None
    metric: Annotated[str | Callable[..., float] | None, options.METRIC] = None
    mask: Annotated[str, options.MASK] = AUTO_MASK
    blocks: Annotated[int, options.BLOCKS] = 10
    processes: Annotated[int, options.PROCESSES] = 2
    ray: Annotated[str | None, options.RAY] = None
    device: Annotated[str | None, options.DEVICE] = None
    seed: Annotated[int, options.SEED] = 0
    progress: Annotated[Progress | None, options.PROGRESS] = None

    @property
    def least(self) -> float | None:
        """The least speed-up; None without that limit. Raises UsageError."""
        if self.fail_below is None:
            return None
        found = re.fullmatch(r"(\d{1,6}(?:\.\d{1,9})?)\s*x?", str(self.fail_below).strip())
        if found is None or not float(found[1]):
            raise UsageError(f"--fail-below {self.fail_below}: give a ratio above 0, such as 1.1x")
        return float(found[1])

    @property
    def most_drop(self) -> float | None:
        """The most that a metric may fall; None without that limit. Raises UsageError."""
        return None if self.fail_drop is None else options.parse_share(str(self.fail_drop), "--fail-drop")

    @property
    def least_db(self) -> float | None:
        """The least SQNR in dB; None without that limit. Raises UsageError."""
        return options.check_sqnr(self.fail_sqnr, "--fail-sqnr")


@dataclass(frozen=True, kw_only=True, eq=False)
class Delivered:
    """What a finished run delivered, and how it was measured."""

    given: ModelFile  # the model that the run was given
    file: ModelFile  # what it delivered
    spec: TargetSpec  # the target, with the options of the run
    fingerprint: str  # of the target that the run measured on
    feed: Feed | None  # a sample of the run; None where it kept none
    said: Mapping[str, Sequence[str]]  # options of the run's command, by their flags

    @classmethod
    def read(cls, folder: Path, given: str | Path | None) -> Delivered:
        """That of the run in ``folder``; its given model may be elsewhere by now.

        Raises:
            JournalError: there is no finished run, or the delivered file is not the one that was measured.
            NoSuchFile: the given model is not where it was.
            UsageError: it is another one than it was.
        """
        with reading_result(folder) as result:
            model, best, target = result["model"], result["best"], result["target"]
            path, threads = Path(str(model["path"])), str((target.get("facts") or {}).get("threads", "1"))
            said = options_said(str(result.get("command") or ""))
            wanted = {"sha256": str(best["output_sha256"]), "name": str(target["name"])}
            fingerprint = str(target["fingerprint"])
        delivered = folder / "model.onnx"
        if not delivered.is_file() or file_sha256(delivered) != wanted["sha256"]:
            raise JournalError(f"{delivered} is not the file that was measured: run inlay tune again, or put it back")
        path = path if given is None else Path(given)
        if not path.is_file():
            raise NoSuchFile(f"the model that {folder} was made from is not at {path}: name it with --given MODEL")
        file = load(path)
        if file.sha256 != model["sha256"]:
            raise UsageError(f"{path} is not the model that {folder} was made from: its digest is another one")
        with closing(Journal(folder / "run.sqlite", None)) as journal:
            known, feed = journal.fact(CALIBRATION), journal.feed("shapes")
        usual = target_of(wanted["name"], (), int(threads) if threads.isdecimal() else 1)
        return cls(
            given=file,
            file=load(delivered),
            spec=usual if known is None else known.spec,
            fingerprint=fingerprint,
            feed=feed,
            said=said,
        )

    def file_said(self, flag: str) -> Path | None:
        """The file or folder that an option of the run's command named; None where it is not here."""
        return next((Path(value) for value in self.said.get(flag, ()) if Path(value).exists()), None)

    def data(self, wish: GateOptions) -> DataSource:
        """The samples: those that are asked for, or those of the run, where they are files that are still there.

        Where a run was told how images become arrays, the gate must be told, too.
        """
        if wish.data is not None or wish.images is not None:
            return wish.data
        return None if "--preprocess" in self.said else self.file_said("--data")


def options_said(command: str) -> dict[str, list[str]]:
    """The values of the options in a command line, by their flags; those without a value are left out."""
    found = dict[str, list[str]]()
    for flag, value in itertools.pairwise(shlex.split(command)):
        if flag.startswith("--") and not value.startswith("--"):
            found.setdefault(flag, []).append(value)
    return found
