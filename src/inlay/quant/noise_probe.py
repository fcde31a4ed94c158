"""How much noise any placement makes: one build of a model with switches answers, for an inference a question."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import EllipsisType

import numpy as np
import onnx

from inlay.data import AUTO_MASK, Feed, Padding
from inlay.model.graph import Graph
from inlay.model.reference import SharedSession
from inlay.model.store import WeightStore
from inlay.quant.parts import Parts
from inlay.quant.qparams import QParamsTable
from inlay.quant.switches import SWITCHES, find_switches, probe_model
from inlay.space.rules import Rules
from inlay.space.units import Unit
from inlay.types import Placement

_TINY = 1e-300  # keeps a division by no energy finite
_NO_MATCH = 1e6
"""Noise over signal where an output is not finite or of another shape: far worse than any real noise, and a number."""


class NoiseProbe:
    """Noise of any placement, by running the switchable model on a few samples.

    Args:
        base: the normalized model, its weights in ``store``.
        store: weights.
        graph: index of the model.
        units: its units.
        rules: types.
        table: qparams.
        briefly: it is asked a few questions only. Nothing is fused or arranged for the kernels then: on a BERT of 45 MB
            that is a build of 0.7 s instead of 3.1, for runs of 0.12 s instead of 0.10.

    Raises:
        CompileFailed, RunFailed: the probe model does not run.
    """

    def __init__(
        self,
        base: onnx.ModelProto,
        store: WeightStore,
        graph: Graph,
        units: Sequence[Unit],
        rules: Rules,
        table: QParamsTable,
        briefly: bool = False,
    ) -> None:
        self.switches = find_switches(graph, units, rules, table)
        self.outputs = self._whole = graph.float_outputs
        model = probe_model(base, graph, self.switches, table)
        self._session = SharedSession(model, store, optimize=None if briefly else True)
        self._feeds: tuple[Feed, ...] = ()
        self._finite: Sequence[Mapping[str, EllipsisType | np.ndarray]] = ()  # where the reference is; mostly all of it
        self._reference: Sequence[Mapping[str, np.ndarray]] = ()  # its finite part
        self._padding, self._parts = Padding(), Parts()
        self._signal = np.zeros(len(self.outputs))
        self._shares = np.zeros((0, len(self.outputs)))

    def use(self, feeds: Sequence[Feed], mask: str = AUTO_MASK, parts: Parts | None = None) -> None:
        """Set the samples to measure noise on, the noisiest first; raises RunFailed.

        Args:
            feeds: the samples.
            mask: as of ``Samples``.
            parts: how outputs are divided, as their judge does it: ``outputs`` are those parts then.
        """
        self._parts = Parts() if parts is None else parts
        self.outputs = self._parts.of_each(self._whole)
        off = np.zeros(len(self.switches), bool)
        whole: list[Mapping[str, np.ndarray]] = [*self._session.each({**feed, SWITCHES: off} for feed in feeds)]
        self._take(feeds, whole, mask)
        self._signal = np.array([[_energy(r[n]) for n in self.outputs] for r in self._reference]).sum(axis=0)
        if len(feeds) < 2:
            self._shares = np.ones((len(feeds), len(self.outputs)))
            return
        energies = next(self._energies([~off], len(feeds)))
        shares = energies / np.maximum(energies.sum(axis=0), _TINY)
        order = [int(i) for i in np.argsort(-shares.max(axis=1, initial=0.0), kind="stable")]
        self._take([feeds[i] for i in order], [whole[i] for i in order], mask)
        self._shares = shares[order]

    def _take(self, feeds: Sequence[Feed], outputs: Sequence[Mapping[str, np.ndarray]], mask: str) -> None:
        self._padding = Padding.of(feeds, outputs, mask)
        self._feeds = tuple(feeds)
        whole = [self._parts.split(each) for each in self._padding.without_each(outputs)]
        finite = [{name: np.isfinite(each[name]) for name in self.outputs} for each in whole]
        self._finite = [{name: ... if mask.all() else mask for name, mask in each.items()} for each in finite]
        self._reference = [
            {name: each[name][mask] for name, mask in masks.items()}
            for each, masks in zip(whole, self._finite, strict=True)
        ]

    def noise(self, placement: Placement, samples: int | None = None) -> tuple[float, ...]:
        """Noise power over signal power at each float output when ``placement`` is quantized.

        Ports of the placement that no labelling of units quantizes are left alone.

        Args:
            placement: what is quantized.
            samples: how many are run, the noisiest first; None for all. The others are taken to have the same share of
                the noise as where everything is quantized.

        Raises:
            RunFailed: the model does not run.
        """
        return next(self.noises([placement], samples))

    def noises(self, placements: Iterable[Placement], samples: int | None = None) -> Iterator[tuple[float, ...]]:
        """The same for several in turn, of which a few more are taken than are asked for. Raises RunFailed."""
        count = len(self._feeds) if samples is None else min(samples, len(self._feeds))
        share = np.maximum(self._shares[:count].sum(axis=0), _TINY) if count < len(self._feeds) else 1.0
        if not count:
            yield from ((0.0,) * len(self.outputs) for _ in placements)
            return
        switched = (np.array([switch.is_on(p) for switch in self.switches], bool) for p in placements)
        for energies in self._energies(switched, count):
            noise = energies.sum(axis=0) / share / np.maximum(self._signal, _TINY)
            yield tuple(float(x) for x in np.minimum(noise, _NO_MATCH))

    def _energies(self, switched: Iterable[np.ndarray], count: int) -> Iterator[np.ndarray]:
        """For each setting of the switches the energy of the difference that it makes, shape (count, outputs).

        Quantized durations, for instance, may make a sound longer: outputs of another shape are all noise.
        """
        feeds = self._feeds[:count]
        outputs = self._session.each({**feed, SWITCHES: on} for on in switched for feed in feeds)
        while several := [*islice(outputs, count)]:
            found = np.zeros((count, len(self.outputs)))
            for i, (output, wanted) in enumerate(zip(several, self._reference, strict=False)):
                got = self._parts.split(self._padding.without(i, output))
                for k, name in enumerate(self.outputs):
                    finite = self._finite[i][name]
                    found[i, k] = _difference(got[name], wanted[name], finite)
            yield np.where(np.isfinite(found), found, _NO_MATCH * np.maximum(self._signal, _TINY))


def _difference(got: np.ndarray, wanted: np.ndarray, finite: EllipsisType | np.ndarray) -> float:
    """Energy of the difference where the reference is finite; infinite where the shapes differ."""
    shape = finite.shape if isinstance(finite, np.ndarray) else wanted.shape
    return _energy(np.subtract(got[finite], wanted, dtype=np.float64)) if got.shape == shape else np.inf


def _energy(array: np.ndarray) -> float:
    flat = array.astype(np.float64, copy=False).ravel()
    return float(flat @ flat)
