/*---
idea = "Three kernels; scores and probabilities are in memory."
needs = "causal == 1"
[bind]
inp = "qkv"
[[launch]]
kernel = "attention_query_key_kernel1"
grid = "ceil_div(B * NH * T * T, 256)"
block = 256
[[launch]]
kernel = "attention_softmax_kernel1"
grid = "ceil_div(B * T * NH, 256)"
block = 256
[[launch]]
kernel = "attention_value_kernel1"
grid = "ceil_div(B * T * NH, 256)"
block = 256
[buffers]
preatt = { shape = ["B", "NH", "T", "T"], dtype = "f32" }
att = { shape = ["B", "NH", "T", "T"], dtype = "f32" }
---*/
// Attention with the scores in memory: scores, their softmax, the weighted values.
#include <assert.h>
#include <float.h>
#include <stdio.h>
#include <stdlib.h>

__global__ void attention_query_key_kernel1(float* preatt, const float* inp, float scale, int B, int T, int C, int NH) {
    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    int total_threads = B * NH * T * T;
    if (idx < total_threads) {
        int t2 = idx % T;
        int t = (idx / T) % T;
        if (t2 > t) {
            preatt[idx] = -INFINITY;
            return;
        }
        int h = (idx / (T * T)) % NH;
        int b = idx / (NH * T * T);
        int C3 = C * 3;
        int hs = C / NH;
        const float* query_t = inp + b * T * C3 + t * C3 + h * hs;
        const float* key_t2 = inp + b * T * C3 + t2 * C3 + h * hs + C;
        float val = 0.0f;
        for (int i = 0; i < hs; i++) val += query_t[i] * key_t2[i];
        preatt[idx] = val * scale;
    }
}

__global__ void attention_softmax_kernel1(float* att, const float* preatt, int B, int T, int NH) {
    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx < B * T * NH) {
        int h = idx % NH;
        int t = (idx / NH) % T;
        int b = idx / (NH * T);
        const float* preatt_bth = preatt + b * NH * T * T + h * T * T + t * T;
        float* att_bth = att + b * NH * T * T + h * T * T + t * T;
        float maxval = -FLT_MAX;
        for (int t2 = 0; t2 <= t; t2++) maxval = preatt_bth[t2] > maxval ? preatt_bth[t2] : maxval;
        float expsum = 0.0f;
        for (int t2 = 0; t2 <= t; t2++) {
            float expv = expf(preatt_bth[t2] - maxval);
            expsum += expv;
            att_bth[t2] = expv;
        }
        float expsum_inv = expsum == 0.0f ? 0.0f : 1.0f / expsum;
        for (int t2 = 0; t2 < T; t2++) {
            if (t2 <= t) att_bth[t2] *= expsum_inv;
            else att_bth[t2] = 0.0f;
        }
    }
}

__global__ void attention_value_kernel1(float* out, const float* att, const float* inp, int B, int T, int C, int NH) {
    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx < B * T * NH) {
        int h = idx % NH;
        int t = (idx / NH) % T;
        int b = idx / (NH * T);
        int C3 = C * 3;
        int hs = C / NH;
        float* out_bth = out + b * T * C + t * C + h * hs;
        const float* att_bth = att + b * NH * T * T + h * T * T + t * T;
        for (int i = 0; i < hs; i++) out_bth[i] = 0.0f;
        for (int t2 = 0; t2 <= t; t2++) {
            const float* value_t2 = inp + b * T * C3 + t2 * C3 + h * hs + C * 2;
            for (int i = 0; i < hs; i++) out_bth[i] += att_bth[t2] * value_t2[i];
        }
    }
}

void attention_forward1(float* out, float* preatt, float* att, const float* inp, int B, int T, int C, int NH, const int block_size) {
    int total_threads = B * NH * T * T;
    float scale = 1.0 / sqrtf(C / NH);
    attention_query_key_kernel1<<<(total_threads + block_size - 1) / block_size, block_size>>>(preatt, inp, scale, B, T, C, NH);
    int softmax_threads = B * T * NH;
    int num_blocks = (softmax_threads + block_size - 1) / block_size;
    attention_softmax_kernel1<<<num_blocks, block_size>>>(att, preatt, B, T, NH);
    attention_value_kernel1<<<num_blocks, block_size>>>(out, att, inp, B, T, C, NH);
}
