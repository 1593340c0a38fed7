"""A launch as plain data, and the interface of a loaded module, on the GPU or emulated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

Argument = tuple[str, Any]
"""(kind, value): "pointer" and a tensor or None; "tensor_map" and a map (`emulated()` packs it);
i32 u32 i64 u64 f32 f64 bool f16 bf16 and a number."""


@dataclass(frozen=True)
class LaunchConfig:
    """Grid in blocks (with clusters, too), block in threads, dynamic shared memory in bytes."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int = 0
    cooperative: bool = False
    cluster: tuple[int, int, int] | None = None
    pdl: bool = False

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]


@dataclass(frozen=True)
class Build:
    """Everything that determines compiled code except the architecture; `origin` is the path shown in errors."""

    source: str
    origin: str
    kernels: tuple[str, ...]
    defines: tuple[tuple[str, str], ...]
    options: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    arch_specific: bool = False

    @property
    def with_lines(self) -> Build:
        """The same code with the lines that its instructions come from."""
        return replace(self, options=(*self.options, "-lineinfo"))


@dataclass(frozen=True)
class Resources:
    """The compiler's report on one kernel: registers per thread, and bytes; spills go to local memory."""

    registers: int
    static_shared: int
    spill_stores: int
    spill_loads: int
    stack: int


class Module(Protocol):
    """Loaded kernels of one build."""

    @property
    def resources(self) -> Mapping[str, Resources]: ...

    def prepare(self, kernel: str, config: LaunchConfig) -> None:
        """Checks the launch against the hardware's limits and prepares it; call it before a capture."""

    def launch(self, kernel: str, config: LaunchConfig, args: Sequence[Argument]) -> None:
        """One launch on torch's current stream."""

    def bind(self, kernel: str, config: LaunchConfig, args: Sequence[Argument]) -> Callable[[], None]:
        """The same launch, packed once, for repeated calls."""

    def set_constant(self, symbol: str, tensor: Any) -> None:
        """Copies a tensor into a `__constant__` array, in stream order."""
