"""rung: GPT-2 on hand-written GPU kernels, climbed one rung at a time."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rung.errors import RungError

if TYPE_CHECKING:
    from rung import ops
    from rung.gpt2.load import load

__all__ = ["RungError", "load", "ops"]
__version__ = "0.1.0"

# Where each public name lives; nothing that pulls in torch is imported before it is used.
_HOME = {"load": ("rung.gpt2.load", "load"), "ops": ("rung.ops", None)}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'rung' has no attribute {name!r}; it has {', '.join(__all__)}")
    module, attribute = _HOME[name]
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
