"""Judges cases for another process: a line on standard input for each case, the findings as a line of JSON.

Tests use it because the process of a test has run models and has threads, and must not be forked.
"""

from __future__ import annotations

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

from tests.attack.case import Case
from tests.attack.seeds import Seeds

ROOT = Path(__file__).parents[2]


class Server:
    """A process that runs cases.

    Args:
        folder: for the seeds.
    """

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.attack.serve", str(folder)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf8",
        )  # fmt: skip
        self._answer()
        self.seeds = Seeds(folder)

    def judge(self, case: Case, folder: Path, in_lane: bool = False) -> list[str]:
        """Run ``case``, which lies in ``folder``, and say what is wrong with its end."""
        case.save(folder)
        assert self._process.stdin is not None
        self._process.stdin.write(f"{'lane' if in_lane else 'alone'} {folder}\n")
        self._process.stdin.flush()
        return self._answer()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=60)

    def _answer(self) -> list[str]:
        assert self._process.stdout is not None
        return list(json.loads(self._process.stdout.readline()))


def main() -> None:
    """Answer until standard input ends."""
    from tests.attack import sandbox, trial
    from tests.attack.lane import Lane

    trial.prepare(Path(sys.argv[1]))
    print("[]", flush=True)
    lane = Lane()
    for line in sys.stdin:
        how, _, name = line.rstrip("\n").partition(" ")
        folder = Path(name)
        run = lane.run if how == "lane" else partial(sandbox.run, others=lane.pids)
        verdict = trial.judge(Case.load(folder), folder, run)
        print(json.dumps([f"{f}: {f.detail}" for f in verdict.findings]), flush=True)


if __name__ == "__main__":
    main()
