"""What a release asks of a checkout, and what it makes of the files of changes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from release import checks, packages

SETTINGS = (checks.ROOT / "pyproject.toml").read_text(encoding="utf8")
READY = {"tag": "v0.9.0 v1.0.0rc1 v0.10.0", "status": "", "rev-parse": "main"}


def checkout(folder: Path, **files: str) -> Path:
    (folder / "changes").mkdir()
    (folder / "pyproject.toml").write_text(SETTINGS, encoding="utf8")
    for name, text in files.items():
        (folder / "changes" / f"+{name.replace('__', '.')}.md").write_text(text, encoding="utf8")
    return folder


def problems(version: str, root: Path, **answers: str) -> str:
    said = {**READY, **answers}
    return "\n".join(checks.problems(version, root, lambda word, *_, **__: said[word]))


def test_the_changes_of_this_checkout_are_well_written() -> None:
    assert checks.badly_written() == []


def test_a_release_is_ready_only_where_everything_is(tmp_path: Path) -> None:
    root = checkout(tmp_path, release__summary="More.", speed__added="**More** speed.")
    assert problems("1.0.0", root) == ""
    assert "the tag v0.10.0 exists" in problems("0.10.0", root)
    assert "0.9.1 is older than 1.0.0rc1" in problems("0.9.1", root), "versions are ordered as numbers"
    assert "2 files are changed" in problems("1.0.0", root, status=" M a\n?? b")
    assert "this is other" in problems("1.0.0", root, **{"rev-parse": "other"})
    (root / "changes" / "+release.summary.md").unlink()
    assert "+WORDS.summary.md" in problems("1.0.0", root)
    assert problems("1.0.1", root, tag="v1.0.0") == "", "a release that mends needs no summary"
    (root / "changes" / "+speed.added.md").unlink()
    assert "nothing has changed" in problems("1.0.1", root, tag="v1.0.0")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("speed__faster", "More.", "name it"),
        ("Speed__added", "More.", "name it"),
        ("speed__added", " \n", "empty"),
        ("speed__added", "- More.", "bullet"),
    ],
)
def test_a_badly_written_change_is_refused(tmp_path: Path, name: str, text: str, said: str) -> None:
    (wrong,) = checks.badly_written(checkout(tmp_path, **{name: text}))
    assert said in wrong


@pytest.mark.parametrize("version", ["1.0", "v1.0.0", "1.0.0-rc1", "1.0.0.dev1", ""])
def test_what_is_no_version_is_refused(version: str) -> None:
    with pytest.raises(ValueError, match="is no version"):
        checks.key(version)


def test_the_notes_hold_every_change_under_its_kind(tmp_path: Path) -> None:
    root = checkout(tmp_path, release__summary="Faster.", a__fixed="No longer **slow**.", b__added="New.")
    (root / "CHANGELOG.md").write_text("# Changelog\n", encoding="utf8")
    lines = [line for line in checks.notes("1.2.3", root).splitlines() if line]
    assert lines[0].startswith("## 1.2.3, ")
    assert lines[1:] == ["### In one minute", "- Faster.", "### Added", "- New.", "### Fixed", "- No longer **slow**."]


def test_the_page_of_licences_names_everything_that_inlay_asks_for() -> None:
    page = packages.LICENCES.read_text(encoding="utf8")
    rows = dict(line.strip("| ").split(" | ")[:2] for line in page.splitlines() if line.startswith("| "))
    own = {packages.canonical(name) for name, by in rows.items() if by == "Inlay"}
    assert own == set(packages.direct_dependencies()), "run: make dist"


def test_a_licence_is_what_the_package_declares() -> None:
    bill = {
        "components": [
            {"name": "Inlay", "licenses": []},
            {"name": "b_c", "licenses": [{"license": {"name": "License :: OSI Approved :: BSD License"}}]},
            {"name": "A", "licenses": [{"expression": "MIT OR 0BSD"}]},
            {"name": "d"},
        ]
    }
    page = packages.licences_page(bill, ["b-c"])
    assert page.splitlines()[-3:] == [
        "| A | these | MIT OR 0BSD |",
        "| b_c | Inlay | BSD License |",
        "| d | these | not declared in its metadata |",
    ]


WORKFLOWS = sorted((checks.ROOT / ".github" / "workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_is_read_and_calls_only_what_there_is(path: Path) -> None:
    """Targets of make, and files of tests; none of its jobs may write more than it says."""
    text = path.read_text(encoding="utf8")
    flow = yaml.safe_load(text)
    assert flow["permissions"] == {"contents": "read"}
    steps = [step for job in flow["jobs"].values() for step in job["steps"]]
    assert all(("uses" in step) is not ("run" in step) for step in steps)
    assert not any("*" in str(step.get("with", {}).get("sbom-path")) for step in steps), "actions/attest takes a path"
    targets = set(re.findall(r"^([a-z-]+):", (checks.ROOT / "Makefile").read_text(encoding="utf8"), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z-]+)", text)) <= targets
    assert [name for name in re.findall(r"\btests/[\w/.]+", text) if not (checks.ROOT / name).exists()] == []
