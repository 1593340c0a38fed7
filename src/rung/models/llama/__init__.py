"""Llama and the models of its layer: their config, tensors and forward pass."""
