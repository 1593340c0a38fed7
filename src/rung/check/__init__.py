"""Is a rung right? Trials against a float64 reference, in guarded storage."""
