"""`rung new`: a working kernel to start from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from rung.errors import RungError


def new(
    operation: Annotated[str, typer.Argument(metavar="OP[/RUNG]", help="The operation, or the rung to copy.")],
    file: Annotated[Path, typer.Argument(help="The new file: a .cu or, for Triton, a .py.")],
    folder: Annotated[Path, typer.Option(help="Where the file is written.")] = Path(),
) -> None:
    """Write a working kernel to start from: a copy of the rung named, or of the first in CUDA (for a .py in Triton)."""
    from rung.rungs import catalogue

    of = catalogue.operation(operation.partition("/")[0])
    wanted = ".py" if file.suffix == ".py" else ".cu"
    ladder = (r for r in catalogue.rungs(of.name, libraries=False) if r.path and r.path.suffix == wanted)
    source = catalogue.find(operation) if "/" in operation else next(ladder, None)
    if source is None or source.path is None:
        raise RungError(f"{operation} has no {wanted} file to start from; name one of `rung list {of.name}`.")
    suffix = source.path.suffix
    name = file.stem if file.suffix in (".cu", ".py") else file.name
    if not re.fullmatch(r"[\w-]+", name):
        raise RungError(f"{name!r} cannot name a rung; use letters, digits and underscores, as in my_idea.")
    path = folder / file.with_name(f"{name}{suffix}")
    if path.exists():
        raise RungError(f"{path} exists already, and is not overwritten; choose another name.")
    try:
        path.write_text(_copied(source.source, f"{of.name}/{source.number}"), encoding="utf-8")
    except OSError as error:
        raise RungError(f"{path} cannot be written ({error.strerror}); choose another --folder.") from None
    print(f"{path} is a copy of {source.full_name}. Edit it, then run:  rung check {of.name} {path}")


def _copied(source: str, parent: str) -> str:
    """Without the parent's finding and its place in models; `from` names the parent."""
    from rung.rungs.base import without_prose

    source = without_prose(source, ("found", "FOUND", "provenance", "PROVENANCE", "from", "FROM", "MODEL"))
    source = re.sub(r"^\[model\]\n(?:\w.*\n)*", "", source, flags=re.MULTILINE)

    def named(first: re.Match[str]) -> str:
        return f'{"from" if first[0].islower() else "FROM"} = "{parent}"\n{first[0]}'

    return re.sub(r"^(?:dtypes|DTYPES)\b", named, source, count=1, flags=re.MULTILINE)
