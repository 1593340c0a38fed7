// Attention with running maxima and sums in memory: a block has a head's rows, one key tile after the other.
#include <cuda_runtime.h>
#include <torch/extension.h>

__global__ void tiles_of_keys(const float* Q, const float* K, const float* V, int len, int dim, int tiles, int Bk,
                              float scale, float* sums, float* maxima, float* O) {
    extern __shared__ float keys[];
    float* values = keys + Bk * dim;
    const int head = blockIdx.x * gridDim.y + blockIdx.y;
    const size_t base = size_t(head) * len * dim;
    for (int tile = 0; tile < tiles; ++tile) {
        for (int c = 0; c < dim; ++c) {
            keys[threadIdx.x * dim + c] = K[base + (tile * Bk + threadIdx.x) * dim + c];
            values[threadIdx.x * dim + c] = V[base + (tile * Bk + threadIdx.x) * dim + c];
        }
        __syncthreads();
        for (int row = threadIdx.x; row < len; row += Bk) {
            float best = maxima[head * len + row], sum = sums[head * len + row];
            float* out = O + base + row * dim;
            for (int key = 0; key < Bk; ++key) {
                float score = 0.0f;
                for (int c = 0; c < dim; ++c) score += Q[base + row * dim + c] * keys[key * dim + c];
                score *= scale;
                const float higher = fmaxf(best, score), before = __expf(best - higher), now = __expf(score - higher);
                for (int c = 0; c < dim; ++c)
                    out[c] = (out[c] * sum * before + values[key * dim + c] * now) / (sum * before + now);
                sum = sum * before + now;
                best = higher;
            }
            maxima[head * len + row] = best;
            sums[head * len + row] = sum;
        }
        __syncthreads();
    }
}

torch::Tensor forward(torch::Tensor Q, torch::Tensor K, torch::Tensor V) {
    const int Bk = 32;
    const int batch = Q.size(0), heads = Q.size(1), len = Q.size(2), dim = Q.size(3);
    const int tiles = ceil((float) len / Bk);
    auto O = torch::zeros_like(Q);
    auto sums = torch::zeros({batch, heads, len}, Q.options());
    auto maxima = torch::full({batch, heads, len}, -INFINITY, Q.options());
    const int bytes = 2 * Bk * dim * sizeof(float);
    tiles_of_keys<<<dim3(batch, heads), Bk, bytes>>>(Q.data_ptr<float>(), K.data_ptr<float>(), V.data_ptr<float>(), len,
        dim, tiles, Bk, 1.0f / sqrtf(dim), sums.data_ptr<float>(), maxima.data_ptr<float>(), O.data_ptr<float>());
    return O;
}
