#include <cstdio>
__global__ void sum(const int* in, int* out)
{
    __shared__ int* kept;
    if (threadIdx.x == 0) {
        kept = new int[64];
        for (int i = 0; i < 64; i++) kept[i] = in[i];
    }
    __syncthreads();
    if (threadIdx.x == 0) delete[] kept;
    __syncthreads();
    out[threadIdx.x] = kept[threadIdx.x];  // fault: unwritten
}
int main()
{
    int h[64] = {}, *in, *out;
    cudaMalloc(&in, sizeof h), cudaMalloc(&out, sizeof h);
    cudaMemcpy(in, h, sizeof h, cudaMemcpyHostToDevice);
    sum<<<1, 64>>>(in, out);
    cudaMemcpy(h, out, sizeof h, cudaMemcpyDeviceToHost);
    puts(cudaGetErrorString(cudaDeviceSynchronize()));
    cudaFree(in), cudaFree(out);
}
