"""Programs that each break one promise: what the attacks must notice."""

from __future__ import annotations

import ctypes
import os
import sys
import tempfile
import time
from pathlib import Path


def fine(folder: str) -> None:
    print("done")
    Path(folder, "out", "result.txt").write_text("done", encoding="utf8")


def refuses(folder: str) -> None:
    print(f"inlay: {folder} is no model", file=sys.stderr)
    sys.exit(1)


def raises(folder: str) -> None:
    raise ValueError(folder)


def mumbles(folder: str) -> None:
    print(f"{folder}: SomeWarning", file=sys.stderr)


def fails_silently(folder: str) -> None:
    sys.exit(1)


def odd_code(folder: str) -> None:
    print(f"inlay: {folder}", file=sys.stderr)
    sys.exit(4)


def colours(folder: str) -> None:
    print(f"\x1b[31m{folder}")


def segfaults(folder: str) -> None:
    ctypes.string_at(0)


def hangs(folder: str) -> None:
    while True:
        pass


def hoards(folder: str) -> None:
    kept = []
    while True:
        kept.append(b"x" * 2**26)
        time.sleep(0.02)  # less at a time than what is noticed in time


def leaves_a_file_at_home(folder: str) -> None:
    cache = Path.home() / ".cache" / "Vendor"
    cache.mkdir(parents=True)
    (cache / "deviceid").write_text("1", encoding="utf8")


def leaves_a_file(folder: str) -> None:
    os.close(tempfile.mkstemp()[0])


def leaves_a_hidden_file(folder: str) -> None:
    Path(folder, "out", ".model.onnx.abc").write_text("half", encoding="utf8")


def changes_the_model(folder: str, *_: str) -> None:
    Path(folder, "model", "model.onnx").write_text("mine", encoding="utf8")


def writes_beside_the_model(folder: str) -> None:
    Path(folder, "model", "model.onnx.tmp").write_text("mine", encoding="utf8")


def leaves_a_process(folder: str) -> None:
    if os.fork() == 0:
        time.sleep(60)


def executes_the_bait(folder: str) -> None:
    exec(Path("secrets.py").read_text(encoding="utf8"))
