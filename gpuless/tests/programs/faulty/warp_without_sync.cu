// Harris's last warp, as it was written for GPUs whose lanes ran in lockstep.
__device__ void warpReduce(int* s, int tid)
{
    s[tid] += s[tid + 32];  // fault: race
    s[tid] += s[tid + 16];  // fault: race
    s[tid] += s[tid + 8];  // fault: race
}
__global__ void reduce(const int* in, int* out)
{
    extern __shared__ int s[];
    s[threadIdx.x] = in[threadIdx.x];
    __syncthreads();
    if (threadIdx.x < 32) warpReduce(s, threadIdx.x);
    out[threadIdx.x] = s[threadIdx.x];  // fault: race
}
int main()
{
    int *in, *out;
    cudaMalloc(&in, 256), cudaMalloc(&out, 256);
    cudaMemset(in, 0, 256);
    reduce<<<1, 64, 256>>>(in, out);
    cudaDeviceSynchronize();
}
