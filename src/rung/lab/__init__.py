"""Check, measure and explain rungs."""
