"""Checkpoints of other trainers as folders in Hugging Face's layout: nanoGPT's ckpt.pt and llm.c's .bin.

Both keep matrices as (outputs, inputs), where GPT-2's own files have (inputs, outputs). nanoGPT computes GELU by erf
and may have no biases; llm.c computes GELU by tanh and pads its vocabulary.
"""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file

from rung.errors import RungError
from rung.gpt2.config import Config, parse_config
from rung.gpt2.tensors import SAFETENSORS, load_pickled
from rung.gpt2.weights import MASKS, PREFIX, expected

LLMC_MAGIC = 20240326
LLMC_TYPES: dict[int, tuple[np.dtype[Any], torch.dtype]] = {
    3: (np.dtype("<f4"), torch.float32),
    5: (np.dtype("<u2"), torch.bfloat16),
}
LLMC_HEADER = 256  # words of four bytes
COMPILED = "_orig_mod."  # torch.compile puts this before every name
TOKENIZERS = ("tokenizer.json", "vocab.json", "merges.txt")


def convert(source: Path, folder: Path) -> Config:
    """Write the checkpoint as a model's folder: config.json, model.safetensors, and the tokenizer if it is known."""
    fields, tensors = _read(source)
    config = parse_config(fields, str(source))
    _check(source, config, tensors)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, folder / SAFETENSORS, metadata={"format": "pt"})
        _write_tokenizer(source, folder)
        (folder / "config.json").write_text(json.dumps(fields, indent=2) + "\n")  # last: a folder with it is complete
    except OSError as error:
        raise RungError(f"{folder} cannot be written ({error.strerror}); name another folder.") from None
    return config


def _read(source: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    try:
        with source.open("rb") as file:
            start = file.read(8)
    except OSError as error:
        raise RungError(f"{source} cannot be read ({error.strerror}); name a checkpoint.") from None
    if len(start) == 8 and int.from_bytes(start[:4], "little") == LLMC_MAGIC:
        return _llmc(source)
    if start[:4] == b"PK\x03\x04" or source.suffix == ".pt":
        return _nanogpt(source)
    raise RungError(
        f"{source} is a file, and neither nanoGPT's ckpt.pt nor llm.c's .bin; name one of these, or the folder that "
        "holds config.json and the weights."
    )


def _fields(vocabulary: int, context: int, layers: int, heads: int, channels: int, activation: str) -> dict[str, Any]:
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": vocabulary,
        "n_positions": context,
        "n_layer": layers,
        "n_head": heads,
        "n_embd": channels,
        "activation_function": activation,
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
        "eos_token_id": 50256 if vocabulary > 50256 else None,
    }


# ---------------------------------------------------------------- nanoGPT


def _nanogpt(source: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    saved = load_pickled(source, "copy it again", "save its tensors alone")
    shape, state = (saved.get(k) if isinstance(saved, dict) else None for k in ("model_args", "model"))
    if not isinstance(shape, dict) or not isinstance(state, dict):
        raise RungError(f"{source} is not a checkpoint of nanoGPT: it has no 'model' and 'model_args'.")
    try:
        sizes = [shape[name] for name in ("vocab_size", "block_size", "n_layer", "n_head", "n_embd")]
    except KeyError as error:
        raise RungError(f"{source}: its model_args lack {error}.") from None
    vocabulary, context, layers, heads, channels = sizes
    fields = _fields(vocabulary, context, layers, heads, channels, "gelu")
    tensors: dict[str, torch.Tensor] = {}
    for key, value in state.items():
        name = str(key).removeprefix(COMPILED).removeprefix(PREFIX)
        if MASKS.fullmatch(name) or name == "lm_head.weight":  # tied to wte
            continue
        if not isinstance(value, torch.Tensor):
            raise RungError(f"{source}: {key!r} is not a tensor.")
        matrix = name.startswith("h.") and value.ndim == 2
        tensors[name] = (value.t() if matrix else value).contiguous()
    if not shape.get("bias", True):
        for name, size in expected(parse_config(fields, str(source))).items():
            if name.endswith(".bias") and name not in tensors:
                tensors[name] = torch.zeros(size)
    return fields, tensors


# ---------------------------------------------------------------- llm.c


def _llmc(source: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    header = np.fromfile(source, dtype="<i4", count=LLMC_HEADER)
    if len(header) < LLMC_HEADER or int(header[1]) not in LLMC_TYPES:
        version = int(header[1]) if len(header) > 1 else 0
        raise RungError(f"{source} is of llm.c's version {version}; rung reads 3 (float32) and 5 (bfloat16).")
    context, vocabulary, layers, heads, channels, padded = (int(n) for n in header[2:8])
    fields = _fields(vocabulary, context, layers, heads, channels, "gelu_new")
    config = parse_config(fields, str(source))
    if not vocabulary <= padded < vocabulary + 4096:
        raise RungError(f"{source} pads its vocabulary of {vocabulary:,} to {padded:,}, which is impossible.")
    stored, kind = LLMC_TYPES[int(header[1])]
    C = config.C
    order = [
        ("wte.weight", (padded, C)), ("wpe.weight", (context, C)),
        ("ln_1.weight", (layers, C)), ("ln_1.bias", (layers, C)),
        ("attn.c_attn.weight", (layers, 3 * C, C)), ("attn.c_attn.bias", (layers, 3 * C)),
        ("attn.c_proj.weight", (layers, C, C)), ("attn.c_proj.bias", (layers, C)),
        ("ln_2.weight", (layers, C)), ("ln_2.bias", (layers, C)),
        ("mlp.c_fc.weight", (layers, 4 * C, C)), ("mlp.c_fc.bias", (layers, 4 * C)),
        ("mlp.c_proj.weight", (layers, C, 4 * C)), ("mlp.c_proj.bias", (layers, C)),
        ("ln_f.weight", (C,)), ("ln_f.bias", (C,)),
    ]  # fmt: skip
    expected_bytes = LLMC_HEADER * 4 + sum(int(np.prod(size, dtype=object)) for _, size in order) * stored.itemsize
    if expected_bytes != source.stat().st_size:
        raise RungError(f"{source} has {source.stat().st_size:,} bytes, but its header requires {expected_bytes:,}.")
    data = np.memmap(source, dtype=stored, mode="c", offset=LLMC_HEADER * 4)
    tensors: dict[str, torch.Tensor] = {}
    place = 0
    for name, size in order:
        count = int(np.prod(size))
        raw = torch.from_numpy(data[place : place + count])
        place += count
        whole = (raw.view(kind) if kind == torch.bfloat16 else raw).view(size)
        if name == "wte.weight":
            tensors[name] = whole[:vocabulary].clone()
        elif size[0] != layers or name in ("wpe.weight", "ln_f.weight", "ln_f.bias"):
            tensors[name] = whole.clone()
        else:
            for i in range(layers):
                tensors[f"h.{i}.{name}"] = (whole[i].t() if whole.ndim == 3 else whole[i]).clone().contiguous()
    return fields, tensors


def _check(source: Path, config: Config, tensors: Mapping[str, torch.Tensor]) -> None:
    if config.layers > len(tensors):  # checked before tensors of a billion layers are named
        raise RungError(f"{source} has fewer tensors than it names layers ({config.layers:,}).")
    shapes = expected(config)
    for name, size in shapes.items():
        if name not in tensors:
            raise RungError(f"{source} lacks the tensor {name!r}.")
        if tuple(tensors[name].shape) != size:
            raise RungError(f"{source}: {name!r} has the shape {tuple(tensors[name].shape)}, not {size}.")
    extra = next((name for name in tensors if name not in shapes), None)
    if extra is not None:
        raise RungError(f"{source}: tensor {extra!r} has no place in a GPT-2 of its sizes.")


# ---------------------------------------------------------------- the tokenizer


def _write_tokenizer(source: Path, folder: Path) -> None:
    """The tokenizer next to the checkpoint: its files, or nanoGPT's meta.pkl with the characters of its text."""
    for name in TOKENIZERS:
        if (source.parent / name).is_file():
            shutil.copy(source.parent / name, folder / name)
    meta = source.parent / "meta.pkl"
    if not (folder / "tokenizer.json").exists() and meta.is_file():
        characters = _characters(meta)
        if characters is not None:
            _character_tokenizer(characters).save(str(folder / "tokenizer.json"))


class _DataOnly(pickle.Unpickler):
    """Numbers, texts and dictionaries; anything that names a class or a function is refused."""

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        raise pickle.UnpicklingError(f"{module}.{name}")


def _characters(meta: Path) -> dict[str, int] | None:
    """nanoGPT's table of characters; None if it is not one, or has characters of several bytes."""
    try:
        with meta.open("rb") as file:
            table = _DataOnly(file).load().get("stoi")
    except (pickle.UnpicklingError, EOFError, AttributeError, ValueError, IndexError, KeyError):
        raise RungError(f"{meta} holds more than a table of characters; move it away to load tokens alone.") from None
    plain = isinstance(table, dict) and all(
        isinstance(c, str) and len(c) == 1 and c.isascii() and isinstance(i, int) for c, i in table.items()
    )
    return table if plain else None


def _character_tokenizer(characters: Mapping[str, int]) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    from rung.gpt2.tokenizer import byte_alphabet

    written = {byte: letter for letter, byte in byte_alphabet().items()}
    tokenizer = Tokenizer(models.BPE(vocab={written[ord(c)]: i for c, i in characters.items()}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer
