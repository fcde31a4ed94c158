"""Fake quantization in modules, written so that an export holds it as Q/DQ nodes.

Quantization-aware training by FX or eager mode puts modules into a network that observe, and round. Exporters know the
rounding, and not the observing (``_fused_moving_avg_obs_fq_helper``). A copy of the module gets the rounding alone,
with the scales and zero points that were learned.
"""

from __future__ import annotations

import copy
from typing import Any

from inlay.errors import ModelError
from inlay.integrations.packages import required

_CONVERTED = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized", "torchao.nn.quantized")
_WHAT = "a module with fake quantization"


def exportable(module: Any) -> Any:
    """``module`` itself, or a copy with its fake quantization as an export can hold it.

    Raises:
        ModelError: it is quantized for PyTorch's own integer kernels, which no export holds.
    """
    own = [name for name, each in module.named_modules() if type(each).__module__.startswith(_CONVERTED)]
    if own:
        raise ModelError(
            f"the module is converted to PyTorch's own integer kernels ({own[0]} and {len(own) - 1} more): give what "
            "it was before convert_fx, with its fake quantization"
        )
    fake = required("torch.ao.quantization", "torch", _WHAT).FakeQuantizeBase
    if not any(isinstance(each, fake) for each in module.modules()):
        return module
    written = copy.deepcopy(module)
    for parent in list(written.modules()):
        for name, each in list(parent._modules.items()):  # one module may stand there under two names
            if isinstance(each, fake):
                setattr(parent, name, _rounding(each))
    return written


def _rounding(fake: Any) -> Any:
    """What a module of fake quantization does to a tensor, without what it does to itself."""
    torch = required("torch", "torch", _WHAT)
    if not bool(getattr(fake, "fake_quant_enabled", torch.ones(1))[0]):
        return torch.nn.Identity()
    scale, zero = fake.calculate_qparams()
    if hasattr(fake, "scale"):  # what it rounds by, once it no longer observes
        scale, zero = fake.scale, fake.zero_point
    low, high = int(fake.quant_min), int(fake.quant_max)
    by_channel = bool(getattr(fake, "is_per_channel", False))
    dtype, whole = (torch.uint8, (0, 255)) if low >= 0 else (torch.int8, (-128, 127))
    if low < -128 or high > 255 or (low < 0 and high > 127):
        raise ModelError(f"fake quantization to [{low}, {high}]: only 8 bits can be exported")
    axis = int(getattr(fake, "ch_axis", 0)) if by_channel else 0

    class Rounding(torch.nn.Module):  # type: ignore[name-defined, misc]  # the package is imported lazily
        """A Q/DQ pair, between the ends of what is narrower than its integers."""

        def __init__(self) -> None:
            super().__init__()
            self.by = float(scale.reshape(-1)[0]), int(zero.reshape(-1)[0])
            self.register_buffer("scale", scale.detach().clone().float())
            self.register_buffer("zero", zero.detach().clone().to(torch.int64))

        def forward(self, x: Any) -> Any:
            ops = torch.ops.quantized_decomposed
            if not by_channel:
                if (low, high) != whole:  # integers have no such range
                    x = torch.clamp(x, (low - self.by[1]) * self.by[0], (high - self.by[1]) * self.by[0])
                rounded = ops.quantize_per_tensor.default(x, *self.by, *whole, dtype)
                return ops.dequantize_per_tensor.default(rounded, *self.by, *whole, dtype)
            rounded = ops.quantize_per_channel.default(x, self.scale, self.zero, axis, low, high, dtype)
            return ops.dequantize_per_channel.default(rounded, self.scale, self.zero, axis, low, high, dtype)

    return Rounding()
