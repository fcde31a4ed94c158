"""One case from beginning to end: generated, run, judged; and the generators by kind."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from inlay.errors import UNPROVEN
from inlay.installed import COMMANDS, joined
from tests.attack import models, options, oracles, records, sample_files, sandbox, warm, yaml_files
from tests.attack.case import TRACE, Case, make_folder
from tests.attack.choices import Choices
from tests.attack.loadable import REPORT
from tests.attack.oracles import Finding
from tests.attack.sandbox import Ended
from tests.attack.seeds import Seeds, make_seeds

Generate = Callable[[Choices, Seeds, Path], Case]

KINDS: Mapping[str, tuple[int, Generate]] = {
    "options": (30, options.options),
    "yaml": (20, yaml_files.text),
    "samples": (16, sample_files.data),
    "journal": (8, records.journal),
    "result": (4, records.result),
    "fields": (16, models.fields),
    "bytes": (6, models.raw),
}
"""Every kind with its share of the inputs in percent: the cheap ones are many, those that run a model few."""


@dataclass(frozen=True)
class Verdict:
    """What became of one case."""

    case: Case
    ended: Ended
    findings: Sequence[Finding]

    @property
    def outcome(self) -> str:
        """In a word."""
        if self.findings:
            return "findings"
        return "accepted" if self.ended.code in (0, UNPROVEN) else "refused"


def prepare(folder: Path) -> Seeds:
    """Make the seeds in ``folder``, and have at hand all that commands import."""
    sandbox.adopt_orphans()
    joining = [each.module for each in joined(COMMANDS).values()]
    warm.be_warm(("inlay.cli.commands", *joining, "inlay.measure.worker", "onnxruntime", "tests.attack.loadable"))
    return make_seeds(folder)


def generate(kind: str, choose: Choices, seeds: Seeds, folder: Path) -> Case:
    """A case in ``folder``, which must not exist."""
    make_folder(folder)
    case = KINDS[kind][1](choose, seeds, folder)
    case.save(folder)
    return case


def judge(case: Case, folder: Path, run: Callable[[Case, Path], Ended] = sandbox.run) -> Verdict:
    """Run a case that lies in ``folder``, and judge it."""
    before = oracles.snapshot(folder)
    ended = run(case, folder)
    return Verdict(case, ended, oracles.findings(case, folder, before, ended))


def _copied(source: str, to: str) -> None:
    if stat.S_ISFIFO(os.stat(source).st_mode):
        os.mkfifo(to)
    else:
        shutil.copy2(source, to)


def again(kept: Path, folder: Path) -> Verdict:
    """Run a case that was kept once more, in a copy of its folder."""
    shutil.copytree(kept, folder, symlinks=True, copy_function=_copied)
    for name in ("stdout", "stderr", REPORT, TRACE):
        (folder / name).unlink(missing_ok=True)
    return judge(Case.load(folder), folder)
