"""``docs/layout.md``, written from the source: its files in the order in which they can be read.

``make layout`` writes it. What stands above :data:`MARK` is written by hand, in the page itself. Below it, the text
of a room is the docstring of its ``__init__.py``, the row of a file the first sentence of its own. Rooms come in the
order of the layers in ``pyproject.toml``. Within a folder, files come in the order in which the docstring of its
``__init__.py`` names them, the others behind them by name, and each behind what it imports.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests.support import house

MARK = "<!-- Below this line the page is generated: edit the docstrings, then run `make layout`. -->"
PACKAGE = "inlay"
REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "docs" / "layout.md"

_ROLE = re.compile(r":\w+:`~?\.?([\w.]+)`")
_CODE = re.compile(r"``(.+?)``|:\w+:`~?\.?([\w.]+)`")
_SENTENCE_END = re.compile(r"\.(?=\s+[A-Z:`])")


def layers() -> list[str]:
    """The layers of the import contract in ``pyproject.toml``, the highest first."""
    import tomllib  # came with Python 3.11

    with (REPOSITORY / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    (found,) = [c["layers"] for c in contracts if c["type"] == "layers"]
    return list(found)


def rendered(root: Path, contract: Sequence[str], head: str) -> str:
    """The page about the package at ``root``: ``head`` up to the mark, and what is generated below it.

    Raises:
        ValueError: a room is in no layer of ``contract``, or ``head`` has no mark.
    """
    if MARK not in head:
        raise ValueError(f"the page has no line {MARK!r}")
    graph = house.imports(root, root.name)
    blocks = [head.partition(MARK)[0] + MARK]
    loose: list[str] = []
    for room in _rooms(root, contract):
        if room.endswith(".py"):
            loose.append(room)
            continue
        blocks += _loose(root, loose)
        loose = []
        text = _paragraphs(root / room / "__init__.py")
        rows = [f"| `{path}` | {_row(root, path)}{_mark(path)} |" for path in _order(room, root, graph)]
        blocks.append("\n\n".join([f"## `{room}`{_mark(room)}", *text, "\n".join([_TABLE, *rows])]))
    return "\n\n".join([*blocks, *_loose(root, loose)]) + "\n"


def _mark(path: str) -> str:
    return " (wing)" if path.removesuffix("/") in house.WINGS else ""


_TABLE = "| file | what it does |\n|---|---|"


def _rooms(root: Path, contract: Sequence[str]) -> list[str]:
    """Folders (with a slash) and modules of the root, the lowest layer first."""
    names = [m.strip().rpartition(".")[2] for layer in reversed(contract) for m in re.split("[|:]", layer)]
    there = {p.parent.name: f"{p.parent.name}/" for p in root.glob("*/__init__.py")}
    there |= {p.stem: p.name for p in root.glob("*.py") if not p.stem.startswith("__")}
    if missing := sorted(there.keys() - names):
        raise ValueError(f"in no layer of pyproject.toml: {', '.join(missing)}")
    return [there[name] for name in names if name in there]


def _loose(root: Path, modules: Sequence[str]) -> list[str]:
    """The section of modules of the root that follow one another; none where there are none."""
    if not modules:
        return []
    rows = [f"| `{path}` | {_row(root, path)} |" for path in modules]
    return ["\n\n".join(["## " + ", ".join(f"`{m}`" for m in modules), "\n".join([_TABLE, *rows])])]


def _order(folder: str, root: Path, graph: Mapping[str, Iterable[str]]) -> list[str]:
    """The files of ``folder``, and those of a folder in it behind a row of its own (with a slash)."""
    entries = {house.entry(path, folder) for path in graph if path.startswith(folder)} - {"__init__.py"}
    needs: dict[str, set[str]] = {entry: set() for entry in entries}
    for path, others in graph.items():
        if path.startswith(folder) and (mine := house.entry(path, folder)) in entries:
            needs[mine] |= {house.entry(o, folder) for o in others if o.startswith(folder)} & entries - {mine}
    named = [m.rpartition(".")[2] for m in _mentioned(house.docstring(root / folder / "__init__.py"))]
    place = {name: i for i, name in reversed([*enumerate(named)])}
    wanted = sorted(entries, key=lambda e: (place.get(e.removesuffix(".py"), len(named)), e))
    found: list[str] = []

    def add(entry: str) -> None:
        if entry in found:
            return
        for other in wanted:
            if other in needs[entry]:
                add(other)
        found.append(entry)

    for entry in wanted:
        add(entry)
    paths: list[str] = []
    for entry in found:
        path = f"{folder}{entry}"
        paths += [path] if path.endswith(".py") else [f"{path}/", *_order(f"{path}/", root, graph)]
    return paths


def _mentioned(text: str) -> list[str]:
    """What ``text`` sets in code or refers to, in order."""
    return [code or role for code, role in _CODE.findall(text)]


def _row(root: Path, path: str) -> str:
    """The first sentence of the docstring of a file, or of a folder's ``__init__.py``, without its full stop."""
    text = house.docstring(root / path / "__init__.py" if path.endswith("/") else root / path)
    sentence = _SENTENCE_END.split(" ".join(text.partition("\n\n")[0].split()))[0]
    return _markdown(sentence).removesuffix(".").replace("|", "\\|")


def _paragraphs(path: Path) -> list[str]:
    """The text of a room up to its first list or example."""
    found: list[str] = []
    for paragraph in house.docstring(path).split("\n\n"):
        if paragraph.endswith(":") or paragraph.startswith(("*", " ")):
            break
        found.append(_markdown(paragraph))
    return found


def _markdown(text: str) -> str:
    """``text`` with names in code as Markdown sets them."""
    return _ROLE.sub(r"`\1`", text).replace("``", "`")


if __name__ == "__main__":
    written = rendered(REPOSITORY / "src" / PACKAGE, layers(), PAGE.read_text(encoding="utf8"))
    PAGE.write_text(written, encoding="utf8", newline="\n")
    sys.stdout.write(f"{PAGE.relative_to(REPOSITORY)}: {len(house.rows(written))} files\n")
