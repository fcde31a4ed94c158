"""Boards behind a real ``sshd``: one with numpy and a runtime alone, and one with all that is here."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.ssh_server import MISSING, SSHD, Board, bare_packages, board


def _served(factory: pytest.TempPathFactory, bare: bool) -> Iterator[Board]:
    if SSHD is None:
        pytest.skip(MISSING)
    folder = factory.mktemp("board")
    with board(folder / "server", bare_packages(folder / "site") if bare else None) as found:
        yield found


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    """A board whose Python has nothing but numpy and ONNX Runtime."""
    yield from _served(tmp_path_factory, bare=True)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Board]:
    """A board whose Python is this one: a simulated target needs more than a runtime."""
    yield from _served(tmp_path_factory, bare=False)
