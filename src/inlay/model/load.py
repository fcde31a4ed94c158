"""Load a model file: parse it, check that its external data stays inside its folder, and compute its digest.

Model files are data: nothing in them is executed, and no path in them is followed out of the model's own folder.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir
from google.protobuf.message import DecodeError

from inlay.errors import ModelError

_CHUNK = 1 << 20  # bytes read at a time for a digest

logging.getLogger("onnx_ir").addHandler(logging.NullHandler())  # the errors raised here say the same in one line


@dataclass(frozen=True, eq=False)
class ModelFile:
    """A model on disk.

    Attributes:
        path: the ``.onnx`` file.
        sha256: digest of the file followed by its external data files, as 64 hexadecimal digits.
        model: the parsed model; external data is mapped, not copied.
        external: absolute paths of the external data files.
        size: bytes of the file and its external data.
    """

    path: Path
    sha256: str
    model: ir.Model
    external: tuple[Path, ...]
    size: int

    @property
    def files(self) -> tuple[Path, ...]:
        """All that the model consists of."""
        return (self.path, *self.external)


def load(path: str | Path) -> ModelFile:
    """Load the model at ``path``.

    Raises:
        ModelError: there is no such file, it is not an ONNX model, or its external data is missing, too short, or
            outside its folder.
    """
    path = Path(path)
    if path.is_dir():
        raise ModelError(f"{path} is a folder: give the .onnx file in it")
    if not path.is_file():
        raise ModelError(f"{path}: no such file")
    if path.stat().st_size == 0:
        raise ModelError(f"{path} is empty: it is not an ONNX model")
    try:
        model = ir.load(path)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}") from error
    except DecodeError as error:
        raise ModelError(f"{path} is not an ONNX model, or is cut short: {error}") from error
    except Exception as error:  # the deserializer raises many types on malformed fields
        raise ModelError(f"{path} is not a well-formed ONNX model: {type(error).__name__}: {error}") from error
    if model.graph.num_nodes() == 0 and not model.graph.outputs:
        raise ModelError(f"{path} is not an ONNX model: it has neither operators nor outputs")
    if not model.graph.outputs:
        raise ModelError(f"{path}: the model has no outputs")
    _free_negative_dimensions(model)
    external = tuple(_external_files(path, model))
    return ModelFile(
        path, _sha256([path, *external]), model, external, sum(p.stat().st_size for p in (path, *external))
    )


def _free_negative_dimensions(model: ir.Model) -> None:
    """Replace negative dimensions: older exporters write an unknown dimension as -1, and runtimes accept it."""
    for graph in model.graphs():
        computed = (v for node in graph for v in node.outputs)
        for value in (*graph.inputs, *computed):
            if value.shape is not None and any(isinstance(d, int) and d < 0 for d in value.shape):
                value.shape = ir.Shape([None if isinstance(d, int) and d < 0 else d for d in value.shape])


def _external_files(path: Path, model: ir.Model) -> Iterator[Path]:
    folder = path.parent.resolve()
    seen: set[Path] = set()
    for name, tensor in _tensors(model):
        if not isinstance(tensor, ir.ExternalTensor):
            continue
        file = (folder / tensor.location).resolve()
        if not file.is_relative_to(folder):
            raise ModelError(f"{path}: tensor {name} points to {tensor.location}, outside the model's folder")
        if not file.is_file():
            raise ModelError(f"{path}: the external data file {tensor.location} of tensor {name} is missing")
        end = (tensor.offset or 0) + (tensor.length if tensor.length is not None else tensor.nbytes)
        if end > file.stat().st_size or (tensor.length is not None and tensor.length < tensor.nbytes):
            raise ModelError(f"{path}: external data file {tensor.location} is too short for tensor {name}")
        if file not in seen:
            seen.add(file)
            yield file


def _tensors(model: ir.Model) -> Iterator[tuple[str, ir.TensorProtocol]]:
    for graph in model.graphs():
        for name, value in graph.initializers.items():
            if value.const_value is not None:
                yield name, value.const_value
        for node in graph:
            for attr in node.attributes.values():
                if attr.type is ir.AttributeType.TENSOR:
                    yield f"{node.op_type}.{attr.name}", attr.value


def _sha256(paths: list[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()


def file_sha256(path: Path) -> str:
    """SHA-256 of one file's bytes, as 64 hexadecimal digits."""
    return _sha256([path])
