"""``inlay regions`` and ``inlay cache``: the commands, and the region tree as text and as JSON."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from inlay.cli.grouped import Grouped
from inlay.cli.options import options_of
from inlay.cli.terminal import JSON, answer, say
from inlay.patterns import api, cache
from inlay.patterns.search_space import SearchSpace
from inlay.prepare.declare import Option
from inlay.trial import counted


@options_of(api.regions)
def regions(
    *,
    as_json: Annotated[bool, JSON] = False,
    every: Annotated[
        bool, Option("Show every region, point and refused port.", flags=("--all",), type=bool, before="data")
    ] = False,
    **options: Any,
) -> None:
    """Show the regions of a model, their patterns and insertion points, and why a port is not offered.

    Example:
        inlay regions model.onnx
    """
    space = api.regions(**options)
    if as_json:
        answer(True, regions_json(space), list)
    else:
        say(regions_lines(space, every))


cache_app = typer.Typer(
    name="cache", add_completion=False, help="Look at and merge pattern caches.", rich_markup_mode=None
)


@cache_app.command("show", cls=Grouped)
@options_of()
def cache_show(
    *,
    file: Annotated[Path, Option("A pattern cache.", metavar="FILE", type=Path, positional=True)],
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Print the schemes of a pattern cache.

    Example:
        inlay cache show out/pattern_cache.yaml
    """
    found = cache.PatternCache.load(file)
    answer(as_json, found.to_data(), lambda: cache.show(found))


@cache_app.command("merge", cls=Grouped)
@options_of()
def cache_merge(
    *,
    files: Annotated[
        list[Path], Option("Pattern caches.", metavar="FILE...", type=Path, positional=True, repeated=True)
    ],
    out: Annotated[Path, Option("The merged cache.", flags=("--out", "-o"), metavar="FILE", type=Path)],
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Merge pattern caches into one.

    Example:
        inlay cache merge a.yaml b.yaml -o both.yaml
    """
    count = len(cache.merge_files(files, out))
    answer(as_json, {"path": out, "patterns": count}, lambda: [f"Wrote {out}: {counted(count, 'pattern')}."])


def regions_json(space: SearchSpace) -> dict[str, Any]:
    """Plain data with stable keys: ``{nodes, regions: […], patterns: {signature: {…}}, refused: […]}``.

    ``points`` lists each insertion point with the ports that it stands for (``node``, ``slot``; node ``""`` is a graph
    output). ``refused`` lists every port that is not a legal insertion point, with the filter that rejected it.
    """
    return {
        "nodes": len(space.graph.nodes),
        "regions": [
            {
                "id": region.id,
                "type": region.type.value,
                "level": region.level,
                "parent": region.parent,
                "children": [c.id for c in region.children],
                "nodes": list(region.nodes),
                "inputs": list(region.inputs),
                "outputs": list(region.outputs),
                "pattern": space.pattern_of[region.id].signature,
                "points": [
                    {"point": str(point), "ports": [{"node": p.node, "slot": p.slot} for p in ports]}
                    for point, ports in space.tables[region.id].items()
                ],
            }
            for region in space.tree.regions
        ],
        "patterns": {
            signature: {
                "instances": len(pattern.instances),
                "points": len(pattern.points),
                "type": pattern.type.value,
                "size": pattern.size,
                "summary": pattern.summary,
            }
            for signature, pattern in space.patterns.items()
        },
        "refused": [
            {"node": port.node, "slot": port.slot, "rule": rejection.filter, "reason": rejection.reason}
            for port, rejection in space.rejections.ports.items()
            if rejection is not None
        ],
    }


def regions_lines(space: SearchSpace, every: bool = False) -> list[str]:
    """The tree for people: sizes, patterns and their instances, insertion points, and why ports are rejected.

    With ``every``, each region is shown with its points and its rejected ports. Otherwise a pattern is expanded at its
    first instance, one line stands for each other instance, and rejections are counted by filter.
    """
    lines = [
        f"{counted(len(space.graph.nodes), 'node')}, {counted(len(space.tree.regions), 'region')}, "
        f"{counted(len(space.patterns), 'pattern')}, "
        f"{sum(r is None for r in space.rejections.ports.values())} of {len(space.rejections.ports)} ports offered"
    ]
    depth = {space.tree.root.id: 0}
    shown: set[str] = set()
    hidden: set[int] = set()
    for region in space.tree.root.walk():
        if region.parent is not None:
            depth[region.id] = depth[region.parent] + 1
            if region.parent in hidden:
                hidden.add(region.id)
                continue
        pattern = space.pattern_of[region.id]
        indent = "  " * depth[region.id]
        again = pattern.signature in shown and not every
        shown.add(pattern.signature)
        times = f" ×{len(pattern.instances)}" if len(pattern.instances) > 1 else ""  # noqa: RUF001
        words = "as before" if again else pattern.summary
        lines.append(
            f"{indent}{region.type.value} {region.id}: {region.size} nodes, pattern {pattern.signature[:8]}{times}, "
            f"{len(pattern.points)} points  {words}"
        )
        if again:
            hidden.add(region.id)
        elif every:
            lines += [
                f"{indent}    {point}: {', '.join(map(str, ports))}" for point, ports in space.tables[region.id].items()
            ]
            for name in region.direct_nodes:
                for port, _ in space.graph.node(name).input_ports():
                    rejection = space.rejections.ports.get(port)
                    if rejection is not None:
                        lines.append(f"{indent}    not offered: {port}: {rejection.reason} ({rejection.filter})")
    if not every:
        filters = Counter(r.filter for r in space.rejections.ports.values() if r is not None)
        lines += [f"not offered, {name}: {count} ports" for name, count in filters.most_common()]
    return lines
