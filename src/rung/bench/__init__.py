"""How fast is a rung? Races, clocks, statistics."""
