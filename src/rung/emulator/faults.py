"""Faults of emulated kernels."""

from __future__ import annotations

from typing import Literal

from rung.errors import RungError

FaultKind = Literal["barrier", "deadlock", "bounds", "shared", "unsupported", "trap", "race", "async"]
KINDS: tuple[FaultKind, ...] = ("barrier", "deadlock", "bounds", "shared", "unsupported", "trap", "race", "async")


class TooLarge(RungError):
    """A launch that has more programs than are to be interpreted."""

    kind = "too large"


class EmulatorFault(RungError):
    """A fault inside an emulated kernel; the process and later launches are unharmed.

    `kind`: a barrier that not all threads reach, a deadlock, an access outside a buffer, too much shared
    memory, something that the emulator does not model, a trap (a failed assert, a division by zero), a race, or a
    mistake in asynchronous work (an uninitialised byte barrier, one arrival too many, a missing fence).
    """

    def __init__(self, kind: FaultKind, message: str) -> None:
        super().__init__(message)
        self.kind: FaultKind = kind
