"""Judge one file of a popular model, in a process of its own: a runtime may end it.

    python -m benchmarks.popular.judge NAME FOLDER MODEL RECORDS.npz [THREADS]

``FOLDER`` is what the task laid. Writes the records of each sample.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from benchmarks.popular import models
from benchmarks.popular.task import read_records, save_records, session

LIMIT_S = 1200.0


def records(name: str, folder: Path, model: Path, threads: int) -> list[np.ndarray]:
    """The records of a file's samples.

    Raises:
        OSError: the file does not run; the message is the runtime's last line.
    """
    out = folder / "records.npz"
    out.unlink(missing_ok=True)
    command = [sys.executable, "-m", __name__, name, *(str(p.resolve()) for p in (folder, model, out)), str(threads)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise OSError(f"not judged within {LIMIT_S:.0f} s") from error
    if done.returncode or not out.exists():
        lines = [t for t in done.stderr.splitlines() if t.strip()]
        raise OSError(" ".join((lines[-1] if lines else f"exit code {done.returncode}").split())[:300])
    return read_records(out)


def main() -> None:
    """Judge in this process."""
    name, folder, model, out, threads = sys.argv[1], *map(Path, sys.argv[2:5]), int(sys.argv[5])
    save_records(out, models.ALL[name].judge(session(model, threads), folder))


if __name__ == "__main__":
    main()
