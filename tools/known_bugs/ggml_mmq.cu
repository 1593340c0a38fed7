// A product of quantised matrices for two experts with 8 rows each, or the sum of its parts from several blocks.
#include "mmq.cuh"

int main()
{
    constexpr int tile = 8, deep = 1024, rows = 128;
    const int bounds[3] = {0, 8, 16};
    int order[64] = {};
    for (int i = 0; i < 16; i++) order[i] = i;
    char* x;
    int *y, *ids, *experts;
    float *out, *parts;
    cudaMalloc(&x, 1 << 20), cudaMalloc(&y, 1 << 20), cudaMalloc(&ids, sizeof order), cudaMalloc(&experts, 12);
    cudaMalloc(&out, 1 << 16), cudaMalloc(&parts, 1 << 16);
    cudaMemset(x, 0, 1 << 20), cudaMemset(y, 0, 1 << 20), cudaMemset(out, 0, 1 << 16), cudaMemset(parts, 0, 1 << 16);
    cudaMemcpy(ids, order, sizeof order, cudaMemcpyHostToDevice);
    cudaMemcpy(experts, bounds, 12, cudaMemcpyHostToDevice);
    const int stride = deep / 32, blocks = 3;
#ifdef FIXUP
    mul_mat_q_stream_k_fixup<GGML_TYPE_Q4_0, tile, MMQ_NWARPS, false>
        <<<blocks, dim3(32, MMQ_NWARPS)>>>(ids, experts, out, parts, deep, rows, tile, rows, 2, 0, 1, 0);
#else
    const auto kernel = mul_mat_q<GGML_TYPE_Q4_0, tile, MMQ_NWARPS, false>;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 100 << 10);
    kernel<<<blocks, dim3(32, MMQ_NWARPS), 100 << 10>>>(x, y, ids, experts, out, parts, deep, rows, tile, stride, rows, 1, 2,
                                                        stride * rows, 0, 0, 1, 1, 0, 0, 0);
#endif
    return cudaDeviceSynchronize();
}
