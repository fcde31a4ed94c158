"""Files are replaced whole, with the permissions that the umask gives, or stay as they were."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from inlay.errors import DataError, InlayError, JournalError, UsageError
from inlay.files import (
    own_mark,
    read_bytes,
    read_json,
    refuse_odd_name,
    refuse_overwriting,
    replacing,
    write_text,
    writing_in,
)


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_files_are_as_readable_as_the_umask_says(mask: int, mode: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        write_text(tmp_path / "cache.yaml", "a: 1")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "cache.yaml").stat().st_mode) == mode
    assert (tmp_path / "cache.yaml").read_text() == "a: 1"


def test_what_fails_half_way_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"old")

    def fail() -> None:
        with replacing(path) as fresh:
            fresh.write_bytes(b"half of the n")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("error", [JournalError, UsageError])
def test_a_missing_folder_is_one_line(error: type[JournalError], tmp_path: Path) -> None:
    with pytest.raises(error, match="cannot be written"):
        write_text(tmp_path / "missing" / "f", "", error)


@pytest.mark.parametrize("link", ["itself", "symbolic", "hard", "other spelling"])
def test_an_input_is_never_overwritten(link: str, tmp_path: Path) -> None:
    model, other = tmp_path / "m.onnx", tmp_path / "out.onnx"
    model.write_bytes(b"model")
    if link == "itself":
        other = model
    elif link == "symbolic":
        other.symlink_to(model)
    elif link == "hard":
        os.link(model, other)
    else:
        other = tmp_path / "sub" / ".." / "m.onnx"
        (tmp_path / "sub").mkdir()
    with pytest.raises(UsageError, match="would overwrite"):
        refuse_overwriting([other], [model])


def test_other_files_may_be_written(tmp_path: Path) -> None:
    """Negative control; what does not exist is no input."""
    (tmp_path / "m.onnx").write_bytes(b"model")
    (tmp_path / "old.onnx").write_bytes(b"model")
    refuse_overwriting([tmp_path / "old.onnx", tmp_path / "new.onnx"], [tmp_path / "m.onnx", "module:function"])


_KILLED = """
import os, signal, sys
from pathlib import Path
from inlay.files import replacing, scratch
with scratch(Path(sys.argv[1])) as folder, replacing(Path(sys.argv[1]) / "state.yaml") as fresh:
    (folder / "part.onnx").write_bytes(b"x")
    fresh.write_bytes(b"half of")
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there, nobody can ask whether a process lives")
def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _KILLED, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    left = sorted(p.name for p in tmp_path.iterdir())
    assert len(left) == 2, "otherwise this test says nothing"
    others = [".state.yaml.backup", ".state.yaml.tmp-1-2", left[0].replace("tmp-", "tmp-ffff")]
    alive = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        mark, own = left[0].split("tmp-")[1].split("-")[:2]
        others.append(f".state.yaml.tmp-{mark}-{alive.pid}-{start_of(alive.pid)}-abc")
        others.append(f".state.yaml.{own_mark()}abc")
        if start_of(alive.pid):  # its number was another's before
            (tmp_path / f".state.yaml.tmp-{mark}-{alive.pid}-1-abc").touch()
            (tmp_path / f".state.yaml.tmp-{mark}-{os.getpid()}-1-abc").touch()
        else:
            others.pop()
        for name in others:
            (tmp_path / name).write_bytes(b"not ours to remove")
        write_text(tmp_path / "other.yaml", "a: 1")
        assert own != str(alive.pid)
    finally:
        alive.communicate(b"\n")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*others, "other.yaml"])


def start_of(pid: int) -> int:
    path = Path(f"/proc/{pid}/stat")
    return int(path.read_text().rsplit(")", 1)[1].split()[19]) if path.exists() else 0


_ELSEWHERE = """
import os, types
real = os.stat
os.stat = lambda path, *a, **k: types.SimpleNamespace(st_ino=7) if "ns/pid" in str(path) else real(path, *a, **k)
from inlay.files import own_mark
print(own_mark())
"""


@pytest.mark.skipif(not Path("/proc/self/ns/pid").exists(), reason="there are no namespaces")
def test_processes_of_another_namespace_are_not_those_of_the_same_number(tmp_path: Path) -> None:
    """Containers may share a folder and the name of the host, but number their processes each for itself."""
    marks = [
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
        for code in (_ELSEWHERE, "from inlay.files import own_mark; print(own_mark())")
    ]
    for mark in marks:
        (tmp_path / f"inlay-{mark}abc").mkdir()
    write_text(tmp_path / "other.yaml", "a: 1")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([f"inlay-{marks[0]}abc", "other.yaml"])


def test_the_umask_of_the_process_is_never_changed(tmp_path: Path) -> None:
    """Another thread, and the files that it makes meanwhile, would have it."""
    before, seen, done = os.umask(0o022), set[int](), threading.Event()

    def write() -> None:
        for number in range(300):
            write_text(tmp_path / str(number), "x")
        done.set()

    def look() -> None:
        while not done.is_set():
            (tmp_path / "other").touch()
            seen.add(stat.S_IMODE((tmp_path / "other").stat().st_mode))
            (tmp_path / "other").unlink()

    try:
        threads = [threading.Thread(target=each) for each in (write, look)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        after = os.umask(before)
    assert seen == {0o644}
    assert after == 0o022


def special(folder: Path) -> dict[str, Path]:
    """Files that are no regular files."""
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to("/dev/zero")
    return {"pipe": folder / "pipe", "link": folder / "link", "device": Path("/dev/zero"), "folder": folder}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with names are of POSIX")
@pytest.mark.parametrize("name", ["pipe", "link", "device", "folder"])
def test_what_is_no_regular_file_is_neither_read_nor_replaced(name: str, tmp_path: Path) -> None:
    path = special(tmp_path)[name]
    before = sorted(os.listdir(tmp_path))
    with pytest.raises(DataError, match=f"--x {path} cannot be read: it is not a regular file"):
        read_bytes(path, 100, DataError, "--x ")
    if name in ("pipe", "link"):
        with pytest.raises(JournalError, match=f"{path} is not a regular file: name another output"):
            write_text(path, "x")
    assert sorted(os.listdir(tmp_path)) == before


def test_no_more_is_read_than_is_asked_for(tmp_path: Path) -> None:
    """Also where the system says that a file is empty, as it does of its own."""
    (tmp_path / "f").write_bytes(b"x" * 100)
    assert read_bytes(tmp_path / "f", 100) == b"x" * 100
    with pytest.raises(DataError, match="is larger than 0 MB"):
        read_bytes(tmp_path / "f", 99)
    if Path("/proc/self/status").exists():
        with pytest.raises(DataError, match="is larger than"):
            read_bytes(Path("/proc/self/status"), 10)
    (tmp_path / "j").write_text('{"a": 1}')
    assert read_json(tmp_path / "j") == {"a": 1}
    with pytest.raises(DataError, match="No such file"):
        read_json(tmp_path / "missing")


@pytest.mark.parametrize(("number", "named"), [(errno.ENOSPC, True), (errno.EFBIG, True), (errno.ECHILD, False)])
def test_a_full_disk_is_said_with_a_place(number: int, named: bool, tmp_path: Path) -> None:
    kind: type[Exception] = InlayError if named else OSError
    with pytest.raises(kind) as found, writing_in(tmp_path):
        raise OSError(number, os.strerror(number))
    assert (str(tmp_path) in str(found.value)) is named


@pytest.mark.skipif(sys.platform != "linux", reason="other systems take no such names")
def test_a_name_that_is_not_text_is_refused_in_one_line(tmp_path: Path) -> None:
    refuse_odd_name(tmp_path / "Größe")
    with pytest.raises(UsageError, match=r"m\\xff.onnx: a name in this path is not UTF-8") as error:
        refuse_odd_name(tmp_path / os.fsdecode(b"m\xff.onnx"))
    str(error.value).encode("utf8")
