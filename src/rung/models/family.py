"""What a family of models is: its config, a table of its tensors, its layer as operations, its rungs for whole steps.

A family is a folder named after the `model_type` of config.json (gpt2/), here or in a folder that RUNG_FAMILIES names,
with a module family.py that holds `FAMILY`; it may serve other types of model, too. Families are found by these names;
nothing imports them by theirs.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from gpuless.base import files
from gpuless.base.expressions import evaluate_int
from gpuless.base.files import shown
from rung import plugins
from rung.errors import RungError
from rung.models.rope import Rope

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Attention:
    """How a layer attends: as many heads of queries share one of keys as NH is a multiple of NKV (None: NH)."""

    NH: int
    scale: float  # of queries times keys
    NKV: int | None = None
    window: int | None = None  # tokens that a token attends to, itself included; None: all
    softcap: float | None = None  # scaled scores become softcap * tanh(score / softcap)

    @property
    def plain(self) -> bool:
        """Whether GPT-2 attends so."""
        return self.NKV is self.window is self.softcap is None


@dataclass(frozen=True)
class Config:
    """The shape of a model. Names of widths are those used in the kernels."""

    model_type: ClassVar[str]

    vocabulary: int
    context: int
    C: int
    NH: int
    layers: int
    F: int  # width of the MLP
    activation: str  # one of plan.ACTIVATIONS
    eps: float
    scale_attention: bool
    scale_by_layer: bool
    tied: bool  # the LM head is the token embedding
    eos: tuple[int, ...]
    bos: int | None = None  # precedes a text
    kv_heads: int = 0  # 0: as many as there are heads
    head_size: int = 0  # 0: the width divided by the heads
    window: int | None = None  # of all layers
    rope: Rope | None = None  # None: positions are embedded

    @property
    def HS(self) -> int:
        return self.head_size or self.C // self.NH

    @property
    def NKV(self) -> int:
        return self.kv_heads or self.NH

    @property
    def QKV(self) -> int:
        """Width of a token's queries, keys and values together."""
        return (self.NH + 2 * self.NKV) * self.HS

    @property
    def rotary(self) -> bool:
        """Whether queries and keys are turned by their positions."""
        return self.rope is not None

    @property
    def family(self) -> Family:
        return find(self.model_type)

    @property
    def sizes(self) -> dict[str, int]:
        """The names in a tensor's shape."""
        return {
            "L": self.layers, "C": self.C, "NH": self.NH, "NKV": self.NKV, "HS": self.HS, "F": self.F,
            "V": self.vocabulary, "MAXT": self.context,
        }  # fmt: skip

    def attention_scale(self, layer: int) -> float:
        """The factor of queries times keys in this layer."""
        scale = 1 / math.sqrt(self.HS) if self.scale_attention else 1.0
        return scale / (layer + 1) if self.scale_by_layer else scale

    @property
    def embedding_scale(self) -> float:
        """What embedded tokens are multiplied by."""
        return 1.0

    def rope_of(self, layer: int) -> Rope | None:
        """How this layer turns queries and keys."""
        return self.rope

    def attention(self, layer: int) -> Attention:
        """How this layer attends."""
        return Attention(self.NH, self.attention_scale(layer), self.kv_heads or None, self.window)


@dataclass(frozen=True)
class Split:
    """How a tensor is divided among processes: along `axis` of (outputs, inputs), in units of `over` (a name of the
    config's sizes), in each of `groups` equal parts. Products with parts of the inputs have to be added up.
    """

    axis: int
    over: str
    groups: int = 1


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a model, or of each layer if its name has {i}."""

    name: str  # in files, without the family's prefix
    shape: tuple[str, ...]  # in files: expressions over the config's sizes
    role: str  # the place in Weights, "qkv.weight"; a matrix's weight comes before its bias
    operand: str  # all layers stacked, as the decode ladder names them
    matrix: bool = False  # a plan may store it in 8 bits
    transposed: bool = False  # in files (inputs, outputs)
    eight: str = ""  # the operands with its 8-bit form are called so, with _q and _s
    split: Split | None = None
    std: float = 0.02  # of random weights
    before_sum: bool = False  # its product is added to the residual stream: a smaller spread
    mean: float = 0.0
    plus: float = 0.0  # added to the numbers in files
    same_as: str = ""  # another tensor's role: the file has none
    parts: tuple[tuple[str, str], ...] = ()  # several tensors in files instead: name and rows of each
    interleaved: bool = False  # the parts' rows alternate; otherwise the parts follow each other

    @property
    def layered(self) -> bool:
        return "{i}" in (self.parts[0][0] if self.parts else self.name)

    def stored(self, config: Config) -> tuple[int, ...]:
        """The shape in files."""
        return tuple(evaluate_int(size, config.sizes, self.name) for size in self.shape)

    def computed(self, config: Config) -> tuple[int, ...]:
        """The shape in which it is multiplied: (outputs, inputs)."""
        shape = self.stored(config)
        return shape[::-1] if self.transposed else shape

    def files(self, config: Config) -> list[tuple[str, tuple[int, ...], slice]]:
        """The tensors in files: name and shape there, and which rows they are here."""
        shape = self.stored(config)
        if not self.parts:
            return [(self.name, shape, slice(None))]
        found, at = [], 0
        for number, (name, rows) in enumerate(self.parts):
            count = evaluate_int(rows, config.sizes, name)
            here = slice(number, None, len(self.parts)) if self.interleaved else slice(at, at + count)
            found.append((name, (count, *shape[1:]), here))
            at += count
        return found


@dataclass(frozen=True)
class Family:
    """A family of models.

    `forward(plan, config, weights, tokens, cache)` is the forward pass up to what the LM head reads, written over the
    plan's operations: torch itself may not touch weights, tokens or results, since on a GPU a pass is recorded once.
    `steps` is a module that names rungs of the decode ladder (see gpt2/rungs.py), if that ladder computes this family's
    layers; otherwise a GPU's step is made of the operations. `compiled` says that the CPU's compiled code does: layers
    of the roles in cpu/engine.py, of which norms of heads and norms behind the products may be missing.
    """

    title: str  # in messages
    parse: Callable[[Mapping[str, Any], str], Config]
    tensors: Callable[[Config], tuple[TensorSpec, ...]]
    forward: Callable[..., Any]
    prefix: str = ""  # of tensors' names in some files
    ignored: str = ""  # a pattern of tensors that files hold and no one reads
    sizes: Mapping[str, Config] | None = None  # of random weights
    steps: Any = None
    compiled: bool = False
    serves: tuple[str, ...] = ()  # further types of model


# ---- tensors by transformers' names ---------------------------------------------------------------------------------

QKV = (("q", "NH * HS"), ("k", "NKV * HS"), ("v", "NKV * HS"))
FC = (("gate", "F"), ("up", "F"))


def rms_norm(name: str, role: str, width: str = "C", *, plus: float = 0.0) -> TensorSpec:
    """The weight of an RMSNorm."""
    return TensorSpec(f"{name}.weight", (width,), f"{role}.weight", f"{role}_w", std=0.1, mean=1.0, plus=plus)


def lm_head(config: Config, std: float = 0.02) -> TensorSpec:
    """The head's rows, or those of the embedding."""
    same = "wte.weight" if config.tied else ""
    return TensorSpec(
        "lm_head.weight", ("V", "C"), "head.weight", "head_w", matrix=True, eight="head", std=std, same_as=same
    )


def layer_norm(name: str, role: str, operand: str = "") -> tuple[TensorSpec, ...]:
    """The weight and the bias of a layernorm."""
    operand = operand or role
    return (
        TensorSpec(f"{name}.weight", ("C",), f"{role}.weight", f"{operand}_w", std=0.1, mean=1.0),
        TensorSpec(f"{name}.bias", ("C",), f"{role}.bias", f"{operand}_b"),
    )


def product(
    where: str,
    parts: tuple[tuple[str, str], ...],
    role: str,
    shape: tuple[str, str],
    biased: bool,
    suffix: str = "_proj",
) -> tuple[TensorSpec, ...]:
    """Products of the same inputs are one; the rows of gate and up alternate, so that a tile has both."""

    def spec(kind: str, shape: tuple[str, ...], *, matrix: bool = False) -> TensorSpec:
        named = tuple((f"layers.{{i}}.{where}.{part}{suffix}.{kind}", rows) for part, rows in parts)
        return TensorSpec(
            named[0][0], shape, f"{role}.{kind}", f"{role}_{kind[0]}", matrix=matrix, eight=role if matrix else "",
            parts=named if len(named) > 1 else (), interleaved=parts is FC,
            before_sum=matrix and role.endswith("proj"),
        )  # fmt: skip

    weight = spec("weight", shape, matrix=True)
    return (weight, spec("bias", shape[:1])) if biased else (weight,)


def _roots() -> list[Path]:
    named = [Path(root) for root in os.environ.get("RUNG_FAMILIES", "").split(os.pathsep) if root]
    if missing := [root for root in named if not root.is_dir()]:
        raise RungError(f"there is no folder {missing[0]} of families; correct RUNG_FAMILIES.")
    return [HERE, *plugins.folders(plugins.FAMILIES), *named]


def known() -> list[str]:
    """The model types that there are families for."""
    folders = _folders()
    return sorted({*folders, *(kind for folder in folders for kind in _read(folder).serves)})


def _folders() -> list[str]:
    return sorted({file.parent.name for root in _roots() for file in root.glob("*/family.py")})


@cache
def find(model_type: str) -> Family:
    """The family of a model type; RungError if there is none."""
    if not re.fullmatch(r"[A-Za-z0-9_]{1,64}", model_type):
        raise RungError(f"{shown(model_type)} is not a type of model; rung runs {', '.join(known())}.")
    folders = _folders()
    for folder in [model_type] if model_type in folders else folders:
        family = _read(folder)
        if model_type in (folder, *family.serves):
            return family
    raise RungError(f"there is no family {model_type!r}; rung runs {', '.join(known())}.")


@cache
def _read(folder: str) -> Family:
    root = next(root for root in _roots() if (root / folder / "family.py").is_file())
    if root == HERE:
        module = importlib.import_module(f"rung.models.{folder}.family")
    else:
        spec = importlib.util.spec_from_file_location(f"rung_family_{folder}", root / folder / "family.py")
        assert spec is not None and spec.loader is not None
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    family = module.FAMILY
    assert isinstance(family, Family), f"{root / folder}: FAMILY is a {type(family).__name__}"
    return family


def read_config(path: Path) -> Config:
    """The config in a file; RungError when no family has it."""
    try:
        fields = files.read_json(path, "fetch the model again")
    except FileNotFoundError:
        raise RungError(f"{path} is missing: a model's folder holds config.json next to its weights.") from None
    except OSError as error:
        raise RungError(f"{path} cannot be read ({error.strerror}); fetch the model again.") from None
    if not isinstance(fields, dict):
        raise RungError(f"{path} does not hold a JSON object; fetch the model again.")
    settings = path.with_name("generation_config.json")
    try:
        ends = files.read_json(settings, "fetch the model again").get("eos_token_id")
    except (OSError, AttributeError):
        ends = None
    return parse_config(fields if ends is None else {**fields, "eos_token_id": ends}, str(path))


def shortened(config: Config, context: int | None) -> Config:
    """The same model with at most so many tokens in a text."""
    if context is None:
        return config
    if not 1 <= context <= config.context:
        raise RungError(f"the context is {context}; it must be from 1 to the model's {config.context:,}.")
    if not config.rotary and context < config.context:
        raise RungError(f"{config.family.title} has a vector for each position; its context cannot be made less.")
    return replace(config, context=context)


def parse_config(fields: Mapping[str, Any], origin: str) -> Config:
    """The config in a dictionary of config.json's names."""
    kind = fields.get("model_type")
    if not isinstance(kind, str) or kind not in known():
        kinds = ", ".join(map(repr, known()))
        raise RungError(f"{origin} describes a model of type {shown(kind)}; rung runs models of type {kinds}.")
    return find(kind).parse(fields, origin)


# ---- random models of known sizes, for measuring without a download -----------------------------------------------

RANDOM = "random:"  # prefix of such a model's name


def config_of(name: str) -> Config:
    """The config of one of the families' known sizes."""
    sizes = {size: config for kind in known() for size, config in (find(kind).sizes or {}).items()}
    if name not in sizes:
        raise RungError(f"there is no size {name!r}; there are {', '.join(sizes)}.")
    return sizes[name]


# Prompts as GPT-2's tokens, for random weights, which have no tokenizer.
TOKENIZED = {
    "Hello, I'm a language model,": (15496, 11, 314, 1101, 257, 3303, 2746, 11),
    "The city with the largest population is": (464, 1748, 351, 262, 4387, 3265, 318),
}


def requested(model: str) -> Config | None:
    """The config of `random:gpt2` and the like; None if the name is that of a model with real weights."""
    return config_of(model.removeprefix(RANDOM)) if model.startswith(RANDOM) else None
