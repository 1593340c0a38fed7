"""How much a check tries: less per rung of a whole ladder, more of a single rung."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Effort:
    """What a check may cost, in seconds per run, and what it adds for a rung that is checked alone."""

    affordable: float  # seconds of a run, for the case with all checks
    watched: float  # ... and for those with the race check
    alone: bool  # tries every pair of values of two tunables, and runs the usual checks of one case at all
    later_runs: int  # at the smallest case, before its outputs are compared again
    slow: float = math.inf  # seconds of a kernel's run on a GPU from which one run of a case is enough
    patience: float = 5.0  # seconds: a case whose run on a GPU is forecast to take longer is left out and reported


LADDER = Effort(0.02, 0.004, alone=False, later_runs=0, slow=0.25, patience=1.5)
ALONE = Effort(0.3, 0.3, alone=True, later_runs=400)
QUICK = Effort(0.0, 0.0, alone=False, later_runs=0)
OFTEN = 0.03  # seconds per run, for cases that every setting of the tunables is checked at
