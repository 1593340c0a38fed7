"""CUDA's device functions (`triton.language.extra.libdevice`) for Triton's interpreter, which has none of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from rung.errors import RungError

PLACES = ("triton.language.extra.libdevice", "triton.language.extra.cuda.libdevice")
# numpy's functions of the same meaning, by the name without `fast_` and the final f of a fast one.
_NUMPY = {
    **{name: name for name in ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "cbrt", "hypot")},
    **{name: name for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "floor", "ceil", "trunc", "rint", "fmod")},
    **{name: name for name in ("copysign", "nextafter", "ldexp", "isnan", "isinf", "signbit", "remainder")},
    **{f"a{name}": f"arc{name}" for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "tan2")},
    "abs": "abs", "pow": "power", "nearbyint": "rint", "llrint": "rint", "isfinited": "isfinite", "finitef": "isfinite",
    "mul_rn": "multiply", "add_rn": "add", "sub_rn": "subtract", "div_rn": "divide", "dividef": "divide",
    "sqrt_rn": "sqrt", "scalbn": "ldexp", "fdim": "",
}  # fmt: skip


def _of_torch(function: Callable[..., torch.Tensor]) -> Callable[..., np.ndarray]:
    return lambda *arrays: function(*(torch.from_numpy(np.asarray(a)) for a in arrays)).numpy()


_MORE: dict[str, Callable[..., Any]] = {
    **{name: _of_torch(getattr(torch, name)) for name in ("erf", "erfc", "erfinv", "lgamma")},
    "normcdf": _of_torch(torch.special.ndtr), "normcdfinv": _of_torch(torch.special.ndtri),
    "rsqrt": lambda x: 1 / np.sqrt(x), "rsqrt_rn": lambda x: 1 / np.sqrt(x), "rcp_rn": lambda x: 1 / x,
    "rcbrt": lambda x: 1 / np.cbrt(x), "exp10": lambda x: np.power(10.0, x), "fma": lambda x, y, z: x * y + z,
    "fma_rn": lambda x, y, z: x * y + z, "fdim": lambda x, y: np.fmax(x - y, 0), "round": _of_torch(
        lambda x: torch.sign(x) * torch.floor(torch.abs(x) + 0.5)
    ),
    "saturatef": lambda x: np.fmin(np.fmax(x, 0), 1), "sinpi": lambda x: np.sin(np.pi * x),
    "cospi": lambda x: np.cos(np.pi * x),
}  # fmt: skip


def interpreted() -> Iterator[tuple[Any, str, Any]]:
    """Owner, name and value of each function: elementwise on the interpreter's tensors, or a refusal by name."""
    for place in PLACES:
        module = importlib.import_module(place)
        for name, value in vars(module).items():
            if not name.startswith("_") and getattr(value, "__module__", "") == place:
                plain = name.removeprefix("fast_").removesuffix("f") if name.startswith("fast_") else name
                found = _MORE.get(plain) or getattr(np, _NUMPY.get(plain, ""), None)
                yield module, name, _elementwise(found) if found else _refused(name)


def _elementwise(function: Callable[..., Any]) -> Callable[..., Any]:
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    def call(*given: Any, **_: Any) -> Any:
        first = next(one for one in given if isinstance(one, tl.tensor))
        data = first.handle.data
        arrays = [
            one.handle.data if isinstance(one, tl.tensor) else data.dtype.type(getattr(one, "value", one))
            for one in given
        ]
        made = np.asarray(function(*arrays))
        kind = first.dtype
        if made.dtype == bool:
            kind, made = tl.int32, made.astype(np.int32)
        elif made.dtype != data.dtype:
            made = made.astype(data.dtype)
        shaped = tl.block_type(kind, list(made.shape)) if first.type.is_block() else kind
        return tl.tensor(TensorHandle(made, kind), shaped)

    return call


def _refused(name: str) -> Callable[..., Any]:
    def call(*_given: Any, **_named: Any) -> Any:
        raise RungError(f"libdevice.{name} is not interpreted here; a GPU runs it.")

    return call
