"""The error classes for mistakes that are reported to the user: the machine's, and rung's own."""

from gpuless.base.errors import FAULTS, CompileError, EmulatorFault, FaultKind, TooLarge, first_line
from gpuless.base.errors import UserError as RungError

__all__ = [
    "FAULTS",
    "CompileError",
    "EmulatorFault",
    "FaultKind",
    "OutOfTime",
    "RungError",
    "TooLarge",
    "Unjudged",
    "first_line",
    "with_extra",
]


class Unjudged(RungError):
    """A file that rung cannot judge as it is, with what would help: no verdict, and no wrong argument either."""

    kind = "not judged"


class OutOfTime(BaseException):
    """A limit on time has ended the judged code: no verdict, and for no handler of its errors to take for one."""


def with_extra(name: str) -> str:
    """How rung is installed with the packages of an extra."""
    return f"pip install 'rung[{name}] @ git+https://github.com/rung-gpu/rung'"
