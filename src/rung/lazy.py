"""torch, imported at its first use: importing it takes seconds, and listing a ladder does not need it."""

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
