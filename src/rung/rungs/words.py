"""Other names of operands, sizes and scalars, as files that were not written for rung have them, best first; an
operation may add aliases to its operands."""

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

# Names of sizes, as kernels write them.
ROWS = {"n", "m", "rows", "num_rows", "n_rows", "nrows", "bt", "batch", "batch_size", "height", "r", "nr"}
COLUMNS = {"c", "d", "cols", "ncols", "num_cols", "n_cols", "columns", "hidden", "hidden_size", "dim", "width", "k"}
COLUMNS |= {"n", "s"}
TOTAL = {"n", "size", "numel", "total", "len", "length", "count", "num_elements", "n_elements", "elements", "num"}
NUMBERS = {"nh", "hs", "num_heads", "head_size", "eps", "epsilon", "alpha", "beta"}
# Sizes of a product.
GEMM = {"m": "rows", "n": "OC", "k": "C", "rows": "rows", "wa": "C", "wb": "OC", "ha": "rows", "hb": "C"}
GEMM |= {"numarows": "rows", "numacolumns": "C", "numbrows": "C", "numbcolumns": "OC"}
GEMM |= {"numcrows": "rows", "numccolumns": "OC", "lda": "C", "ldb": "OC", "ldc": "OC"}
GEMM |= {f"in{name}": "C" for name in ("put_size", "put_dim", "_features", "_dim", "_size", "_channels")}
GEMM |= {f"out{name}": "OC" for name in ("put_size", "put_dim", "_features", "_dim", "_size", "_channels")}
DIMS = {
    "B": ("batch", "batch_size", "bs", "bsz"),
    "T": ("seq_len", "seq", "seqlen", "seq_length", "sequence_length", "context_length", "ctx_len", "n_ctx"),
    "NH": ("nh", "heads", "num_heads", "n_heads", "n_head", "nheads", "h", "num_q_heads", "n_q_heads", "q_heads"),
    "NKV": ("nkv", "num_kv_heads", "n_kv_heads", "kv_heads", "num_key_value_heads", "n_kv", "num_groups"),
    "HS": ("hs", "head_size", "head_dim", "headdim", "dim_head", "d_head", "d", "dk", "d_k"),
}
DIMS["T"] += tuple(f"{of}_{length}" for of in ("query", "key", "q", "kv", "k") for length in ("length", "len"))
WIDTHS = {  # of all that a token has
    "C": ("d_model", "dmodel", "embed_dim", "embedding_dim", "n_embd", "model_dim", "hidden_dim", "hidden_size"),
    "V": ("vocab_size", "vocab", "n_vocab", "num_embeddings"),
}


def plain_name(operand: Operand) -> str:
    return operand.name.rpartition("_")[0] if operand.copy_of else operand.name


def names_of(operand: Operand) -> tuple[str, ...]:
    """Other names of an operand."""
    return (*operand.aliases, *OPERANDS.get(plain_name(operand), ()))
