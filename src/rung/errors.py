"""The error classes for mistakes that are reported to the user."""


class RungError(Exception):
    """A foreseeable mistake, reported in one sentence: the thing, the reason, the fix."""

    kind: str = ""


class CompileError(RungError):
    """A source that its compiler refuses."""

    kind = "compile"
