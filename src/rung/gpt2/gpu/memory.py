"""What does not fit is refused before it is allocated, in a sentence."""

from __future__ import annotations

import torch

from rung.errors import RungError

SPARE = 512 << 20  # for kernels, graphs and what torch's libraries take for themselves


def refuse(needed: int, what: str, mend: str) -> None:
    """RungError when the GPU has no `needed` bytes left."""
    if not torch.cuda.is_available():
        return
    free, _ = torch.cuda.mem_get_info()
    # torch keeps what it has freed; that is free for torch.
    free += torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    if needed + SPARE > free:
        raise RungError(
            f"{what} takes {needed / 2**30:.2f} GiB and the GPU has {max(0, free - SPARE) / 2**30:.2f} GiB left; "
            f"{mend}."
        )
