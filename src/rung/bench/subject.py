"""What is measured: a rung at one shape and dtype."""

from __future__ import annotations

from dataclasses import dataclass

from rung.dtypes import Dtype
from rung.operation import Values
from rung.rungs.base import Rung


@dataclass(frozen=True)
class Subject:
    """A rung at one shape (all its values) and dtype."""

    rung: Rung
    shape: str
    values: Values
    dtype: Dtype
