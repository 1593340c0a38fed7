"""How the checker has a bound rung run."""

import time
from typing import Any, cast

from rung.check.calls import How, _CallHere


class Waiting:
    def run(self) -> None:
        time.sleep(0.05)


def test_an_emulated_run_takes_as_long_as_it_computes_whatever_else_the_machine_does() -> None:
    call = _CallHere(cast(Any, Waiting()), cast(Any, None), "emulator", How())
    assert call.run()() < 0.025
