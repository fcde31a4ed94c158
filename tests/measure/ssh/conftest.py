"""Boards behind a real ``sshd``: one with numpy and a runtime alone, and an emulated ARM64 one, which has no more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support import emulated_arm, ssh_server
from tests.support.ssh_server import SSHD, Board, bare_packages, board


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    """A board whose Python has nothing but numpy and ONNX Runtime."""
    if SSHD is None:
        pytest.skip(ssh_server.MISSING)
    folder = tmp_path_factory.mktemp("board")
    with board(folder / "server", bare_packages(folder / "site")) as found:
        yield found
        assert not found.runs(), "no run leaves anything there, however it ended"


@pytest.fixture(scope="module")
def arm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    """A board whose Python runs under an emulator of ARM64: a Cortex-A76, with dot products."""
    machine = emulated_arm.emulated()
    if SSHD is None or machine is None:
        pytest.skip(ssh_server.MISSING if SSHD is None else emulated_arm.MISSING)
    with board(tmp_path_factory.mktemp("arm") / "server", python=machine.python) as found:
        yield found
        assert not found.runs(), "no run leaves anything there, however it ended"
