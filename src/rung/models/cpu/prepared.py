"""Weights in the form in which they are used, kept in rung's cache: a file in another form is converted once.

A file of the cache is a length, that many bytes of JSON (each tensor's type, shape and place) and the tensors, each at
a multiple of 64 bytes. It is read into one piece of memory, without torch.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import mmap
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from gpuless.base import disk_cache
from rung.errors import RungError
from rung.lazy import torch
from rung.models.family import Config
from rung.models.folders import state_of
from rung.models.weights import Item, Linear, Weights, assembled, items

FORMAT = 1  # of the files, and of what is in them
ALIGNED = 64
KEPT = 4  # files, those used last
ARRAYS = {"float32": np.float32, "bfloat16": np.int16, "int8": np.int8}


def prepared(folder: Path, config: Config, dtype: str, read: Callable[[], Weights]) -> Weights:
    """The folder's weights as `read` makes them; from the cache, if they are there for this state of its files."""
    try:
        where = disk_cache.folder("weights")
        state = state_of(folder.iterdir()) + f"{dtype} {FORMAT} {replace(config, context=1)}".encode()
        path = where / f"{hashlib.sha256(state).hexdigest()[:24]}.weights"
        if path.is_file():
            os.utime(path)
            return _load(path, config)
    except (OSError, RungError, ValueError, KeyError):  # a cache that cannot be used, or a file that is cut off
        return read()
    weights = read()
    with contextlib.suppress(OSError):  # a full disk
        _store(weights, path)
        for old in sorted(where.glob("*.weights"), key=lambda one: -one.stat().st_mtime_ns)[KEPT:]:
            old.unlink(missing_ok=True)
    return weights


class Stored(Weights):
    """Weights as arrays, by their names; tensors of the same memory are made when one is asked for."""

    def __init__(self, config: Config, whole: np.ndarray, tensors: dict[str, tuple[str, list[int], int]]) -> None:
        super().__init__(config=config)
        self.whole, self.dtypes = whole, {name: dtype for name, (dtype, _, _) in tensors.items()}
        self.arrays = dict[str, np.ndarray]()
        for name, (dtype, shape, at) in tensors.items():
            kind = np.dtype(ARRAYS[dtype])
            self.arrays[name] = whole[at : at + math.prod(shape) * kind.itemsize].view(kind).reshape(shape)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "layers" in vars(self):
            raise AttributeError(name)
        vars(self).update(vars(assembled(self.config, self._made)))
        return getattr(self, name)

    def nbytes(self) -> int:
        return self.whole.nbytes

    def _made(self, item: Item) -> Linear | torch.Tensor:
        name = _name(item)
        scale = self._tensor(f"{name}.scale") if f"{name}.scale" in self.arrays else None
        return Linear(self._tensor(name), scale=scale) if item.spec.matrix else self._tensor(name)

    def _tensor(self, name: str) -> torch.Tensor:
        return torch.from_numpy(self.arrays[name]).view(getattr(torch, self.dtypes[name]))


def arrays_of(weights: Weights) -> dict[str, np.ndarray]:
    """The numbers of weights on the host by their names, bfloat16 as integers; what is tied is there once."""
    if isinstance(weights, Stored):
        return weights.arrays
    return {
        name: (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
        for name, tensor in _named(weights)
    }


def _named(weights: Weights) -> Iterator[tuple[str, torch.Tensor]]:
    for item in items(weights.config):
        if item.spec.matrix:
            linear = item.matrix(weights)
            yield _name(item), linear.weight
            if linear.scale is not None:
                yield _name(item) + ".scale", linear.scale
        elif (tensor := item.of(weights)) is not None:
            yield _name(item), tensor.float()


def _name(item: Item) -> str:
    return item.spec.role if item.layer is None else f"{item.layer}.{item.spec.role}"


def _store(weights: Weights, path: Path) -> None:
    places: dict[str, Any] = {}
    tensors = dict(_named(weights))
    end = 0
    for name, tensor in tensors.items():
        places[name] = [str(tensor.dtype).removeprefix("torch."), list(tensor.shape), end]
        end += -(-tensor.nbytes // ALIGNED) * ALIGNED
    head = json.dumps({"size": end, "tensors": places}).encode()
    head += b" " * (-(8 + len(head)) % ALIGNED)
    handle, made = tempfile.mkstemp(dir=path.parent, prefix=".weights-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(len(head).to_bytes(8, "little") + head)
            for tensor in tensors.values():
                file.write(_bytes_of(tensor.contiguous().view(-1).view(torch.uint8)))
                file.write(b"\0" * (-tensor.nbytes % ALIGNED))
        Path(made).replace(path)
    except OSError:
        Path(made).unlink(missing_ok=True)
        raise


def _bytes_of(tensor: torch.Tensor) -> Any:
    return memoryview(tensor.numpy())  # type: ignore[arg-type]


def _load(path: Path, config: Config) -> Weights:
    with path.open("rb") as file:
        head = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        whole = mmap.mmap(-1, head["size"], flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if file.readinto(whole) != head["size"]:
            raise ValueError
    return Stored(config, np.frombuffer(whole, np.uint8), head["tensors"])
