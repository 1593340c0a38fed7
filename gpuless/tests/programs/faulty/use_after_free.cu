__global__ void fill(float* out) { out[threadIdx.x] = 1; }  // fault: bounds
int main()
{
    float* out;
    cudaMalloc(&out, 128);
    cudaFree(out);
    fill<<<1, 32>>>(out);
    cudaDeviceSynchronize();
}
