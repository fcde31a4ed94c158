"""The conformance suite of targets."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

import numpy as np
import onnx
import onnx_ir as ir

from inlay.errors import CompileFailed, InlayError, RunFailed
from inlay.model.load import file_sha256
from inlay.targets.base import Artifact, Capabilities, Executable, Feed, Lack, lacks_of
from inlay.testing.models import (
    concat_model,
    depthwise_model,
    full_int8,
    random_feed,
    residual_model,
    run_reference,
    same_up_to_noise,
    small_model,
)
from inlay.testing.rewrites import RewriteTestCase


@contextmanager
def _raises(kind: type[InlayError], what: str) -> Iterator[None]:
    try:
        yield
    except kind as error:
        text = str(error)
        assert text.strip(), f"{what}: the message of {kind.__name__} is empty"
        assert "\n" not in text, f"{what}: the message of {kind.__name__} has more than one line"
    except Exception as error:  # whatever else a target raises breaks the contract
        raise AssertionError(f"{what}: {type(error).__name__} instead of {kind.__name__}: {error}") from error
    else:
        raise AssertionError(f"{what}: nothing was raised, {kind.__name__} was expected")


class TargetTestCase(RewriteTestCase):
    """What every target must keep. Subclass it, define :meth:`target`, and let pytest collect the subclass.

    A target with rewrites may have to override :meth:`rewrite_models` and :meth:`float_rewrite_models` as well: every
    rewrite must change at least one model, since otherwise nothing would have been checked.

    Attributes:
        float_sqnr_db: least SQNR of a float model's outputs against ONNX Runtime's without rewrites.
        int8_sqnr_db: the same for a model with every allowed operator quantized.
    """

    float_sqnr_db = 60.0
    int8_sqnr_db = 10.0

    def models(self) -> Mapping[str, onnx.ModelProto]:
        """Float models that the target must run."""
        return {"residual": residual_model(), "concat": concat_model(), "depthwise": depthwise_model()}

    def test_fingerprint_is_stable_text(self) -> None:
        """Two instances have one fingerprint, made of text."""
        first, second = self.target().fingerprint(), self.target().fingerprint()
        assert first.target == self.target().name != ""
        assert first.digest == second.digest
        assert dict(first.facts) == dict(second.facts)
        assert all(isinstance(k, str) and isinstance(v, str) for k, v in first.facts.items())
        assert isinstance(self.target().deterministic, bool)

    def test_rules_are_consistent(self) -> None:
        """The table's keys, slots and limits make sense."""
        rules = self.target().rules()
        assert rules.weight.signed, "weights are symmetric: they need a signed type"
        assert 0 < rules.weight_limit <= rules.weight.qmax
        assert not rules.activation.value.startswith("int32")
        for op_type, row in rules.ops.items():
            assert row.op_type == op_type
            assert row.source.strip(), f"the row of {op_type} does not say where it is known from"
            slots = row.activations or ()
            assert len(set(slots)) == len(slots), f"{op_type} names an input slot twice"
            taken = [s for s in (*slots, row.weight, row.bias) if s is not None]
            assert len(set(taken)) == len(taken), f"{op_type} gives an input slot two roles"
            assert all(s >= 0 for s in taken)
            assert row.activations is None or row.activations, f"{op_type} has no activation"
            assert not (row.moves_data and row.weight is not None), f"{op_type} only moves elements, but has a weight"

    def test_float_models_run(self) -> None:
        """Outputs come by name, in the model's dtype and shape, with the right numbers."""
        for name, proto in self.models().items():
            with self._compiled(proto) as (executable, feed, _):
                same_up_to_noise(run_reference(proto, feed), executable.run(feed), self.float_sqnr_db, name)

    def test_weights_beside_the_model_are_found(self) -> None:
        """Candidates of a search keep large weights in one file that they share."""
        for name, proto in self.models().items():
            with self._compiled(proto, weights="weights.bin") as (executable, feed, path):
                assert path.with_name("weights.bin").stat().st_size > 0
                same_up_to_noise(run_reference(proto, feed), executable.run(feed), self.float_sqnr_db, name)

    def test_quantized_models_run(self) -> None:
        """The full recipe of the target's own rules compiles and computes about the same."""
        for name, proto in self.models().items():
            with tempfile.TemporaryDirectory() as text:
                folder = Path(text)
                feed = random_feed(proto)
                onnx.save(proto, folder / "float.onnx")
                path = full_int8(folder / "float.onnx", Capabilities.of(self.target()), feed, folder)
                executable = self.target().compile(Artifact(path, file_sha256(path)))
                try:
                    found = executable.run(feed)
                finally:
                    executable.close()
                same_up_to_noise(run_reference(proto, feed), found, self.int8_sqnr_db, name)

    def test_what_it_lacks_is_known_and_said(self) -> None:
        """``lacks`` holds known words, and what is lacked raises RunFailed when it is asked for all the same."""
        lacks = self._lacks()
        assert lacks <= set(get_args(Lack)), f"{sorted(lacks)} are not all of {get_args(Lack)}"
        if lacks:
            with self._compiled(small_model()) as (executable, feed, _):
                calls: dict[str, Callable[[], object]] = {
                    "profile": lambda: executable.profile(feed, 1),
                    "latency": lambda: executable.time(feed, 1),
                }
                for lack in sorted(lacks & set(calls)):
                    with _raises(RunFailed, f"{lack} of a target that lacks it"):
                        calls[lack]()

    def test_time_gives_nanoseconds(self) -> None:
        """``time`` returns as many positive whole numbers as it was asked for."""
        if "latency" in self._lacks():
            return
        with self._compiled(small_model()) as (executable, feed, _):
            for repeats in (1, 4):
                ns = executable.time(feed, repeats)
                assert isinstance(ns, np.ndarray)
                assert ns.dtype == np.int64
                assert ns.shape == (repeats,)
                assert (ns > 0).all()

    def test_deterministic_targets_repeat_themselves(self) -> None:
        """A target that says that it is deterministic gives one time only, in every executable."""
        if not self.target().deterministic or "latency" in self._lacks():
            return
        with self._compiled(small_model()) as (first, feed, _), self._compiled(small_model()) as (second, _, _):
            assert len({*first.time(feed, 3).tolist(), *second.time(feed, 3).tolist()}) == 1

    def test_profile_lists_kernels(self) -> None:
        """``profile`` names kernels with finite times; together they took some."""
        if "profile" in self._lacks():
            return
        with self._compiled(small_model()) as (executable, feed, _):
            kernels = executable.profile(feed, 3)
            assert kernels
            assert all(k.op_type and isinstance(k.nodes, tuple) for k in kernels)
            assert all(np.isfinite(k.ns) and k.ns >= 0.0 for k in kernels)
            assert sum(k.ns for k in kernels) > 0.0
            executable.run(feed)  # profiling leaves the executable usable

    def test_executables_are_independent(self) -> None:
        """Two models live side by side, and closing one leaves the other alone."""
        proto = residual_model()
        with self._compiled(proto) as (first, feed, _), self._compiled(proto) as (second, _, _):
            before = second.run(feed)
            first.close()
            after = second.run(feed)
            assert all(np.array_equal(before[k], after[k]) for k in before)

    def test_garbage_does_not_compile(self) -> None:
        """A file that is no model, a truncated model, an invalid graph and a missing file raise CompileFailed."""
        whole = residual_model().SerializeToString()
        invalid = residual_model()
        invalid.graph.node[0].input[0] = "no_such_value"
        cases = {
            "noise": hashlib.sha256(b"noise").digest() * 8,
            "truncated": whole[: len(whole) // 2],
            "empty": b"",
            "invalid": invalid.SerializeToString(),
        }
        with tempfile.TemporaryDirectory() as folder:
            for name, data in cases.items():
                path = Path(folder) / f"{name}.onnx"
                path.write_bytes(data)
                with _raises(CompileFailed, name):
                    self.target().compile(Artifact(path, file_sha256(path))).close()
            with _raises(CompileFailed, "missing file"):
                self.target().compile(Artifact(Path(folder) / "missing.onnx", "0" * 64)).close()

    def test_wrong_feeds_do_not_run(self) -> None:
        """A missing input and a wrong rank raise RunFailed; the executable stays usable."""
        with self._compiled(residual_model()) as (executable, feed, _):
            with _raises(RunFailed, "missing input"):
                executable.run({})
            with _raises(RunFailed, "wrong rank"):
                executable.run({k: v[..., None] for k, v in feed.items()})
            executable.run(feed)

    def test_closed_executables_do_not_run(self) -> None:
        """After ``close`` (twice is fine) every call raises RunFailed."""
        with self._compiled(residual_model()) as (executable, feed, _):
            executable.close()
            executable.close()
            calls: dict[str, Callable[[], object]] = {
                "run": lambda: executable.run(feed),
                "time": lambda: executable.time(feed, 1),
                "profile": lambda: executable.profile(feed, 1),
            }
            for name, call in calls.items():
                with _raises(RunFailed, f"{name} after close"):
                    call()

    def _lacks(self) -> frozenset[str]:
        target = self.target()
        target.fingerprint()  # by then it is known
        return lacks_of(target)

    @contextmanager
    def _compiled(self, proto: onnx.ModelProto, weights: str | None = None) -> Iterator[tuple[Executable, Feed, Path]]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.onnx"
            if weights is None:
                onnx.save(proto, path)
            else:
                ir.save(ir.from_proto(proto), path, external_data=weights, size_threshold_bytes=0)
            executable = self.target().compile(Artifact(path, file_sha256(path)))
            try:
                yield executable, random_feed(proto), path
            finally:
                executable.close()
