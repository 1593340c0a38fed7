int main()
{
    float host[10], *device;
    cudaMalloc(&device, sizeof host);
    cudaMemcpy(host, device, sizeof host, cudaMemcpyHostToDevice);  // fault: copy
}
