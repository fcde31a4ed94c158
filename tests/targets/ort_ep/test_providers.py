"""Execution providers by name: what is there is measured, and what is not says in one line what to install."""

from __future__ import annotations

import importlib.util
import re
import sys
import types

import pytest

from inlay.errors import UsageError
from inlay.targets.ort_ep.htp import QnnHtpTarget
from inlay.targets.ort_ep.providers import INSTALL, SHORT, parse_options
from inlay.targets.ort_ep.target import OrtEpTarget


@pytest.mark.parametrize("short", sorted(set(SHORT) - {"cpu"}))
def test_what_is_missing_names_what_to_install(short: str) -> None:
    import onnxruntime as ort

    if SHORT[short] in ort.get_available_providers():
        pytest.skip("it is there")
    with pytest.raises(UsageError) as found:
        OrtEpTarget(short).fingerprint()
    assert SHORT[short] in str(found.value)
    assert INSTALL[SHORT[short]] in str(found.value)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (lambda: OrtEpTarget("NoSuchExecutionProvider"), "library=FILE"),
        (lambda: OrtEpTarget("Any", library="no/such.so"), "no such file"),
        (lambda: OrtEpTarget("Any", library=__file__), "does not load as a plugin"),
    ],
)
def test_wrong_providers_are_one_line(target: object, words: str) -> None:
    assert callable(target)
    with pytest.raises(UsageError, match=words) as found:
        target().fingerprint()
    assert "\n" not in str(found.value)


def test_options_are_read_one_by_one() -> None:
    assert parse_options("htp_arch=73, soc_model=60,") == {"htp_arch": "73", "soc_model": "60"}
    for wrong in ("a", "=1", "a=1,a=2"):
        with pytest.raises(UsageError, match="NAME=VALUE"):
            parse_options(wrong)
    with pytest.raises(UsageError, match="another target"):
        OrtEpTarget("cpu", rules="ort-ep")


def test_rules_are_those_of_the_named_target() -> None:
    assert OrtEpTarget("cpu", rules="null").rules().ops == OrtEpTarget("cpu", rules="null").rules().ops
    assert OrtEpTarget("cpu", rules="null").rules().activation.value == "uint8"


def test_rules_are_those_of_the_compiler_that_a_provider_has() -> None:
    for short in ("tensorrt", "tensorrt-rtx", "NvTensorRTRTXExecutionProvider"):
        rules = OrtEpTarget(short).rules()
        assert rules.symmetric_activations
        assert rules.activation.value == "int8"
        assert "AveragePool" in OrtEpTarget("tensorrt").rules().ops
    assert "AveragePool" not in OrtEpTarget("tensorrt-rtx").rules().ops, "its compiler runs that in float"
    assert OrtEpTarget("cuda").rules().activation.value == "uint8"


def test_the_library_of_a_packaged_plugin_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """And where it does not load, such as for lack of NVIDIA's driver, the line says why."""
    import onnxruntime as ort

    package = types.ModuleType("onnxruntime_ep_nv_tensorrt_rtx")
    package.get_library_path = lambda: __file__  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, package.__name__, package)
    with pytest.raises(UsageError, match=re.escape(f"{__file__} does not load as a plugin")):
        OrtEpTarget("tensorrt-rtx").fingerprint()

    def refuse(name: str, library: str) -> None:
        raise RuntimeError(f"Failed to load {library}: libcuda.so.1: cannot open shared object file")

    monkeypatch.setattr(ort, "register_execution_provider_library", refuse)
    with pytest.raises(UsageError, match="part of NVIDIA's driver, which is not installed here") as found:
        OrtEpTarget("tensorrt-rtx").fingerprint()
    assert "\n" not in str(found.value)


def test_without_the_package_the_line_names_the_extra() -> None:
    if importlib.util.find_spec("onnxruntime_qnn"):
        pytest.skip("the package is installed")
    with pytest.raises(UsageError, match=r"pip install 'inlay\[qnn\]'"):
        QnnHtpTarget().fingerprint()


def test_options_of_a_provider_reach_its_fingerprint() -> None:
    assert OrtEpTarget("cpu", options="use_arena=0").fingerprint().facts["options"] == "use_arena=0"
    assert OrtEpTarget("cpu").fingerprint().digest != OrtEpTarget("cpu", options="use_arena=0").fingerprint().digest
