"""GPT-2's weights: from tensor files to named, checked, transposed tensors."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from rung.errors import RungError
from rung.files import shown
from rung.models.gpt2.config import Config
from rung.models.tensors import TensorFile, open_tensors

PREFIX = "transformer."
# Causal masks, which old versions of transformers saved with the weights.
MASKS = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")


@dataclass
class Linear:
    """y = x @ weight.T * scale + bias."""

    weight: torch.Tensor  # (OC, C)
    bias: torch.Tensor | None = None  # (OC)
    scale: torch.Tensor | None = None  # (OC), for int8 weights


@dataclass
class Norm:
    """A layer normalisation's weight and bias, both (C)."""

    weight: torch.Tensor
    bias: torch.Tensor


@dataclass
class Layer:
    """One transformer block."""

    ln_1: Norm
    qkv: Linear
    attn_proj: Linear
    ln_2: Norm
    fc: Linear
    mlp_proj: Linear


@dataclass
class Weights:
    """A whole GPT-2. The LM head shares its tensor with wte when the embeddings are tied."""

    wte: Linear  # (V, C); a Linear, since int8 has scales here too
    wpe: torch.Tensor  # (context, C)
    layers: list[Layer]
    ln_f: Norm
    head: Linear  # (V, C)

    def linears(self) -> Iterator[Linear]:
        """Every matrix of the layers."""
        for layer in self.layers:
            yield from (layer.qkv, layer.attn_proj, layer.fc, layer.mlp_proj)

    def nbytes(self) -> int:
        """Bytes of all tensors, shared ones once."""
        tensors = [self.wpe, self.ln_f.weight, self.ln_f.bias]
        for layer in self.layers:
            tensors += [layer.ln_1.weight, layer.ln_1.bias, layer.ln_2.weight, layer.ln_2.bias]
        for linear in (self.wte, self.head, *self.linears()):
            tensors += [t for t in (linear.weight, linear.bias, linear.scale) if t is not None]
        return sum({t.data_ptr(): t.nbytes for t in tensors}.values())


def expected(config: Config) -> dict[str, tuple[int, ...]]:
    """Every tensor of such a model, by its name in the file without prefix, and its shape there.

    GPT-2's own code calls its matrices Conv1D and keeps them as (inputs, outputs).
    """
    C, F = config.C, config.F
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (config.vocabulary, C), "wpe.weight": (config.context, C)}
    for i in range(config.layers):
        for name, width in (("ln_1", C), ("ln_2", C)):
            shapes |= {f"h.{i}.{name}.weight": (width,), f"h.{i}.{name}.bias": (width,)}
        for name, inputs, outputs in (
            ("attn.c_attn", C, 3 * C),
            ("attn.c_proj", C, C),
            ("mlp.c_fc", C, F),
            ("mlp.c_proj", F, C),
        ):
            shapes |= {f"h.{i}.{name}.weight": (inputs, outputs), f"h.{i}.{name}.bias": (outputs,)}
    shapes |= {"ln_f.weight": (C,), "ln_f.bias": (C,)}
    if not config.tied:
        shapes["lm_head.weight"] = (config.vocabulary, C)
    return shapes


def read_weights(
    folder: Path,
    config: Config,
    matrix: Callable[[torch.Tensor], Linear],
    vector: Callable[[torch.Tensor], torch.Tensor],
    most: float = math.inf,
) -> Weights:
    """The weights in a folder, names and shapes checked before the first is read.

    `matrix` converts an (OC, C) matrix to the plan's format, and `vector` everything else; `most` is the largest number
    in these formats.
    """
    raw = tensor_reader(open_tensors(folder), config)

    def read(name: str) -> torch.Tensor:
        tensor = raw(name)
        require_numbers(name, torch.aminmax(tensor.float() if tensor.itemsize == 1 else tensor), most)
        return tensor

    def norm(name: str) -> Norm:
        return Norm(vector(read(f"{name}.weight")), vector(read(f"{name}.bias")))

    def conv1d(name: str) -> Linear:
        linear = matrix(read(f"{name}.weight").t())
        linear.bias = vector(read(f"{name}.bias"))
        return linear

    wte = matrix(read("wte.weight"))
    return Weights(
        wte=wte,
        wpe=vector(read("wpe.weight")),
        layers=[
            Layer(
                ln_1=norm(f"h.{i}.ln_1"),
                qkv=conv1d(f"h.{i}.attn.c_attn"),
                attn_proj=conv1d(f"h.{i}.attn.c_proj"),
                ln_2=norm(f"h.{i}.ln_2"),
                fc=conv1d(f"h.{i}.mlp.c_fc"),
                mlp_proj=conv1d(f"h.{i}.mlp.c_proj"),
            )
            for i in range(config.layers)
        ],
        ln_f=norm("ln_f"),
        head=wte if config.tied else matrix(read("lm_head.weight")),
    )


def converted(
    weights: Weights, matrix: Callable[[torch.Tensor], Linear], vector: Callable[[torch.Tensor], torch.Tensor]
) -> Weights:
    """Raw float32 weights, converted by `matrix` and `vector`."""

    def linear(raw: Linear) -> Linear:
        made = matrix(raw.weight)
        made.bias = None if raw.bias is None else vector(raw.bias)
        return made

    def norm(raw: Norm) -> Norm:
        return Norm(vector(raw.weight), vector(raw.bias))

    wte = linear(weights.wte)
    layers = [
        Layer(norm(x.ln_1), linear(x.qkv), linear(x.attn_proj), norm(x.ln_2), linear(x.fc), linear(x.mlp_proj))
        for x in weights.layers
    ]
    head = wte if weights.head is weights.wte else linear(weights.head)
    return Weights(wte, vector(weights.wpe), layers, norm(weights.ln_f), head)


def require_numbers(name: str, ends: tuple[torch.Tensor, torch.Tensor], most: float = math.inf) -> None:
    """A RungError for weights that are NaN, infinite or too large, since the text would be arbitrary."""
    least, largest = (float(x) for x in ends)
    if not (math.isfinite(least) and math.isfinite(largest) and max(-least, largest) <= most):
        raise RungError(
            f"the model's tensor {name!r} holds NaN, infinity or numbers beyond the number format; "
            "use a model that was saved completely, or load it as float32."
        )


def tensor_reader(files: list[TensorFile], config: Config) -> Callable[[str], torch.Tensor]:
    """Returns a tensor by its name without prefix, as in the file; names and shapes are checked at once."""
    found = _locate(files, config)

    def read(name: str) -> torch.Tensor:
        file, key = found[name]
        tensor = file.read(key)
        if not tensor.is_floating_point():
            raise RungError(
                f"{file.path}: tensor {shown(key)} holds {str(tensor.dtype).removeprefix('torch.')}, which are not "
                "weights without their scales; use a model that was not quantized."
            )
        return tensor

    return read


def _locate(files: list[TensorFile], config: Config) -> dict[str, tuple[TensorFile, str]]:
    if config.layers > sum(len(file.shapes) for file in files):  # before naming the tensors of a billion layers
        raise RungError(f"{files[0].path} has fewer tensors than config.json has layers ({config.layers:,}).")
    shapes = expected(config)
    found: dict[str, tuple[TensorFile, str]] = {}
    for file in files:
        for key, shape in file.shapes.items():
            name, here = key.removeprefix(PREFIX), f"{file.path}: tensor {shown(key)}"
            if MASKS.fullmatch(name) or (config.tied and name == "lm_head.weight"):
                continue
            if name not in shapes:
                near = difflib.get_close_matches(name, shapes, 1)
                suggestion = f" (the nearest is {near[0]!r})" if near else ""
                raise RungError(f"{here} has no place in the GPT-2 of config.json{suggestion}.")
            if shape != shapes[name]:
                raise RungError(f"{here} has shape {shown(shape)}, but config.json requires {shapes[name]}.")
            if name in found:
                raise RungError(f"{here} occurs twice, also as {shown(found[name][1])}.")
            found[name] = (file, key)
    for name in shapes:
        if name not in found:
            raise RungError(f"{files[0].path}: tensor {name!r} is missing, which config.json requires.")
    return found
