"""llama.cpp's files: the config, the tokenizer and the chat template that a GGUF file holds, and its tensors where they
are, dequantised as they are read.

The header is read here, with bounds, since the package's own reader follows whatever lengths a file names; names of
tensors and formats of numbers are the package's.
"""

from __future__ import annotations

import json
import shutil
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gpuless.base import files
from gpuless.base.files import shown
from rung.errors import RungError, with_extra
from rung.models import tokenizer as tokenizers_of
from rung.models.family import Config, parse_config
from rung.models.rope import Rope
from rung.models.tensors import GGUF, read_blocks, require_file
from rung.models.weights import expected, items

MAGIC = b"GGUF"
HEADER = 1 << 26  # bytes of a header at most
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
CONTROL, DEFINED = 3, 4  # kinds of tokens
# config.json's names of what a file's fields say; each family reads its own.
FIELDS = {
    "hidden_size": "embedding_length", "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv", "head_dim": "attention.key_length",
    "intermediate_size": "feed_forward_length", "n_inner": "feed_forward_length",
    "max_position_embeddings": "context_length", "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "layer_norm_epsilon": "attention.layer_norm_epsilon", "norm_epsilon": "attention.layer_norm_epsilon",
    "rope_theta": "rope.freq_base", "rope_local_base_freq": "rope.freq_base_swa",
    "sliding_window": "attention.sliding_window", "query_pre_attn_scalar": "attention.key_length",
}  # fmt: skip
ARCHITECTURES = {"gpt2": "gpt2", "llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "gemma3": "gemma3_text",
                 "starcoder2": "starcoder2"}  # and the type of model in config.json  # fmt: skip
LONGEST_PIECE = 1024  # characters of a token that is made by merges
_WORD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# How a text is divided before its bytes are merged: an expression, digits, or GPT-2's own way.
DIVISIONS = {
    "gpt-2": "", "gpt2": "", "smollm": "digits", "starcoder": "digits", "llama-bpe": _WORD % r"\p{N}{1,3}",
    "qwen2": _WORD % r"\p{N}",
}  # fmt: skip


def is_gguf(source: Path) -> bool:
    """Whether a file begins as GGUF files do."""
    try:
        with files.opened(source) as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def beside(source: Path) -> list[Path]:
    """A tokenizer next to the file is taken in place of the file's own."""
    return [path for path in (source.parent / tokenizers_of.FILES[0],) if path.is_file()]


def convert(source: Path, folder: Path) -> Config:
    """Write a model's folder for the file; the tensors stay where they are."""
    try:
        import gguf  # noqa: F401 - needed below, and when tensors are read
    except ModuleNotFoundError:
        raise RungError(f"GGUF files need the package gguf; install it: {with_extra('gguf')}.") from None
    try:
        fields, tensors = _header(source)
        config, settings = _config(source, fields, tensors)
        index = _index(source, config, fields, tensors)
        made = None if beside(source) else _tokenizer(source, fields)
    except RungError:
        raise
    except KeyError as error:
        what = f"lacks {shown(error.args[0])}"
        raise RungError(f"{source} {what}; fetch it again.") from None
    except Exception as error:  # whatever else a broken file causes
        what = "is cut off, or its fields are not those of a model" + (f" ({str(error)[:80]})" if str(error) else "")
        raise RungError(f"{source} {what}; fetch it again.") from None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in beside(source):
            shutil.copy(file, folder / file.name)
        if made is not None:
            made.save(str(folder / tokenizers_of.FILES[0]))
        (folder / "tokenizer_config.json").write_text(json.dumps(_special(fields)))
        (folder / GGUF).write_text(json.dumps({"file": str(source.resolve()), "tensors": index}))
        (folder / "config.json").write_text(json.dumps(settings, indent=2) + "\n")  # last: a folder with it is complete
    except OSError as error:  # a full disk
        raise RungError(f"{folder} cannot be written ({error.strerror}); set RUNG_CACHE to another.") from None
    return config


# ---- the header ------------------------------------------------------------------------------------------------------


class _Bytes:
    """A file's first bytes, in the order in which they are read; ValueError beyond their end."""

    def __init__(self, content: bytes) -> None:
        self.content, self.at = content, 0
        self.reading = ""  # the name of the field

    def number(self, form: str) -> Any:
        (value,) = struct.unpack(f"<{form}", self.raw(struct.calcsize(f"<{form}")))
        return value

    def text(self) -> str:
        return self.raw(self.number("Q")).decode()

    def raw(self, count: int) -> bytes:
        if count > len(self.content) - self.at:
            raise ValueError(f"it ends within the field {shown(self.reading)}" if self.reading else "")
        self.at += count
        return self.content[self.at - count : self.at]

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.text()
        if kind != ARRAY:
            return self.number(self._form(kind))
        of, count = self.number("I"), self.number("Q")
        if of == STRING:
            return [self.text() for _ in range(count)]  # each has eight bytes at least
        dtype = np.dtype(self._form(of)).newbyteorder("<")
        return np.frombuffer(self.raw(count * dtype.itemsize), dtype)

    def _form(self, kind: int) -> str:
        if kind not in SCALARS:
            raise ValueError(f"the field {shown(self.reading)} has the unknown kind {kind}")
        return SCALARS[kind]


Tensors = dict[str, tuple[tuple[int, ...], int, int]]  # shape, format and place


def _header(source: Path) -> tuple[dict[str, Any], Tensors]:
    require_file(source)
    with files.opened(source) as file:
        content = _Bytes(file.read(HEADER))
    if content.raw(4) != MAGIC or content.number("I") not in (2, 3) or sys.byteorder != "little":
        raise ValueError
    count, pairs = content.number("Q"), content.number("Q")
    fields, tensors = dict[str, Any](), Tensors()
    for _ in range(pairs):
        content.reading = name = content.text()
        fields[name] = content.value(content.number("I"))
    content.reading = ""
    for _ in range(count):
        name, rank = content.text(), content.number("I")
        shape = tuple(content.number("Q") for _ in range(rank))[::-1]  # the last dimension is named first
        tensors[name] = (shape, content.number("I"), content.number("Q"))
    aligned = int(fields.get("general.alignment", 32))
    begin = -(-content.at // aligned) * aligned
    return fields, {name: (shape, kind, begin + at) for name, (shape, kind, at) in tensors.items()}


# ---- its parts -------------------------------------------------------------------------------------------------------


def _config(source: Path, fields: Mapping[str, Any], tensors: Tensors) -> tuple[Config, dict[str, Any]]:
    """The config, and the same as config.json."""
    kind = fields["general.architecture"]
    if kind not in ARCHITECTURES:
        raise RungError(f"{source} holds a {shown(kind)}; rung reads GGUF files of {', '.join(ARCHITECTURES)}.")
    found: dict[str, Any] = {name: fields.get(f"{kind}.{key}") for name, key in FIELDS.items()}
    found = {name: value for name, value in found.items() if value is not None}
    found |= {
        "model_type": ARCHITECTURES[kind], "vocab_size": tensors["token_embd.weight"][0][0],
        "tie_word_embeddings": "output.weight" not in tensors, "bos_token_id": _token(fields, "bos"),
        "eos_token_id": sorted({id for name in ("eos", "eot", "eom") if (id := _token(fields, name)) is not None}),
    }  # fmt: skip
    if "sliding_window" in found and kind == "llama":
        found["model_type"] = "mistral"
    if kind in ("llama", "qwen2", "qwen3"):  # biases are those that the file has
        names = {"attention_bias": "attn_output", "mlp_bias": "ffn_down"}
        found |= {field: f"blk.0.{name}.bias" in tensors for field, name in names.items()}
    scaling = fields.get(f"{kind}.rope.scaling.type", "none")
    if scaling != "none":
        found["rope_scaling"] = {"rope_type": scaling, "factor": fields.get(f"{kind}.rope.scaling.factor", 1.0)}
    if turned := fields.get(f"{kind}.rope.dimension_count"):
        heads, width = found["num_attention_heads"], found["hidden_size"]
        found["partial_rotary_factor"] = turned / found.get("head_dim", width // heads)
    if "rope_freqs.weight" not in tensors:
        return parse_config(found, str(source)), found
    # Llama 3's scaling is kept as its factors, one for each pair of channels.
    factors = read_blocks(source, *tensors["rope_freqs.weight"])
    found["rope_scaling"] = {
        "rope_type": "llama3", "factor": float(factors.max()), "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": fields.get(f"{kind}.rope.scaling.original_context_length", 8192),
    }  # fmt: skip
    config = parse_config(found, str(source))
    assert config.rope is not None
    plain, scaled = (rope.angles(config.HS, 2)[1] for rope in (Rope(config.rope.base), config.rope))
    if not np.allclose(plain / factors.double().numpy(), scaled, rtol=1e-4):
        raise RungError(f"{source} scales rotary positions by factors that are not Llama 3's; rung has no others.")
    return config, found


def _token(fields: Mapping[str, Any], name: str) -> int | None:
    found = fields.get(f"tokenizer.ggml.{name}_token_id")
    return None if found is None or found >= len(fields.get("tokenizer.ggml.tokens", ())) else int(found)


def _special(fields: Mapping[str, Any]) -> dict[str, Any]:
    """What tokenizer_config.json says of a chat."""
    tokens = fields.get("tokenizer.ggml.tokens", ())
    named = {f"{name}_token": tokens[id] for name in ("bos", "eos") if (id := _token(fields, name)) is not None}
    return {"chat_template": fields.get("tokenizer.chat_template"), **named}


def _index(source: Path, config: Config, fields: Mapping[str, Any], tensors: Tensors) -> dict[str, Any]:
    """Each tensor by its name in Hugging Face's files: format, shape and place here, and how it differs."""
    import gguf

    if config.layers > len(tensors):  # before the tensors of a billion layers are named
        raise RungError(f"{source} has fewer tensors than it names layers ({config.layers:,}).")
    kind, prefix = fields["general.architecture"], config.family.prefix
    arch = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == kind)
    names = gguf.get_tensor_name_map(arch, config.layers)
    found: dict[str, Any] = {}
    left = set(tensors) - {"rope_freqs.weight"}
    transposed = {spec.name.format(i=i) for spec in config.family.tensors(config) if spec.transposed
                  for i in range(config.layers)}  # fmt: skip
    # What a family adds to the numbers of its own files is in these already.
    less = {name: item.spec.plus for item in items(config) for name, *_ in item.files(config)}
    for name, shape in expected(config).items():
        here = names.get_name(prefix + name, (".weight", ".bias")) or names.get_name(name, (".weight", ".bias"))
        if here not in tensors:
            raise RungError(f"{source} lacks the tensor {here or name!r}.")
        stored, format, at = tensors[here]
        turned = name in transposed
        if stored != (shape[::-1] if turned else shape):
            raise RungError(f"{source}: tensor {shown(here)} has shape {stored}, but its fields require {shape}.")
        heads = {"attn_q": config.NH, "attn_k": config.NKV}.get(here.split(".")[-2], 0) if kind == "llama" else 0
        found[prefix + name] = [list(stored), format, at, turned, heads, less.get(name, 0.0)]
        left.discard(here)
    if left:
        raise RungError(f"{source}: tensor {shown(min(left))} has no place in a {config.family.title} of its fields.")
    return found


# ---- the tokenizer ---------------------------------------------------------------------------------------------------


def _tokenizer(source: Path, fields: Mapping[str, Any]) -> Any:
    """The file's tokenizer; None if it has none."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    kind = fields.get("tokenizer.ggml.model", "none")
    tokens, kinds = fields.get("tokenizer.ggml.tokens", []), fields.get("tokenizer.ggml.token_type", [])
    vocabulary = {token: id for id, token in enumerate(tokens)}
    begin = fields.get("tokenizer.ggml.add_bos_token", kind == "llama")
    if kind == "gpt2":
        division = fields.get("tokenizer.ggml.pre", "gpt-2")
        if division not in DIVISIONS:
            raise RungError(f"{source} divides texts as {shown(division)}; put tokenizer.json beside it.")
        merges = [tuple(pair.split(" ", 1)) for pair in fields["tokenizer.ggml.merges"]]
        made = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=division == "llama-bpe"))
        way = DIVISIONS[division]
        parts: list[Any] = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=way in ("", "digits"))]
        if way == "digits":
            parts.insert(0, pre_tokenizers.Digits(individual_digits=True))
        elif way:
            parts.insert(0, pre_tokenizers.Split(Regex(way), "isolated"))
        made.pre_tokenizer = pre_tokenizers.Sequence(parts)
        made.decoder = decoders.ByteLevel()
        if division == "qwen2":
            made.normalizer = normalizers.NFC()
    elif kind == "llama":
        scores = fields["tokenizer.ggml.scores"]
        merges = _merges(vocabulary, scores.tolist())
        unknown = tokens[fields.get("tokenizer.ggml.unknown_token_id", 0)]
        made = Tokenizer(models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
        space = [normalizers.Prepend("\u2581")] if fields.get("tokenizer.ggml.add_space_prefix", True) else []
        made.normalizer = normalizers.Sequence([*space, normalizers.Replace(" ", "\u2581")])
        made.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    else:
        return None
    made.add_tokens([
        AddedToken(token, normalized=False, special=what == CONTROL)
        for token, what in zip(tokens, kinds, strict=True) if what in (CONTROL, DEFINED)
    ])  # fmt: skip
    if begin and (bos := _token(fields, "bos")) is not None:
        single = f"{tokens[bos]} $A"
        made.post_processor = processors.TemplateProcessing(single=single, special_tokens=[(tokens[bos], bos)])
    return made


def _merges(vocabulary: Mapping[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """SentencePiece's order of merges: by the score of what they make."""
    found = [
        (scores[id], token[:at], token[at:])
        for token, id in vocabulary.items()
        for at in range(1, len(token) if len(token) <= LONGEST_PIECE else 0)
        if token[:at] in vocabulary and token[at:] in vocabulary
    ]
    found.sort(key=lambda one: -one[0])
    return [(left, right) for _, left, right in found]
