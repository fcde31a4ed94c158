"""Load a model file: parse it, check that its external data stays inside its folder, and compute its digest.

Model files are data: nothing in them is executed, and no path in them is followed out of the model's own folder. Things
that runtimes accept are put right where they are read, since they change no value: nodes out of topological order are
sorted, small tensors in external data are read in, constants have the shapes of their tensors, and local functions are
inlined.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import logging
import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import chain
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError

from inlay.errors import InlayError, ModelError, TargetError
from inlay.files import refuse_odd_name, scratch_folder
from inlay.model.gc_pause import gc_paused
from inlay.model.onnx_library import infer_shapes
from inlay.model.passes.functions import inlined
from inlay.model.store import INLINE_BYTES

_CHUNK = 1 << 20  # bytes read at a time for a digest
_DEFAULT_DOMAIN = "ai.onnx"
_CYCLE_NODES = 8  # of a cycle that a message names
_TENSORS = (ir.AttributeType.TENSOR, ir.AttributeType.TENSORS)

logging.getLogger("onnx_ir").addHandler(logging.NullHandler())  # the errors raised here say the same in one line


@dataclass(frozen=True, eq=False)
class ModelFile:
    """A model on disk."""

    path: Path  # the `.onnx` file
    sha256: str  # digest of the file followed by its external data files, as 64 hexadecimal digits
    model: ir.Model  # the parsed model; external data is mapped, not copied
    external: tuple[Path, ...]  # absolute paths of the external data files
    size: int  # bytes of the file and its external data
    notes: tuple[str, ...] = ()  # what people should know of how it was read
    copy: Path | None = None  # where the same bytes lie for as long as a command works on them; see `held`

    @property
    def content(self) -> Path:
        """Where the model is read from: the user's file, or the copy that is held of it."""
        return self.path if self.copy is None else self.copy

    @property
    def files(self) -> tuple[Path, ...]:
        """All that the model consists of."""
        return (self.path, *self.external)


ModelSource = str | Path | onnx.ModelProto  # A model as callers give it


def load(source: ModelSource) -> ModelFile:
    """Load the model at a path; a proto is written to a file first, which exists as long as this process.

    Raises:
        ModelError: there is no such file, it is not an ONNX model, its nodes form a cycle, or its external data is
            missing, too short or outside its folder.
    """
    path = _written(source) if isinstance(source, onnx.ModelProto) else Path(source)
    refuse_odd_name(path, ModelError)
    if path.is_dir():
        raise ModelError(f"{path} is a folder: give the .onnx file in it")
    if not path.is_file():
        raise ModelError(f"{path}: " + ("not a regular file" if path.exists() else "no such file"))
    if path.stat().st_size == 0:
        raise ModelError(f"{path} is empty: it is not an ONNX model")
    try:
        with gc_paused():
            return _checked(path)
    except InlayError:
        raise
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from error
    except DecodeError as error:
        raise ModelError(f"{path} is not an ONNX model, or is cut short: {error}") from error
    except Exception as error:  # malformed fields make the deserializer, and what reads them, raise many types
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        if isinstance(cause, NotImplementedError) and "Map" in str(cause):
            raise ModelError(
                f"{path} has values that are maps, as ZipMap makes them behind classifiers: only tensors can be "
                "compared; export the model without it (in skl2onnx, options={'zipmap': False})"
            ) from error
        raise ModelError(f"{path} is not a well-formed ONNX model: {type(error).__name__}: {error}") from error


def _written(proto: onnx.ModelProto) -> Path:
    try:
        content = proto.SerializeToString(deterministic=True)  # the same model has the same digest
    except Exception as error:  # protobuf's own; beyond 2 GiB it depends on its version
        raise ModelError(f"the ModelProto cannot be written, give a file with external data: {error}") from error
    path = _scratch() / f"{hashlib.sha256(content).hexdigest()[:16]}.onnx"
    path.write_bytes(content)
    return path


@cache
def _scratch() -> Path:
    """Removed when this process ends."""
    folder = scratch_folder()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _checked(path: Path) -> ModelFile:
    content = path.read_bytes()  # once: the digest is that of what is parsed, whatever is written here meanwhile
    digest, size = hashlib.sha256(content), len(content)
    form = onnx.serialization.registry.get_format_from_file_extension(path.suffix) or "protobuf"
    model = ir.from_proto(proto := onnx.load_model_from_string(content, form))
    del content  # it may be gigabytes
    ir.external_data.set_base_dir(model.graph, path.parent)
    if not model.graph.outputs:
        nothing = " is not an ONNX model: it has neither operators nor outputs"
        raise ModelError(f"{path}{': the model has no outputs' if model.graph.num_nodes() else nothing}")
    main = _with_bodies(model.graph)
    graphs = (*main, *(g for function in model.functions.values() for g in _with_bodies(function.graph)))
    _name_default_domain(model, graphs)
    _refuse_references(path, main)
    _refuse_unknown_values(path, graphs, {t.values.name for t in proto.graph.sparse_initializer})
    _sort(path, model)
    for key in [k for k in model.metadata_props if not isinstance(k, str)]:
        del model.metadata_props[key]  # not UTF-8: nobody can ask for it
    _free_negative_dimensions(graphs)
    _shape_constants(graphs)
    external = tuple(_external_files(path, graphs))
    _refuse_unreadable(path, model, main, graphs)
    _read_in(model, graphs)
    model, notes = _without_functions(model)
    size += sum(p.stat().st_size for p in external)
    return ModelFile(path, files_sha256(external, digest), model, external, size, notes)


def _without_functions(model: ir.Model) -> tuple[ir.Model, tuple[str, ...]]:
    """``model`` with its local functions inlined; where they cannot be, the model itself and why, for people."""
    if not model.functions:
        return model, ()
    try:
        model = inlined(model)
    except ModelError as error:
        return model, (f"{error}: calls stay as they are, and nothing inside is quantized",)
    with contextlib.suppress(TargetError):  # in functions, values have no types
        infer_shapes(model, strict=False)
    return model, ()


def _name_default_domain(model: ir.Model, graphs: Sequence[ir.Graph]) -> None:
    """ONNX's own domain has two names: of both, the empty one stays, with the version that runtimes take, the last."""
    for imports in (model.opset_imports, *(f.opset_imports for f in model.functions.values())):
        last = [version for domain, version in imports.items() if domain in ("", _DEFAULT_DOMAIN)][-1:]
        if imports.pop(_DEFAULT_DOMAIN, None) is not None:
            imports[""] = last[0]
    for node in chain.from_iterable(graphs):
        if node.domain == _DEFAULT_DOMAIN:
            node.domain = ""


def _refuse_references(path: Path, main: Sequence[ir.Graph]) -> None:
    """An attribute that stands for one of a function has a value within functions only."""
    for node in chain.from_iterable(main):
        for name, attribute in node.attributes.items():
            if attribute.is_ref():
                of = f"attribute {name} of node {node.name or node.op_type}"
                raise ModelError(f"{path}: {of} refers to {attribute.ref_attr_name}, but is not inside a function")


def _refuse_unreadable(path: Path, model: ir.Model, main: Sequence[ir.Graph], graphs: Sequence[ir.Graph]) -> None:
    """Attributes have the types that their operators say, and tensors in the file as many elements as their shapes.

    No input that an operator must have is missing.
    """
    own = {(f.domain, f.name) for f in model.functions.values()}
    for number, graph in enumerate(graphs):
        for node in graph:
            in_main = number < len(main)  # functions have opsets of their own
            version = model.opset_imports.get(node.domain, 0) if in_main else 0
            wanted = _attribute_types(node.domain, node.op_type, version)
            for slot in _required_inputs(node.domain, node.op_type, version):
                if (slot >= len(node.inputs) or node.inputs[slot] is None) and (node.domain, node.op_type) not in own:
                    raise ModelError(f"{path}: {node.op_type} {node.name or ''} lacks its input {slot}")
            for name, attribute in node.attributes.items():
                kind = attribute.type
                if kind is ir.AttributeType.UNDEFINED or wanted.get(name, kind.value) != kind.value:
                    of = f"attribute {name} of node {node.name or node.op_type}"
                    wrong = f"the wrong type {kind.name}" if kind.value else "no type"
                    raise ModelError(f"{path}: {of} has {wrong}")
    for name, tensor in _tensors(graphs):
        if not isinstance(tensor, ir.ExternalTensor):
            try:
                tensor.numpy()
            except Exception as error:  # malformed fields make reading raise many types
                raise ModelError(f"{path}: tensor {name} cannot be read: {error}") from error


@cache
def _attribute_types(domain: str, op_type: str, version: int) -> Mapping[str, int]:
    """Types of an operator's attributes, by name; empty where ONNX does not know it."""
    schema = _schema(domain, op_type, version)
    known = {} if schema is None else schema.attributes
    return {name: int(attribute.type.value) for name, attribute in known.items()}  # type: ignore[attr-defined]


@cache
def _required_inputs(domain: str, op_type: str, version: int) -> Sequence[int]:
    """Input slots that an operator must have; none where ONNX does not know it."""
    schema = _schema(domain, op_type, version)
    single = onnx.defs.OpSchema.FormalParameterOption.Single
    return [] if schema is None else [i for i, formal in enumerate(schema.inputs) if formal.option == single]


def _schema(domain: str, op_type: str, version: int) -> onnx.defs.OpSchema | None:
    """What ONNX says of an operator; of the latest form of one that is none of this version, as runtimes run some."""
    if version < 1:  # in a function, or of a domain without a version
        return None
    with contextlib.suppress(onnx.defs.SchemaError, TypeError, OverflowError):
        return onnx.defs.get_schema(op_type, version, domain)
    with contextlib.suppress(onnx.defs.SchemaError, TypeError):
        return onnx.defs.get_schema(op_type, domain=domain)
    return None


def _refuse_unknown_values(path: Path, graphs: Sequence[ir.Graph], sparse: Collection[str]) -> None:
    """What is read or handed out is an input, a constant or an output; the library passes over those ``sparse``."""
    for node in chain.from_iterable(graphs):
        for value in node.inputs:
            if value is None or value.producer() is not None or value.is_graph_input() or value.is_initializer():
                continue
            if value.name in sparse:
                raise ModelError(f"{path}: the constant {value.name} is sparse, which is not supported: store it dense")
            raise ModelError(f"{path}: {node.op_type} {node.name} reads {value.name}, which nothing computes")
    for graph in graphs:
        for value in graph.outputs:
            if value.producer() is None and not (value.is_graph_input() or value.is_initializer()):
                raise ModelError(f"{path}: {value.name} is an output of graph {graph.name}, and nothing computes it")


def _sort(path: Path, model: ir.Model) -> None:
    """Bring the nodes of every graph into topological order; an order that is one already stays as it is."""
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        seen: set[ir.Node] = set()
        for node in graph.all_nodes():
            if any(v is not None and (p := v.producer()) is not None and p not in seen for v in node.inputs):
                break
            seen.add(node)
        else:
            continue
        try:
            graph.sort()
        except ValueError as error:
            raise ModelError(f"{path}: its nodes form a cycle: {_cycle(graph)}") from error


def _cycle(graph: ir.Graph) -> str:
    """A cycle of ``graph``, as text."""
    sorter: TopologicalSorter[ir.Node] = TopologicalSorter()
    for node in graph.all_nodes():
        inside = (n for attr in node.attributes.values() if attr.type is ir.AttributeType.GRAPH for n in attr.value)
        sorter.add(node, *inside, *(p for v in node.inputs if v is not None and (p := v.producer()) is not None))
    try:
        sorter.prepare()
    except CycleError as error:
        names = [n.name or n.op_type for n in error.args[1]]
        return " -> ".join([*names[:_CYCLE_NODES], "..."] if len(names) > _CYCLE_NODES else names)
    return "through a subgraph"


def _read_in(model: ir.Model, graphs: Sequence[ir.Graph]) -> None:
    """Read external data in where it must be at hand.

    That is in small tensors, which shapes and axes depend on, and wherever it is no initializer of the main graph:
    these alone are kept in a file for all candidates.
    """
    for graph in graphs:
        for value in graph.initializers.values():
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor) and (graph is not model.graph or tensor.nbytes < INLINE_BYTES):
                value.const_value = _in_memory(tensor)
        for node in graph:
            for attr in [a for a in node.attributes.values() if a.type in _TENSORS]:
                if attr.type is ir.AttributeType.TENSOR:
                    node.attributes[attr.name] = ir.AttrTensor(attr.name, _in_memory(attr.value))
                else:
                    node.attributes[attr.name] = ir.AttrTensors(attr.name, [_in_memory(t) for t in attr.value])


def _in_memory(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    if not isinstance(tensor, ir.ExternalTensor):
        return tensor
    return ir.Tensor(np.array(tensor.numpy()), tensor.dtype, shape=ir.Shape(tensor.shape), name=tensor.name)


def _free_negative_dimensions(graphs: Sequence[ir.Graph]) -> None:
    """Replace negative dimensions: older exporters write an unknown dimension as -1, and runtimes accept it."""
    for graph in graphs:
        computed = (v for node in graph for v in node.outputs)
        for value in (*graph.inputs, *computed):
            if value.shape is not None and any(isinstance(d, int) and d < 0 for d in value.shape):
                value.shape = ir.Shape([None if isinstance(d, int) and d < 0 else d for d in value.shape])


def _shape_constants(graphs: Sequence[ir.Graph]) -> None:
    """Give initializers the shapes of their tensors, whatever else the model states."""
    for graph in graphs:
        for value in graph.initializers.values():
            tensor = value.const_value
            if tensor is not None and value.shape != tensor.shape:
                value.shape = ir.Shape(tensor.shape.numpy())


def _external_files(path: Path, graphs: Sequence[ir.Graph]) -> Iterator[Path]:
    folder = path.parent.resolve()
    seen: set[Path] = set()
    for name, tensor in _tensors(graphs):
        if not isinstance(tensor, ir.ExternalTensor):
            continue
        try:
            file = (folder / tensor.location).resolve()
            is_file = file.is_file()
        except (OSError, ValueError, RuntimeError) as error:  # too long, with a null character, a circle of links
            raise ModelError(
                f"{path}: tensor {name} points to {tensor.location}, which is not a valid path: {error}"
            ) from error
        if not file.is_relative_to(folder):
            inside = Path(os.path.normpath(folder / tensor.location)).is_relative_to(folder)
            how = ", a link that leads outside the model's folder" if inside else ", outside the model's folder"
            what = ": copy the folder with its links resolved (cp -rL), and give the copy" if inside else ""
            raise ModelError(f"{path}: tensor {name} points to {tensor.location}{how}{what}")
        if not is_file:
            raise ModelError(f"{path}: the external data file {tensor.location} of tensor {name} is missing")
        end = (tensor.offset or 0) + (tensor.length if tensor.length is not None else tensor.nbytes)
        if (
            (tensor.offset or 0) < 0
            or end > file.stat().st_size
            or (tensor.length is not None and tensor.length < tensor.nbytes)
        ):
            raise ModelError(f"{path}: external data file {tensor.location} is too short for tensor {name}")
        if file not in seen:
            seen.add(file)
            yield file


def _tensors(graphs: Sequence[ir.Graph]) -> Iterator[tuple[str, ir.TensorProtocol]]:
    for graph in graphs:
        for name, value in graph.initializers.items():
            if value.const_value is not None:
                yield name, value.const_value
        for node in graph:
            for attr in node.attributes.values():
                if attr.type in _TENSORS:
                    for tensor in [attr.value] if attr.type is ir.AttributeType.TENSOR else attr.value:
                        yield f"{node.op_type}.{attr.name}", tensor


def _with_bodies(graph: ir.Graph) -> tuple[ir.Graph, ...]:
    """``graph`` and the bodies in it, which takes a look at every attribute."""
    return (graph, *graph.subgraphs())


def files_sha256(paths: Sequence[Path], begun: hashlib._Hash | None = None) -> str:
    """SHA-256 of files one after the other, behind what a digest was ``begun`` with."""
    digest = begun or hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()


def file_sha256(path: Path) -> str:
    """SHA-256 of one file's bytes, as 64 hexadecimal digits."""
    return files_sha256([path])
