"""Which rungs of the decode ladder compute whole steps of a GPT-2."""

from __future__ import annotations

from collections.abc import Callable

MAX_ROWS_GEMV = 4  # up to this many sequences, the kernels for one row are used
MAX_FEW_ROWS = 8  # up to this many, one kernel takes all rows at once
MAX_ROWS_OWN_MMA = 32  # up to this many, our own tensor-core kernels are used; for more the library is faster
MAX_ROWS_COLUMNS = 16  # up to this many, products that load weights once for all rows win over whole steps of few rows
MIN_CHANNELS_ONE_KERNEL = 1024  # from this many, one kernel for the whole step is faster even untuned


BY_OPERATIONS = "operations"  # instead of a rung: the operations one by one


def few_rows_rung(dtype: str) -> str:
    """The rung of decode whose rows may be consecutive tokens of one text."""
    return "few_rows_int8" if dtype == "int8" else "few_rows"


def decode_rungs(
    rows: int, channels: int, dtype: str, tuned: Callable[[str], bool], cache: str | None = None
) -> tuple[str, ...]:
    """Rungs of decode in the order of preference; `tuned` returns whether one has been tuned for this GPU and shape,
    and `cache` is int8 if keys and values of many rows are kept in 8 bits."""
    wide, eight, full = channels >= MIN_CHANNELS_ONE_KERNEL, dtype == "int8", dtype in ("float32", "tf32")
    few = few_rows_rung(dtype)
    least, most = (2, MAX_FEW_ROWS) if wide else (MAX_FEW_ROWS + 1, MAX_ROWS_COLUMNS)
    if dtype == "bfloat16" and least <= rows <= most:
        return (BY_OPERATIONS, *decode_rungs(rows, channels, "float16", tuned, cache))
    # Untuned it is faster from two texts on, in float32 from three; wide models were measured up to four.
    wins = (3 if full else 2) <= rows <= (MAX_ROWS_GEMV if wide else MAX_FEW_ROWS) and not (wide and full)
    takes_few = 1 < rows <= MAX_FEW_ROWS and (tuned(few) or wins)
    before = (few,) if takes_few else ()
    if rows > MAX_ROWS_OWN_MMA:
        return (*(("eight_bit_cache",) if cache == "int8" else ()), "library_products", "batch", "torch", "appended")
    if rows > MAX_ROWS_GEMV:
        return (*before, "batch", "library_products", "torch", "appended")
    clusters, whole, streamed, plain = (
        name + "_int8" * eight for name in ("clusters", "pacing", "streamed", "dependent_launch")
    )
    # The first two have many tunables. Untuned, one kernel is faster only for wide models, the streamed ones for these
    # and for int8.
    order = [streamed, plain] if eight or wide or tuned(streamed) else [plain, streamed]
    if (wide and not full) or tuned(whole):
        order.insert(0, whole)
    if not full and tuned(clusters):
        order.insert(0, clusters)
    return (*before, *order, "dependent_launch", "appended")
