"""A plan says which implementation serves each operation of the model.

The forward pass is written once, in model.py, over the methods of `Plan`. This module is the only one of
gpt2 that knows rungs by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch

from rung.errors import RungError
from rung.gpt2.cache import Cache
from rung.gpt2.config import Config
from rung.gpt2.sampling import Sampling
from rung.gpt2.weights import Linear, Norm, Weights

DTYPES = ("auto", "float32", "tf32", "float16", "bfloat16", "int8")
ALIASES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
DEVICES = ("cpu", "emulator", "cuda")

# What the model's forward pass is made of; a ladder each, but for residual_layernorm.
OPERATIONS = (
    "embedding", "layernorm", "matmul", "attention", "local_attention", "softmax", "gelu", "relu", "residual",
    "layernorm_matmul", "matmul_gelu", "matmul_residual", "residual_layernorm",
)  # fmt: skip
# Rungs of layernorm that add the residual on the way in and give the sum as well.
LADDERS = {"residual_layernorm": "layernorm"}
# What a fused operation takes over from others.
FUSED = {
    "layernorm_matmul": ("layernorm", "matmul"),
    "matmul_gelu": ("matmul", "gelu"),
    "matmul_residual": ("matmul", "residual"),
    "residual_layernorm": ("residual", "layernorm"),
}

# Operation -> rungs, as `rung list` names them: the first that has the dtype serves. If it does not take the shape,
# one of those after it does, or else the highest of the ladder that would, and the plan's notes say so. What a plan
# leaves out runs through torch.
Rungs = Mapping[str, tuple[str, ...]]

# Every operation as it is written first. (Tensor cores alone know tf32: the first rungs that have it.)
_NAIVE: Rungs = {
    "embedding": ("1",),
    "layernorm": ("1",),
    "matmul": ("1", "9"),
    "attention": ("2", "10"),
    "local_attention": ("1", "5"),
    "gelu": ("1",),
    "relu": ("1",),
    "residual": ("1",),
}
# Sums and maxima by many threads together; neighbours in a warp read neighbours in memory.
_REDUCTION: Rungs = {
    "embedding": ("2",),
    "layernorm": ("6",),
    "matmul": ("2", "9"),
    "attention": ("6", "10"),
    "local_attention": ("2", "5"),
    "gelu": ("2",),
    "relu": ("2",),
    "residual": ("2",),
}
# Products from tiles in shared memory and registers.
_TILED: Rungs = {
    **_REDUCTION,
    "embedding": ("3",),
    "layernorm": ("7",),
    "matmul": ("4", "9"),
    "attention": ("9", "10"),
    "local_attention": ("3", "2", "5"),
}
# Products on tensor cores where the dtype has them, else with double-buffered tiles. Where attention writes its
# scores to memory, no rung has 16 bits on tensor cores: there the flash rung serves already.
_TENSORCORE: Rungs = {
    **_TILED,
    "embedding": ("4",),
    "layernorm": ("8",),
    "matmul": ("14", "8"),
    "attention": ("10", "27", "9"),
    "local_attention": ("4", "3", "5"),
    "gelu": ("4",),
    "residual": ("3",),
}
# Attention whose scores never reach memory.
_FLASH: Rungs = {**_TENSORCORE, "attention": ("27", "24", "29")}
# What a product begins or ends with happens in its prologue or epilogue.
_FUSED: Rungs = {
    **_FLASH,
    "layernorm_matmul": ("3", "2"),
    "matmul_gelu": ("3", "2"),
    "matmul_residual": ("3", "2"),
    "residual_layernorm": ("11",),
}
# What torch and its libraries have, called through the same ladders.
_LIBRARY: Rungs = {
    **dict.fromkeys(("embedding", "layernorm", "matmul", "gelu", "relu", "residual"), ("torch",)),
    "attention": ("sdpa_flash", "sdpa_efficient", "torch", "sdpa_math"),
    "local_attention": ("sdpa_efficient", "torch", "sdpa_math"),
}
PLANS: dict[str, Rungs] = {
    "torch": {},
    "best": {},  # whole steps of the decode ladder
    "library": _LIBRARY,
    "naive": _NAIVE,
    "reduction": _REDUCTION,
    "tiled": _TILED,
    "tensorcore": _TENSORCORE,
    "flash": _FLASH,
    "fused": _FUSED,
}
WINDOWED = "fused"  # what serves on a GPU when a window is asked for and no plan


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

    # What a plan may do in one; otherwise its parts, one after the other.

    def layernorm_matmul(self, x: torch.Tensor, norm: Norm, eps: float, linear: Linear) -> torch.Tensor:
        """(B, T, C) -> (B, T, OC)"""
        return self.matmul(self.layernorm(x, norm, eps), linear)

    def matmul_activation(self, x: torch.Tensor, linear: Linear, name: str) -> torch.Tensor:
        """(B, T, C) -> (B, T, OC)"""
        return self.activation(self.matmul(x, linear), name)

    def matmul_residual(self, x: torch.Tensor, linear: Linear, residual: torch.Tensor) -> torch.Tensor:
        """residual (B, T, OC) + the product of x (B, T, C)"""
        return self.residual(residual, self.matmul(x, linear))

    def residual_layernorm(
        self, a: torch.Tensor, b: torch.Tensor, norm: Norm, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """a + b, and that normalised, all (B, T, C)"""
        total = self.residual(a, b)
        return total, self.layernorm(total, norm, eps)

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

    def admit(self, config: Config) -> None:  # noqa: B027 - most plans take every model
        """Called before weights are read: RungError when a rung that was asked for does not take this model."""

    def fetch(self, folder: Path, config: Config) -> Weights | None:
        """Weights that the plan loads in its own way, and that may still be on their way; None: load them plainly."""
        return None

    @property
    def rungs_in_use(self) -> dict[str, str]:
        """Operation -> full names of the rungs that have served it; what is missing ran through torch."""
        return {}

    @property
    def notes(self) -> list[str]:
        """Where the plan has departed from what was asked for, a sentence each."""
        return []

    def ready(self, config: Config, weights: Weights) -> None:  # noqa: B027 - most plans need nothing
        """Called once, when the weights are there."""


def make_plan(
    device: str,
    dtype: str,
    name: str | None,
    kernels: Mapping[str, str],
    threads: int | None = None,
    window: int | None = None,
) -> Plan:
    """The plan for a device, by name, with single rungs swapped by `kernels`.

    With a `window` a token attends to so many tokens, itself the last of them.
    """
    if device not in DEVICES:
        raise RungError(f"device {device!r} is not known; use one of {', '.join(DEVICES)}.")
    dtype = ALIASES.get(dtype, dtype)
    if dtype not in DTYPES:
        raise RungError(f"dtype {dtype!r} is not known; use one of {', '.join(DTYPES)}.")
    if name is not None and name not in PLANS:
        raise RungError(f"there is no plan {name!r}; there are {', '.join(PLANS)}.")
    if window is not None and window < 1:
        raise RungError(f"the window is {window}; a token sees at least itself, which is a window of 1.")
    if device == "cpu":
        from rung.gpt2.cpu.plan import CpuPlan

        if kernels or name not in (None, "torch"):
            raise RungError(
                "the cpu runs no rungs; add --device emulator or --device cuda to choose kernels."
            )
        return CpuPlan(dtype, threads, window)
    if device == "cuda" and name is None:
        if window is not None:
            name = WINDOWED
        elif set(kernels) <= {"decode"}:
            name = "best"
    if name == "best":
        from rung.gpt2.gpu.plan import GpuPlan

        if window is not None:
            raise RungError(f"the plan best attends to all tokens; take --plan {WINDOWED} for a window.")
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
    if window is not None and kernels.keys() & {"attention", "softmax"}:
        raise RungError("with a window attention runs on local_attention; swap its rung, or leave --window out.")
    if window is None and "local_attention" in kernels:
        raise RungError("local_attention serves a window alone; add --window 128, or swap attention.")
    name = name or "naive"
    left_out = {o: parts for o, parts in FUSED.items() if o in PLANS[name] and kernels.keys() & set(parts)}
    rungs = {o: rungs for o, rungs in PLANS[name].items() if o not in left_out}
    plan = LadderPlan("cuda" if device == "cuda" else "emulator", dtype, name, {**rungs, **kernels}, window)
    for operation in left_out.keys() - kernels.keys():
        swapped = " and ".join(part for part in left_out[operation] if part in kernels)
        plan.note(f"{operation} is left out, so that the rung given for {swapped} serves.")
    return plan
