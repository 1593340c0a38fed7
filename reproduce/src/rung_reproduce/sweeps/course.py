"""The block sizes that the course project swept; rung_reproduce.sources has what it measured on its A40.

Milestone 3 of the ECE 408 project timed, with 4 to 1024 threads per block: the residual and GELU, fused with the bias
after cuBLAS's product; layernorm and the bias alone; and the embedding, with cubes of 3 to 10 threads per side. Its
times are sums over a forward pass. The unfused kernels, and the conversion to half before a product on tensor cores,
which its script could sweep too, are included without figures of theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rung_reproduce import sources

if TYPE_CHECKING:
    from rung.rungs.base import Subject
    from rung.sweep.sweep import Tuning

EDGES = tuple(range(3, 11))
BLOCKS = (4, 8, 16, 32, 64, 128, 256, 512, 1024)


@dataclass(frozen=True)
class Column:
    """One kernel of the table: our rung, its tunable, and how often a forward pass of GPT-2 calls it."""

    title: str
    rung: str
    calls: int
    shape: str = "b4t64"
    tunable: str = "BLOCK"
    dtype: str = "f32"

    @property
    def sizes(self) -> tuple[int, ...]:
        return EDGES if self.tunable == "EDGE" else BLOCKS

    @property
    def theirs(self) -> dict[int, float]:
        """The source's microseconds of a forward pass by size."""
        return sources.course(self.rung, self.shape)


TABLE = (
    Column("residual, fused", "bias/01_naive", 24, "B=4,T=64,OC=768"),
    Column("gelu, fused", "bias_gelu/01_naive", 12),
    Column("layernorm", "layernorm/05_tree", 25),
    Column("prepare out", "bias/01_naive", 12, "B=4,T=64,OC=2304"),
    Column("residual", "residual/01_naive", 24),
    Column("gelu", "gelu/01_naive", 12),
    Column("to half", "matmul/11_fused_transpose", 12, tunable="CONVERT", dtype="tf32"),
    Column("embedding", "embedding/01_naive", 1, tunable="EDGE"),
)


def configurations(
    subjects: Sequence[Subject], columns: Sequence[Column] = TABLE
) -> list[tuple[Column, Subject, Tuning]]:
    """Each column's sizes, column after column."""
    from rung.sweep import sweep

    return [
        (column, subject, tuning)
        for column, subject in zip(columns, subjects, strict=True)
        for tuning in sweep.configurations(subject.rung, only={column.tunable: column.sizes})
    ]
