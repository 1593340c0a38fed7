__global__ void count(int* total)
{
    if (threadIdx.x == 0) *total += 1;  // fault: race
}
int main()
{
    int* total;
    cudaMalloc(&total, sizeof(int));
    cudaMemset(total, 0, sizeof(int));
    count<<<8, 32>>>(total);
    cudaDeviceSynchronize();
}
