"""torch, imported when something of it is first used: it takes seconds, and listing a ladder needs none of it."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["F", "torch"]


class _Lazy(ModuleType):
    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
else:
    torch = _Lazy("torch")
    F = _Lazy("torch.nn.functional")
