"""Whole numbers as users and files write them."""

from __future__ import annotations

DIGITS = 18  # such numbers fit into 64 bits


def whole(text: str) -> int | None:
    """The number that ASCII digits write, with a minus before them or without; None where a text is none, or has more
    digits than any size. `str.isdigit` is true for texts that `int` refuses: superscripts, or 5,000 digits."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > DIGITS:
        return None
    return int(text)
