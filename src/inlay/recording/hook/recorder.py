"""The recorder: it replaces methods of the runtime's sessions, and hands what they are fed to what is kept of it."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import sys
import threading
import time
import weakref
from typing import Any, NamedTuple, cast

from .keep import FedModel, Kept, Limits, write_whole


class Unread(Exception):
    """Why an array that was fed cannot be kept."""


def second(given: Any, named: Any) -> Any:
    """The feed of ``run(output_names, input_feed)`` and of those like it."""
    for name in ("input_feed", "input_dict_ort_values"):
        if name in named:
            return named[name]
    return given[1]


def of_vector(given: Any, named: Any) -> dict[str, Any]:
    """The feed of ``run_with_ortvaluevector(run_options, feed_names, feeds, …)``."""
    names = named["feed_names"] if "feed_names" in named else given[1]
    feeds = named["feeds"] if "feeds" in named else given[2]
    return dict(zip(names, feeds))  # noqa: B905


def bound_value(how: str, given: Any, named: Any) -> Any:
    """The value that was bound, as the session will find it."""
    if how != "bind_input":
        return next(iter((*given, *named.values())))
    names = ("device_type", "device_id", "element_type", "shape", "buffer_ptr")
    said = {**dict(zip(names, given)), **named}  # noqa: B905
    return _Buffer(said["device_type"], said["element_type"], said["shape"], said["buffer_ptr"])


class _Buffer(NamedTuple):
    """Memory that was bound by its address."""

    device: str
    type: Any
    shape: Any
    address: int


def array_of(value: Any) -> Any:
    """What was fed, as an array of numbers or of text that no pickle is needed for. Raises Unread."""
    import numpy as np

    if isinstance(value, _Buffer):
        return _of_buffer(value)
    if not isinstance(value, np.ndarray):
        try:  # an OrtValue, wherever it lies, or a tensor of some framework
            value = value.numpy() if hasattr(value, "numpy") else np.asarray(value)
        except Exception as error:
            raise Unread(f"an input of type {type(value).__name__} could not be read: {error}") from error
    if value.dtype.kind == "S" or (value.dtype.hasobject and all(isinstance(each, bytes) for each in value.ravel())):
        value = np.char.decode(value.astype("S"), "utf8")
    elif value.dtype.hasobject:
        if not all(isinstance(each, str) for each in value.ravel()):
            raise Unread("an input holds objects that are no text")
        value = value.astype(np.str_)
    if value.dtype.kind not in "biufU":
        raise Unread(f"an input has the type {value.dtype}, of which samples are not taken")
    return value


def _of_buffer(buffer: _Buffer) -> Any:
    import numpy as np

    if buffer.device != "cpu":
        raise Unread(f"an input was bound by its address on {buffer.device}: bind an OrtValue, or give arrays to run")
    if isinstance(buffer.type, int):
        raise Unread("an input was bound by its address with the number of an ONNX type: give a type of numpy")
    shape, dtype = tuple(map(int, buffer.shape)), np.dtype(buffer.type)
    count = 1
    for length in shape:
        count *= length
    held = (ctypes.c_char * (count * dtype.itemsize)).from_address(buffer.address) if count else b""
    return np.frombuffer(held, dtype, count).reshape(shape).copy()


MODULE = "onnxruntime.capi.onnxruntime_inference_collection"
MODEL, NOTE = "model-", "note-"
"""Begin the names of files: of models that were given as bytes, by digest, and of what people should know."""


class Recorder:
    """Records every session of this process, and of those that it forks, into a folder."""

    def __init__(self, folder: str, limits: Limits) -> None:
        self.folder, self.limits = folder, limits
        self._where: Any = weakref.WeakKeyDictionary()  # the working directory when a session was made
        self._bound: Any = weakref.WeakKeyDictionary()  # what is bound, by the binding
        self._replaced: list[tuple[Any, str, Any]] = []
        self._restart()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._restart)

    def _restart(self) -> None:
        """Begin as a new process does: another one goes on with what there was."""
        self._lock = threading.RLock()
        self._models: dict[str, FedModel] = {}
        self._digests: Any = weakref.WeakKeyDictionary()
        self._process, self._number = "", 0

    # --- installing ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Record from now on: sessions that exist, or that will once the runtime is imported."""
        if MODULE in sys.modules:
            self.patch(sys.modules[MODULE])
        else:
            sys.meta_path.insert(0, cast(Any, self))

    def stop(self) -> None:
        """Leave everything as it was."""
        if self in sys.meta_path:
            sys.meta_path.remove(cast(Any, self))
        for owner, name, original in reversed(self._replaced):
            setattr(owner, name, original)
        self._replaced.clear()

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """Nothing of our own: where the runtime is imported, what others find, patched once it is loaded."""
        if name != MODULE:
            return None
        sys.meta_path.remove(cast(Any, self))
        found = (finder.find_spec(name, path, target) for finder in sys.meta_path)
        spec = next((each for each in found if each is not None), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def load(module: Any) -> None:
                execute(module)
                self.patch(module)

            spec.loader.exec_module = load  # type: ignore[method-assign]
        return spec

    def patch(self, module: Any) -> None:
        """Replace the methods of sessions and of bindings; a subclass that overrides them calls these."""
        session, binding = module.InferenceSession, module.IOBinding
        for name, feed in (
            ("run", second),
            ("run_with_ort_values", second),
            ("run_with_iobinding", self._bound_to),
            ("run_with_ortvaluevector", of_vector),
        ):
            self._replace(session, name, functools.partial(self._recorded, feed))
        self._replace(session, "run_async", self._recorded_async)
        self._replace(session, "__init__", self._made)
        for name in ("bind_cpu_input", "bind_input", "bind_ortvalue_input"):
            self._replace(binding, name, self._binding)
        self._replace(binding, "clear_binding_inputs", self._clearing)

    def _replace(self, owner: Any, name: str, wrap: Any) -> None:
        original = getattr(owner, name, None)
        if original is None:  # another version of the runtime
            return
        owner = next(each for each in owner.__mro__ if name in vars(each))
        self._replaced.append((owner, name, original))
        setattr(owner, name, functools.wraps(original)(wrap(original)))

    # --- what takes the place of methods ------------------------------------------------------------------------------

    def _made(self, original: Any) -> Any:
        def make(session: Any, *given: Any, **named: Any) -> None:
            original(session, *given, **named)
            self._quietly(lambda: self._where.__setitem__(session, os.getcwd()))

        return make

    def _recorded(self, feed: Any, original: Any) -> Any:
        def run(session: Any, *given: Any, **named: Any) -> Any:
            taken = self._quietly(lambda: self._take(session, feed(given, named)))
            begun = time.perf_counter_ns()
            try:
                done = original(session, *given, **named)
            except BaseException:
                self._quietly(lambda: self._refused(taken))
                raise
            took_ns = time.perf_counter_ns() - begun
            self._quietly(lambda: self._count(session, took_ns))
            return done

        return run

    def _recorded_async(self, original: Any) -> Any:
        def run(session: Any, *given: Any, **named: Any) -> Any:
            self._quietly(lambda: self._take(session, second(given, named)))
            begun = time.perf_counter_ns()
            at = "callback" if "callback" in named else 2
            then = named["callback"] if at == "callback" else given[2]

            def done(*results: Any) -> Any:
                took_ns = time.perf_counter_ns() - begun
                self._quietly(lambda: self._count(session, took_ns))
                return then(*results)

            if at == "callback":
                named["callback"] = done
            else:
                given = (*given[:2], done, *given[3:])
            return original(session, *given, **named)

        return run

    def _binding(self, original: Any) -> Any:
        def bind(binding: Any, name: str, *given: Any, **named: Any) -> Any:
            done = original(binding, name, *given, **named)
            how = original.__name__
            self._quietly(lambda: self._bound.setdefault(binding, {}).__setitem__(name, (how, given, named)))
            return done

        return bind

    def _clearing(self, original: Any) -> Any:
        def clear(binding: Any) -> Any:
            self._quietly(lambda: self._bound.pop(binding, None))
            return original(binding)

        return clear

    def _bound_to(self, given: Any, named: Any) -> dict[str, Any]:
        """What is bound by the binding that a session is run with."""
        binding = named["iobinding"] if "iobinding" in named else given[0]
        return {name: bound_value(*how) for name, how in self._bound.get(binding, {}).items()}

    # --- recording ----------------------------------------------------------------------------------------------------

    def _quietly(self, do: Any) -> Any:
        """What ``do`` gives; where it fails, the program goes on."""
        try:
            return do()
        except Exception as error:
            self.note(f"{type(error).__name__}: {error}")
            return None

    def note(self, text: str, folder: str = "") -> None:
        """Leave a note in a folder, by default on all; once."""
        content = text.encode("utf8", "replace")
        path = os.path.join(folder or self.folder, NOTE + hashlib.sha256(content).hexdigest()[:16])
        try:
            if not os.path.exists(path):
                write_whole(path, content)
        except OSError:  # the folder is gone: the recording is over
            pass

    def _take(self, session: Any, feed: Any) -> tuple[FedModel, Kept] | None:
        with self._lock:
            model = self._model_of(session)
            try:
                arrays = {str(name): array_of(value) for name, value in feed.items() if value is not None}
            except Unread as why:
                model.count(0, 0, 1)
                self.note(str(why), model.folder)
                return None
            kept = model.take(arrays)
            return None if kept is None else (model, kept)

    def _refused(self, taken: tuple[FedModel, Kept] | None) -> None:
        with self._lock:
            if taken is not None:
                taken[0].drop(taken[1])

    def _count(self, session: Any, took_ns: int) -> None:
        with self._lock:
            self._model_of(session).count(1, took_ns, 0)

    def _model_of(self, session: Any) -> FedModel:
        key = self._digests.get(session)
        if key is not None:
            return self._models[key]
        path: Any = getattr(session, "_model_path", None)
        content: Any = getattr(session, "_model_bytes", None)
        if path:
            path = os.path.abspath(os.path.join(self._where.get(session, os.getcwd()), os.fsdecode(path)))
            stat = os.stat(path) if os.path.exists(path) else None
            said = {"path": path, "size": stat and stat.st_size, "mtime_ns": stat and stat.st_mtime_ns}
            key = path
        else:
            key = hashlib.sha256(content).hexdigest()
            said = {"sha256": key}
            kept = os.path.join(self.folder, MODEL + key)
            if not os.path.exists(kept):
                write_whole(kept, content)
        if key not in self._models:
            folder = os.path.join(self._own(), str(len(self._models)))
            seed = [self.limits.seed, self._number, len(self._models)]
            self._models[key] = FedModel(folder, said, self.limits, seed)
        self._digests[session] = key
        return self._models[key]

    def _own(self) -> str:
        """This process's own folder: the next number that no other has."""
        while not self._process:
            folder = os.path.join(self.folder, str(self._number))
            try:
                os.mkdir(folder)
                self._process = folder
            except FileExistsError:
                self._number += 1
        return self._process
