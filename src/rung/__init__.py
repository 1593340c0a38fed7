"""rung: GPT-2 on hand-written GPU kernels, climbed one rung at a time."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rung.errors import RungError

if TYPE_CHECKING:
    from rung import ops
    from rung.api import bench, check, count, inspect
    from rung.exchange import hf as transformers
    from rung.exchange.hf import generate
    from rung.models.load import load

__all__ = ["RungError", "bench", "check", "count", "generate", "inspect", "load", "ops", "transformers"]
__version__ = "0.1.0"

# The module of each public name; nothing that imports torch is imported before it is used.
_HOME = {
    "count": ("rung.api", "count"),
    "generate": ("rung.exchange.hf", "generate"),
    "inspect": ("rung.api", "inspect"),
    "load": ("rung.models.load", "load"),
    "ops": ("rung.ops", None),
    "transformers": ("rung.exchange.hf", None),
}
_ROOMS = ("bench", "check")  # packages that can also be called


class _CallablePackage(ModuleType):
    """A package that can be called: `rung.check("gelu/2")` as well as `rung.check.judge`."""

    @property
    def __wrapped__(self) -> Any:  # read by `inspect.signature` and completion
        return getattr(importlib.import_module("rung.api"), self.__name__.rpartition(".")[2])

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.__wrapped__(*args, **options)


class _Package(ModuleType):
    def __setattr__(self, name: str, value: Any) -> None:
        if name in _ROOMS:  # set by the first import, in either order
            value.__class__ = _CallablePackage
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"rung.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'rung' has no attribute {name!r}; it has {', '.join(__all__)}")
    module, attribute = _HOME[name]
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
