"""GPT-2: weights in, text out. `rung.gpt2.load.load` is the door; model.py is the forward pass."""
