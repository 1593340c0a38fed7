/*---
idea   = "One thread per token: the target's logit first, then every logit of the vocabulary, one dot product after the other."
expect = "Neighbouring threads read rows of x that lie C elements apart, and each loops over the whole head alone: far from any limit, but no logits are written to memory."
found  = "1.8 s for 64 tokens of gpt2 in bf16 on an H200: two warps in all, each lane a row of its own."
dtypes = ["f32", "f16", "bf16"]
[tune]
BLOCK = [128, 64, 256]
[[launch]]
kernel = "token_logprob"
grid   = "ceil_div(B * T, BLOCK)"
block  = "BLOCK"
---*/
#include "statistics.cuh"

__device__ __forceinline__ float dot(const Real* a, const Real* b, int C)
{
    float sum = 0.0f;
    for (int c = 0; c < C; c++) sum += to_float(a[c]) * to_float(b[c]);
    return sum;
}

extern "C" __global__ void token_logprob(const Real* x, const Real* weight, const int* targets, float* logprob, float* entropy,
                                         int* rank, int B, int T, int C, int V)
{
    const int token = blockIdx.x * BLOCK + threadIdx.x;
    if (token >= B * T) return;
    const Real* row = x + size_t(token) * C;
    const int target = targets[token];
    const float own = dot(row, weight + size_t(target) * C, C);
    Statistics all;
    for (int begin = 0; begin < V; begin += 256) {  // a single chain of 50257 additions would lose two digits
        Statistics part;
        for (int v = begin; v < min(begin + 256, V); v++) {
            const float logit = dot(row, weight + size_t(v) * C, C);
            part.add(logit, logit > own && v != target);
        }
        all.merge(part);
    }
    store(all, own, token, logprob, entropy, rank);
}
