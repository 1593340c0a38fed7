"""The error classes for mistakes that are reported to the user."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args


class UserError(Exception):
    """A foreseeable mistake, reported in one sentence: the thing, the reason, the fix."""

    kind: str = ""


class TooLong(UserError):
    """A program that has not ended within a limit on time."""


class CompileError(UserError):
    """A source that its compiler refuses."""

    kind = "compile"

    def __init__(self, text: str, missing: str = "", place: dict[str, Any] | None = None) -> None:
        super().__init__(text)
        self.missing = missing  # a header, the compiler itself, or the name of an instance that was not found
        self.place = place or {}  # file and line of the first error, as a finding has them


class TooLarge(UserError):
    """A launch that needs more than a GPU has."""

    kind = "too large"


def first_line(error: object, most: int = 200) -> str:
    """What an error or a tool says, shortened to its first line; the error's class where it says nothing."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:most]


FaultKind = Literal[
    "barrier", "deadlock", "bounds", "shared", "unsupported", "trap", "race", "async", "unwritten", "unfinished"
]
FAULTS: tuple[FaultKind, ...] = get_args(FaultKind)
MEANINGS: dict[str, str] = {
    "race": "Two threads, launches or the host access the same memory, one of them writes, and nothing orders them.",
    "bounds": "A kernel accesses memory outside of every allocation.",
    "unwritten": "A kernel reads memory that nothing has written.",
    "barrier": "Not all threads of a barrier reach it.",
    "deadlock": "No thread of the kernel can go on.",
    "trap": "A kernel stops itself: a failed assert, a division by zero.",
    "async": "A mistake in asynchronous work: an uninitialised mbarrier, one arrival too many, a missing fence.",
    "shared": "A launch asks for more shared memory than the GPU has.",
    "unsupported": "The machine code has an instruction that is not executed here.",
    "unfinished": "A kernel whose blocks end one after the other has reached its limit of time.",
}


class EmulatorFault(UserError):
    """A fault inside an emulated kernel; the process and later launches are unharmed. `place` and `related` say where,
    as the findings of a document do: file, line, kernel, block and thread as far as they are known; `record` has the
    memory, the operand at the address, what is done, and what lacks. MEANINGS has the kinds.
    """

    def __init__(
        self,
        kind: FaultKind,
        message: str,
        place: Mapping[str, Any] | None = None,
        related: Sequence[Mapping[str, Any]] = (),
        record: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.kind: FaultKind = kind
        self.place, self.related = dict(place or {}), [dict(one) for one in related]
        self.record = dict(record or {})
