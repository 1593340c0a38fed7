// Causal attention on one core of the CPU, as the formula reads.
#include <cmath>
#include <cstdint>
#include <vector>

// qkv (B, T, 3, NH, HS) -> out (B, T, NH, HS), lse (B, NH, T)
extern "C" void attention(const float* qkv, float* out, float* lse, int B, int T, int NH, int HS, float scale,
                          int causal) {
    const int64_t C = int64_t(NH) * HS;
    std::vector<float> weights(T);
    for (int b = 0; b < B; b++) {
        for (int nh = 0; nh < NH; nh++) {
            for (int t1 = 0; t1 < T; t1++) {
                const float* query = qkv + (int64_t(b) * T + t1) * 3 * C + nh * HS;
                int end = causal ? t1 + 1 : T;
                float largest = -INFINITY;
                for (int t2 = 0; t2 < end; t2++) {
                    const float* key = qkv + (int64_t(b) * T + t2) * 3 * C + C + nh * HS;
                    float sum = 0.0f;
                    for (int hs = 0; hs < HS; hs++) sum += query[hs] * key[hs];
                    weights[t2] = scale * sum;
                    largest = std::fmax(largest, weights[t2]);
                }
                float sum = 0.0f;
                for (int t2 = 0; t2 < end; t2++) {
                    weights[t2] = std::exp(weights[t2] - largest);
                    sum += weights[t2];
                }
                float* o = out + (int64_t(b) * T + t1) * C + nh * HS;
                for (int hs = 0; hs < HS; hs++) o[hs] = 0.0f;
                for (int t2 = 0; t2 < end; t2++) {
                    const float* value = qkv + (int64_t(b) * T + t2) * 3 * C + 2 * C + nh * HS;
                    for (int hs = 0; hs < HS; hs++) o[hs] += weights[t2] / sum * value[hs];
                }
                if (lse != nullptr) lse[(int64_t(b) * NH + nh) * T + t1] = largest + std::log(sum);
            }
        }
    }
}
