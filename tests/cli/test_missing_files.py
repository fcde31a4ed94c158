"""What a command names and is not there: one line and one exit code, whatever the command and the kind of file."""

from __future__ import annotations

from pathlib import Path

from inlay.testing import Builder
from tests.support.command_line import RunCommand, failed
from tests.support.fixtures import SaveModel


def test_missing_files_have_one_exit_code(run: RunCommand, save: SaveModel, tmp_path: Path) -> None:
    b = Builder()
    b.output(b.conv("conv", b.input("x", (1, 3, 8, 8)), 4))
    model, out, lost = save(b.model()), tmp_path / "out", tmp_path / "lost"
    null = ("--target", "null")
    for command in (
        ("tune", f"{lost}.onnx", "-o", out),
        ("quantize", f"{lost}.onnx", "-o", out),
        ("bench", model, f"{lost}.onnx"),
        ("regions", f"{lost}.onnx"),
        ("lower", f"{lost}.onnx", "-o", f"{out}.tosa"),
        ("explain", f"{lost}.onnx"),
        ("select", lost, "--fastest"),
        ("cache", "show", f"{lost}.yaml"),
        ("cache", "merge", f"{lost}.yaml", "-o", out),
        *(
            (*command, *null, option, f"{lost}{suffix}")
            for command in (("tune", model, "-o", out), ("quantize", model, "-o", out))
            for option, suffix in (("--recipe", ".yaml"), ("--data", ".npz"), ("--data", "-folder"))
        ),
        ("tune", model, "-o", out, *null, "--pattern-cache", f"{lost}.yaml"),
        ("tune", model, "-o", out, *null, "--qdq-baseline", f"{lost}.onnx"),
    ):
        failed(run(*command), 1, "lost")
    assert not out.exists()
