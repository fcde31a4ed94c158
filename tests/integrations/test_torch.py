"""PyTorch modules as models: exported, sampled, checked, and quantized as they were trained to be."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import inlay
from inlay.errors import DataError, ModelError, UsageError
from inlay.integrations.torch import TorchModel
from inlay.integrations.torch.model import as_onnx
from inlay.model.load import load
from inlay.prepare.strip_qdq import strip_qdq
from inlay.run.options import QuantizeOptions, TuneOptions
from inlay.testing import run_reference

torch = pytest.importorskip("torch", reason="the extra torch is not installed")
pytest.importorskip("onnxscript", reason="the extra torch is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
nn: Any = torch.nn


def network(width: int = 4) -> Any:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 5),
    )  # fmt: skip


def pictures(count: int = 12) -> Any:
    return torch.randn(count, 3, 12, 12, generator=torch.Generator().manual_seed(1))


def loader(rows: int = 4) -> Any:
    labels = torch.arange(12) % 5
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(pictures(), labels), batch_size=rows)


def dims(proto: onnx.ModelProto) -> list[list[str | int]]:
    return [[d.dim_param or d.dim_value for d in i.type.tensor_type.shape.dim] for i in proto.graph.input]


def test_a_module_and_its_loader_are_quantized_in_one_call(tmp_path: Path) -> None:
    module = network().train()
    found = inlay.quantize(module, tmp_path / "q.onnx", data=loader(), target="null", recipe="full-int8")
    assert module.training, "the module is as it was"
    assert found.units[0] > 0
    rows = pictures(6)
    feed = {onnx.load(tmp_path / "q.onnx").graph.input[0].name: rows.numpy()}
    (got,) = run_reference(tmp_path / "q.onnx", feed).values()
    want = module.eval()(rows).detach().numpy()
    assert got.shape == want.shape == (6, 5), "the number of rows is dynamic"
    assert np.abs(got - want).max() < 0.2 * np.abs(want).max()


@pytest.mark.exhaustive
def test_a_run_goes_on_where_the_same_call_stopped(tmp_path: Path) -> None:
    first = inlay.tune(network(), data=loader(), out=tmp_path, target="null", budget="none", max_measurements=3)
    again = inlay.tune(network(), data=loader(), out=tmp_path, target="null", budget="none", max_measurements=3)
    assert again.best.sha256 == first.best.sha256
    assert (tmp_path / "given.onnx").is_file()


def test_rows_are_samples_and_labels_are_the_metrics() -> None:
    proto, wish = as_onnx(network(), TuneOptions(data=loader(), metric="top1"))
    assert dims(proto) == [["batch", 3, 12, 12]]
    assert [{k: v.shape for k, v in feed.items()} for feed in wish.data] == [{"input": (1, 3, 12, 12)}] * 12
    assert wish.labels.tolist() == [i % 5 for i in range(12)]
    text = proto.SerializeToString()
    assert __file__.encode() not in text, "nobody's paths are delivered"


class Tokens(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.dense = nn.Embedding(50, 8), nn.Linear(8, 8)

    def forward(self, ids: Any, mask: Any = None, return_dict: bool = True, labels: Any = None) -> Any:
        hidden = self.table(ids)
        if mask is not None:
            hidden = hidden * mask[..., None]
        return {"hidden": self.dense(hidden), "pooled": hidden.sum(1)}


def token_batches(with_labels: bool = True) -> list[dict[str, Any]]:
    more = {"labels": torch.zeros(4)} if with_labels else {}
    return [{"ids": torch.randint(0, 50, (4, n)), "mask": torch.ones(4, n), **more} for n in (7, 9, 12)]


def test_sizes_that_differ_between_batches_are_dynamic_and_shared() -> None:
    proto, wish = as_onnx(Tokens(), QuantizeOptions(data=token_batches()))
    assert dims(proto) == [["batch", "size"], ["batch", "size"]]
    assert {feed["ids"].shape for feed in wish.data} == {(1, 7), (1, 9), (1, 12)}
    assert len(proto.graph.output) == 2


@pytest.mark.parametrize(
    ("given", "inputs"),
    [
        (lambda: [(b["ids"], b["mask"]) for b in token_batches()], ["ids", "mask"]),
        (lambda: [b["ids"] for b in token_batches()], ["ids"]),
        (lambda: {k: v.numpy() for k, v in token_batches(False)[0].items()}, ["ids", "mask"]),
    ],
    ids=["tuples", "tensors", "one mapping of arrays"],
)
def test_forms_of_batches(given: Callable[[], Any], inputs: list[str]) -> None:
    proto, _ = as_onnx(Tokens(), QuantizeOptions(data=given()))
    assert [i.name for i in proto.graph.input] == inputs


def test_dynamic_axes_may_be_stated() -> None:
    model = TorchModel(module=network(), dynamic={"input": {0: "rows"}})
    proto, wish = as_onnx(model, QuantizeOptions(data=loader()))
    assert dims(proto) == [["rows", 3, 12, 12]]
    assert len(wish.data) == 12
    with pytest.raises(UsageError, match="dynamic: the module has no argument picture; a batch has input"):
        as_onnx(TorchModel(module=network(), dynamic={"picture": {0: "n"}}), QuantizeOptions(data=loader()))


class Random(nn.Module):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        return torch.randn_like(x) * x


class Branches(nn.Module):  # type: ignore[misc]
    def forward(self, x: Any) -> Any:
        return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    ("module", "data", "error", "message"),
    [
        (Random, lambda: [pictures()], ModelError, "the export computes something else than the module"),
        (Branches, lambda: [pictures()], ModelError, "the module cannot be exported: GuardOnDataDependent"),
        (Tokens, lambda: [{"words": torch.zeros(1)}], DataError, "forward needs ids; the batch has words"),
        (Tokens, list, DataError, "holds no batches"),
        (Tokens, lambda: None, UsageError, "a PyTorch module needs data"),
        (Tokens, lambda: "texts.csv", UsageError, "give a torch.utils.data.DataLoader"),
        (Tokens, lambda: (1 // 0 for _ in range(2)), DataError, "data failed: ZeroDivisionError"),
    ],
)
def test_what_cannot_be_used_is_one_line(
    module: type, data: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        as_onnx(module(), QuantizeOptions(data=data()))
    assert "\n" not in str(caught.value)


def test_what_is_no_model_is_told() -> None:
    with pytest.raises(UsageError, match=r"model takes str or Path or ModelProto or torch.nn.Module, not 5"):
        inlay.quantize(5, "q.onnx")  # type: ignore[arg-type]


def test_files_are_quantized_without_torch(tmp_path: Path) -> None:
    """Nothing of it is imported: it takes seconds, and is installed where it is wanted only."""
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [onnx.helper.make_tensor_value_info("x", 1, [1, 4])],
        [onnx.helper.make_tensor_value_info("y", 1, [1, 4])],
    )
    onnx.save(onnx.helper.make_model(graph, ir_version=8), tmp_path / "m.onnx")
    code = (
        "import sys, inlay\n"
        "inlay.quantize('m.onnx', 'q.onnx', target='null', recipe='full-int8')\n"
        "assert not {'torch', 'onnxscript', 'transformers'} & set(sys.modules)\n"
        "assert not [m for m in sys.modules if m.startswith('inlay.integrations')]\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, cwd=tmp_path)


# --- trained with fake quantization ----------------------------------------------------------------------------------


class Residual(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.norm, self.b, self.dense = (
            nn.Conv2d(3, 8, 3),
            nn.BatchNorm2d(8),
            nn.Conv2d(8, 8, 3),
            nn.Linear(8, 5),
        )

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.norm(self.a(x)))
        x = torch.relu(self.b(x)) + x[:, :, 1:-1, 1:-1]
        return self.dense(x.mean((2, 3)))


def trained_by_fx(module: Any, backend: str) -> Any:
    from torch.ao.quantization import get_default_qat_qconfig_mapping
    from torch.ao.quantization.quantize_fx import prepare_qat_fx

    fake = prepare_qat_fx(module.train(), get_default_qat_qconfig_mapping(backend), (pictures(2),))
    train(fake)
    return fake.eval()


def train(module: Any) -> None:
    optimizer = torch.optim.SGD(module.parameters(), 1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        module(pictures(8)).pow(2).mean().backward()
        optimizer.step()


def as_trained(module: Any, data: Sequence[Any], folder: Path) -> tuple[Any, onnx.ModelProto]:
    """The export taken apart, and the export; its parts compute what it computes, or nothing would be taken out."""
    proto, wish = as_onnx(module, QuantizeOptions(data=data))
    found = strip_qdq(load(proto), wish.data[:4], folder)
    assert found is not None
    assert found.opaque == ""
    assert found.leftovers == ()
    assert not [n.op_type for n in found.model.graph if n.op_type in ("QuantizeLinear", "DequantizeLinear")]
    return found, proto


@pytest.mark.parametrize("backend", ["x86", "qnnpack"])
@pytest.mark.parametrize("make", [Residual, network], ids=["residual", "sequence"])
@pytest.mark.matrix
def test_fx_training_is_imported_site_by_site(make: Callable[[], Any], backend: str, tmp_path: Path) -> None:
    found, proto = as_trained(trained_by_fx(make(), backend), [pictures(8)], tmp_path)
    products = [n for n in proto.graph.node if n.op_type in ("Conv", "Gemm", "MatMul")]
    sites = {(p.node, p.slot) for p, _ in found.placement}
    assert len(products) == 3
    assert {(n.name, slot) for n in products for slot in (0, 1)} <= sites, "data and weights of every product"


def test_what_fx_converted_for_its_own_kernels_is_refused() -> None:
    from torch.ao.quantization.quantize_fx import convert_fx

    with pytest.raises(ModelError, match="give what it was before convert_fx"):
        as_onnx(convert_fx(trained_by_fx(network(), "x86")), QuantizeOptions(data=[pictures(8)]))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("make", [Residual, network], ids=["residual", "sequence"])
@pytest.mark.matrix
def test_pt2e_is_imported_site_by_site(make: Callable[[], Any], training: bool, tmp_path: Path) -> None:
    pt2e = pytest.importorskip("torchao.quantization.pt2e", reason="torchao is not installed")
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e
    from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

    quantizer = x86.X86InductorQuantizer()
    quantizer.set_global(x86.get_default_x86_inductor_quantization_config(is_qat=training))
    rows = ({0: torch.export.Dim("batch", min=1)},)
    module = make().train() if training else make().eval()
    exported = torch.export.export(module, (pictures(8),), dynamic_shapes=rows).module()
    prepared = (prepare_qat_pt2e if training else prepare_pt2e)(exported, quantizer)
    prepared(pictures(8))
    if training:
        train(prepared)
        pt2e.move_exported_model_to_eval(prepared)
    found, proto = as_trained(convert_pt2e(prepared), [pictures(8)], tmp_path)
    products = [n.name for n in proto.graph.node if n.op_type in ("Conv", "Gemm", "MatMul")]
    assert {(name, slot) for name in products for slot in (0, 1)} <= {(p.node, p.slot) for p, _ in found.placement}


class Rounded(nn.Module):  # type: ignore[misc]
    """Fake quantization by hand: of learned steps, with gradients that go straight through."""

    def __init__(self, scale: float, low: int, high: int) -> None:
        super().__init__()
        self.scale, self.low, self.high = nn.Parameter(torch.tensor(scale)), low, high

    def forward(self, x: Any) -> Any:
        held = torch.clamp(x / self.scale, self.low, self.high)
        return (held + (held.round() - held).detach()) * self.scale


class ByHand(nn.Module):  # type: ignore[misc]
    """A convolution or a linear layer between such, its weight by channel in a scale of its largest number."""

    def __init__(self, inner: Any, scale: float, low: int = 0) -> None:
        super().__init__()
        self.inner, self.data = inner, Rounded(scale, low, low + 255)

    def forward(self, x: Any) -> Any:
        w = self.inner.weight
        scale = w.abs().amax(tuple(range(1, w.dim())), keepdim=True) / 127
        w = w + ((w / scale).round() * scale - w).detach()
        x = self.data(x)
        if w.dim() == 2:
            return nn.functional.linear(x, w, self.inner.bias)
        return nn.functional.conv2d(x, w, self.inner.bias)


def by_hand_in_sequence() -> Any:
    torch.manual_seed(0)
    first, second = ByHand(nn.Conv2d(3, 24, 3), 0.03, -128), ByHand(nn.Conv2d(24, 48, 3), 0.02)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())


class ByHandWithBranches(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.a, self.b = ByHand(nn.Conv2d(3, 96, 3, bias=False), 0.03, -128), ByHand(nn.Linear(96, 96), 0.02)

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.a(x)).mean((2, 3))
        return x + self.b(x)


@pytest.mark.parametrize("make", [by_hand_in_sequence, ByHandWithBranches], ids=["sequence", "branches"])
@pytest.mark.matrix
def test_fake_quantization_by_hand_is_imported_site_by_site(make: Callable[[], Any], tmp_path: Path) -> None:
    found, proto = as_trained(make().eval(), [pictures(8)], tmp_path)
    first, second = (n.name for n in proto.graph.node if n.op_type in ("Conv", "Gemm", "MatMul"))
    sites = {(p.node, p.slot) for p, _ in found.placement}
    assert {(first, 0), (second, 0), (second, 1)} <= sites, "the exporter computes the first weight itself: it is small"
