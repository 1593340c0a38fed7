#include <cstdio>
static __global__ void sum(const int* in, int* out)
{
    const int t = threadIdx.x;
    int v = in[t];
    if (t < 16) {
        for (int k = 8; k; k /= 2)
            v += __shfl_down_sync(0xff, v, k);  // fault: barrier
        if (!t) *out = v;
    } else
        out[t] = v + __shfl_xor_sync(0xffff0000, v, 1);
}
int main()
{
    int *in, *out;
    cudaMalloc(&in, 128), cudaMalloc(&out, 128), cudaMemset(in, 0, 128);
    sum<<<1, 32>>>(in, out);
    puts(cudaGetErrorString(cudaDeviceSynchronize()));
    cudaFree(in), cudaFree(out);
}
