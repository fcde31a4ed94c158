"""What a command imports: how much of Inlay every run needs, and which wings joined it.

``make core`` prints it for a ``tune`` and a ``quantize`` on the default target.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from inlay.testing import residual_model
from tests.support import house

REPOSITORY = Path(__file__).resolve().parents[2]
ROOT = REPOSITORY / "src" / "inlay"

_PROGRAM = """
import sys
from inlay.cli.commands import app, run
code = run(lambda: app(sys.argv[1:], standalone_mode=False))
print("", "FILES", sep="\\n")
for name in sorted(sys.modules):
    if name.startswith("inlay"):
        print(getattr(sys.modules[name], "__file__", None) or "")
sys.exit(code)
"""


def imported_by(arguments: Sequence[str], root: Path = ROOT, environment: Mapping[str, str] | None = None) -> list[str]:
    """The files below ``root`` that ``inlay`` imports in its own process for a command, which must succeed."""
    command = [sys.executable, "-c", _PROGRAM, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=300)
    assert done.returncode == 0, done.stderr
    files = done.stdout.partition("\nFILES\n")[2].split("\n")
    return sorted(Path(f).relative_to(root).as_posix() for f in files if f.startswith(str(root)))


def commands(folder: Path) -> Mapping[str, Sequence[str]]:
    """A ``tune`` and a ``quantize`` of a small model that is written into ``folder``."""
    model = folder / "model.onnx"
    model.write_bytes(residual_model().SerializeToString())
    short = ("--max-measurements", "3", "--budget", "60s", "--no-bound", "-q")
    return {
        "tune": ("tune", str(model), "-o", str(folder / "out"), *short),
        "quantize": ("quantize", str(model), "-o", str(folder / "q.onnx")),
    }


def lines_of(files: Sequence[str], root: Path = ROOT) -> int:
    """How many lines these files have."""
    return sum(len((root / path).read_text(encoding="utf8").splitlines()) for path in files)


if __name__ == "__main__":
    every = house.files(ROOT)
    print(f"{lines_of(every):7,} lines in {len(every)} files")
    core = [path for path in every if not house.wing(path)]
    print(f"{lines_of(core):7,} of them, in {len(core)} files, in no wing")
    with tempfile.TemporaryDirectory() as scratch:
        for name, words in commands(Path(scratch)).items():
            found = imported_by(words)
            needed = [path for path in found if not house.wing(path)]
            wings = sorted({house.wing(path) for path in found} - {""})
            joined = f"; {', '.join(wings)} joined with {lines_of(found) - lines_of(needed):,}" if wings else ""
            print(f"{lines_of(needed):7,} of these, in {len(needed)} files, are imported by {name}{joined}")
