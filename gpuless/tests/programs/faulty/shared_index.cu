__global__ void shift(int* out)
{
    __shared__ int s[32];
    s[threadIdx.x + 1] = threadIdx.x;  // fault: bounds
    __syncthreads();
    out[threadIdx.x] = s[threadIdx.x];
}
int main()
{
    int* out;
    cudaMalloc(&out, 128);
    shift<<<1, 32>>>(out);
    cudaDeviceSynchronize();
}
