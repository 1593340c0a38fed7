"""A process that runs a rung's file ends when it is closed, also at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

AT_ONCE = """
import sys, torch
from rung.check.child import Child, _Forked
child = Child("emulator", "relu", sys.argv[1])
assert isinstance(child._process, _Forked)
child.close()
assert child.ended
"""


def test_a_copy_that_has_just_begun_is_ended() -> None:
    file = str(Path(__file__).parents[1] / "foreign" / "relu_grid_stride.cu")
    subprocess.run([sys.executable, "-c", AT_ONCE, file], check=True, timeout=60)
