int main()
{
    float* device;
    cudaMalloc(&device, 400);
    cudaFree(device + 10);  // fault: free
}
