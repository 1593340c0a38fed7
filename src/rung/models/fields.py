"""The values in config.json, checked as they are read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rung.errors import RungError
from rung.files import shown

LONGEST = 1 << 31  # a size in config.json is below


class Fields:
    """The values by name; a RungError names the field."""

    def __init__(self, fields: Mapping[str, Any], origin: str) -> None:
        self.fields, self.origin = fields, origin

    def refuse(self, name: str, must: str) -> RungError:
        return RungError(f"{self.origin} gives {name} as {shown(self.fields[name])}; it must be {must}.")

    def whole(self, *names: str, default: int | None = None) -> int:
        """The first of these names that is given."""
        name = next((name for name in names if self.fields.get(name) is not None), None)
        if name is None and default is None:
            raise RungError(f"{self.origin} gives no {names[0]}; fetch the model again.")
        value = default if name is None else self.fields[name]
        if name is not None and (type(value) is not int or not 0 < value < LONGEST):
            raise self.refuse(name, "a whole number from 1 to 2^31")
        assert value is not None
        return int(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.fields.get(name, default)
        if not (value is None or isinstance(value, bool)):
            raise self.refuse(name, "true or false")
        return bool(value)

    def number(self, name: str, default: float, most: float = math.inf) -> float:
        value = self.fields.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= most:
            raise self.refuse(name, f"a number such as {default:g}")
        return float(value)

    def tokens(self, name: str, default: int | None) -> tuple[int, ...]:
        """A token, several, or none."""
        value = self.fields.get(name, default)
        several = [] if value is None else value if isinstance(value, list) else [value]
        if not all(type(one) is int and abs(one) < LONGEST for one in several):
            raise self.refuse(name, "a token's number, or several")
        return tuple(several)
