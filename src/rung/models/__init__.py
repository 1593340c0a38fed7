"""Models: weights in, text out. `rung.models.load.load` loads one."""
