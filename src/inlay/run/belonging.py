"""`inlay.check`: which target and processor a file was quantized for, and what is known of running it here instead.

A written model says in its metadata what its placement depends on. What differs there from here is told with what
follows from it: rules and weights are those of :class:`~inlay.space.rules.Rules` for both, so that a runtime says
itself whether products of full-range weights saturate, or which types it runs. Speed that was measured there is no
figure of this processor: only a measurement says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from inlay.errors import InlayError
from inlay.model.load import ModelSource, load
from inlay.prepare.candidate_writer import tuned_for
from inlay.targets.base import TargetSpec
from inlay.targets.registry import create

_TOLD = ("machine", "isa", "cpu")
"""Facts of a processor, in the order in which they are told; the last only where it alone differs."""


@dataclass(frozen=True)
class Belonging:
    """Where a file belongs."""

    path: Path  # of the file
    # what it was quantized for, by name; empty where it does not say, as what others wrote
    tuned_for: Mapping[str, str]
    here: Mapping[str, str]  # the same of the target here
    differs: tuple[str, ...]  # what differs, and what follows from it, each as one line; empty where nothing does

    @property
    def fits(self) -> bool:
        """Whether it was made for this target and processor; also where it does not say for which it was."""
        return not self.differs

    def __str__(self) -> str:
        """For people, in a line or two."""
        if not self.tuned_for:
            return f"{self.path} does not say what it was quantized for"
        return "; ".join(self.differs) or f"{self.path} is run where it was quantized for"


def check_file(model: ModelSource, spec: TargetSpec) -> Belonging:
    """What is known of running ``model`` on the target ``spec`` here. Raises InlayError."""
    file = load(model)
    here = create(spec).fingerprint().named_facts
    then = tuned_for(file.model.metadata_props)
    return Belonging(file.path, then, here, differences(then, here))


def differences(then: Mapping[str, str], here: Mapping[str, str]) -> tuple[str, ...]:
    """What differs in what a file was quantized for from what it runs on, as lines; none where it does not say.

    Args:
        then: facts of the file's metadata, with the target's name.
        here: facts of the target here, likewise.
    """
    if not then:
        return ()
    named = f"for {then.get('processor') or then.get('cpu') or then.get('target')}"
    if then.get("target") != here.get("target"):
        return (f"quantized for {then.get('target')}, and run on {here.get('target')}: other operators may pay there",)
    changed = [name for name in _TOLD if name in then and then[name] != here.get(name)]
    told = [f"{name} {then[name] or 'none'} there, {here.get(name) or 'none'} here" for name in changed]
    lines = []
    if changed:
        lines.append(f"quantized {named}: {', '.join(told[:2])}; inlay bench says what it gains here")
        lines += _consequences(then, here)
    versions = [n for n in then if n not in (*_TOLD, "target", "processor", "threads") and then[n] != here.get(n, "")]
    if versions:
        told = [f"{name} {then[name]} there, {here.get(name, 'none')} here" for name in versions]
        lines.append(f"other versions: {', '.join(told)}")
    return tuple(lines)


def _consequences(then: Mapping[str, str], here: Mapping[str, str]) -> list[str]:
    """What the target's own rules say of the two processors."""
    spec = TargetSpec(then["target"])
    try:
        there, now = (create(spec, facts).rules() for facts in (then, here))
    except (InlayError, KeyError):
        return []
    found = []
    if there.weight_limit > now.weight_limit:
        found.append(
            f"its weights go up to {there.weight_limit}, and sums of products saturate here beyond "
            f"{now.weight_limit}: OUTPUTS MAY DIFFER from those that were judged; quantize it for this processor"
        )
    if there.weight_limit < now.weight_limit:
        found.append("its weights have 7 bits, which are not needed here: accuracy is as it was judged")
    if there.activation is not now.activation:
        found.append(f"its activations are {there.activation.value}, where {now.activation.value} has the fast kernels")
    missing = sorted(there.ops.keys() - now.ops.keys())
    if missing:
        found.append(f"not run in 8 bits here: {', '.join(missing)}")
    return found
