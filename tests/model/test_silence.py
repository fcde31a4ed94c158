"""Standard output while compiled code prints."""

from __future__ import annotations

import ctypes
import os

import pytest

from inlay.model.libraries import silence


def test_nothing_is_printed_meanwhile_and_what_was_printed_stays(capfd: pytest.CaptureFixture[str]) -> None:
    print("before")
    with silence():
        os.write(1, b"straight")
        ctypes.CDLL(None).printf(b"through C's buffer")
    print("after")
    ctypes.CDLL(None).fflush(None)
    assert capfd.readouterr().out == "before\nafter\n"
