"""What only some systems have is not needed: a run goes without file locks, process groups, rusage and their signals.

Workers still get open descriptors, which Windows has no way to hand on: docs/install.md says so.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from inlay.testing import small_model
from tests.support.fixtures import SaveModel

ABSENT_MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog")
ABSENT = ("killpg", "setsid", "getpgid", "setpgid", "fork", "forkpty", "sched_getaffinity", "memfd_create")
_SITE = f"""
import os, signal, subprocess, sys
for name in {ABSENT_MODULES!r}:
    sys.modules[name] = None
kill = signal.SIGKILL
for name in {ABSENT!r}:
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGKILL", "SIGHUP", "SIGALRM", "pthread_kill", "setitimer", "alarm"):
    if hasattr(signal, name):
        delattr(signal, name)
subprocess.Popen.kill = lambda self: self.send_signal(9)  # as Python has it there: it knows the system's own way
with open(os.environ["INLAY_SPIED"], "a") as file:
    print(os.getpid(), file=file)
"""
"""As ``sitecustomize``: every process of the run starts so."""


@pytest.mark.skipif(os.name != "posix", reason="here these are absent anyway")
@pytest.mark.parametrize("command", ["tune", "bench"])
@pytest.mark.exhaustive
def test_a_run_goes_without_what_only_posix_has(command: str, save: SaveModel, tmp_path: Path) -> None:
    model, spied, out = save(small_model()), tmp_path / "spied", tmp_path / "out"
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(_SITE, encoding="utf8")
    words = {
        "tune": ["tune", str(model), "-o", str(out), "--max-measurements", "1", "--no-bound", "--budget", "60s", "-q"],
        "bench": ["bench", str(model), str(model), "--blocks", "1", "--processes", "1", "--json"],
    }[command]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site"), "INLAY_SPIED": str(spied)}
    done = subprocess.run(
        [sys.executable, "-m", "inlay", *words], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    assert "this is a bug" not in done.stderr
    assert len(set(spied.read_text(encoding="utf8").split())) > 1, "workers ran so, too"
    if command == "tune":
        assert json.loads((out / "result.json").read_text(encoding="utf8"))["best"]
    else:
        assert len(json.loads(done.stdout)["models"]) == 2


def test_every_module_is_imported_without_them() -> None:
    """But those of packages that are optional, or that run on a board."""
    program = f"""
import os, signal, sys
for name in {ABSENT_MODULES!r}:
    sys.modules[name] = None
import importlib, pkgutil
import subprocess
for name in {ABSENT!r}:
    if hasattr(os, name):
        delattr(os, name)
del signal.SIGKILL, signal.SIGHUP
import inlay
for found in pkgutil.walk_packages(inlay.__path__, "inlay."):
    if not found.name.endswith("__main__") and not found.name.startswith(("inlay.ray", "inlay.tosa")):
        try:
            importlib.import_module(found.name)
        except ImportError as error:
            if (error.name or "").split(".")[0] in {ABSENT_MODULES!r}:
                raise
"""
    subprocess.run([sys.executable, "-c", program], check=True)
