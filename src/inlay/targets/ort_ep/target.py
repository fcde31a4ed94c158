"""Any execution provider of ONNX Runtime as a target that is measured."""

from __future__ import annotations

import onnxruntime as ort

from inlay.errors import RunFailed, UsageError
from inlay.targets.base import (
    Artifact,
    Capabilities,
    Feed,
    Fingerprint,
    KernelTime,
    Lack,
    StatesCapabilities,
    TargetSpec,
)
from inlay.targets.machine import cpu_facts, require_threads
from inlay.targets.onnxruntime.session import SessionExecutable
from inlay.targets.ort_ep.providers import USUAL_RULES, Provider, full_name, parse_options


class OrtEpTarget(StatesCapabilities):
    """An execution provider of ONNX Runtime, with the CPU for what it does not take.

    Args:
        provider: its name, such as ``CUDAExecutionProvider``, or ``cuda``, ``tensorrt``, ``directml``, ``openvino``,
            ``coreml``, ``tensorrt-rtx``.
        library: of a provider that comes as a plugin.
        options: of the provider, as ``NAME=VALUE,NAME=VALUE``.
        rules: another target, whose table says what runs in 8 bits; by default the one with the same compiler, or
            ``ort-cpu``.
        threads: of what runs on the CPU; 0 lets the runtime choose.

    Raises:
        UsageError: an option has no such value.
    """

    name = "ort-ep"
    deterministic = False
    lacks: frozenset[Lack] = frozenset({"profile", "memory"})

    def __init__(self, provider: str, library: str = "", options: str = "", rules: str = "", threads: int = 1) -> None:
        require_threads(threads)
        if rules == self.name:
            raise UsageError(f"--target-option rules={rules}: name another target")
        self._given, self._plugin, self._options = provider, library, parse_options(options)
        self._rules = rules or USUAL_RULES.get(full_name(provider), "ort-cpu")
        self.threads = threads

    def provider(self) -> Provider:
        """The provider. Raises UsageError where it is not there."""
        return Provider.find(self._given, self._plugin, self._options)

    def fingerprint(self) -> Fingerprint:
        """Versions of the runtime and of a plugin, CPU, the provider and all options.

        Raises:
            UsageError: the provider is not there; says what to install.
        """
        found = self.provider()
        return Fingerprint(
            self.name,
            {
                "onnxruntime": ort.__version__,
                "provider": found.name,
                "plugin": found.version,
                "options": ",".join(f"{k}={v}" for k, v in sorted(found.options.items())),
                **cpu_facts(),
                "threads": str(self.threads),
            },
        )

    def capabilities(self) -> Capabilities:
        """The rules of the target that the option names; what suits one provider's kernels need not suit another's."""
        from inlay.targets.registry import create

        return Capabilities(create(TargetSpec(self._rules)).rules())

    def compile(self, model: Artifact) -> OrtEpExecutable:
        """Build a session. Raises CompileFailed, and UsageError where the provider is not there."""
        return OrtEpExecutable(self.provider().session(model, self.threads))


class OrtEpExecutable(SessionExecutable):
    """One session."""

    def profile(self, feed: Feed, repeats: int) -> list[KernelTime]:
        """Providers profile in ways of their own. Raises RunFailed."""
        raise RunFailed("ONNX Runtime's profiles do not show what a provider runs as one kernel")
