"""Execution providers: those of this ONNX Runtime by name, and those that come as a plugin library of their own."""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import onnxruntime as ort

from inlay.errors import CompileFailed, UsageError
from inlay.model.native import runtime_message
from inlay.targets.base import Artifact
from inlay.targets.onnxruntime.session import building, settings

CPU = "CPUExecutionProvider"

INSTALL: Mapping[str, str] = {
    "CUDAExecutionProvider": "pip install 'onnxruntime-gpu[cuda,cudnn]' in place of onnxruntime",
    "TensorrtExecutionProvider": "pip install onnxruntime-gpu in place of onnxruntime, with TensorRT 10",
    "DmlExecutionProvider": "pip install onnxruntime-directml in place of onnxruntime, on Windows",
    "OpenVINOExecutionProvider": "pip install onnxruntime-openvino in place of onnxruntime",
    "CoreMLExecutionProvider": "pip install onnxruntime on macOS, whose packages have it",
    "QNNExecutionProvider": "pip install 'inlay[qnn]', and use the target qnn-htp",
    "NvTensorRTRTXExecutionProvider": "pip install onnxruntime-ep-nv-tensorrt-rtx-cu13 beside onnxruntime, and the "
    "GPU's driver, for CUDA 13",
}
"""What brings a provider, by its name; from ONNX Runtime's installation page."""

SHORT: Mapping[str, str] = {
    "cpu": CPU,
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "directml": "DmlExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "coreml": "CoreMLExecutionProvider",
    "tensorrt-rtx": "NvTensorRTRTXExecutionProvider",
}

PLUGINS: Mapping[str, str] = {"NvTensorRTRTXExecutionProvider": "onnxruntime_ep_nv_tensorrt_rtx"}
"""Packages that bring a provider as a plugin, by its name; each tells the library with ``get_library_path``."""

USUAL_RULES: Mapping[str, str] = {
    "TensorrtExecutionProvider": "tensorrt",
    "NvTensorRTRTXExecutionProvider": "tensorrt-rtx",
}
"""Targets with the same compiler, whose table says what a provider runs in 8 bits."""
_BY_CUDA = ("CUDAExecutionProvider", "TensorrtExecutionProvider")
_DRIVER = ("libcuda.so", "libnvidia-ml.so")  # what NVIDIA's driver brings
_registered: set[str] = set()


@dataclass(frozen=True)
class Provider:
    """One provider with its options."""

    name: str  # as ONNX Runtime calls it
    options: Mapping[str, str]  # of the provider, as text
    plugin: str = ""  # its library; empty where the provider is built into ONNX Runtime
    version: str = ""  # of the plugin, as it says; empty where it is built in

    @classmethod
    def find(cls, name: str, plugin: str = "", options: Mapping[str, str] | None = None) -> Provider:
        """The provider ``name``, or its short name, built in or from a plugin library.

        Raises:
            UsageError: it is not there; says what to install.
        """
        name = full_name(name)
        plugin = plugin or _packaged(name)
        if plugin:
            return cls(name, dict(options or {}), plugin, _register(name, plugin))
        known = ort.get_available_providers()
        if name not in known:
            how = INSTALL.get(name, "name its plugin with --target-option library=FILE")
            raise UsageError(f"this ONNX Runtime has no provider {name} (it has {', '.join(known)}): {how}")
        return cls(name, dict(options or {}))

    def session(self, model: Artifact, threads: int, entries: Mapping[str, str] | None = None) -> Any:
        """A session in which the provider takes what it can, and the CPU the rest.

        Raises:
            CompileFailed: the runtime refuses the model.
        """
        options = settings(threads)
        for key, value in (entries or {}).items():
            options.add_session_config_entry(key, value)
        behind = [] if self.name == CPU else [CPU]
        built_in = None if self.plugin else [(self.name, dict(self.options)), *behind]
        lacking = _preload() if self.name in _BY_CUDA else ""
        with building(model.path):
            if self.plugin:
                options.add_provider_for_devices(_devices(self.name), dict(self.options))
            session = ort.InferenceSession(str(model.path), options, providers=built_in)
        if self.name not in session.get_providers():  # it warns, and takes the CPU
            what = lacking or "its driver or device is missing"
            raise CompileFailed(f"{self.name} does not start on this machine: {what}")
        return session


def full_name(name: str) -> str:
    """What ONNX Runtime calls the provider with a short name, or any other."""
    return SHORT.get(name.lower(), name)


def parse_options(text: str) -> dict[str, str]:
    """Options of a provider from ``NAME=VALUE,NAME=VALUE``. Raises UsageError."""
    options: dict[str, str] = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = entry.partition("=")
        if not equals or not name or name in options:
            raise UsageError(f"--target-option options={text}: give NAME=VALUE,NAME=VALUE, each name once")
        options[name] = value
    return options


def _packaged(name: str) -> str:
    """The library of a provider that a package brings as a plugin; empty for others. Raises UsageError."""
    if name not in PLUGINS:
        return ""
    try:
        return str(importlib.import_module(PLUGINS[name]).get_library_path())
    except (ImportError, OSError) as error:
        raise UsageError(f"{name} comes as a plugin of ONNX Runtime: {INSTALL[name]} ({error})") from error


def _devices(name: str) -> list[Any]:
    return [device for device in ort.get_ep_devices() if device.ep_name == name]


@lru_cache(maxsize=1)
def _preload() -> str:
    """Load CUDA and cuDNN from their wheels, where the runtime does not look by itself; the first that is missing."""
    if not hasattr(ort, "preload_dlls"):  # before 1.21
        return ""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        ort.preload_dlls()
    return next((line for line in said.getvalue().splitlines() if line), "")


def _register(name: str, plugin: str) -> str:
    """Register a plugin once in this process, and return the version that it tells."""
    if not Path(plugin).is_file():
        raise UsageError(f"--target-option library={plugin}: no such file")
    if not hasattr(ort, "register_execution_provider_library"):
        raise UsageError(f"ONNX Runtime {ort.__version__} takes no plugins: pip install 'onnxruntime>=1.24'")
    if plugin not in _registered:
        try:
            ort.register_execution_provider_library(name, plugin)
        except Exception as error:  # as in session
            said = runtime_message(error)
            lacks_driver = any(name in said for name in _DRIVER)
            hint = "; it is part of NVIDIA's driver, which is not installed here" if lacks_driver else ""
            raise UsageError(f"{plugin} does not load as a plugin of ONNX Runtime: {said}{hint}") from error
        _registered.add(plugin)
    devices = _devices(name)
    if not devices:
        others = sorted({d.ep_name for d in ort.get_ep_devices()} - {CPU})
        raise UsageError(
            f"{plugin} offers no device of {name} here; providers with devices: {', '.join(others) or '-'}"
        )
    return str(dict(devices[0].ep_metadata).get("version", ""))
