#include <vector>
int main()
{
    std::vector<float> host(200);
    float* device;
    cudaMalloc(&device, 100 * sizeof(float));
    cudaMemcpy(device, host.data(), host.size() * sizeof(float), cudaMemcpyHostToDevice);  // fault: copy
}
