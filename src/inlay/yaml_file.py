"""YAML files as plain data: recipes, pattern caches and saved states, with limits on what a file may ask for.

Tags make nothing but plain data. Deep nesting would exhaust the stack, and aliases of aliases stand for more data than
fits into any memory: both are refused before anything is built.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from inlay.errors import InlayError, NoSuchFile, UsageError
from inlay.files import read_bytes

_MOST_BYTES = 16 << 20
"""The reader takes about a second for 100 kB, so this takes minutes; a cache of a thousand patterns has 2 MB."""
_MOST_NODES = 4_000_000  # A file of that size without aliases has fewer
_DEEPEST = 50  # the files that are read here nest six levels


def read_yaml(path: Path, prefix: str = "") -> object:
    """Plain data of a YAML file; ``prefix`` begins messages, such as the option that named the file.

    Raises:
        NoSuchFile: it does not exist.
        UsageError: it cannot be read, is not YAML, or goes beyond the limits.
    """
    if not path.exists():
        raise NoSuchFile(f"{prefix}{path}: no such file")
    try:
        return _parse(read_bytes(path, _MOST_BYTES, UsageError, prefix).decode("utf8"))
    except UnicodeDecodeError as failure:
        raise UsageError(f"{prefix}{path} is not text: {failure.reason}") from failure
    except InlayError:
        raise
    except Exception as failure:  # numbers, dates and tags that Python cannot make raise many types
        raise UsageError(f"{prefix}{path} is not YAML that can be used: {failure}") from failure


class _Loader(yaml.SafeLoader):
    """Composes nodes to a limited depth."""

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise yaml.YAMLError(f"it nests more than {_DEEPEST} levels")
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


def _parse(text: str) -> object:
    loader = _Loader(text)
    try:
        root = loader.get_single_node()
        if root is None:
            return None
        if _weight(root, {}) > _MOST_NODES:
            raise yaml.YAMLError("its aliases stand for too much data")
        return loader.construct_document(root)
    finally:
        loader.dispose()


def _refuse_twice(node: yaml.MappingNode) -> None:
    """Raise YAMLError where a key stands twice: its last value would win without a word."""
    seen: dict[tuple[str, str], int] = {}
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode) or key.tag == "tag:yaml.org,2002:merge":
            continue
        line, same = key.start_mark.line + 1, (key.tag, key.value)
        if same in seen:
            raise yaml.YAMLError(f"line {line} has the key {key.value} again, which stands in line {seen[same]}")
        seen[same] = line


def _weight(node: yaml.Node, known: dict[int, int]) -> int:
    """Nodes below and with ``node``, where an alias counts as what it stands for."""
    if id(node) not in known:
        known[id(node)] = _MOST_NODES  # which a node that holds itself weighs
        parts = node.value if isinstance(node, yaml.CollectionNode) else ()
        if isinstance(node, yaml.MappingNode):
            _refuse_twice(node)
        children = [n for part in parts for n in (part if isinstance(part, tuple) else (part,))]
        known[id(node)] = 1 + sum(_weight(child, known) for child in children)
    return known[id(node)]
