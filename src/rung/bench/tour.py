"""What `rung bench all` times: every ladder at the shapes that its operation names, mostly GPT-2's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rung.dtypes import DTYPES
from rung.operation import Race
from rung.rungs import catalogue


@dataclass(frozen=True)
class Stop:
    """One race of the tour."""

    operation: str
    shape: str
    dtype: str
    patience: float


def stops() -> Iterator[Stop]:
    """All races, ladder by ladder."""
    for name, operation in catalogue.operations().items():
        supported = {dtype for rung in catalogue.rungs(name) for dtype in rung.dtypes}
        every = tuple(dtype for dtype in DTYPES if dtype in supported)
        for race in operation.tour or [Race(shape, every) for shape in operation.shapes]:
            for dtype in race.dtypes:
                yield Stop(name, race.shape, dtype, race.patience)
