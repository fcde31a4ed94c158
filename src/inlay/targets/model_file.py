"""A model's file as targets need it that run it through files or another program, and what is built of it by shapes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import onnx

from inlay.errors import CompileFailed, RunFailed
from inlay.model.external import external_locations, holds_halves
from inlay.model.native import NativeSession
from inlay.targets.attribution import Names
from inlay.targets.base import Feed

Shapes = tuple[tuple[str, tuple[int, ...]], ...]
"""Of each input, by name."""
Built = TypeVar("Built")
"""What a runtime makes of a model."""


class ModelFile:
    """A model's file.

    Args:
        path: of the model.
        is_checked: whether somebody else judges if the model is valid.

    Attributes:
        path: as given.
        inputs: dimensions of each input by name; None for those that are not fixed.
        outputs: type of each output by name.
        names: of nodes and values.
        external: files beside the model that hold some of its tensors, as the model names them.

    Raises:
        CompileFailed: it is no model, or not a valid one.
    """

    def __init__(self, path: Path, is_checked: bool = False) -> None:
        self.path = path
        try:
            if not is_checked:
                onnx.checker.check_model(str(path))
            model = onnx.load(str(path), load_external_data=False)
        except Exception as error:  # the checker, protobuf and the file system raise several types
            raise CompileFailed(f"{path.name} is not a valid model: {' '.join(str(error).split())}") from error
        graph = model.graph
        if not graph.output:
            raise CompileFailed(f"{path.name} is not a valid model: it has no output")
        constants = {t.name for t in graph.initializer}
        given = {v.name: v.type.tensor_type.shape.dim for v in graph.input if v.name not in constants}
        self.inputs: Mapping[str, tuple[int | None, ...]] = {
            name: tuple(d.dim_value if d.dim_value > 0 else None for d in dims) for name, dims in given.items()
        }
        self.outputs: Mapping[str, np.dtype] = {
            v.name: np.dtype(onnx.helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type)) for v in graph.output
        }
        self.names = Names(graph)
        self.external = external_locations(model)
        self._has_halves = holds_halves(graph)
        self._session: NativeSession | None = None

    @property
    def is_static(self) -> bool:
        """Whether all dimensions of all inputs are fixed."""
        return all(None not in dims for dims in self.inputs.values())

    def shapes(self, feed: Feed) -> Shapes:
        """The shapes of a feed's inputs. Raises RunFailed where they are not those of the model."""
        found = []
        for name, dims in self.inputs.items():
            if name not in feed:
                raise RunFailed(f"input {name} is missing")
            shape = tuple(int(size) for size in np.shape(feed[name]))
            if len(shape) != len(dims) or any(d not in (None, s) for d, s in zip(dims, shape, strict=True)):
                wanted = [size or "any" for size in dims]
                raise RunFailed(f"input {name} has the shape {list(shape)}, the model takes {wanted}")
            found.append((name, shape))
        return tuple(found)

    def reference(self, feed: Feed) -> dict[str, np.ndarray]:
        """Outputs by name, of ONNX Runtime without fusions: for runtimes that give none. Raises RunFailed.

        What computes in half precision is rounded as its kernels do it (:mod:`inlay.model.passes.half`).
        """
        if self._session is None:
            path = self.path
            if self._has_halves:
                from inlay.model.passes.half import rounded_file  # boards have none, nor the graph library behind it

                path = rounded_file(path)
            try:
                self._session = NativeSession(str(path), optimize=False, fuse_qdq=False, threads=1)
            except CompileFailed as error:
                raise RunFailed(str(error)) from error
        return self._session.run(feed)


class BuiltByShapes(ABC, Generic[Built]):
    """An executable of a runtime that builds models for fixed shapes: at once, or for those of its first inputs.

    Attributes:
        file: of the model.

    Raises:
        CompileFailed: a model of fixed shapes cannot be built.
    """

    def __init__(self, file: ModelFile) -> None:
        self.file = file
        self._built: dict[Shapes, Built] = {}
        self._closed = False
        if file.is_static:
            try:
                self._built[()] = self._build(())
            except BaseException:
                self.close()
                raise

    @abstractmethod
    def _build(self, shapes: Shapes) -> Built:
        """Build the model for ``shapes``, or as it is where these are none. Raises CompileFailed."""

    def close(self) -> None:
        """Drop everything that was built; calling it twice is fine."""
        self._closed = True
        self._built.clear()

    def _ready(self, feed: Feed) -> Built:
        """What is built for the shapes of ``feed``. Raises RunFailed."""
        if self._closed:
            raise RunFailed("the model was closed")
        shapes = self.file.shapes(feed)
        key = () if self.file.is_static else shapes
        if key not in self._built:
            try:
                self._built[key] = self._build(key)
            except CompileFailed as error:
                raise RunFailed(str(error)) from error
        return self._built[key]
