"""Tensor files: safetensors (one file or shards), PyTorch's .bin and GGUF, checked before anything is loaded.

A reader gives names and shapes first, so that a wrong model is refused with one sentence, and then one tensor at a
time, so that a large model is never in memory twice.

Tensors are made with an explicit dtype and device: torch's defaults are the caller's, who may change them at any time.
Native code and kernels write into tensors by address, so that one of another size or place corrupts memory. A test
finds each call of torch in this package that leaves its dtype or its device to a default.
"""

from __future__ import annotations

import errno
import json
import math
import mmap
import operator
import pickle
import re
import struct
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from gpuless.base import files
from gpuless.base.files import shown
from rung.errors import RungError, first_line
from rung.lazy import torch

SAFETENSORS, BIN, GGUF = "model.safetensors", "pytorch_model.bin", "model.gguf.json"
ADAPTER = "adapter_config.json"  # peft's, beside adapter_model.safetensors or .bin
HOLES = 1 << 28  # bytes of a file from which its holes matter
HEADER = 100_000_000  # bytes of a header at most, by the format's definition


class TensorFile(Protocol):
    """A file's tensors by their names there."""

    path: Path

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]: ...

    def read(self, name: str) -> torch.Tensor: ...


def open_tensors(folder: Path) -> list[TensorFile]:
    """The files that hold a folder's weights, with the folder's adapter if it has one."""
    found = _open(folder)
    return adapted(found, folder) if (folder / ADAPTER).is_file() else found


def _open(folder: Path) -> list[TensorFile]:
    """Safetensors come before .bin."""
    if (folder / GGUF).is_file():
        return [Gguf(folder / GGUF)]
    for name, kind in ((SAFETENSORS, Safetensors), (BIN, Pickled)):
        if (folder / name).is_file():
            return [kind(folder / name)]
        index = folder / f"{name}.index.json"
        if index.is_file():
            return [kind(folder / shard) for shard in shards(index)]
    raise RungError(f"{folder} holds no weights: neither {SAFETENSORS} nor {BIN}, whole or in shards, is there.")


def shards(index: Path) -> list[str]:
    """The names of the files that an index of shards lists."""
    try:
        names = sorted(set(files.read_json(index, "fetch the model again")["weight_map"].values()))
    except (OSError, KeyError, AttributeError, TypeError):
        raise RungError(f"{index} is not an index of shards; fetch the model again.") from None
    if not names:
        raise RungError(f"{index} lists no shard; fetch the model again.")
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or "\0" in name or len(name) > 200:
            raise RungError(f"{index} lists the shard {shown(name)}, which is not a file beside it; fetch it again.")
    return names


def require_file(path: Path) -> None:
    """Refuses pipes, which could block, devices, which may never end, and large files that are mostly holes, as a
    download leaves behind that broke off: in memory, holes are as large as data.
    """
    if not path.exists():
        raise RungError(f"{path} is missing, though the index of shards lists it; fetch the model again.")
    if not path.is_file():
        raise RungError(f"{path} is not a regular file; fetch the model again.")
    facts = path.stat()
    present = facts.st_blocks * 512  # 0 where a file system does not count
    if facts.st_size > HOLES and 0 < present < facts.st_size // 4:
        raise RungError(
            f"{path} has {facts.st_size >> 20:,} MB, of which only {present >> 20:,} are there; fetch it again."
        )


MAPPED = 32 << 20  # bytes that are read of a file until it is mapped anew


class Safetensors:
    """One safetensors file; its header is checked against the file's size when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.shapes = _checked_header(path)
        self._touched = 0  # bytes of the present mapping

    @cached_property
    def _file(self) -> Any:
        from safetensors import safe_open

        return safe_open(self.path, framework="pt")

    def read(self, name: str) -> torch.Tensor:
        from safetensors import SafetensorError

        try:
            tensor: torch.Tensor = self._file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            problem = first_line(error)
            raise RungError(f"{self.path}: tensor {shown(name)} cannot be read ({problem}); fetch it again.") from None
        self._touched += tensor.nbytes
        if self._touched > MAPPED:  # mapped anew: what was read of the file no longer counts as this process's memory
            self._touched = 0
            self.__dict__.pop("_file", None)
        return tensor


def _checked_header(path: Path) -> dict[str, tuple[int, ...]]:
    # The format: the header's length in 8 bytes, the header in JSON, then the bytes of all tensors.
    require_file(path)
    try:
        size = path.stat().st_size
        with files.opened(path) as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if 8 + length > size or length > HEADER:
                raise ValueError
            header = json.loads(file.read(length))
        if not isinstance(header, dict):
            raise ValueError
    except (OSError, ValueError, RecursionError, struct.error):
        raise RungError(f"{path} is not a safetensors file, or is cut off in its header; fetch it again.") from None
    shapes: dict[str, tuple[int, ...]] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            _, end = entry["data_offsets"]
            end, shape = 8 + length + operator.index(end), tuple(map(operator.index, entry["shape"]))
            if min(shape, default=0) < 0:
                raise ValueError
        except (KeyError, TypeError, ValueError):
            raise RungError(f"{path}: the header's entry for tensor {shown(name)} is broken; fetch it again.") from None
        if end > size:
            raise RungError(
                f"{path}: tensor {shown(name)} ends at byte {shown(end)}, the file at {size:,}; fetch it again."
            )
        shapes[name] = shape
    return shapes


class Pickled:
    """One .bin file, read without running any code that it may hold."""

    def __init__(self, path: Path) -> None:
        self.path = path
        loaded = load_pickled(path, "fetch it again", "convert it to safetensors")
        if not isinstance(loaded, dict) or not all(
            isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in loaded.items()
        ):
            raise RungError(f"{path} does not hold named tensors; fetch the model again.")
        for name, tensor in loaded.items():
            if not is_plain(tensor):
                raise RungError(f"{path}: tensor {shown(name)} is not dense; save it as a plain one.")
        self._tensors: dict[str, torch.Tensor] = {name: tensor.detach() for name, tensor in loaded.items()}
        self.shapes = {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def read(self, name: str) -> torch.Tensor:
        return self._tensors[name]


def read_blocks(source: Path, shape: tuple[int, ...], format: int, at: int) -> torch.Tensor:
    """A tensor of a GGUF file, in float32, by its format and place there."""
    import gguf

    kind = gguf.GGMLQuantizationType(format)
    width = gguf.quant_shape_to_byte_shape(shape, kind)
    with files.opened(source) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
        raw = np.frombuffer(whole[at : at + int(np.prod(width))], np.uint8).reshape(width)
        return torch.from_numpy(np.array(gguf.dequantize(raw, kind), np.float32)).view(*shape)


class Gguf:
    """The tensors of a file, by the index in its folder."""

    def __init__(self, index: Path) -> None:
        try:
            found = files.read_json(index, "remove the folder")
            self.path, self._places = Path(found["file"]), found["tensors"]
            self.shapes = {n: tuple(s[::-1] if turned else s) for n, (s, _, _, turned, *_) in self._places.items()}
        except (OSError, ValueError, KeyError, TypeError):
            raise RungError(f"{index} is not an index of a GGUF file; remove its folder.") from None
        require_file(self.path)

    def read(self, name: str) -> torch.Tensor:
        shape, format, at, turned, heads, less = self._places[name]
        try:
            tensor = read_blocks(self.path, tuple(shape), format, at)
        except Exception as error:  # a format that is unknown, or a file that is cut off
            if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
                raise MemoryError from None
            raise RungError(f"{self.path}: tensor {shown(name)} cannot be read; fetch it again.") from None
        if heads:  # llama.cpp turns neighbouring channels, Hugging Face's files the halves of a head
            tensor = tensor.view(heads, -1, 2, *shape[1:]).transpose(1, 2).reshape(shape)
        tensor = tensor - less if less else tensor
        return tensor.t() if turned else tensor


# ---- low-rank adapters -----------------------------------------------------------------------------------------------


class Adapted:
    """A file whose matrices W are W + scale B A for the modules of an adapter; sums are made in float32."""

    def __init__(self, file: TensorFile, adapter: Mapping[str, tuple[float, torch.Tensor, torch.Tensor]]) -> None:
        self._file, self._adapter = file, adapter
        self.path, self.shapes = file.path, file.shapes

    def read(self, name: str) -> torch.Tensor:
        tensor = self._file.read(name)
        if name not in self._adapter or not tensor.is_floating_point():
            return tensor
        scale, a, b = self._adapter[name]  # (rank, inputs), (outputs, rank), or turned as the matrix is
        return tensor.float() + scale * (b @ a)


def adapted(found: Sequence[TensorFile], folder: Path) -> list[TensorFile]:
    """The files with the matrices of the folder's LoRA adapter added."""
    settings, home = read_adapter(folder), (folder / ADAPTER).resolve().parent  # messages name the user's files
    whole = home / "adapter_model.safetensors"
    if not whole.is_file() and not whole.with_suffix(".bin").is_file():
        raise RungError(f"{home} has neither adapter_model.safetensors nor adapter_model.bin; save the adapter again.")
    parts = Safetensors(whole) if whole.is_file() else Pickled(whole.with_suffix(".bin"))
    if not parts.shapes:
        raise RungError(f"{parts.path} holds no matrices; save the adapter again.")
    halves = dict[str, dict[str, torch.Tensor]]()
    for key in parts.shapes:
        named = re.fullmatch(r"base_model\.model\.(.+)\.lora_([AB])\.weight", key)
        if named is None:
            raise RungError(f"{parts.path}: tensor {shown(key)} is not a plain LoRA's; merge that adapter with peft.")
        halves.setdefault(named[1], {})[named[2]] = parts.read(key).float()
    shapes = {name: shape for file in found for name, shape in file.shapes.items()}
    places, alphas = dict[str, tuple[float, torch.Tensor, torch.Tensor]](), settings.get("alpha_pattern") or {}
    if not all(re.fullmatch(r"[\w.]+", pattern) for pattern in alphas):
        raise RungError(f"{home / ADAPTER} has expressions in alpha_pattern; merge that adapter with peft.")
    for module, both in halves.items():
        # Files of some models leave out the first part of a name.
        place = next((p for p in (f"{module}.weight", f"{module.partition('.')[2]}.weight") if p in shapes), "")
        a, b = both.get("A"), both.get("B")
        if a is None or b is None or a.ndim != 2 or b.ndim != 2 or len(a) != b.shape[1]:
            raise RungError(f"{parts.path}: module {shown(module)} has no pair of matrices; save the adapter again.")
        if settings.get("fan_in_fan_out"):
            a, b = b.t(), a.t()
        if shapes.get(place) != (len(b), a.shape[1]):
            base = found[0].path.resolve()
            raise RungError(f"{parts.path}: module {shown(module)} fits no matrix of its base model, {base}.")
        rank = min(a.shape[0], b.shape[1])
        alpha = next((n for p, n in alphas.items() if f".{module}".endswith(f".{p}")), settings["lora_alpha"])
        places[place] = (alpha / (math.sqrt(rank) if settings.get("use_rslora") else rank), a, b)
    return [Adapted(file, places) for file in found]


def read_adapter(folder: Path) -> dict[str, Any]:
    """An adapter's settings, those of a plain LoRA."""
    try:
        found = files.read_json(folder / ADAPTER, "save the adapter again")
    except OSError as error:
        raise RungError(f"{folder / ADAPTER} cannot be read ({error.strerror}); save the adapter again.") from None
    kinds = {"peft_type": str, "lora_alpha": int | float, "base_model_name_or_path": str}
    plain = isinstance(found, dict) and all(isinstance(found.get(name), kind) for name, kind in kinds.items())
    rank = found.get("r", 8) if isinstance(found, dict) else 0
    if not plain or found["peft_type"] != "LORA" or type(rank) is not int or rank < 1:
        raise RungError(f"{folder / ADAPTER} does not describe a LoRA of a base model; save the adapter with peft.")
    return dict(found)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements are in the file, each of them: with a stride of 0, one counts as a billion."""
    if tensor.is_nested or tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
        return False
    return tensor.nbytes <= tensor.untyped_storage().nbytes()


def load_pickled(path: Path, remedy: str, otherwise: str) -> Any:
    """The content of a PyTorch file, read without running any code that it may hold."""
    require_file(path)
    try:
        # Files older than PyTorch 1.6 are not zip archives, and only zip archives can be mapped.
        with files.opened(path) as file:
            mapped = file.read(4) == b"PK\x03\x04"
        if mapped and any(entry.compress_type for entry in zipfile.ZipFile(path).infolist()):
            raise RungError(f"{path} is compressed, which PyTorch's files are not; {remedy}.")
        with warnings.catch_warnings(action="ignore"):  # a foreign pickle is reported in one sentence below
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except RungError:
        raise
    except pickle.UnpicklingError as error:
        if "nsupported" in str(error):  # a global, a class or an operation: anything that is not data
            raise RungError(f"{path} holds more than tensors, and loading that could run code; {otherwise}.") from None
    except Exception:  # any error that a broken pickle causes in torch's own functions
        pass
    raise RungError(f"{path} is cut off or no PyTorch file; {remedy}.") from None


def integers(numbers: Sequence[Any], device: torch.device | str = "cpu") -> torch.Tensor:
    """Integers of 64 bits."""
    return torch.tensor(numbers, dtype=torch.int64, device=device)


def floats(numbers: Sequence[Any], device: torch.device | str = "cpu") -> torch.Tensor:
    """Floats of 32 bits."""
    return torch.tensor(numbers, dtype=torch.float32, device=device)


def empty(*shape: int) -> torch.Tensor:
    """Floats of 32 bits on the host, not initialised."""
    return torch.empty(shape, dtype=torch.float32, device="cpu")


@contextmanager
def plain_torch(device: torch.device) -> Iterator[None]:
    """Inside the block neither the caller's autocast nor its default device counts, and no gradient is recorded."""
    with torch.autocast(device.type, enabled=False), torch.device("cpu"), torch.no_grad():
        yield
