"""GPT-2: weights in, text out. `rung.models.load.load` loads a model; model.py is the forward pass."""
