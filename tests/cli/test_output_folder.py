"""The output folder: held, of another run, not writable."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

import pytest
from filelock import FileLock

from inlay.errors import JournalError
from inlay.run.folder import work_in
from inlay.testing import residual_model, small_model
from tests.support.command_line import FAST, RunCommand, failed
from tests.support.fixtures import SaveModel


def test_another_run_holds_the_folder(run: RunCommand, save: SaveModel, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with FileLock(out / ".lock"):
        failed(run("tune", save(residual_model()), "-o", out, *FAST), 1, "another run is using", str(out))


@pytest.mark.exhaustive
def test_another_models_folder(run: RunCommand, save: SaveModel, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert run("tune", save(residual_model()), "-o", out, *FAST)[0] == 0
    before = (out / "model.onnx").read_bytes()
    other = save(small_model(), "other.onnx")
    failed(run("tune", other, "-o", out, *FAST), 1, "belongs to another run", "--restart", "model")
    assert (out / "model.onnx").read_bytes() == before, "a refused run leaves the result alone"
    failed(run("tune", save(residual_model()), "-o", out, *FAST, "--seed", "7"), 1, "belongs to another run", "seed")
    assert run("tune", other, "-o", out, *FAST, "--restart")[0] == 0
    result = json.loads((out / "result.json").read_text())
    assert result["model"]["path"] == str(other)


def test_the_folder_is_a_file(run: RunCommand, save: SaveModel, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    failed(run("tune", save(residual_model()), "-o", tmp_path / "out", *FAST), 1, str(tmp_path / "out"))
    assert (tmp_path / "out").read_text() == "a file"


def test_a_command_that_fails_leaves_no_folder(run: RunCommand, save: SaveModel, tmp_path: Path) -> None:
    out = tmp_path / "new" / "newer" / "out"
    failed(run("tune", save(residual_model()), "-o", out, *FAST, "--nodes", "no such node"), 2, "no such node")
    assert not (tmp_path / "new").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes to read-only folders")
def test_a_read_only_folder(run: RunCommand, save: SaveModel, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    out.chmod(0o500)
    failed(run("tune", save(residual_model()), "-o", out, *FAST), 1, str(out), "cannot be written")
    failed(run("quantize", save(residual_model()), "-o", out / "q.onnx", "--target", "null"), 1, "cannot be written")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that nobody can write to")
def test_a_folder_that_nobody_can_write_to(run: RunCommand, save: SaveModel) -> None:
    failed(run("tune", save(residual_model()), "-o", "/proc/self/inlay", *FAST), 1, "/proc/self/inlay")
    failed(run("quantize", save(residual_model()), "-o", "/proc/self/q.onnx", "--target", "null"), 1, "/proc/self")


@pytest.mark.exhaustive
def test_a_journal_that_is_none(run: RunCommand, save: SaveModel, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    foreign = b"this is not a database, but long enough to be one" * 40
    (out / "run.sqlite").write_bytes(foreign)
    for options in ((), ("--restart",)):
        failed(run("tune", save(residual_model()), "-o", out, *FAST, *options), 1, "run.sqlite", "journal")
        assert (out / "run.sqlite").read_bytes() == foreign, "what is not ours is never replaced"


def test_a_log_is_no_input_and_begins_with_the_first_event(run: RunCommand, save: SaveModel, tmp_path: Path) -> None:
    path, log = save(small_model()), tmp_path / "log.jsonl"
    samples = tmp_path / "samples.npz"
    samples.write_bytes(b"mine")
    before = path.read_bytes()
    for other in (path, samples):
        failed(run("tune", path, "-o", tmp_path / "out", "--data", samples, "--json-log", other), 2, "overwrite")
    assert (path.read_bytes(), samples.read_bytes()) == (before, b"mine")
    log.write_text("of an earlier run")
    assert run("tune", path, "-o", tmp_path / "out", "--data", samples, "--json-log", log)[0] == 1
    assert log.read_text() == "of an earlier run", "a command that is refused leaves it"


def test_a_third_run_sees_the_second_that_began_as_the_first_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the end of one run removes is not the file by which the next one holds the folder."""
    out, release = tmp_path / "out", FileLock.release
    with contextlib.ExitStack() as second:
        first = work_in(out)
        first.__enter__()
        begun: list[Path] = []

        def released(lock: FileLock, force: bool = False) -> None:
            release(lock, force)
            monkeypatch.undo()
            begun.append(second.enter_context(work_in(out)))  # at the very moment at which the first one ends

        monkeypatch.setattr(FileLock, "release", released)
        first.__exit__(None, None, None)
        (work,) = begun
        assert work.parent == out, "the control: the second one runs"
        with pytest.raises(JournalError, match="another run is using"), work_in(out):
            pass
        assert work.is_dir()
    assert not [*out.iterdir()]


@pytest.mark.parametrize("words", [["report"], ["select", "--fastest"]], ids=lambda words: words[0])
@pytest.mark.matrix
def test_commands_on_a_run_leave_one_in_progress_alone(
    words: list[str], run: RunCommand, save: SaveModel, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert run("tune", save(residual_model()), "-o", out, *FAST)[0] == 0
    with work_in(out) as work:  # as a run does while it goes on
        (work / "candidate.onnx").touch()
        assert run(words[0], out, *words[1:])[0] == 0
        assert (work / "candidate.onnx").exists()
        with pytest.raises(JournalError, match="another run is using"), work_in(out):
            pass
