"""How the checker has a bound rung run."""

import time
from typing import Any, cast

from rung.check.runner import Binding, LocalCall


class Waiting:
    def run(self) -> None:
        time.sleep(0.05)


def test_an_emulated_run_takes_as_long_as_it_computes_whatever_else_the_machine_does() -> None:
    call = LocalCall(cast(Any, Waiting()), cast(Any, None), "emulator", Binding())
    assert call.run()() < 0.025
