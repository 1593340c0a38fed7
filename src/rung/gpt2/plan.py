"""A plan says which implementation serves each operation of the model.

The forward pass is written once, in model.py, over the methods of `Plan`. This module is the only one of
gpt2 that knows rungs by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from rung.errors import RungError
from rung.gpt2.cache import Cache
from rung.gpt2.config import Config
from rung.gpt2.sampling import Sampling
from rung.gpt2.weights import Linear, Norm, Weights

if TYPE_CHECKING:
    pass

DTYPES = ("auto", "float32", "tf32", "float16", "bfloat16", "int8")
ALIASES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
DEVICES = ("cpu", "emulator", "cuda")

OPERATIONS = ("embedding", "layernorm", "matmul", "attention", "softmax", "gelu", "relu", "residual")
# Operation -> rung, as `rung list` names them. What a plan leaves out runs through torch.
PLANS: dict[str, Mapping[str, str]] = {
    "torch": {},
    "best": {},  # whole steps of the decode ladder
    "naive": {
        "embedding": "1",
        "layernorm": "1",
        "matmul": "1",
        "attention": "2",
        "gelu": "1",
        "relu": "1",
        "residual": "1",
    },
}


class Plan(ABC):
    """One method an operation. Outputs are the plan's to allocate: the same buffers each step, say."""

    name: str
    on: str  # one of DEVICES
    dtype: str  # one of DTYPES
    device: torch.device
    cache_dtype: torch.dtype
    # Whether sequences go through the operations one by one: their results are then independent of their
    # neighbours, to the last bit, and nothing is wasted on padding.
    prompts_alone: bool = False
    tokens_alone: bool = False

    @abstractmethod
    def matrix(self, weight: torch.Tensor) -> Linear:
        """An (OC, C) matrix in the form that this plan multiplies with."""

    @abstractmethod
    def vector(self, tensor: torch.Tensor) -> torch.Tensor:
        """Biases, norms and positions in the form that this plan reads."""

    @abstractmethod
    def embedding(
        self, tokens: torch.Tensor, past: Sequence[int], wte: Linear, wpe: torch.Tensor
    ) -> torch.Tensor:
        """tokens (B, T), the first of row b at position past[b] -> (B, T, C)"""

    @abstractmethod
    def layernorm(self, x: torch.Tensor, norm: Norm, eps: float) -> torch.Tensor:
        """(B, T, C) -> (B, T, C)"""

    @abstractmethod
    def matmul(self, x: torch.Tensor, linear: Linear) -> torch.Tensor:
        """(B, T, C) -> (B, T, OC)"""

    @abstractmethod
    def attention(
        self, qkv: torch.Tensor, NH: int, scale: float, layer: int, cache: Cache | None
    ) -> torch.Tensor:
        """qkv (B, T, 3C) -> (B, T, C), causal; keys and values go to the cache where there is one."""

    @abstractmethod
    def activation(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """(B, T, F) -> (B, T, F); name is gelu_tanh, gelu_erf or relu"""

    @abstractmethod
    def residual(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """a + b, both (B, T, C)"""

    def step(self, tokens: Sequence[Sequence[int]], cache: Cache) -> torch.Tensor | None:
        """The operation "more tokens for each sequence" in one: logits (rows, V), or None to do it by parts.

        A plan that serves it writes the cache, but leaves advancing it to the caller.
        """
        return None

    def write(
        self,
        prompts: Sequence[Sequence[int]],
        limits: Sequence[int],
        *,
        stop_tokens: Sequence[int],
        sampling: Sampling,
        seed: int,
        sequences: Sequence[int],
    ) -> Iterator[list[int]] | None:
        """Whole texts, chosen where they are computed: for each step the tokens of all rows.

        A row ends with one of `stop_tokens` or after `limits[row]` tokens, and gives -1 from then on;
        `sequences[row]` names its random numbers. None when the host is to choose, from `step`'s logits.
        """
        return None

    def ready(self, config: Config, weights: Weights) -> None:  # noqa: B027 - most plans need nothing
        """Called once, when the weights are there."""


def make_plan(
    device: str, dtype: str, name: str | None, kernels: Mapping[str, str], threads: int | None = None
) -> Plan:
    """The plan for a device, by name, with single rungs swapped by `kernels`."""
    if device not in DEVICES:
        raise RungError(f"device {device!r} is not known; use one of {', '.join(DEVICES)}.")
    dtype = ALIASES.get(dtype, dtype)
    if dtype not in DTYPES:
        raise RungError(f"dtype {dtype!r} is not known; use one of {', '.join(DTYPES)}.")
    if name is not None and name not in PLANS:
        raise RungError(f"there is no plan {name!r}; there are {', '.join(PLANS)}.")
    if device == "cpu":
        from rung.gpt2.cpu_plan import CpuPlan

        if kernels or name not in (None, "torch"):
            raise RungError(
                "the cpu runs no rungs; add --device emulator or --device cuda to choose kernels."
            )
        return CpuPlan(dtype, threads)
    if device == "cuda" and name is None and set(kernels) <= {"decode"}:
        name = "best"
    if name == "best":
        from rung.gpt2.gpu.plan import GpuPlan

        other = [operation for operation in kernels if operation != "decode"]
        if other:
            raise RungError(
                f"the plan best runs whole steps and swaps decode alone, not {other[0]}; choose another --plan."
            )
        return GpuPlan("cuda" if device == "cuda" else "emulator", dtype, kernels)
    from rung.gpt2.ladder_plan import LadderPlan

    unknown = [operation for operation in kernels if operation not in OPERATIONS]
    if unknown:
        raise RungError(f"the model has no operation {unknown[0]!r}; it has {', '.join(OPERATIONS)}.")
    name = name or "naive"
    return LadderPlan("cuda" if device == "cuda" else "emulator", dtype, name, {**PLANS[name], **kernels})
