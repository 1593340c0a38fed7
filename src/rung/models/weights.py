"""A model's weights, by its family's table of tensors: read, converted, stacked, divided, drawn at random."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from gpuless.base.files import shown
from rung.errors import RungError
from rung.lazy import torch
from rung.models.family import Config, TensorSpec
from rung.models.tensors import TensorFile, open_tensors

if TYPE_CHECKING:
    from rung.operation import Tensors


@dataclass
class Linear:
    """y = x @ weight.T * scale + bias."""

    weight: torch.Tensor  # (OC, C)
    bias: torch.Tensor | None = None  # (OC)
    scale: torch.Tensor | None = None  # (OC), for int8 weights
    partial: bool = False  # some of a matrix's inputs: products of all parts have to be added up
    role: str = ""


@dataclass
class Norm:
    """A layer normalisation's weight and bias, both (C); without a bias, RMSNorm's."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None


class Layer(SimpleNamespace):
    """One layer: a Linear or a Norm for each role."""


class Weights(SimpleNamespace):
    """A whole model: the roles outside of layers, `layers`, and the config. Tied matrices are one object."""

    config: Config
    layers: list[Layer]

    def linears(self) -> Iterator[Linear]:
        """Every matrix of the layers."""
        for layer in self.layers:
            yield from (held for held in vars(layer).values() if isinstance(held, Linear))

    def groups(self) -> list[list[Linear | Norm | torch.Tensor]]:
        """What a forward pass reads, in its order: before the layers, each layer, and after them."""
        before: list[Linear | Norm | torch.Tensor] = []
        after: list[Linear | Norm | torch.Tensor] = []
        layered = False
        for spec in self.config.family.tensors(self.config):
            layered = layered or spec.layered
            if spec.layered:
                continue
            held, part = getattr(self, spec.role.partition(".")[0]), after if layered else before
            if all(held is not other for other in part):
                part.append(held)
        return [before, *(list(vars(layer).values()) for layer in self.layers), after]

    def tensors(self) -> Iterator[torch.Tensor]:
        """Every tensor; tied ones twice."""
        for group in self.groups():
            for held in group:
                if isinstance(held, torch.Tensor):
                    yield held
                else:
                    yield from (t for t in vars(held).values() if isinstance(t, torch.Tensor))

    def nbytes(self) -> int:
        """Bytes of all tensors, shared ones once."""
        return sum({t.data_ptr(): t.nbytes for t in self.tensors()}.values())


@dataclass(frozen=True)
class Item:
    """A tensor of the table, of one layer if it is a layer's."""

    spec: TensorSpec
    layer: int | None

    def files(self, config: Config) -> list[tuple[str, tuple[int, ...], slice]]:
        """As in TensorSpec, with the layer's number in the names."""
        return [(name.format(i=self.layer), shape, here) for name, shape, here in self.spec.files(config)]

    def holder(self, weights: Weights) -> SimpleNamespace:
        return weights if self.layer is None else weights.layers[self.layer]

    def matrix(self, weights: Weights) -> Linear:
        linear = getattr(self.holder(weights), self.spec.role.partition(".")[0])
        assert isinstance(linear, Linear)
        return linear

    def of(self, weights: Weights) -> torch.Tensor | None:
        """The tensor; None where a model has none (a bias)."""
        role, _, part = self.spec.role.partition(".")
        held = getattr(self.holder(weights), role)
        tensor = getattr(held, part) if part else held
        assert tensor is None or isinstance(tensor, torch.Tensor)
        return tensor

    def put(self, weights: Weights, tensor: torch.Tensor) -> None:
        role, _, part = self.spec.role.partition(".")
        holder = self.holder(weights)
        if part:
            setattr(getattr(holder, role), part, tensor)
        else:
            setattr(holder, role, tensor)

    def view(self, operands: Tensors) -> torch.Tensor:
        """Its place in stacked operands."""
        whole: torch.Tensor = operands[self.spec.operand]
        return whole if self.layer is None else whole[self.layer]


def items(config: Config, *, tied: bool = False) -> Iterator[Item]:
    """All tensors in the order of a forward pass; `tied` includes those that are another tensor."""
    before: list[Item] = []
    after: list[Item] = []
    layer: list[TensorSpec] = []
    for spec in config.family.tensors(config):
        if spec.same_as and not tied:
            continue
        if spec.layered:
            layer.append(spec)
        else:
            (after if layer else before).append(Item(spec, None))
    yield from before
    for i in range(config.layers):
        yield from (Item(spec, i) for spec in layer)
    yield from after


def assembled(config: Config, made: Callable[[Item], Linear | torch.Tensor | None]) -> Weights:
    """Weights of what `made` returns for each tensor: a Linear for a matrix, otherwise a tensor."""
    weights = Weights(config=config, layers=[Layer() for _ in range(config.layers)])
    for item in items(config, tied=True):
        role, _, part = item.spec.role.partition(".")
        holder = item.holder(weights)
        if item.spec.same_as:
            setattr(holder, role, getattr(weights, item.spec.same_as.partition(".")[0]))
            continue
        value = made(item)
        if isinstance(value, Linear):
            value.role = role
            setattr(holder, role, value)
        elif not part:
            setattr(holder, role, value)
        elif hasattr(holder, role):
            setattr(getattr(holder, role), part, value)
        else:
            assert isinstance(value, torch.Tensor)
            setattr(holder, role, Norm(value))
    return weights


Matrix = Callable[["torch.Tensor"], Linear]  # an (OC, C) matrix in a plan's format
Vector = Callable[["torch.Tensor"], "torch.Tensor"]  # everything else


def read_weights(folder: Path, config: Config, matrix: Matrix, vector: Vector, most: float = math.inf) -> Weights:
    """The weights in a folder, names and shapes checked before the first is read; `most` is the largest number in the
    plan's formats."""
    raw = tensor_reader(open_tensors(folder), config)

    def made(item: Item) -> Linear | torch.Tensor:
        spec = item.spec
        parts = []
        for name, _, _ in item.files(config):
            parts.append(raw(name))
            require_numbers(name, torch.aminmax(parts[-1].float() if parts[-1].itemsize == 1 else parts[-1]), most)
        tensor = parts[0]
        if spec.parts:
            tensor = torch.stack(parts, 1).flatten(0, 1) if spec.interleaved else torch.cat(parts)
        tensor = tensor.t() if spec.transposed else tensor
        tensor = tensor.float() + spec.plus if spec.plus else tensor
        return matrix(tensor) if spec.matrix else vector(tensor)

    return assembled(config, made)


def converted(weights: Weights, matrix: Matrix, vector: Vector) -> Weights:
    """Raw float32 weights, converted by `matrix` and `vector`."""

    def made(item: Item) -> Linear | torch.Tensor | None:
        tensor = item.of(weights)
        if tensor is None or not item.spec.matrix:
            return None if tensor is None else vector(tensor)
        linear = matrix(tensor)
        linear.partial = item.matrix(weights).partial
        return linear

    return assembled(weights.config, made)


def weights_of(
    config: Config, device: str, seed: int = 0, matrix: Matrix = Linear, vector: Vector = lambda tensor: tensor
) -> Weights:
    """Random weights: float32, or converted one by one by `matrix` and `vector`."""
    generator = torch.Generator(device=device).manual_seed(seed)
    before_sum = (2 * config.layers) ** -0.5

    def made(item: Item) -> Linear | torch.Tensor:
        spec = item.spec
        tensor = torch.randn(spec.computed(config), generator=generator, dtype=torch.float32, device=device)
        tensor = tensor.mul_(spec.std * (before_sum if spec.before_sum else 1)).add_(spec.mean)
        return matrix(tensor) if spec.matrix else vector(tensor)

    return assembled(config, made)


def shard(weights: Weights, rank: int, size: int, cuts: Callable[[int, int], Sequence[int]]) -> Weights:
    """This process's part of raw weights; `cuts` gives the ends of the processes' parts of a number of units."""

    def part(item: Item) -> torch.Tensor | None:
        tensor, split = item.of(weights), item.spec.split
        if tensor is None or split is None:
            return tensor
        units = weights.config.sizes[split.over]
        ends = cuts(units, size)
        shape = tensor.shape
        before, after = shape[: split.axis], shape[split.axis + 1 :]
        grouped = tensor.view(*before, split.groups, units, -1, *after)
        ours = grouped.narrow(split.axis + 1, ends[rank], ends[rank + 1] - ends[rank])
        return ours.reshape(*before, -1, *after).contiguous()

    def made(item: Item) -> Linear | torch.Tensor | None:
        tensor = part(item)
        if not item.spec.matrix or tensor is None:
            return tensor
        return Linear(tensor, partial=item.spec.split is not None and item.spec.split.axis == 1)

    return assembled(weights.config, made)


# ---- 8 bits ---------------------------------------------------------------------------------------------------------


def to_int8(weight: torch.Tensor) -> Linear:
    """An (OC, C) matrix as int8 with a float32 scale for each row, so that a row's largest weight becomes 127."""
    weight = weight.float()
    scale = weight.abs().amax(dim=1).clamp_min(1e-12) / 127  # (OC)
    quanta = (weight / scale[:, None]).round_().to(torch.int8)
    return Linear(quanta.contiguous(), scale=scale)


def to_float(linear: Linear, dtype: torch.dtype) -> torch.Tensor:
    """The matrix that a Linear represents, without scale."""
    if linear.scale is None:
        return linear.weight.to(dtype)
    return (linear.weight.float() * linear.scale[:, None]).to(dtype)


# ---- stacked, as operands of the decode ladder ----------------------------------------------------------------------


def stack(weights: Weights, compute: torch.dtype, device: torch.device, *, int8: bool = False) -> Tensors:
    """Every operand that is a weight, one tensor for each kind, the layers stacked. With `int8` the matrices are also
    included in eight bits."""
    config, found = weights.config, dict[str, torch.Tensor]()

    def stacked(parts: Sequence[torch.Tensor | None], layered: bool, dtype: torch.dtype) -> torch.Tensor:
        if not layered:
            (whole,) = parts
            assert whole is not None
            return whole.to(device, dtype).contiguous()
        present = [p for p in parts if p is not None]
        together = torch.empty((len(present), *present[0].shape), dtype=dtype, device=device)
        for i, part in enumerate(present):
            together[i].copy_(part)
        return together

    for spec in config.family.tensors(config):
        each = [Item(spec, i) for i in range(config.layers)] if spec.layered else [Item(spec, None)]
        if spec.same_as:
            other = next(s for s in config.family.tensors(config) if s.role == spec.same_as)
            found[spec.operand] = found[other.operand]
        elif spec.matrix:
            floats = [to_float(item.matrix(weights), compute) for item in each]
            found[spec.operand] = stacked(floats, spec.layered, compute)
        else:
            found[spec.operand] = stacked([item.of(weights) for item in each], spec.layered, compute)
        if int8 and spec.eight:
            linears = [item.matrix(weights) for item in each]
            eight = [one if one.scale is not None else to_int8(one.weight) for one in linears]
            found[f"{spec.eight}_q"] = stacked([e.weight for e in eight], spec.layered, torch.int8)
            found[f"{spec.eight}_s"] = stacked([e.scale for e in eight], spec.layered, torch.float32)
    return found


def empty_operands(config: Config, compute: torch.dtype, device: torch.device) -> Tensors:
    """The operands as made by `stack`, uninitialised."""
    found: Tensors = {}
    for spec in config.family.tensors(config):
        if spec.same_as:
            other = next(s for s in config.family.tensors(config) if s.role == spec.same_as)
            found[spec.operand] = found[other.operand]
            continue
        shape = (config.layers, *spec.computed(config)) if spec.layered else spec.computed(config)
        found[spec.operand] = torch.empty(shape, dtype=compute, device=device)
    return found


def as_weights(operands: Tensors, config: Config) -> Weights:
    """The model's weights as views of its operands."""

    def made(item: Item) -> Linear | torch.Tensor:
        tensor = item.view(operands)
        return Linear(tensor) if item.spec.matrix else tensor

    return assembled(config, made)


def share(weights: Weights, operands: Tensors) -> None:
    """The weights become views of stacked operands, so that they are stored once."""
    for item in items(weights.config):
        item.put(weights, item.view(operands))


# ---- files ----------------------------------------------------------------------------------------------------------


def expected(config: Config) -> dict[str, tuple[int, ...]]:
    """Every tensor of such a model, by its name in the file without prefix, and its shape there."""
    return {name: shape for item in items(config) for name, shape, _ in item.files(config)}


def in_file(weights: Weights) -> dict[str, torch.Tensor]:
    """The tensors of weights under the names and in the shapes that files have."""
    found = {}
    for item in items(weights.config):
        tensor = item.of(weights)
        assert tensor is not None
        for name, _, rows in item.files(weights.config):
            part = tensor.t() if item.spec.transposed else tensor[rows]
            found[name] = (part - item.spec.plus if item.spec.plus else part).contiguous()
    return found


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
    shapes, family = expected(config), config.family
    ignored = re.compile(family.ignored) if family.ignored else None
    tied = {item.spec.name for item in items(config, tied=True) if item.spec.same_as}
    found: dict[str, tuple[TensorFile, str]] = {}
    for file in files:
        for key, shape in file.shapes.items():
            name, here = key.removeprefix(family.prefix), f"{file.path}: tensor {shown(key)}"
            if name in tied or (ignored and ignored.fullmatch(name)):
                continue
            if name not in shapes:
                near = difflib.get_close_matches(name, shapes, 1)
                suggestion = f" (the nearest is {near[0]!r})" if near else ""
                raise RungError(f"{here} has no place in the {family.title} of config.json{suggestion}.")
            if shape != shapes[name]:
                raise RungError(f"{here} has shape {shown(shape)}, but config.json requires {shapes[name]}.")
            if name in found:
                raise RungError(f"{here} occurs twice, also as {shown(found[name][1])}.")
            found[name] = (file, key)
    for name in shapes:
        if name not in found:
            raise RungError(f"{files[0].path}: tensor {name!r} is missing, which config.json requires.")
    return found


def weight_bytes(config: Config, dtype: str) -> int:
    """The bytes of the model's matrices that a step must read."""
    size = {"float32": 4, "tf32": 4, "int8": 1}.get(dtype, 2)
    c = config
    return size * (c.layers * (4 * c.C * c.C + 2 * c.C * c.F) + c.vocabulary * c.C)
