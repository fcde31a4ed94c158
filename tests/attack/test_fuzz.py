"""Hostile inputs, a few of every kind: hypothesis draws them, and shrinks what breaks a promise; negative controls.

``make fuzz`` draws as many as an hour has room for.
"""

from __future__ import annotations

import itertools
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.attack import trial
from tests.attack.case import Case, make_folder
from tests.attack.choices import Drawn, Seeded
from tests.attack.serve import Server

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="attacks are watched through /proc")

EXAMPLES = {"options": 30, "yaml": 40, "samples": 20, "journal": 8, "result": 8, "fields": 12, "bytes": 8}
"""Inputs of each kind: together about fifteen seconds."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("attack") / "seeds") as made:
        yield made


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("cases")
    return (root / str(number) for number in itertools.count())


def test_every_kind_is_tried() -> None:
    assert EXAMPLES.keys() == trial.KINDS.keys()


@pytest.mark.parametrize("kind", EXAMPLES)
@pytest.mark.exhaustive
def test_no_input_breaks_a_promise(kind: str, server: Server, folders: Iterator[Path]) -> None:
    @settings(max_examples=EXAMPLES[kind])
    @given(st.data())
    def attack(data: st.DataObject) -> None:
        folder = next(folders)
        case = trial.generate(kind, Drawn(data), server.seeds, folder)
        assert server.judge(case, folder) == []
        shutil.rmtree(folder)

    attack()


@pytest.mark.exhaustive
def test_the_same_seed_makes_the_same_inputs(server: Server, folders: Iterator[Path]) -> None:
    for kind in trial.KINDS:
        first, second = next(folders), next(folders)
        made = [trial.generate(kind, Seeded(7, 3), server.seeds, f) for f in (first, second)]
        assert made[0] == made[1]
        names, others = ({p.relative_to(f) for p in f.rglob("*.*")} for f in (first, second))
        assert names == others
        for name in names:
            if name.suffix in (".onnx", ".yaml", ".npy"):
                assert (first / name).read_bytes() == (second / name).read_bytes(), (kind, name)


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (("-o", "@/model/model.onnx"), []),
        (("-o", "@/given/link.onnx"), []),
        (("@/model/model.onnx", "-o", "@/model/model.onnx"), ["changed"]),
        (("--input", "@/given/link.onnx", "-o", "@/model/model.onnx"), ["changed"]),
        (("-o", "@/model/other.onnx"), ["changed"]),
    ],
)
def test_an_output_may_replace_what_is_no_input(
    arguments: tuple[str, ...], found: list[str], server: Server, folders: Iterator[Path]
) -> None:
    folder = next(folders)
    make_folder(folder)
    (folder / "model" / "model.onnx").write_bytes(b"model")
    (folder / "given" / "link.onnx").symlink_to("../model/model.onnx")
    case = Case("control", ("tests.attack.faulty:changes_the_model", "@", *arguments))
    assert [f.partition(":")[0] for f in server.judge(case, folder)] == found


@pytest.mark.parametrize(
    ("fault", "word"),
    [
        ("fine", ""),
        ("refuses", ""),
        ("raises", "traceback: ValueError"),
        ("mumbles", "not one clear line"),
        ("fails_silently", "not one clear line"),
        ("odd_code", "exit code"),
        ("colours", "control character"),
        ("segfaults", "crash"),
        ("hangs", "hang"),
        ("hoards", "memory"),
        ("leaves_a_file", "left-over file"),
        ("leaves_a_file_at_home", "written outside"),
        ("leaves_a_hidden_file", "left-over file: tests.attack.faulty:leaves_a_hidden_file out/"),
        ("changes_the_model", "changed"),
        ("writes_beside_the_model", "written outside"),
        ("leaves_a_process", "orphan"),
        ("executes_the_bait", "code executed"),
    ],
)
@pytest.mark.parametrize("in_lane", [False, True], ids=["alone", "in a lane"])
@pytest.mark.matrix
def test_what_must_not_happen_is_noticed(
    fault: str, word: str, in_lane: bool, server: Server, folders: Iterator[Path]
) -> None:
    folder = next(folders)
    make_folder(folder)
    (folder / "model" / "model.onnx").write_bytes(b"model")
    case = Case(
        "control", (f"tests.attack.faulty:{fault}", "@"), hang_s=8.0 if fault == "hoards" else 1.0, rss_mb=500.0
    )
    found = server.judge(case, folder, in_lane)
    assert len(found) == bool(word), found
    assert not word or found[0].startswith(word), found
