"""What the source tree says of itself: its files, its imports and its words, for the test of the layout.

Paths are relative to the root of the package, with forward slashes: ``model/load.py``.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

MAX_LINES = 400
"""Of a file: what can be read in one sitting."""
MAX_LOOSE = 10
"""Modules directly in the package's root."""
MAX_ROOMS = 21
"""Packages in the root."""
MAX_POSITIONAL = 8
"""Arguments of one call without their names: two of a longer row may change places, and still fit their types."""
MAX_FILES = 30
"""In one folder: what fits on a page of the plan."""
MAX_PARAMETERS = 8
"""Of one function: of more, some are one value that has no name yet."""
MAX_FIELDS = 12
"""Of one dataclass: of more, some are one value, or follow from others."""

WINGS = (
    "autotune",
    "explanation",
    "integrations",
    "measure/ssh",
    "ray",
    "patterns",
    "portfolio",
    "recording",
    "report",
    "testing",
    "tosa",
    "targets/command",
    "targets/openvino",
    "targets/ort_ep",
    "targets/ort_web",
    "targets/tensorrt",
)
"""Rooms that join through entry points (:mod:`inlay.installed`), and what tests of other packages import."""

RUNTIME = re.compile(r"onnx[ _-]?runtime|openvino|tensorrt|ethos|\bvela\b|\bqnn|\bort\b|_ort\b|\bort_", re.IGNORECASE)
"""Names of runtimes and of what compiles for them."""

_NAMED = re.compile(r"`([\w./]+)`")


def files(root: Path) -> list[str]:
    """Every Python file below ``root``."""
    return sorted(p.relative_to(root).as_posix() for p in root.rglob("*.py"))


def packages(root: Path) -> list[str]:
    """Every package below ``root`` that has an ``__init__.py``, as a path; the root itself is ``.``."""
    return sorted(p.parent.relative_to(root).as_posix() for p in root.rglob("__init__.py"))


def docstring(path: Path) -> str:
    """The docstring of a file; empty without one."""
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf8"))) or ""


def is_plain_init(path: Path) -> bool:
    """Whether a file is an ``__init__.py`` that holds nothing but its text and ``__all__``."""
    return path.name == "__init__.py" and not any(
        isinstance(node, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)) and not _is_future(node)
        for node in ast.parse(path.read_text(encoding="utf8")).body
    )


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


# --- the page --------------------------------------------------------------------------------------------------------


def rows(page: str) -> list[str]:
    """The files that ``page`` names in the first column of its tables, in order."""
    cells = [line.split("|")[1] for line in page.splitlines() if line.startswith("|")]
    return [name for cell in cells for name in _NAMED.findall(cell) if name.endswith(".py")]


def mentions(page: str) -> list[str]:
    """Every file or folder of the repository that ``page`` names anywhere: what holds a slash."""
    return [name for name in _NAMED.findall(page) if "/" in name]


def room(path: str) -> str:
    """The first part of a path: a package, or a module of the root without its suffix."""
    return path.partition("/")[0].removesuffix(".py")


# --- imports ---------------------------------------------------------------------------------------------------------


def imports(root: Path, package: str) -> dict[str, set[str]]:
    """By file, the files that it imports, wherever in it the import stands."""
    known = set(files(root))
    trees = {path: ast.parse((root / path).read_text(encoding="utf8")) for path in known}
    return {path: set(_imported(tree, path, package, known)) - {path} for path, tree in trees.items()}


def wing(path: str, wings: Sequence[str] = WINGS) -> str:
    """The wing that a file belongs to; empty for the core."""
    return next((w for w in wings if path.startswith(f"{w}/")), "")


def wings_named(root: Path, wings: Sequence[str] = WINGS) -> list[str]:
    """Where the core names a wing in an import, or in text that is the name of a module and nothing else.

    Only the root's ``__init__.py`` may, for type checkers.
    """
    found = []
    names = [f"{root.name}.{w.replace('/', '.')}" for w in wings]
    for path in (p for p in files(root) if not wing(p, wings)):
        tree = ast.parse((root / path).read_text(encoding="utf8"))
        if path == "__init__.py":
            tree.body = [node for node in tree.body if not _is_for_types(node)]
        others = {wing(other, wings) for other in _imported(tree, path, root.name, set(files(root)))}
        texts = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        others |= {name for name in names if any(t == name or t.startswith((f"{name}.", f"{name}:")) for t in texts)}
        found += [f"{path} names {other}" for other in sorted(others - {""})]
    return found


def _is_for_types(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _imported(tree: ast.AST, name: str, package: str, known: set[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _file_of(alias.name, package, known)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                above = [package, *name.split("/")[:-1]]
                module = ".".join([*above[: len(above) - node.level + 1], *([module] if module else [])])
            inner = [found for alias in node.names for found in _file_of(f"{module}.{alias.name}", package, known)]
            yield from inner
            if len(inner) < len(node.names):
                yield from _file_of(module, package, known)


def _file_of(module: str, package: str, known: set[str]) -> list[str]:
    if module != package and not module.startswith(f"{package}."):
        return []
    path = module.removeprefix(package).lstrip(".").replace(".", "/")
    candidates = (f"{path}.py", f"{path}/__init__.py".lstrip("/"))
    return [c for c in candidates if c in known]


def upward(order: Sequence[str], graph: Mapping[str, Iterable[str]]) -> list[str]:
    """Imports of what comes later in ``order``; files that it lacks are passed over."""
    place = {path: i for i, path in enumerate(order)}
    return [
        f"{path} imports {other}, which comes after it"
        for path in order
        for other in sorted(graph.get(path, ()))
        if place.get(other, -1) > place[path]
    ]


def circles(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Entries of a folder, files or folders, that import each other, directly or through others of its entries."""
    found = []
    for folder in sorted({"", *(parent for path in graph for parent in _folders(path))}):
        edges: dict[str, set[str]] = {}
        for path, others in graph.items():
            if path.startswith(folder):
                mine = entry(path, folder)
                inside = {entry(o, folder) for o in others if o.startswith(folder)}
                edges.setdefault(mine, set()).update(inside - {mine})
        reach = {name: _reachable(name, edges) for name in edges}
        groups = {tuple(sorted({name, *(o for o in reach[name] if name in reach.get(o, ()))})) for name in edges}
        found += [[folder + name for name in group] for group in sorted(groups) if len(group) > 1]
    return found


def _folders(path: str) -> list[str]:
    """The folders that hold a file, with a slash behind each."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[: i + 1]) + "/" for i in range(len(parts))]


def entry(path: str, folder: str) -> str:
    """What of ``folder`` (with a slash) holds ``path``: a file, or a folder in it."""
    return path.removeprefix(folder).partition("/")[0]


def _reachable(start: str, edges: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    ahead = [start]
    while ahead:
        new = edges.get(ahead.pop(), set()) - found
        found |= new
        ahead += new
    return found


# --- words and sizes -------------------------------------------------------------------------------------------------


def runtime_names(root: Path, rooms: Iterable[str], allowed: Iterable[str] = ()) -> list[str]:
    """Lines of the ``rooms`` that name a runtime."""
    return [
        f"{path}:{number}: {line.strip()}"
        for path in files(root)
        if room(path) in set(rooms) and path not in set(allowed)
        for number, line in enumerate((root / path).read_text(encoding="utf8").splitlines(), 1)
        if RUNTIME.search(line)
    ]


def too_large(root: Path) -> list[str]:
    """Files with too many lines, folders with too many files, a root with too many modules or packages."""
    lines = {path: len((root / path).read_text(encoding="utf8").splitlines()) for path in files(root)}
    found = [f"{path} has {n} lines" for path, n in lines.items() if n > MAX_LINES]
    loose = [path for path in lines if "/" not in path]
    if len(loose) > MAX_LOOSE:
        found.append(f"{len(loose)} modules in the root")
    rooms = [path for path in packages(root) if "/" not in path and path != "."]
    if len(rooms) > MAX_ROOMS:
        found.append(f"{len(rooms)} rooms")
    folders = Counter(path.rpartition("/")[0] for path in lines)
    return [*found, *(f"{count} files in {folder}" for folder, count in folders.items() if count > MAX_FILES)]


def unnamed(root: Path) -> list[str]:
    """Calls with more than :data:`MAX_POSITIONAL` arguments that do not say which is which."""
    found = []
    for name in files(root):
        for node in ast.walk(ast.parse((root / name).read_text(encoding="utf8"))):
            if isinstance(node, ast.Call) and len(node.args) > MAX_POSITIONAL:
                found.append(f"{name}: line {node.lineno}: {ast.unparse(node.func)} with {len(node.args)}")
    return found


def crowded(root: Path) -> dict[str, int]:
    """Functions with too many parameters and dataclasses with too many fields, each with how many it has.

    They are named as ``api.py: tune`` and ``run/options.py: TuneOptions``, methods behind their class. The first
    parameter of a method does not count; ``*args`` and ``**kwargs`` do.
    """
    return {
        f"{name}: {within}": count
        for name in files(root)
        for within, count, most in _counts(ast.parse((root / name).read_text(encoding="utf8")), "")
        if count > most
    }


def _counts(node: ast.AST, within: str) -> Iterator[tuple[str, int, int]]:
    """Of each function and dataclass inside ``node``: its name, how many parameters or fields, and the most."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            a, static = child.args, "staticmethod" in map(ast.unparse, child.decorator_list)
            every = [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, [a.vararg, a.kwarg])]
            own = isinstance(node, ast.ClassDef) and not static
            yield within + child.name, len(every) - own, MAX_PARAMETERS
        if isinstance(child, ast.ClassDef) and any("dataclass" in ast.unparse(d) for d in child.decorator_list):
            of_each = [s for s in child.body if isinstance(s, ast.AnnAssign) and not _is_no_field(s)]
            yield within + child.name, len(of_each), MAX_FIELDS
        named = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        yield from _counts(child, f"{within}{child.name}." if named else within)  # type: ignore[attr-defined]


def _is_no_field(statement: ast.AnnAssign) -> bool:
    said = ast.unparse(statement.annotation)
    return said in ("_", "KW_ONLY") or "ClassVar" in said


def unchecked(root: Path) -> list[str]:
    """Files in which some call is made with arguments that the type checker is told not to look at."""
    return [name for name in files(root) if "ignore[arg-type]" in (root / name).read_text(encoding="utf8")]


def without_contents(root: Path) -> list[str]:
    """Packages whose ``__init__.py`` lacks a docstring, or an ``__all__`` that holds.

    One that neither imports nor defines anything lists modules and packages that it has.
    """
    found = []
    for package in packages(root):
        path = root / package / "__init__.py"
        tree = ast.parse(path.read_text(encoding="utf8"))
        if not ast.get_docstring(tree):
            found.append(f"{package}: no docstring")
        names = _stated_names(tree)
        if names is None:
            found.append(f"{package}: no __all__")
        elif is_plain_init(path):
            inner = {p.stem for p in path.parent.glob("*.py")} | {
                p.parent.name for p in path.parent.glob("*/__init__.py")
            }
            found += [f"{package}: __all__ names {name}, which does not exist" for name in sorted(names - inner)]
    return found


def _stated_names(tree: ast.Module) -> set[str] | None:
    """What ``__all__`` lists, or None where there is none."""
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(isinstance(t, ast.Name) and t.id == "__all__" for t in targets):
            value = getattr(node, "value", None)
            return set(ast.literal_eval(value)) if value is not None else set()
    return None


# --- what is caught ---------------------------------------------------------------------------------------------------

_ANYTHING = frozenset({"Exception", "BaseException"})
_MISTAKES = frozenset({"AttributeError", "NameError", "TypeError", "UnboundLocalError"})
"""What mistakes in code raise, whoever wrote it."""


def swallowed(root: Path) -> list[str]:
    """Where what a mistake in code raises may vanish, each as ``model/load.py: _schema (TypeError)``.

    That is so where it is caught and neither raised again nor looked at: what is caught as anything at all, or by name.
    """
    found = []
    for name in files(root):
        tree = ast.parse((root / name).read_text(encoding="utf8"))
        for within, caught in _caught(tree, "module"):
            kinds = sorted(caught & (_ANYTHING | _MISTAKES))
            found += [f"{name}: {within} ({kind})" for kind in kinds]
    return [*dict.fromkeys(found)]


def _caught(node: ast.AST, within: str) -> Iterator[tuple[str, frozenset[str]]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ExceptHandler) and not _is_heard(child):
            yield within, _classes(child.type) if child.type is not None else frozenset({"BaseException"})
        if isinstance(child, ast.Call) and "suppress" in _classes(child.func):
            yield within, frozenset[str]().union(*map(_classes, child.args))
        named = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        yield from _caught(child, child.name if named else within)  # type: ignore[attr-defined]


def _is_heard(handler: ast.ExceptHandler) -> bool:
    """Whether what is caught is raised again, or its text or class goes on."""
    nodes = [node for statement in handler.body for node in ast.walk(statement)]
    return any(
        isinstance(node, ast.Raise) or (isinstance(node, ast.Name) and node.id == (handler.name or ""))
        for node in nodes
    )


def _classes(node: ast.expr) -> frozenset[str]:
    if isinstance(node, ast.Tuple):
        return frozenset[str]().union(*map(_classes, node.elts))
    return frozenset({node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""})
