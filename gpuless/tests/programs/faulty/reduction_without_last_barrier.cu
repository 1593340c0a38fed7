// The tree of a reduction, with the barrier outside of the loop.
__global__ void reduce(const int* in, int* out)
{
    __shared__ int s[128];
    s[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    for (int k = 64; k > 0; k /= 2)
        if (threadIdx.x < k) s[threadIdx.x] += s[threadIdx.x + k];  // fault: race
    if (threadIdx.x == 0) *out = s[0];
}
int main()
{
    int *in, *out;
    cudaMalloc(&in, 512), cudaMalloc(&out, 4);
    cudaMemset(in, 0, 512);
    reduce<<<1, 128>>>(in, out);
    cudaDeviceSynchronize();
}
