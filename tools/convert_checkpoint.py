"""Checkpoints of other trainers as folders in Hugging Face's layout: nanoGPT's ckpt.pt and llm.c's .bin.

    python tools/convert_checkpoint.py out-shakespeare/ckpt.pt my-model && rung generate -m my-model

Both keep matrices as (outputs, inputs), where GPT-2's own files have (inputs, outputs). nanoGPT computes GELU by erf
and may have no biases; llm.c computes GELU by tanh and pads its vocabulary.
"""

from __future__ import annotations

import argparse
import io
import json
import pickle
import pickletools
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from gpuless.base import files
from gpuless.base.files import shown
from rung.errors import RungError
from rung.models.family import Config, parse_config
from rung.models.tensors import SAFETENSORS, is_plain, load_pickled, require_file
from rung.models.weights import expected

LLMC_MAGIC = 20240326
LLMC_TYPES: dict[int, tuple[np.dtype[Any], torch.dtype]] = {
    3: (np.dtype("<f4"), torch.float32),
    5: (np.dtype("<u2"), torch.bfloat16),
}
LLMC_HEADER = 256  # words of four bytes
COMPILED = "_orig_mod."  # torch.compile puts this before every name
TOKENIZERS = ("tokenizer.json", "vocab.json", "merges.txt")
META = 1 << 20  # bytes of nanoGPT's table of characters at most


def convert(source: Path, folder: Path) -> Config:
    """Write the checkpoint as a model's folder: config.json, model.safetensors, and the tokenizer if it is known."""
    fields, tensors = _read(source)
    config = parse_config(fields, str(source))
    _check(source, config, tensors)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, folder / SAFETENSORS, metadata={"format": "pt"})
        _write_tokenizer(source, folder, config.vocabulary)
        (folder / "config.json").write_text(json.dumps(fields, indent=2) + "\n")  # last: a folder with it is complete
    except (OSError, SafetensorError) as error:  # a full disk
        problem = getattr(error, "strerror", None) or error
        raise RungError(f"{folder} cannot be written ({problem}); name another folder.") from None
    return config


def _read(source: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    try:
        with files.opened(source) as file:
            start = file.read(8)
        require_file(source)
    except OSError as error:
        raise RungError(f"{source} cannot be read ({error.strerror}); name a checkpoint.") from None
    if len(start) == 8 and int.from_bytes(start[:4], "little") == LLMC_MAGIC:
        return _llmc(source)
    if start[:4] == b"PK\x03\x04" or source.suffix == ".pt":
        return _nanogpt(source)
    raise RungError(
        f"{source} is a file, and neither GGUF nor nanoGPT's ckpt.pt nor llm.c's .bin; name one of these, or a folder "
        "that holds config.json and the weights."
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
        "eos_token_id": 50256 if isinstance(vocabulary, int) and vocabulary > 50256 else None,
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
    config = parse_config(fields, str(source))
    tensors, family = dict[str, torch.Tensor](), config.family
    for key, value in state.items():
        name = str(key).removeprefix(COMPILED).removeprefix(family.prefix)
        if re.fullmatch(family.ignored, name) or name == "lm_head.weight":  # tied to wte
            continue
        if not isinstance(value, torch.Tensor) or not is_plain(value):
            raise RungError(f"{source}: {shown(key)} is not a plain tensor; save it as one.")
        matrix = name.startswith("h.") and value.ndim == 2
        tensors[name] = (value.t() if matrix else value).detach().contiguous()
    _require_layers(source, config, tensors)
    if shape.get("bias", True) is False:
        for name, size in expected(config).items():
            if name.endswith(".bias") and name not in tensors:
                tensors[name] = torch.zeros(size, dtype=torch.float32, device="cpu")
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
    specs = [spec for spec in config.family.tensors(config) if not spec.same_as]
    order = []
    for spec in specs:
        size = (padded, config.C) if spec.operand == "wte" else spec.computed(config)
        order.append((spec, (layers, *size) if spec.layered else size))
    expected_bytes = LLMC_HEADER * 4 + sum(int(np.prod(size, dtype=object)) for _, size in order) * stored.itemsize
    if expected_bytes != source.stat().st_size:
        raise RungError(f"{source} has {source.stat().st_size:,} bytes, but its header requires {expected_bytes:,}.")
    data = np.memmap(source, dtype=stored, mode="c", offset=LLMC_HEADER * 4)
    tensors: dict[str, torch.Tensor] = {}
    place = 0
    for spec, size in order:
        count = int(np.prod(size))
        raw = torch.from_numpy(data[place : place + count])
        place += count
        whole = (raw.view(kind) if kind == torch.bfloat16 else raw).view(size)
        if spec.operand == "wte":
            whole = whole[:vocabulary]
        for i, part in enumerate(whole if spec.layered else [whole]):
            tensors[spec.name.format(i=i)] = (part.t() if spec.transposed else part).clone().contiguous()
    return fields, tensors


def _require_layers(source: Path, config: Config, tensors: Mapping[str, torch.Tensor]) -> None:
    if config.layers > len(tensors):  # checked before tensors of a billion layers are named
        raise RungError(f"{source} has fewer tensors than it names layers ({config.layers:,}).")


def _check(source: Path, config: Config, tensors: Mapping[str, torch.Tensor]) -> None:
    _require_layers(source, config, tensors)
    shapes = expected(config)
    for name, size in shapes.items():
        if name not in tensors:
            raise RungError(f"{source} lacks the tensor {name!r}.")
        if tuple(tensors[name].shape) != size:
            raise RungError(f"{source}: {name!r} has the shape {tuple(tensors[name].shape)}, not {size}.")
    extra = next((name for name in tensors if name not in shapes), None)
    if extra is not None:
        raise RungError(f"{source}: tensor {shown(extra)} has no place in a GPT-2 of its sizes.")


# ---------------------------------------------------------------- the tokenizer


def _write_tokenizer(source: Path, folder: Path, vocabulary: int) -> None:
    """The tokenizer next to the checkpoint: its files, or nanoGPT's meta.pkl with the characters of its text."""
    for name in TOKENIZERS:
        if (source.parent / name).is_file():
            shutil.copy(source.parent / name, folder / name)
    meta = source.parent / "meta.pkl"
    if not (folder / "tokenizer.json").exists() and meta.is_file():
        characters = _characters(meta, vocabulary)
        if characters is not None:
            _character_tokenizer(characters).save(str(folder / "tokenizer.json"))


class _DataOnly(pickle.Unpickler):
    """Numbers, texts and dictionaries; anything that names a class or a function is refused."""

    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        raise pickle.UnpicklingError(f"{module}.{name}")


def _characters(meta: Path, vocabulary: int) -> dict[str, int] | None:
    """nanoGPT's table of characters; None if it is not one, or has characters of several bytes."""
    data = files.read_bytes(meta, META)
    try:
        for operation, argument, _ in pickletools.genops(data):  # memory for as many values as its largest number
            if "PUT" in operation.name and not (isinstance(argument, int) and argument < len(data)):
                raise pickle.UnpicklingError
        table = _DataOnly(io.BytesIO(data)).load().get("stoi")
    except Exception:  # any error that a broken pickle causes in Python's own functions
        raise RungError(f"{meta} holds more than a table of characters; move it away to load tokens alone.") from None
    if not isinstance(table, dict) or not all(isinstance(c, str) and len(c) == 1 and c.isascii() for c in table):
        return None
    if not table or any(type(i) is not int or not 0 <= i < vocabulary for i in table.values()):
        raise RungError(f"{meta} has tokens outside the vocabulary of {vocabulary:,}; move it away, or copy it again.")
    if len(set(table.values())) < len(table):
        raise RungError(f"{meta} has one token for several characters; move it away, or copy it again.")
    return table


def _character_tokenizer(characters: Mapping[str, int]) -> Any:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    from rung.models.tokenizer import byte_alphabet

    written = {byte: letter for letter, byte in byte_alphabet().items()}
    tokenizer = Tokenizer(models.BPE(vocab={written[ord(c)]: i for c, i in characters.items()}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path, help="nanoGPT's ckpt.pt, or llm.c's .bin")
    parser.add_argument("folder", type=Path, help="the folder to write: config.json, model.safetensors")
    given = parser.parse_args(words)
    try:
        if given.folder.exists() and any(given.folder.iterdir()):
            raise RungError(f"{given.folder} exists and is not empty; name a new folder.")
        config = convert(given.checkpoint, given.folder)
    except RungError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{given.folder}: {config.layers} layers, {config.C} channels, a vocabulary of {config.vocabulary:,}")
    if not (given.folder / "tokenizer.json").exists():
        print("no tokenizer was found next to the checkpoint: copy tokenizer.json into the folder to write text")
    return 0


if __name__ == "__main__":
    sys.exit(main())
