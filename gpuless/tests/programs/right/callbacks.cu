#include <cstdio>
#include <vector>
struct Job { int* device; std::vector<int> host; int number; bool good; };
__global__ void increment(int* x, int n, int by) { int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] += by; }
void CUDART_CB finished(cudaStream_t, cudaError_t status, void* data)
{
    Job* job = (Job*)data;
    job->good = status == cudaSuccess;
    for (int x : job->host) job->good &= x == job->number + 1;
}
void CUDART_CB count(void* data) { ++*static_cast<int*>(data); }
int main()
{
    const int n = 100, jobs = 3;
    Job all[jobs];
    cudaStream_t s[jobs];
    int counted = 0;
    for (int j = 0; j < jobs; j++) {
        all[j] = {nullptr, std::vector<int>(n, j), j, false};
        cudaStreamCreate(&s[j]), cudaMalloc(&all[j].device, n * 4);
        cudaHostRegister(all[j].host.data(), n * 4, cudaHostRegisterDefault);
        cudaMemcpyAsync(all[j].device, all[j].host.data(), n * 4, cudaMemcpyHostToDevice, s[j]);
        increment<<<1, 128, 0, s[j]>>>(all[j].device, n, 1);
        cudaMemcpyAsync(all[j].host.data(), all[j].device, n * 4, cudaMemcpyDeviceToHost, s[j]);
        cudaStreamAddCallback(s[j], finished, &all[j], 0);
    }
    cudaDeviceSynchronize();
    for (auto stream : s) cudaLaunchHostFunc(stream, count, &counted), cudaStreamSynchronize(stream);
    bool good = counted == jobs;
    for (Job& job : all) good &= job.good, cudaFree(job.device), cudaHostUnregister(job.host.data());
    puts(good ? "OK" : "wrong");
    return !good;
}
