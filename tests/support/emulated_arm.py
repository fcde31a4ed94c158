"""ONNX Runtime's ARM64 build under emulation: set up by ``make emulated-arm``, and asked many models at once.

Debian's ``qemu-user-static``, its arm64 packages of Python 3.11, and the aarch64 wheels that
``requirements/emulated-arm.lock`` pins are unpacked into a folder of the user's cache; nothing is installed, and no
rights are needed. Times under emulation mean nothing. Later versions of the runtime end at import under this qemu.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements" / "emulated-arm.lock"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "inlay-emulated-arm"
MISSING = "there is no emulated ARM64 runtime: make emulated-arm sets it up"
VERSION = re.findall(r"^onnxruntime==(\S+)", LOCK.read_text(), re.MULTILINE)[0]
RELEASE, KEYRING = "bookworm", Path("/usr/share/keyrings/debian-archive-keyring.gpg")  # of Python 3.11
ARM_PACKAGES = (
    *("libc6", "libgcc-s1", "libstdc++6", "zlib1g", "libexpat1", "libffi8", "libssl3", "libbz2-1.0", "liblzma5"),
    *("libsqlite3-0", "libncursesw6", "libtinfo6", "libuuid1", "libcrypt1"),
    *("python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib"),
)
CPUS = ("cortex-a72", "cortex-a76", "max")
"""Without dot products, with them, and with all that qemu knows (i8mm among it)."""


@dataclass(frozen=True)
class Emulated:
    """The emulated machine."""

    folder: Path

    @property
    def python(self) -> str:
        """The line that starts Python there, as a shell reads it."""
        return " ".join(self.command("cortex-a76"))

    def command(self, cpu: str) -> list[str]:
        """What starts Python there, on a processor of qemu."""
        root, qemu = self.folder / "root", self.folder / "qemu" / "usr" / "bin" / "qemu-aarch64-static"
        site = f"PYTHONPATH={self.folder / 'site'}"
        alone = "OPENBLAS_NUM_THREADS=1"  # as many threads as the machine has cores would take their time to start
        start = [str(qemu), "-cpu", cpu, "-L", str(root), "-E", site, "-E", alone]
        return [*start, str(root / "usr" / "bin" / "python3.11")]

    def ask(self, jobs: Mapping[str, Job], folder: Path, cpu: str = "cortex-a76") -> dict[str, Answer]:
        """What the runtime there makes of each model: one process for all of them, which takes a second to start."""
        for name, job in jobs.items():
            place = folder / name
            place.mkdir(parents=True)
            source = job.model if isinstance(job.model, Path) else place / "model.onnx"
            if not isinstance(job.model, Path):
                onnx.save(job.model, source)
            (place / "path").write_text(str(source))
            for number, feed in enumerate(job.feeds):
                np.savez(place / f"feed-{number}.npz", **dict(feed))
        names = json.dumps(list(jobs))
        ran = subprocess.run(
            [*self.command(cpu), "-c", _THERE, str(folder), names], capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr[-2000:]
        return {name: Answer.read(folder / name, len(job.feeds)) for name, job in jobs.items()}


@dataclass(frozen=True)
class Job:
    """A model, and feeds to run it on."""

    model: onnx.ModelProto | Path
    feeds: tuple[Mapping[str, np.ndarray], ...] = ()


@dataclass(frozen=True)
class Answer:
    """The optimized graph, and outputs for each feed; or what the runtime said."""

    graph: onnx.ModelProto | None
    outputs: tuple[dict[str, np.ndarray], ...]
    error: str = ""

    @classmethod
    def read(cls, place: Path, feeds: int) -> Answer:
        """From the files of a job."""
        if (place / "error").exists():
            return cls(None, (), (place / "error").read_text())
        outputs = tuple(dict(np.load(place / f"output-{number}.npz")) for number in range(feeds))
        return cls(onnx.load(place / "optimized.onnx", load_external_data=False), outputs)

    @property
    def operators(self) -> list[str]:
        """Types of the nodes of the optimized graph."""
        assert self.graph is not None, self.error
        return [node.op_type for node in self.graph.graph.node]


_THERE = """
import json, sys
from pathlib import Path
import numpy as np
import onnxruntime as ort
folder, names = Path(sys.argv[1]), json.loads(sys.argv[2])
for name in names:
    place = folder / name
    options = ort.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.optimized_model_filepath = str(place / "optimized.onnx")
    try:
        session = ort.InferenceSession((place / "path").read_text(), options, providers=["CPUExecutionProvider"])
        outputs = [o.name for o in session.get_outputs()]
        for feed in sorted(place.glob("feed-*.npz")):
            found = session.run(outputs, dict(np.load(feed)))
            np.savez(place / feed.name.replace("feed", "output"), **dict(zip(outputs, found)))
    except Exception as error:
        (place / "error").write_text(str(error))
"""


def emulated() -> Emulated | None:
    """The emulated machine; None where it is not set up, or was by another lock."""
    done = CACHE / "done"
    return Emulated(CACHE) if done.exists() and done.read_text() == LOCK.read_text() else None


def main() -> str:
    """Set it up, and say what there is or why there is nothing."""
    if emulated() is not None:
        return f"the emulated ARM64 runtime is in {CACHE}"
    tools = ("apt-get", "dpkg", "dpkg-deb")
    lacking = [tool for tool in tools if shutil.which(tool) is None] + ([] if KEYRING.exists() else [str(KEYRING)])
    mirror = _mirror()
    if lacking or not mirror:
        why = f"there is no {lacking[0]}" if lacking else "apt knows no Debian source"
        return f"ARM64 is not emulated here: {why}"
    CACHE.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE.parent) as scratch:
        place = Path(scratch)
        try:
            here = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True)
            _unpack(place, "arm64", ARM_PACKAGES, place / "root", mirror)
            _unpack(place, here.stdout.strip(), ("qemu-user-static",), place / "qemu", mirror)
            for extra in (place / "qemu" / "usr" / "bin").iterdir():
                if extra.name != "qemu-aarch64-static":
                    extra.unlink()
            platforms = [f"--platform={name}_aarch64" for name in ("manylinux2014", "manylinux_2_27", "manylinux_2_28")]
            pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(place / "site"), "--no-deps"]
            chosen = ["--python-version=3.11", "--implementation=cp", "--only-binary=:all:", *platforms]
            _run([*pip, *chosen, "--require-hashes", "-r", str(LOCK)])
        except subprocess.CalledProcessError as error:
            said = (error.stderr or error.stdout or b"").decode(errors="replace").strip().splitlines()
            return f"ARM64 is not emulated here: {error.cmd[0]} fails: {said[-1] if said else error.returncode}"
        kept = place / "kept"
        kept.mkdir()
        for name in ("root", "qemu", "site"):
            (place / name).rename(kept / name)
        (kept / "done").write_text(LOCK.read_text())
        shutil.rmtree(CACHE, ignore_errors=True)
        kept.rename(CACHE)
    return f"the emulated ARM64 runtime is in {CACHE}"


def _mirror() -> str:
    """Where this system has its Debian packages from; empty where it has none."""
    lists = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]
    text = "\n".join(each.read_text(errors="replace") for each in lists if each.is_file())
    found = re.findall(r"^(?:URIs:|deb(?: \[[^]]*\])?) *(\S+/debian)/?(?:\s|$)", text, re.MULTILINE)
    return str(found[0]) if found else ""


def _unpack(place: Path, architecture: str, packages: tuple[str, ...], to: Path, mirror: str) -> None:
    """Unpack packages of an architecture, by lists and a cache of their own."""
    apt = place / f"apt-{architecture}"
    for folder in ("lists/partial", "archives/partial", "debs"):
        (apt / folder).mkdir(parents=True)
    source = apt / "sources.list"
    source.write_text(f"deb [signed-by={KEYRING}] {mirror} {RELEASE} main\n")
    settings = {
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Sandbox::User": "root",
        "Acquire::Languages": "none",
        "Dir::State::lists": apt / "lists",
        "Dir::State::status": "/dev/null",
        "Dir::Cache": apt,
        "Dir::Cache::archives": apt / "archives",
        "Dir::Etc::sourcelist": source,
        "Dir::Etc::sourceparts": "/dev/null",
    }
    options = [f"-o{name}={value}" for name, value in settings.items()]
    _run(["apt-get", "-qq", *options, "update"])
    _run(["apt-get", "-qq", *options, "download", *packages], apt / "debs")
    for package in sorted((apt / "debs").glob("*.deb")):
        _run(["dpkg-deb", "-x", str(package), str(to)])


def _run(command: list[str], folder: Path | None = None) -> None:
    subprocess.run(command, cwd=folder, capture_output=True, check=True)


if __name__ == "__main__":
    print(main())
