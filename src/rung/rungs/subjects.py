"""What is measured: a rung at a shape, chosen by name or written out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from gpuless.base.files import shown, whole
from rung.dtypes import dtype as dtype_named
from rung.errors import RungError
from rung.operation import Operation, Values
from rung.rungs import catalogue
from rung.rungs.base import Rung, Subject

DEFAULT_SHAPE = "b8t1024"


def subject_of(
    spec: str | Rung, file: Path | None = None, shape: str | None = None, dtype: str | None = None
) -> Subject:
    """One rung at one shape (its usual one when none is named) and dtype."""
    chosen = [spec] if isinstance(spec, Rung) else catalogue.select(spec, file)
    if len(chosen) != 1:
        raise RungError(f"{spec} is a ladder; name one rung of it, such as {chosen[0].full_name}.")
    one = chosen[0]
    real = dtype_named(dtype or one.dtypes[0])
    shapes = one.operation.shapes
    usual = [DEFAULT_SHAPE] if DEFAULT_SHAPE in shapes else []
    for name, dims in shapes_of(one.operation, [shape] if shape else [*usual, *shapes]):
        values = one.operation.complete(dims)
        if shape is not None or one.refusal(values, real) is None:
            return Subject(one, name, values, real)
    raise RungError(f"{one.full_name} takes none of the operation's shapes in {real.name}; give --shape.")


def shapes_of(operation: Operation, sizes: Sequence[str]) -> Iterator[tuple[str, Values]]:
    """The named shapes, or shapes written out as B=4,T=64,C=768."""
    for word in sizes or list(operation.shapes):
        if word in operation.shapes:
            yield word, operation.shapes[word]
        elif "=" in word:
            yield word, _written_out(word)
        else:
            names = ", ".join(operation.shapes)
            raise RungError(f"{operation.name} has no shape {shown(word)}; it has {names}, or write B=4,T=64,C=768.")


def _written_out(word: str) -> Values:
    values: Values = {}
    for part in word.split(","):
        name, _, text = part.partition("=")
        name, number = name.strip(), whole(text.strip())
        if not name or number is None:
            raise RungError(f"the shape {shown(word)} has {shown(part)}; write NAME=NUMBER, as in B=4,T=64,C=768.")
        if name in values:
            raise RungError(f"the shape {shown(word)} gives {name} twice; give each dimension once.")
        values[name] = number
    return values
