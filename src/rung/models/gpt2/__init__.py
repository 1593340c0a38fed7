"""GPT-2's layer: its config, weights, forward pass and the rungs that serve it."""
