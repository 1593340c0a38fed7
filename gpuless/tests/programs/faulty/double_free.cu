int main()
{
    float* device;
    cudaMalloc(&device, 100);
    cudaFree(device);
    cudaFree(device);  // fault: double free
}
