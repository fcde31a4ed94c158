"""The packages of a release: built, installed where nothing else is, weighed, and what comes with them written down."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from release import checks

DIST = checks.ROOT / "dist"
LICENCES = checks.ROOT / "docs" / "licences.md"
LARGEST = 3_000_000
"""Bytes that a package may have."""

TESTED_EXTRAS = ("images",)
"""What comes along where tests run against the wheel: samples are read from pictures, too."""

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
SBOM_TOOL = "cyclonedx-bom==7.5.0"


def call(*words: str | Path, cwd: Path = checks.ROOT) -> str:
    """What a program prints; its failure ends this one, with what it said."""
    done = subprocess.run([str(word) for word in words], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{Path(words[0]).name} {words[-1]} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def uv(*words: str | Path) -> str:
    """Call the installer of environments."""
    return call(sys.executable, "-m", "uv", *words)


def build() -> list[Path]:
    """Build sdist and wheel into ``dist``, and refuse what is too large or holds what it should not."""
    shutil.rmtree(DIST, ignore_errors=True)
    shutil.rmtree(checks.ROOT / "build", ignore_errors=True)  # what an older build left would be in the wheel
    call(sys.executable, "-m", "build", "--no-isolation", "--outdir", DIST, checks.ROOT)
    built = sorted(DIST.iterdir())
    for path in built:
        if path.stat().st_size > LARGEST:
            raise SystemExit(f"{path.name} has {path.stat().st_size:,} bytes; at most {LARGEST:,} are meant to be")
    return built


def environment(folder: Path, python: str, *words: str | Path) -> Path:
    """Make an environment with what ``words`` say to install, checked to fit together; returns its Python."""
    uv("venv", "--quiet", "--clear", "--python", python, folder)
    inside = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    uv("pip", "install", "--quiet", "--compile-bytecode", "--only-binary", ":all:", "--python", inside, *words)
    uv("pip", "check", "--quiet", "--python", inside)
    return inside


def bill_of_materials(python: Path, into: Path) -> Mapping[str, Any]:
    """Write what an environment holds as CycloneDX into ``into``, and return it."""
    uv(
        *("tool", "run", "--quiet", "--from", SBOM_TOOL, "cyclonedx-py", "environment", "--output-reproducible"),
        *("--pyproject", checks.ROOT / "pyproject.toml", "--mc-type", "library", "--output-file", into, python),
    )
    found: Mapping[str, Any] = json.loads(into.read_text(encoding="utf8"))
    return found


def licence(component: Mapping[str, Any]) -> str:
    """The licence of a component, as its own metadata declares it."""
    names = []
    for each in component.get("licenses", ()):
        stated = each.get("license", {})
        names.append(each.get("expression") or stated.get("id") or stated.get("name", ""))
    told = ", ".join(name.removeprefix("License :: OSI Approved :: ") for name in names if name)
    return told or "not declared in its metadata"


def licences_page(bill: Mapping[str, Any], direct: Sequence[str]) -> str:
    """A page with the licence of everything that comes with Inlay.

    Args:
        bill: As :func:`bill_of_materials` gives it.
        direct: What Inlay itself asks for, by name.
    """
    rows = [
        f"| {part['name']} | {'Inlay' if canonical(part['name']) in direct else 'these'} | {licence(part)} |"
        for part in sorted(bill["components"], key=lambda part: canonical(part["name"]))
        if canonical(part["name"]) != "inlay"
    ]
    return "\n".join(
        [
            "# Licences",
            "",
            "Inlay is under Apache-2.0. `pip install inlay` brings what follows, each under the licence that its own",
            "metadata declares. `make dist` writes this page, and writes the versions of a release, as CycloneDX, into",
            "`inlay-VERSION.cdx.json`.",
            "",
            "| package | asked for by | licence |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def canonical(name: str) -> str:
    """A package's name as the index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def direct_dependencies(*extras: str) -> list[str]:
    """What ``pyproject.toml`` asks for, by name: without an extra, and for those named."""
    project = checks.settings()["project"]
    asked = [*project["dependencies"], *(each for extra in extras for each in project["optional-dependencies"][extra])]
    return [canonical(re.split(r"[<>=!~;\[ ]", each)[0]) for each in asked]


def versions(python: Path) -> str:
    """Two lines: the versions of what Inlay itself asks for in an environment, and of what came along."""
    found = {
        canonical(each["name"]): each["version"]
        for each in json.loads(uv("pip", "list", "--format=json", "--python", python))
    }
    own = direct_dependencies(*TESTED_EXTRAS)
    told = ", ".join(f"{name} {found.pop(name)}" for name in own)
    others = ", ".join(f"{name} {version}" for name, version in found.items())
    return f"{call(python, '-VV').split('(')[0].strip()}: {told}\nWith them: {others}"


def dist() -> None:
    """``make dist``: sdist, wheel, bill of materials, and the page of licences."""
    built = build()
    (wheel,) = (path for path in built if path.suffix == ".whl")
    with tempfile.TemporaryDirectory() as scratch:
        python = environment(Path(scratch) / "venv", sys.executable, wheel)
        bill = bill_of_materials(python, DIST / f"{wheel.name.split('-py3')[0]}.cdx.json")
    LICENCES.write_text(licences_page(bill, direct_dependencies()), encoding="utf8")
    for path in sorted(DIST.iterdir()):
        print(f"{path.stat().st_size:>9,} bytes  {path.relative_to(checks.ROOT)}")
    print(f"{len(bill['components']):>9} packages, which fit together; licences in {LICENCES.relative_to(checks.ROOT)}")


def extras(platform: str = "x86_64-manylinux_2_35") -> int:
    """Say for each extra and each Python whether wheels are found for all of it; returns how many do not resolve."""
    failed = 0
    for extra in ("", *checks.settings()["project"]["optional-dependencies"]):
        for python in PYTHONS:
            words = [
                "pip",
                "compile",
                "--quiet",
                "--no-header",
                "--python-version",
                python,
                "--python-platform",
                platform,
            ]
            words += ["--only-binary", ":all:", *(["--extra", extra] if extra else []), "pyproject.toml"]
            done = subprocess.run(
                [sys.executable, "-m", "uv", *words], cwd=checks.ROOT, capture_output=True, text=True, check=False
            )
            said = done.stderr.partition("Because ")[2].partition(", we can")[0].partition(" and ")[0].strip()
            print(f"{extra or 'inlay':10} {python:5} {'resolves' if not done.returncode else said}")
            failed += done.returncode != 0
    return failed


def tools() -> list[str]:
    """What the tests themselves need, as locked: for each Python its own version."""
    locked = (checks.ROOT / "requirements" / "dev.lock").read_text(encoding="utf8")
    return re.findall(r"^((?:hypothesis|pytest|towncrier)==.*?) *\\$", locked, re.MULTILINE)


def test(python: str, words: Sequence[str], resolution: str) -> int:
    """Run tests against the wheel in ``dist``, in an environment of its own and a folder that lacks the source.

    Args:
        python: The Python to run them with.
        words: What pytest is given.
        resolution: ``lowest-direct`` for the oldest versions that Inlay asks for; by default the newest.
    """
    wheels = sorted(DIST.glob("*.whl"))
    if len(wheels) != 1:
        raise SystemExit("there is not one wheel in dist: run make dist")
    asked: list[str | Path] = [*tools(), f"{wheels[0]}[{','.join(TESTED_EXTRAS)}]"]
    if resolution:  # what the wheel asks for counts as direct only where it is named besides
        asked += ["--resolution", resolution, "-r", checks.ROOT / "pyproject.toml"]
        asked += [word for extra in TESTED_EXTRAS for word in ("--extra", extra)]
    with tempfile.TemporaryDirectory() as scratch:
        inside = environment(Path(scratch) / "venv", python, *asked)
        print(versions(inside), flush=True)
        folder = Path(scratch) / "checkout"
        for name in ("tests", "examples", "docs", "benchmarks", "release", "requirements", "changes"):
            shutil.copytree(checks.ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "out"))
        for name in ("pyproject.toml", "README.md", "CHANGELOG.md", "Makefile", "SECURITY.md"):
            shutil.copy(checks.ROOT / name, folder / name)
        home = call(inside, "-I", "-c", "import inlay; print(inlay.__file__)", cwd=folder)
        if not Path(home.strip()).is_relative_to(Path(scratch) / "venv"):
            raise SystemExit(f"what would be tested is {home.strip()}, not the wheel")
        return subprocess.run([inside, "-m", "pytest", *words], cwd=folder, check=False).returncode
