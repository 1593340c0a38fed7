"""GPT-2: weights in, text out. `rung.gpt2.load.load` loads a model; model.py is the forward pass."""
