"""What ``--device`` may say, and what it may not: one line each."""

from __future__ import annotations

from pathlib import Path

import pytest

from inlay.errors import UsageError
from inlay.measure.lab import measuring
from inlay.measure.ssh.address import address_of


def test_an_address_says_who_where_and_which_python() -> None:
    found = address_of("ssh://pi@board.local:2222?python=/opt/py/bin/python3%20-X%20utf8&folder=/var/tmp")
    assert (found.user, found.host, found.port, found.folder) == ("pi", "board.local", 2222, "/var/tmp")
    assert found.words == ["/opt/py/bin/python3", "-X", "utf8"]
    assert str(found) == "pi@board.local:2222"
    short = address_of("ssh://board")
    assert (short.user, short.port, short.words, str(short)) == ("", 0, ["python3"], "board")
    assert address_of("ssh://u@[::1]:22").host == "::1"


def test_names_stand_in_a_file(tmp_path: Path) -> None:
    listed = tmp_path / "devices.yaml"
    listed.write_text("pi5: ssh://pi@10.0.0.7\nother: {host: 10.0.0.8, user: me, port: 2200, python: python3.11}\n")
    assert (address_of("pi5", listed).host, str(address_of("pi5", listed))) == ("10.0.0.7", "pi5")
    other = address_of("other", listed)
    assert (other.user, other.port, other.words) == ("me", 2200, ["python3.11"])
    with pytest.raises(UsageError, match="has pi5, other"):
        address_of("pi4", listed)
    with pytest.raises(UsageError, match=r"there is no .*nowhere\.yaml"):
        address_of("pi4", tmp_path / "nowhere.yaml")
    listed.write_text("pi5: {host: a, colour: red}\n")
    with pytest.raises(UsageError, match=r"a board has .*host"):
        address_of("pi5", listed)


@pytest.mark.parametrize(
    "given",
    [
        "http://board",
        "ssh://",
        "ssh://u:secret@board",
        "ssh://board/folder",
        "ssh://board:99999",
        "ssh://board?colour=red",
        "ssh://-oProxyCommand=x",
        "ssh://-l@board",
        "ssh://board?python=%22",
        "ssh://board?python=",
    ],
)
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(UsageError) as raised:
        address_of(given)
    assert "\n" not in str(raised.value)


def test_a_run_measures_in_one_place() -> None:
    with pytest.raises(UsageError, match="give one of them"):
        measuring("local", [], print, "ssh://board")
