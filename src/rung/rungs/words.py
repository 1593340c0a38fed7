"""Other names of operands and scalars, as files that were not written for rung have them, best first; an operation may
add aliases to its operands."""

from rung.operation import Operand

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


def plain_name(operand: Operand) -> str:
    return operand.name.removesuffix("_heads") if operand.copy_of else operand.name


def names_of(operand: Operand) -> tuple[str, ...]:
    """Other names of an operand."""
    return (*operand.aliases, *OPERANDS.get(plain_name(operand), ()))
