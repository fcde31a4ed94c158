"""``python -m release``: build and test packages; check, show the notes of, or make a release."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys

from release import checks, packages


def check(version: str) -> int:
    """Print what the changelog will say, and what stands in the way; 1 if anything does."""
    print(checks.notes(version), end="\n\n")
    found = checks.problems(version)
    for line in found:
        print(f"not ready: {line}", file=sys.stderr)
    print(f"{version} is {'not ready' if found else 'ready'}; nothing was written.", file=sys.stderr)
    return 1 if found else 0


def tag(version: str) -> int:
    """Set the version, move changes into the changelog, commit and tag; whoever runs this pushes the tag."""
    if check(version):
        return 1
    told = checks.notes(version)
    settings = checks.ROOT / "pyproject.toml"
    text, count = re.subn(
        r'^version = "[^"]+"$', f'version = "{version}"', settings.read_text(encoding="utf8"), count=1, flags=re.M
    )
    assert count == 1, "pyproject.toml states no version"
    settings.write_text(text, encoding="utf8")
    words = [sys.executable, "-m", "towncrier", "build", "--yes", "--version", version]
    subprocess.run(words, cwd=checks.ROOT, check=True)
    checks.git("add", "--all", "pyproject.toml", "CHANGELOG.md", "changes", "docs/licences.md")
    checks.git("commit", "--message", f"Release {version}")
    checks.git("tag", "--annotate", f"v{version}", "--cleanup=verbatim", "--message", told)
    print(f"Made the tag v{version}. To publish it: git push origin main v{version}")
    return 0


def main(words: list[str] | None = None) -> int:
    """Run one command, and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    tasks = parser.add_subparsers(dest="task", required=True)
    for name, about in (("check", "whether a version can be released"), ("notes", "its notes"), ("tag", "make it")):
        tasks.add_parser(name, help=about).add_argument("version")
    tasks.add_parser("dist", help="build what is published into dist")
    tasks.add_parser("extras", help="which extras resolve on which Python")
    tester = tasks.add_parser("test", help="test the wheel in dist")
    tester.add_argument("--python", default=sys.executable)
    tester.add_argument("--resolution", default="")
    tester.add_argument("words", nargs="*", help="what pytest is given, behind --")
    asked = parser.parse_args(words)
    try:
        if asked.task == "notes":
            print(checks.notes(asked.version))
        elif asked.task in ("check", "tag"):
            return check(asked.version) if asked.task == "check" else tag(asked.version)
        elif asked.task == "dist":
            packages.dist()
        elif asked.task == "extras":
            packages.extras()  # what does not resolve is known: docs/install.md says it
        else:
            return packages.test(asked.python, asked.words, asked.resolution)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
