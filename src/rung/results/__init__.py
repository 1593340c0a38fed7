"""What was measured: one store, one reader."""
