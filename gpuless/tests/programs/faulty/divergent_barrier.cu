__global__ void half_of_them(int* x)
{
    if (threadIdx.x < 40) __syncthreads();  // fault: barrier
    x[threadIdx.x] = 1;
    __syncthreads();  // fault: barrier
}
int main()
{
    int* x;
    cudaMalloc(&x, 64 * sizeof(int));
    half_of_them<<<1, 64>>>(x);
    cudaDeviceSynchronize();
}
