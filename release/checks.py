"""What must be true of a checkout before a version of it is released."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:  # it came with towncrier
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)(?:(a|b|rc)(\d+))?")
"""Semantic versions; a release before one is spelled as the package index wants it: ``1.1.0rc1``."""

FRAGMENT = re.compile(r"\+[a-z0-9][a-z0-9-]*\.([a-z]+)\.md")


def settings(root: Path = ROOT) -> Mapping[str, Any]:
    """What ``pyproject.toml`` says."""
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf8"))


def key(version: str) -> tuple[int, int, int, str, int]:
    """What versions are ordered by; a release before a version comes first.

    Raises:
        ValueError: This is no version.
    """
    if (found := VERSION.fullmatch(version)) is None:
        raise ValueError(f"{version!r} is no version: it is spelled as 1.2.3, or as 1.2.3rc1")
    major, minor, patch, stage, number = found.groups()
    return int(major), int(minor), int(patch), stage or "z", int(number or 0)


def git(*words: str, root: Path = ROOT) -> str:
    """What git prints, stripped; an error of git ends the program."""
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"git {words[0]} failed: {done.stderr.strip()}")
    return done.stdout.strip()


def fragments(root: Path = ROOT) -> list[Path]:
    """The files of changes that no release holds."""
    return sorted(path for path in (root / "changes").iterdir() if path.name != "README.md")


def badly_written(root: Path = ROOT) -> list[str]:
    """What is wrong with the files of changes, a line each."""
    kinds = {kind["directory"] for kind in settings(root)["tool"]["towncrier"]["type"]}
    found = []
    for path in fragments(root):
        named = FRAGMENT.fullmatch(path.name)
        if named is None or named[1] not in kinds:
            found.append(
                f"changes/{path.name}: name it +WORDS.KIND.md, where KIND is one of {', '.join(sorted(kinds))}"
            )
            continue
        text = path.read_text(encoding="utf8").strip()
        if not text:
            found.append(f"changes/{path.name} is empty")
        if text.startswith(("- ", "* ")):
            found.append(f"changes/{path.name} starts with a bullet, which the changelog adds itself")
    return found


def problems(version: str, root: Path = ROOT, ask: Callable[..., str] = git) -> list[str]:
    """What stands in the way of releasing the checkout at ``root`` as ``version``; a line each, none if nothing does.

    Raises:
        ValueError: ``version`` is no version.
    """
    wanted = key(version)
    found = badly_written(root)
    tags = [tag.removeprefix("v") for tag in ask("tag", "--list", "v*", root=root).split()]
    if version in tags:
        found.append(f"the tag v{version} exists")
    newest = max((tag for tag in tags if VERSION.fullmatch(tag)), key=key, default="0.0.0")
    if wanted < key(newest):
        found.append(f"{version} is older than {newest}, which is released")
    if changed := ask("status", "--porcelain", "--", ".", ":!docs/licences.md", root=root):
        found.append(f"{len(changed.splitlines())} files are changed or unknown to git: commit or remove them")
    if (branch := ask("rev-parse", "--abbrev-ref", "HEAD", root=root)) != "main":
        found.append(f"releases are made of main, this is {branch}")
    names = [path.name for path in fragments(root)]
    if not names:
        found.append("nothing has changed: changes/ is empty")
    if wanted[2:] == (0, "z", 0) and not any(name.endswith(".summary.md") for name in names):
        found.append("write changes/+WORDS.summary.md, a few of them: what a user gets, read in one minute")
    return found


def notes(version: str, root: Path = ROOT) -> str:
    """What the changelog will say of ``version``."""
    words = [sys.executable, "-m", "towncrier", "build", "--draft", "--version", version]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"towncrier failed: {done.stderr.strip()}")
    return done.stdout.strip()
