"""The command line in this process."""

from __future__ import annotations

import pytest

from rung.cli import main


def rung(*words: object) -> int:
    """The exit code of `rung WORDS`."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return int(ended.value.code or 0)
