"""From a model's name to its folder: one that is there, one of the hub, or one in the cache that is made for a file of
another program or for an adapter."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from gpuless.base import files
from rung.errors import RungError
from rung.models.tensors import ADAPTER, read_adapter

CONVERTED = 4  # checkpoints of other trainers that are kept in converted form
INNER = Path(__file__).parent / "inner"


def find(model: str, *, revision: str | None = None, offline: bool = False) -> Path:
    """The folder of a model, fetched from the hub if it is an id of a model there."""
    if model == "inner":
        return INNER
    if not model.strip():
        raise RungError("the model's name is empty; name a folder, an id of the hub, or inner.")
    path = Path(model).expanduser()
    if path.is_dir():
        return path if (path / "config.json").exists() or not (path / ADAPTER).is_file() else _adapt(path, offline)
    if path.exists():
        return _convert(path)
    if model.startswith((".", "/", "~")) or model.count("/") > 1:
        raise RungError(f"there is no folder {model}; check the path.")
    from rung.models import hub

    if ":" in model:
        return _convert(hub.fetch_gguf(model, revision=revision, offline=offline))
    return hub.fetch(model, revision=revision, offline=offline)


def _convert(checkpoint: Path) -> Path:
    """The folder for a GGUF file, made once for each state of it and its tokenizer."""
    from rung.models import gguf

    if not gguf.is_gguf(checkpoint):
        raise RungError(
            f"{checkpoint} is a file and no GGUF; name a folder, or convert it: tools/convert_checkpoint.py in rung's "
            "repository reads nanoGPT's ckpt.pt and llm.c's .bin."
        )
    status = checkpoint.stat()
    state = f"{checkpoint.resolve()} {status.st_size} {status.st_mtime_ns}".encode()
    for file in gguf.beside(checkpoint):
        content = files.read_bytes(file)
        state += f" {file.name} {len(content)} ".encode() + content
    return _cached_folder(state, lambda folder: gguf.convert(checkpoint, folder))


def _adapt(adapter: Path, offline: bool) -> Path:
    """The folder of an adapter's base model with the adapter's files: links to both, made for each state of them."""
    name = read_adapter(adapter)["base_model_name_or_path"]
    if (Path(name).expanduser() / ADAPTER).exists():
        raise RungError(f"{adapter / ADAPTER} names {name}, which is an adapter itself; name the model that it adapts.")
    linked = (*find(name, offline=offline).iterdir(), *adapter.glob("adapter_*"))

    def link(folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for file in linked:
                (folder / file.name).unlink(missing_ok=True)
                (folder / file.name).symlink_to(file.resolve())
        except OSError as error:
            raise RungError(f"{folder} cannot be written ({error.strerror}); set RUNG_CACHE to another.") from None

    return _cached_folder(state_of(linked), link)


def state_of(those: Iterable[Path]) -> bytes:
    """Which files they are, and when they were changed."""
    facts = [(str(file.resolve()), file.stat()) for file in sorted(those) if file.exists()]
    return repr([(name, status.st_size, status.st_mtime_ns) for name, status in facts]).encode()


def _cached_folder(state: bytes, make: Callable[[Path], Any]) -> Path:
    """The cache's folder for a state of files, made if it is not there."""
    from gpuless.base.disk_cache import cache_folder

    folder = cache_folder() / "checkpoints" / hashlib.sha256(state).hexdigest()[:24]
    if not (folder / "config.json").is_file():
        make(folder)
    folder.touch()
    # Each state of a checkpoint is as large as the model: those used last are kept.
    kept = sorted((one for one in folder.parent.iterdir() if one.is_dir()), key=lambda one: -one.stat().st_mtime_ns)
    for old in kept[CONVERTED:]:
        shutil.rmtree(old, ignore_errors=True)
    return folder
