"""The modules that a worker of a target needs, as one archive that Python runs: what a board gets in place of Inlay.

They are found by what each imports when it is loaded, from the board's own side on. Packages' own files are left out,
as they only gather names.
"""

from __future__ import annotations

import ast
import hashlib
import io
import sys
import zipfile
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

import onnx

from inlay import installed
from inlay.errors import TargetError
from inlay.measure.ssh import standin
from inlay.targets.registry import available

BOARD = "inlay.measure.ssh.board"
_ROOTS = (BOARD, "inlay.measure.worker")
_GRAPHS = frozenset({"onnx_ir", "ml_dtypes", "google", "scipy"})
"""Packages that nobody needs who only runs models: where a worker imports one, it needs ``onnx`` itself, too."""
_JOINED = '''"""What is on this board: the targets whose modules came with the archive."""
from importlib.metadata import EntryPoint

__version__ = {version!r}
TARGETS = {group!r}


def joined(group):
    """Those of a group, by name."""
    return {{name: EntryPoint(name, where, group) for name, where in {targets!r}.items() if group == TARGETS}}
'''
_OLDER = '''"""A worker on a board."""
import builtins, sys

if sys.version_info < (3, 10):
    _zip = builtins.zip
    builtins.zip = lambda *parts, strict=False: _zip(*parts)
'''
"""What Python 3.9 lacks of the language that these modules are written in: a check of lengths."""
_DATE = (1980, 1, 1, 0, 0, 0)  # of every member: equal modules make equal archives


class Archive:
    """Modules for the workers of targets.

    Attributes:
        modules: what is in it, by name.
        foreign: packages that it needs on the board; ``onnx`` only where the package itself must be there.

    Raises:
        TargetError: the source of a module is not to be had.
    """

    def __init__(self, names: Sequence[str]) -> None:
        entries = {name: entry for name, entry in available().items() if name in names}
        self.modules, self.foreign = _closure((*_ROOTS, *(e.module for e in entries.values())))
        files = {f"{module.replace('.', '/')}.py": text for module, text in self.modules.items()}
        folders = {str(folder) for path in files for folder in PurePosixPath(path).parents} - {"."}
        files.update((f"{folder}/__init__.py", _OLDER if folder == "inlay" else "") for folder in folders)
        if not self.foreign & _GRAPHS:
            self.foreign -= {"onnx"}
            files["onnx/__init__.py"] = self.modules["inlay.measure.ssh.standin"] = _source(standin.__name__) or ""
            messages = onnx.ModelProto.DESCRIPTOR.file.message_types_by_name.values()
            files["inlay/measure/ssh/onnx_fields.json"] = standin.table(messages)
        files["inlay/installed.py"] = _JOINED.format(
            version=installed.__version__,
            group=installed.TARGETS,
            targets={name: entry.value for name, entry in entries.items()},
        )
        self.data = _zipped(files)
        self.digest = hashlib.sha256(self.data).hexdigest()[:16]


@lru_cache(maxsize=4)
def archive_for(names: tuple[str, ...]) -> Archive:
    """The archive for these targets. Raises TargetError."""
    return Archive(names)


def is_light(entry: EntryPoint) -> bool:
    """Whether a target's worker needs nothing but numpy and its runtime."""
    try:
        return not _closure((*_ROOTS, entry.module))[1] & _GRAPHS
    except TargetError:
        return False


def _closure(roots: Sequence[str]) -> tuple[dict[str, str], set[str]]:
    """Inlay's modules that are loaded with ``roots``, each with its source, and packages of others."""
    found, foreign, waiting = dict[str, str](), set[str](), [*roots]
    while waiting:
        module = waiting.pop()
        package = module.partition(".")[0]
        if package not in ("inlay", *(root.partition(".")[0] for root in roots)):
            foreign |= {package} - {*sys.stdlib_module_names}
        elif module not in found:
            text = _source(module)
            if text is not None:  # a package: what is in it is named besides
                found[module] = text
                waiting += _imported(ast.parse(text).body)
    if not {*roots} <= found.keys():
        raise TargetError(f"the source of {({*roots} - found.keys()).pop()} is not here, and cannot be sent to a board")
    found.pop("inlay.installed")  # which is written anew
    return found, foreign


@lru_cache(maxsize=64)
def _places(package: str) -> tuple[Path, ...]:
    """Where the modules of a package lie; of a module that is in no package, itself."""
    spec = find_spec(package)
    if spec is None:
        return ()
    if spec.submodule_search_locations is None:
        return (Path(spec.origin),) if spec.origin else ()
    return tuple(map(Path, spec.submodule_search_locations))


def _source(module: str) -> str | None:
    """The source of a module, none of which is loaded for that; None where it is a package, or a name in a module."""
    package, *rest = module.split(".")
    for place in _places(package):
        path = place.joinpath(*rest).with_suffix(".py") if rest else place
        if path.is_file():
            return path.read_text(encoding="utf8")
    return None


def _imported(body: Sequence[ast.stmt]) -> Iterator[str]:
    """What a module imports while it is loaded: not in functions, and not for type checkers."""
    for node in body:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names if node.module.startswith("inlay"))
        elif isinstance(node, ast.If):
            yield from _imported([] if "TYPE_CHECKING" in ast.unparse(node.test) else node.body)
            yield from _imported(node.orelse)
        elif isinstance(node, ast.Try | ast.With | ast.ClassDef):
            yield from _imported(node.body)


def _zipped(files: dict[str, str]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(files):
            archive.writestr(zipfile.ZipInfo(path, _DATE), files[path], zipfile.ZIP_DEFLATED)
    return buffer.getvalue()
