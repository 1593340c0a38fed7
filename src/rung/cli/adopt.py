"""`rung adopt`: puts a header into a kernel's file that has none."""

from __future__ import annotations

from typing import Annotated

import typer

from rung.cli import console, options
from rung.errors import RungError


def adopt(
    operation: Annotated[str, typer.Argument(metavar="[OP]", help="The operation; a file alone names it itself.")],
    file: options.File = None,
    show: Annotated[bool, typer.Option("--show", help="Only print the header.")] = False,
) -> None:
    """Put a header into a kernel's file: bindings, grid and block from its launch or its signature.

    Examples: rung adopt softmax kernel.cu · rung adopt softmax_kernels.cu --show
    """
    from rung.adopt import rung_from_file
    from rung.rungs import catalogue
    from rung.rungs.cuda import CudaRung

    name, path = options.operation_and_file(operation, file)
    if path is None:
        raise RungError("`rung adopt` takes a kernel's file, as in `rung adopt softmax kernel.cu`.")
    rung = rung_from_file(catalogue.operation(str(name)), path)
    if not isinstance(rung, CudaRung) or not rung.learned:
        raise RungError(f"{path} has a header already; edit it there.")
    console.note(options.proposed(rung, write=not show))
