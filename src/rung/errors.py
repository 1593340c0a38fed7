"""The error classes for mistakes that are reported to the user."""


class RungError(Exception):
    """A foreseeable mistake, reported in one sentence: the thing, the reason, the fix."""

    kind: str = ""


class CompileError(RungError):
    """A source that its compiler refuses."""

    kind = "compile"


def first_line(error: object, most: int = 200) -> str:
    """What an error or a tool says, shortened to its first line; the error's class where it says nothing."""
    lines = str(error).strip().splitlines()
    return (lines[0] if lines else type(error).__name__)[:most]


def with_extra(name: str) -> str:
    """How rung is installed with the packages of an extra."""
    return f"pip install 'rung[{name}] @ git+https://github.com/rung-gpu/rung'"
