#include "common.h"
#include <vector>
__global__ void crossentropy_forward(float* losses, const float* probs, const int* targets, int N, int V)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < N) losses[i] = -logf(probs[i * V + targets[i]]);
}
__global__ void crossentropy_softmax_backward(float* dlogits, const float* dlosses, const float* probs, const int* targets, int N, int V)
{
    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx < N * V) {
        int n = idx / V, v = idx % V;
        dlogits[idx] += (probs[idx] - (v == targets[n] ? 1.0f : 0.0f)) * dlosses[n];
    }
}
int main()
{
    const int N = 24, V = 31;
    std::vector<float> probs(N * V), losses(N), dlosses(N, 1.0f / N), dlogits(N * V);
    std::vector<int> targets(N);
    for (int n = 0; n < N; n++) {
        float sum = 0;
        for (int v = 0; v < V; v++) sum += probs[n * V + v] = 1 + rand() % 100;
        for (int v = 0; v < V; v++) probs[n * V + v] /= sum;
        targets[n] = rand() % V, losses[n] = -logf(probs[n * V + targets[n]]);
        for (int v = 0; v < V; v++) dlogits[n * V + v] = (probs[n * V + v] - (v == targets[n])) * dlosses[n];
    }
    float *d_p = to_device(probs.data(), N * V), *d_dl = to_device(dlosses.data(), N), *d_losses, *d_dlogits;
    int* d_t;
    cudaCheck(cudaMalloc(&d_losses, N * sizeof(float)));
    cudaCheck(cudaMalloc(&d_dlogits, N * V * sizeof(float)));
    cudaCheck(cudaMalloc(&d_t, N * sizeof(int)));
    cudaCheck(cudaMemcpy(d_t, targets.data(), N * sizeof(int), cudaMemcpyHostToDevice));
    cudaCheck(cudaMemset(d_dlogits, 0, N * V * sizeof(float)));
    crossentropy_forward<<<1, 32>>>(d_losses, d_p, d_t, N, V);
    crossentropy_softmax_backward<<<ceil_div(N * V, 128), 128>>>(d_dlogits, d_dl, d_p, d_t, N, V);
    validate_result(d_losses, losses.data(), "losses", N);
    validate_result(d_dlogits, dlogits.data(), "dlogits", N * V);
    printf("OK\n");
}
