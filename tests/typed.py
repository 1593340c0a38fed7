"""What mypy and an editor know of the Python API: checked with the sources by `make lint`, never run."""

from typing import assert_type

import rung
import rung.check.judge
from rung.api import Reports, Rows
from rung.bench.race import Timed
from rung.models.load import Model
from rung.profile.resources import Compiled

assert_type(rung.check("gelu/2", quick=True), Reports)
assert_type(rung.check("gelu").ok, bool)
assert_type(rung.check("gelu")[0].reason, str)
assert_type(rung.bench("gelu", shapes=["b4t64"]), Rows[Timed])
assert_type(rung.inspect("gelu")[0], Compiled)
assert_type(rung.load("inner"), Model)
rung.check("gelu", quack=True)  # type: ignore[call-arg]
rung.check.unknown  # type: ignore[attr-defined]  # noqa: B018
