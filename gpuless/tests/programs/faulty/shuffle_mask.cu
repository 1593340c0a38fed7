__global__ void sum(int* out)
{
    int x = threadIdx.x;
    if (threadIdx.x < 16) x += __shfl_down_sync(0xff, x, 8);  // fault: barrier
    out[threadIdx.x] = x;
}
int main()
{
    int* out;
    cudaMalloc(&out, 128);
    sum<<<1, 32>>>(out);
    cudaDeviceSynchronize();
}
