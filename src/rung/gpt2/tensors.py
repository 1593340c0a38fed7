"""Tensor files: safetensors (one file or shards) and PyTorch's .bin, checked before anything is loaded.

A reader gives names and shapes first, so that a wrong model is refused with one sentence, and single
tensors after that, so that a large model is never in memory twice.
"""

from __future__ import annotations

import json
import pickle
import struct
import warnings
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from rung.errors import RungError

SAFETENSORS, BIN = "model.safetensors", "pytorch_model.bin"


def open_tensors(folder: Path) -> list[TensorFile]:
    """The files that hold a folder's weights; safetensors come before .bin."""
    for name, kind in ((SAFETENSORS, Safetensors), (BIN, Pickled)):
        if (folder / name).is_file():
            return [kind(folder / name)]
        index = folder / f"{name}.index.json"
        if index.is_file():
            return [kind(folder / shard) for shard in shards(index)]
    raise RungError(
        f"{folder} holds no weights: neither {SAFETENSORS} nor {BIN}, whole or in shards, is there."
    )


def shards(index: Path) -> list[str]:
    """The names of the files that an index of shards lists."""
    try:
        files = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        raise RungError(f"{index} is not an index of shards; fetch the model again.") from None
    if not files:
        raise RungError(f"{index} lists no shard; fetch the model again.")
    for file in files:
        if not isinstance(file, str) or Path(file).name != file:
            raise RungError(
                f"{index} lists the shard {file!r}, which is not a file beside it; fetch it again."
            )
    return files


class Safetensors:
    """One safetensors file; its header is checked against the file's size when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.shapes = _checked_header(path)

    @cached_property
    def _file(self) -> Any:
        from safetensors import safe_open

        return safe_open(self.path, framework="pt")

    def read(self, name: str) -> torch.Tensor:
        from safetensors import SafetensorError

        try:
            tensor: torch.Tensor = self._file.get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise RungError(
                f"{self.path}: tensor {name!r} cannot be read ({error}); fetch it again."
            ) from None
        return tensor


def _checked_header(path: Path) -> dict[str, tuple[int, ...]]:
    # The format: the header's length in 8 bytes, the header in JSON, then the bytes of all tensors.
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if 8 + length > size:
                raise ValueError
            header = json.loads(file.read(length))
    except FileNotFoundError:
        raise RungError(
            f"{path} is missing, though the index of shards lists it; fetch the model again."
        ) from None
    except (OSError, ValueError, struct.error):
        raise RungError(
            f"{path} is not a safetensors file, or is cut off in its header; fetch it again."
        ) from None
    shapes: dict[str, tuple[int, ...]] = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        try:
            end = 8 + length + entry["data_offsets"][1]
            shapes[name] = tuple(int(n) for n in entry["shape"])
        except (KeyError, TypeError, IndexError, ValueError):
            raise RungError(
                f"{path}: the header's entry for tensor {name!r} is broken; fetch it again."
            ) from None
        if end > size:
            raise RungError(
                f"{path}: tensor {name!r} ends at byte {end:,}, the file at {size:,}; fetch it again."
            )
    return shapes


class Pickled:
    """One .bin file, read without running any code that it may hold."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            # Files older than PyTorch 1.6 are no zip archives, and only those can be mapped.
            with path.open("rb") as file:
                mapped = file.read(4) == b"PK\x03\x04"
            with warnings.catch_warnings(action="ignore"):  # a foreign pickle is told in one sentence below
                loaded: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
        except FileNotFoundError:
            raise RungError(
                f"{path} is missing, though the index of shards lists it; fetch it again."
            ) from None
        except pickle.UnpicklingError as error:
            reason = "is cut off or no PyTorch file; fetch it again"
            if "nsupported" in str(error):  # a global, a class or an operation: all that is not data
                reason = "holds more than tensors, and loading that could run code; convert it to safetensors"
            raise RungError(f"{path} {reason}.") from None
        except (RuntimeError, OSError, EOFError, ValueError, KeyError):
            raise RungError(f"{path} is cut off or no PyTorch file; fetch it again.") from None
        if not isinstance(loaded, dict) or not all(
            isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in loaded.items()
        ):
            raise RungError(f"{path} does not hold named tensors; fetch the model again.")
        self._tensors: dict[str, torch.Tensor] = loaded
        self.shapes = {name: tuple(tensor.shape) for name, tensor in loaded.items()}

    def read(self, name: str) -> torch.Tensor:
        return self._tensors[name]


TensorFile = Safetensors | Pickled
