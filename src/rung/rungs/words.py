"""Other names of operands and scalars, as files that were not written for rung have them, best first."""

OPERANDS = {
    "x": ("inp", "input", "in", "src", "a", "x_ptr", "d_in", "i", "q"),
    "out": ("o", "output", "dst", "y", "c", "result", "res", "d_out", "probs", "z", "odata", "g_odata"),
    "weight": ("w", "gamma", "g", "b", "weights", "scale"),
    "weight_t": ("b",),
    "bias": ("b", "beta", "biases"),
    "tokens": ("inp", "ids", "idx", "indices", "input_ids"),
    "a": ("inp1", "x", "a_ptr", "input1"),
    "b": ("inp2", "y", "b_ptr", "residual", "input2"),
    "qkv": ("inp", "x", "input"),
    "q": ("query", "queries"),
    "k": ("key", "keys"),
    "v": ("value", "values"),
    "lse": ("l", "logsumexp", "stats"),
    "rstd": ("s", "inv_std"),
    "mean": ("m", "mu"),
}
SCALARS = {"scale": ("sm_scale", "softmax_scale", "scaling"), "causal": ("is_causal",), "eps": ("epsilon",)}
SHAPES = {"normalized_shape": "weight"}  # a parameter that is an operand's shape
