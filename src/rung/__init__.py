"""rung: GPT-2 on hand-written GPU kernels, climbed one rung at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rung.errors import RungError

if TYPE_CHECKING:
    from rung.gpt2.load import load

__all__ = ["RungError", "load"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # Loading a model pulls in torch; naming the package should not.
    if name == "load":
        from rung.gpt2.load import load

        return load
    raise AttributeError(f"module 'rung' has no attribute {name!r}")
