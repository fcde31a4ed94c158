"""``python -m release``: check, show the notes of, or make a release."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys

from release import checks


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
    checks.git("add", "--all", "pyproject.toml", "CHANGELOG.md", "changes")
    checks.git("commit", "--message", f"Release {version}")
    checks.git("tag", "--annotate", f"v{version}", "--cleanup=verbatim", "--message", told)
    print(f"Made the tag v{version}. To publish it: git push origin main v{version}")
    return 0


def main(words: list[str] | None = None) -> int:
    """Run one command, and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    parser.add_argument("what", choices=("check", "tag", "notes"))
    parser.add_argument("version")
    asked = parser.parse_args(words)
    try:
        if asked.what == "notes":
            print(checks.notes(asked.version))
            return 0
        return check(asked.version) if asked.what == "check" else tag(asked.version)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
