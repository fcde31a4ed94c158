"""Fixtures: the folder of real models, and ready-made small models on disk."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import onnx
import pytest

from inlay.targets.base import Capabilities, Feed
from tests.support.examples import is_quick, load_profile
from tests.support.fixtures import MakeWorkspace, NormalizeModel, RewriteModel, SaveModel
from tests.support.normalizing import normalize_gated, rewrite
from tests.support.null_workers import null_in_this_process
from tests.support.workspace import Workspace

os.environ.pop("COLUMNS", None)  # test processes side by side are told a width, and what they print would be cut to it


def pytest_configure(config: pytest.Config) -> None:
    """Set the number of examples before tests are imported."""
    load_profile(config)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as exhaustive all cases of a test marked ``matrix`` but the first, and with ``every=4`` each fourth more."""
    seen: Counter[tuple[Path, str]] = Counter()
    for item in items:
        matrix = item.get_closest_marker("matrix")
        if matrix is not None:
            of = (item.path, item.nodeid.split("[")[0])
            every = matrix.kwargs.get("every")
            if seen[of] % every if every else seen[of]:
                item.add_marker(pytest.mark.exhaustive)
            seen[of] += 1


ROOT = Path(__file__).resolve().parent.parent


def models_folder() -> Path:
    """``INLAY_MODELS``, or ``../shared/models`` beside the repository."""
    return Path(os.environ.get("INLAY_MODELS") or ROOT.parent / "shared" / "models")


@pytest.fixture
def real_models() -> Path:
    """The folder of trained models with ``feeds.py``, which this fixture makes importable."""
    folder = models_folder()
    if not (folder / "feeds.py").is_file():
        pytest.skip(f"no trained models in {folder}: set INLAY_MODELS to a folder that holds them")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    return folder


@pytest.fixture
def null_in_process(request: pytest.FixtureRequest) -> Iterator[None]:
    """Runs on ``null`` have their workers in this process, where exhaustive tests are left out: one costs a second."""
    with null_in_this_process() if is_quick(request.config) else nullcontext():
        yield


@pytest.fixture
def save(tmp_path: Path) -> SaveModel:
    """Writes a model to the test's folder and returns its path."""

    def write(model: onnx.ModelProto, name: str = "model.onnx") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(model.SerializeToString())
        return path

    return write


@pytest.fixture
def workspace(tmp_path: Path) -> MakeWorkspace:
    """Prepares a model for placing and emitting, in the test's folder."""

    def make(
        model: onnx.ModelProto, target: Capabilities | None = None, samples: int = 2, feeds: tuple[Feed, ...] = ()
    ) -> Workspace:
        return Workspace(model, tmp_path / "workspace", target, samples, feeds)

    return make


@pytest.fixture
def normalized(tmp_path: Path) -> NormalizeModel:
    """Normalizes with the gate on, and checks that the outputs are the same."""
    return lambda model: normalize_gated(model, tmp_path)


@pytest.fixture
def rewritten(tmp_path: Path) -> RewriteModel:
    """Normalizes without the gate, with one of the rewrites that only some targets ask for."""
    return lambda model, step, feed=None: rewrite(model, tmp_path, step, feed)
