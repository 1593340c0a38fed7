"""The block sizes that the course project swept, and what it measured on its A40.

Milestone 3 of the ECE 408 project timed residual, GELU, layernorm and the bias after cuBLAS's product with
4 to 1024 threads a block, and the embedding with cubes of 3 to 10 threads a side.
"""

from __future__ import annotations

from dataclasses import dataclass

EDGES = tuple(range(3, 11))
BLOCKS = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
SHAPE = "b4t64"


@dataclass(frozen=True)
class Column:
    """One kernel of the table: our rung, its tunable, and the source's nanoseconds by block size."""

    title: str
    rung: str
    tunable: str
    theirs_ns: dict[int, int]


def _by(sizes: tuple[int, ...], *nanoseconds: int) -> dict[int, int]:
    return dict(zip(sizes, nanoseconds, strict=True))


TABLE = (
    Column(
        "residual",
        "residual/01_naive",
        "BLOCK",
        _by(BLOCKS, 882555, 478433, 275871, 177281, 137634, 132672, 133918, 139041, 177024),
    ),
    Column(
        "gelu",
        "gelu/01_naive",
        "BLOCK",
        _by(BLOCKS, 1662430, 851648, 446526, 244127, 142239, 96833, 97600, 103811, 154751),
    ),
    Column(
        "layernorm",
        "layernorm/05_tree",
        "BLOCK",
        _by(BLOCKS, 1400798, 1204481, 653725, 383038, 254399, 195682, 180449, 256734, 533955),
    ),
    Column(
        "prepare out",
        "bias/01_naive",
        "BLOCK",
        _by(BLOCKS, 3462653, 1748225, 891774, 279606, 141189, 168575, 96042, 165439, 183550),
    ),
    Column(
        "embedding",
        "embedding/01_naive",
        "EDGE",
        _by(EDGES, 12032, 7488, 7136, 7296, 7617, 7904, 8288, 9504),
    ),
)
