/*---
idea   = "Flash attention: four warps share a tile of 32 keys and values; each warp has a query, each lane a key."
dtypes = ["f32"]
[define]
HS = "C // NH"
[[launch]]
kernel = "attention"
grid   = ["ceil_div(T, 4)", "NH", "B"]
block  = 128
shared = "4 * (2 * 32 * (HS + 1) + 4 * HS)"
---*/
#include "rung.cuh"

extern "C" __global__ void attention(const float* qkv, float* out, int T, int C, int causal, float scale)
{
    extern __shared__ float shared[];
    float* K = shared;             // (32, HS + 1)
    float* V = K + 32 * (HS + 1);  // (32, HS + 1)
    constexpr int COLS = (HS + 31) / 32;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, nh = blockIdx.y;
    const int t = blockIdx.x * 4 + warp, last = min(int(blockIdx.x) * 4 + 3, T - 1);
    float* q = V + 32 * (HS + 1) + warp * HS;  // (HS)
    const float* tokens = qkv + int64_t(blockIdx.z) * T * 3 * C + nh * HS;
    for (int hs = lane; hs < HS; hs += 32) q[hs] = t < T ? scale * tokens[int64_t(t) * 3 * C + hs] : 0.0f;
    float o[COLS] = {}, m = -INFINITY, l = 0.0f;
    for (int key0 = 0; key0 <= (causal ? last : T - 1); key0 += 32) {
        BLANK_1;  // the previous tile may still be in use
        for (int i = threadIdx.x; i < 32 * HS; i += 128) {
            const int key = key0 + i / HS, hs = i % HS;
            K[i / HS * (HS + 1) + hs] = key < T ? tokens[int64_t(key) * 3 * C + C + hs] : 0.0f;
            V[i / HS * (HS + 1) + hs] = key < T ? tokens[int64_t(key) * 3 * C + 2 * C + hs] : 0.0f;
        }
        __syncthreads();
        float score = 0.0f;  // of this lane's key
        for (int hs = 0; hs < HS; hs++) score += q[hs] * K[lane * (HS + 1) + hs];
        if (BLANK_2) score = -INFINITY;
        const float larger = fmaxf(m, warp_max(score));
        if (larger > -INFINITY) {
            const float shrink = expf(m - larger), p = expf(score - larger);
            l = shrink * l + BLANK_3;
            for (int c = 0; c < COLS; c++) o[c] *= shrink;
            for (int key = 0; key < 32; key++) {
                const float weight = __shfl_sync(0xffffffff, p, key);
                for (int c = 0; c < COLS; c++)
                    if (lane + 32 * c < HS) o[c] += weight * V[key * (HS + 1) + lane + 32 * c];
            }
            m = larger;
        }
    }
    for (int c = 0; c < COLS; c++)
        if (t < T && lane + 32 * c < HS) out[(int64_t(blockIdx.z) * T + t) * C + nh * HS + lane + 32 * c] = o[c] / l;
}
