"""Flat models (:mod:`inlay.model.flow`) in the form that runtimes know: the bodies back in their Ifs, Loops and Scans.

Values in bodies can be watched: they are among the outputs of the whole then. One in a branch that is not taken is
empty. What a loop computes in its turns is a sequence, which the loop carries and each turn lengthens: shapes may
differ, and turns may pass without a value. Since a Scan carries no sequences, it is written as a Loop for that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import zip_longest

import onnx

from inlay.model.flow import BODIES, FLOW, SCOPE, START, before_loops, common, is_flat, is_start, scope_of_input
from inlay.model.loops import Loop
from inlay.model.passes.names import free_name

_OTHER_TYPES = frozenset(
    {"ArgMax", "ArgMin", "Cast", "CastLike", "ConstantOfShape", "Equal", "Greater", "GreaterOrEqual", "IsInf"}
    | {"IsNaN", "Less", "LessOrEqual", "NonZero", "OneHot", "QuantizeLinear", "Range", "Shape", "Size", START}
    | {"TopK", "Unique", "Where", *BODIES}
)
"""Operators whose results are not of the type of what they read first."""
_PAIRS = ("QuantizeLinear", "DynamicQuantizeLinear", "DequantizeLinear")
_Path = tuple[tuple[str, int], ...]
"""Where a node is: each operator around it with the number of its body, the outermost first."""

_Inside = Mapping[_Path, Sequence[onnx.NodeProto]]
"""What each graph holds."""


def values_of_bodies(proto: onnx.ModelProto) -> frozenset[str]:
    """What is computed in bodies of a flat model."""
    tagged = (n for n in proto.graph.node if any(m.key == SCOPE and m.value for m in n.metadata_props))
    return frozenset(v for n in tagged for v in n.output)


def nested(proto: onnx.ModelProto, watched: Sequence[str] = ()) -> onnx.ModelProto:
    """A flat model in the form that runtimes know; a model that is not flat is returned as it is.

    Args:
        proto: the model; is not changed.
        watched: values of bodies that are wanted in the main graph, as its outputs are. Those whose type is not known
            stay inside.
    """
    if not any(opset.domain == FLOW for opset in proto.opset_import):
        return proto
    return _Nesting(proto, watched).model()


class _Nesting:
    """The bodies of a flat model on their way back."""

    def __init__(self, proto: onnx.ModelProto, watched: Sequence[str]) -> None:
        self._proto, self._graph = proto, proto.graph
        self._owners = {n.name: n for n in self._graph.node if is_flat(n) and not is_start(n)}
        self._starts, self._places = dict[_Path, onnx.NodeProto](), dict[tuple[str, int], int]()
        self._infos = {v.name: v for v in (*self._graph.value_info, *self._graph.input, *self._graph.output)}
        self._makers = {v: n for n in self._graph.node for v in n.output if v and n.op_type not in _OTHER_TYPES}
        self._types = {n: v.type.tensor_type.elem_type for n, v in self._infos.items()}
        self._types.update((t.name, t.data_type) for t in self._graph.initializer)
        self._taken = {v for n in self._graph.node for v in (*n.input, *n.output)}
        self._paths: dict[str, _Path] = {"": ()}
        self._path_of: dict[int, _Path] = {}  # by the place of the node
        self._copies: dict[tuple[_Path, str], str] = {}
        self._added: defaultdict[int, list[tuple[_Path, onnx.NodeProto]]] = defaultdict(list)
        self._find_paths()
        self._made_in = {v: self._path_of[i] for i, n in enumerate(self._graph.node) for v in n.output if v}
        wanted = [*(o.name for o in self._graph.output), *watched]
        self._sequences: dict[tuple[int, str], str] = {}  # of the turns so far, by depth and value
        self._lifted: dict[str, int] = {}  # values that are read outside of where they are made: up to which depth
        self._find_lifted(wanted)

    def model(self) -> onnx.ModelProto:
        """The whole."""
        made = onnx.ModelProto()
        made.CopyFrom(self._proto)
        for opset in [o for o in made.opset_import if o.domain == FLOW]:
            made.opset_import.remove(opset)
        del made.graph.node[:], made.graph.value_info[:]
        inside: defaultdict[_Path, list[onnx.NodeProto]] = defaultdict(list)
        for place, node in enumerate(self._graph.node):
            inside[self._path_of[place]].append(node)
            for path, copy in self._added[place]:
                inside[path].append(copy)
        made.graph.node.extend(self._written(inside, ()))
        local = {v for node in made.graph.node for v in node.output}
        made.graph.value_info.extend(
            v for v in self._graph.value_info if v.name in local and v.name not in self._lifted
        )
        return made

    # --- where nodes belong ----------------------------------------------------------------------------------------

    def _find_paths(self) -> None:
        readers: defaultdict[str, list[_Path]] = defaultdict(list)
        for output in self._graph.output:
            readers[output.name].append(())
        for place, node in enumerate(self._graph.node):
            if is_start(node):
                path = self._tagged(self._tag(node) or "")
                self._starts[path], self._places[path[-1]] = node, place
        for place in reversed(range(len(self._graph.node))):
            node = self._graph.node[place]
            tag = self._tag(node)
            by = [path for v in node.output for path in readers[v]]
            if tag is not None:
                path = self._tagged(tag)
            elif node.op_type in _PAIRS:
                path = self._copied(place, node, by)
            else:
                path = before_loops(common(by), place, self._places)
            self._path_of[place] = path
            for value, where in _reads_at(node, path):
                readers[value] += [where, *(other for other, _ in self._added[place])]
        deepest: dict[str, _Path] = {}
        for place, node in enumerate(self._graph.node):
            path = self._path_of[place]
            for value in () if is_flat(node) else names_read(node):
                given = deepest.get(value, ())
                if len(given) > len(path) and given[: len(path)] == path:
                    path = given  # what reads a value of a branch, and is read outside, if anywhere
            if self._tag(node) is None:
                self._path_of[place] = path
            deepest.update(dict.fromkeys(node.output, self._path_of[place]))

    def _tag(self, node: onnx.NodeProto) -> str | None:
        """Where ``node`` says it belongs; None where it does not, or what had the body is gone."""
        tag = next((m.value for m in node.metadata_props if m.key == SCOPE), None)
        return tag if not tag or tag[1:] in self._owners else None

    def _tagged(self, tag: str) -> _Path:
        if tag not in self._paths:
            outer = self._tag(self._owners[tag[1:]]) or ""
            self._paths[tag] = (*self._tagged(outer), (tag[1:], int(tag[0])))
        return self._paths[tag]

    def _copied(self, place: int, node: onnx.NodeProto, readers: Collection[_Path]) -> _Path:
        """Runtimes fuse within one graph: let each that reads a quantized value have a pair of its own.

        What is quantized before a loop, though, is so once.
        """
        last = node.op_type == "DequantizeLinear"
        goes_to = {p: p if last else before_loops(p, place, self._places) for p in readers}
        paths = list(dict.fromkeys(goes_to.values()))
        path = common(paths)
        path = path if path in paths else next(iter(paths), path)
        for other in (p for p in paths if p != path):
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            copy.name = self._free(f"{node.name}_in_branch")
            for slot, value in enumerate(node.output):
                copy.output[slot] = self._free(f"{value}_in_branch")
                self._copies.update(((p, value), copy.output[slot]) for p, to in goes_to.items() if to == other)
            self._added[place].append((other, copy))
        return path

    def _free(self, wish: str) -> str:
        name = free_name(wish, self._taken)
        self._taken.add(name)
        return name

    # --- values of bodies that are read outside -----------------------------------------------------------------

    def _find_lifted(self, wanted: Sequence[str]) -> None:
        for value in wanted:
            self._lift(value, 0)
        for place, node in enumerate(self._graph.node):
            for value, reader in _reads_at(node, self._path_of[place]):
                made = self._made_in.get(value, ())
                shared = len(common([made, reader]))
                if shared < len(made) and (reader, value) not in self._copies:
                    self._lift(value, shared)

    def _type_of(self, value: str) -> int:
        """The element type of a value; where the model does not state it, that of what it is computed from."""
        if not self._types.get(value) and (node := self._makers.get(value)) is not None:
            first = next((t for v in node.input if v != value and (t := self._type_of(v))), 0)
            self._types[value] = onnx.TensorProto.FLOAT if node.op_type == "DequantizeLinear" else first
        return self._types.get(value, 0)

    def _lift(self, value: str, depth: int) -> None:
        if len(self._made_in.get(value, ())) > depth and self._type_of(value):
            self._lifted[value] = min(depth, self._lifted.get(value, depth))

    def _name(self, value: str, path: _Path) -> str:
        """What ``value`` is called in the graph at ``path``."""
        if (path, value) in self._copies:
            return self._copies[path, value]
        if value not in self._lifted:
            return value
        depth = len(common([self._made_in[value], path]))
        return value if depth <= self._lifted[value] else f"{value}__{depth}"

    # --- the graphs --------------------------------------------------------------------------------------------------

    def _written(self, inside: _Inside, path: _Path) -> Iterator[onnx.NodeProto]:
        for node in inside.get(path, ()):
            if is_start(node):
                continue
            made = onnx.NodeProto()
            made.CopyFrom(node)
            for entry in [m for m in made.metadata_props if m.key == SCOPE]:
                made.metadata_props.remove(entry)
            made.output[:] = [self._name(v, path) for v in node.output]
            if is_flat(node) and node.op_type != "If":
                yield from self._loop(made, node, inside, path)
                continue
            if is_flat(node):
                self._write_if(made, node, inside, path)
            else:
                made.input[:] = [self._name(v, path) for v in node.input]
                self._rename(made, path)
            yield made

    def _rename(self, node: onnx.NodeProto, path: _Path) -> None:
        """Give what the bodies of ``node`` capture its name at ``path``."""
        for attribute in node.attribute:
            for body in _bodies(attribute):
                own = {v for n in body.node for v in n.output} | {i.name for i in body.input}
                own |= {t.name for t in body.initializer}
                for inner in body.node:
                    inner.input[:] = [v if v in own else self._name(v, path) for v in inner.input]
                    self._rename(inner, path)

    def _lifted_from(self, body: _Path) -> list[str]:
        """Values of a body that are wanted around it."""
        depth = len(body)
        return [v for v, to in self._lifted.items() if to < depth and self._made_in[v][:depth] == body]

    def _body(self, name: str, inside: _Inside, path: _Path) -> tuple[onnx.GraphProto, set[str]]:
        """A body without outputs, and what is computed in it."""
        body = onnx.GraphProto(name=name)
        body.node.extend(self._written(inside, path))
        local = {v for n in body.node for v in n.output}
        known = (v for v in sorted(local) if v in self._infos and v not in self._lifted)
        body.value_info.extend(self._infos[v] for v in known)
        return body, local

    def _write_if(self, made: onnx.NodeProto, node: onnx.NodeProto, inside: _Inside, path: _Path) -> None:
        half = (len(node.input) - 1) // 2
        inner = [(*path, (node.name, number)) for number in range(2)]
        lifted = [v for each in inner for v in self._lifted_from(each)]
        del made.input[1:], made.attribute[:]
        made.domain, made.input[0] = "", self._name(node.input[0], path)
        made.output.extend(self._name(v, path) for v in lifted)
        for number, name in enumerate(BODIES["If"]):
            body, local = self._body(f"{node.name}_{name}", inside, inner[number])
            for slot in range(half):
                value = node.input[1 + number * half + slot]
                self._result(body, self._name(value, inner[number]), value, node.output[slot], local)
            for value in lifted:
                if self._made_in[value][: len(path) + 1] != inner[number]:
                    self._absent(body, value, path)
                elif self._is_sequence(value, len(path) + 1):
                    body.output.append(self._sequence(self._name(value, inner[number]), value))
                else:
                    self._result(body, self._name(value, inner[number]), value, value, local)
            made.attribute.append(onnx.helper.make_attribute(name, body))

    def _loop(
        self, made: onnx.NodeProto, node: onnx.NodeProto, inside: _Inside, path: _Path
    ) -> Iterator[onnx.NodeProto]:
        inner = (*path, (node.name, 0))
        start, lifted = self._starts[inner], self._lifted_from(inner)
        taken = [self._name(v, inner) for v in start.output]
        made.domain, made.input[:] = "", [self._name(v, path) for v in start.input]
        body, local = self._body(f"{node.name}_body", inside, inner)
        for value, name in zip(start.output, taken, strict=True):
            info = _info(name, self._type_of(value))
            if value in self._infos:
                info.type.CopyFrom(self._infos[value].type)
            body.input.append(info)
        outputs = ["", *node.output] if node.op_type == "Loop" else node.output
        for value, output in zip_longest(node.input[:-1], outputs, fillvalue=""):
            self._result(body, self._name(value, inner), value, output, local)
        loop = Loop(made, body, self._free)
        if lifted and node.op_type == "Scan":
            loop.replace_scan()
        for value in lifted:
            so_far, resulting = self._so_far(value, inner), self._name(value, inner)

            def longer(name: str, reads: Sequence[str] = (so_far, resulting)) -> onnx.NodeProto:
                return onnx.helper.make_node("SequenceInsert", reads, [name], name)

            of = resulting if self._is_sequence(value, len(inner)) else longer
            loop.carry(self._so_far(value, path), self._types[value], so_far, of, self._name(value, path))
        made.attribute.append(onnx.helper.make_attribute("body", body))
        yield from (*loop.before, made, *loop.after)

    def _is_sequence(self, value: str, depth: int) -> bool:
        """Whether a value of a body is a sequence in the graph around it at ``depth``: a loop is between the two."""
        return any(body in self._places for body in self._made_in[value][depth:])

    def _so_far(self, value: str, path: _Path) -> str:
        """The sequence of ``value``, as far as it is when the turn begins in which the graph at ``path`` is."""
        for depth in range(len(path), self._lifted[value], -1):
            if path[depth - 1] in self._places:
                if (depth, value) not in self._sequences:
                    self._sequences[depth, value] = self._free(f"{value}_so_far")
                return self._sequences[depth, value]
        return ""

    def _sequence(self, name: str, value: str) -> onnx.ValueInfoProto:
        return onnx.helper.make_tensor_sequence_value_info(name, self._types[value], None)

    def _absent(self, body: onnx.GraphProto, value: str, path: _Path) -> None:
        """What stands for a value of the other branch."""
        absent, dtype = self._free(f"{value}_absent"), self._types[value]
        so_far = self._so_far(value, path)
        is_sequence = self._is_sequence(value, len(path) + 1)
        if is_sequence and not so_far:
            body.node.append(onnx.helper.make_node("SequenceEmpty", [], [absent], absent, dtype=dtype))
        else:
            empty = onnx.helper.make_tensor(absent, dtype, [0], [])
            body.node.append(onnx.helper.make_node("Constant", [], [absent], absent, value=empty))
            if is_sequence:
                same = self._free(f"{value}_same")
                body.node.append(onnx.helper.make_node("SequenceInsert", [so_far, absent], [same], same))
                absent = same
        body.output.append(self._sequence(absent, value) if is_sequence else _info(absent, dtype))

    def _result(self, body: onnx.GraphProto, name: str, value: str, output: str, local: set[str]) -> None:
        """One more output of a branch; what is not made in it, or is an output already, is passed on."""
        dtype = self._types.get(value) or self._types.get(output) or onnx.TensorProto.UNDEFINED
        if name in local and name not in {o.name for o in body.output}:
            if value in self._infos and name == value:
                body.output.append(self._infos[value])
            else:
                body.output.append(_info(name, dtype))
            return
        passed = self._free(f"{name}_passed")
        body.node.append(onnx.helper.make_node("Identity", [name], [passed], passed))
        info = _info(passed, dtype)
        if value in self._infos and self._infos[value].type.tensor_type.elem_type:
            info.type.CopyFrom(self._infos[value].type)  # a runtime's Scan asks for shapes as well
        body.output.append(info)


def _info(name: str, dtype: int) -> onnx.ValueInfoProto:
    info = onnx.ValueInfoProto(name=name)
    if dtype:
        info.type.tensor_type.elem_type = dtype
    return info


def _bodies(attribute: onnx.AttributeProto) -> Iterator[onnx.GraphProto]:
    if attribute.type == onnx.AttributeProto.GRAPH:
        yield attribute.g
    yield from attribute.graphs


def _reads_at(node: onnx.NodeProto, path: _Path) -> Iterator[tuple[str, _Path]]:
    """What a node at ``path`` reads, and where: what bodies result in is read in them."""
    if is_start(node):
        path = path[:-1]
    for slot, value in enumerate(node.input) if is_flat(node) else ():
        scope = scope_of_input(node, slot, len(node.input))
        if value:
            yield value, path if scope is None else (*path, (node.name, int(scope[0])))
    yield from () if is_flat(node) else ((value, path) for value in names_read(node))


def names_read(node: onnx.NodeProto) -> Iterator[str]:
    """What ``node`` and its bodies read; names of the bodies' own values are among them, and do no harm."""
    yield from (v for v in node.input if v)
    for attribute in node.attribute:
        for body in _bodies(attribute):
            for inner in body.node:
                yield from names_read(inner)
            yield from (o.name for o in body.output)
