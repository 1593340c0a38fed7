#include <algorithm>
#include <cstdio>
#include <vector>
__device__ inline void comparator(unsigned& a, unsigned& b, bool up) { if ((a > b) == up) { unsigned t = a; a = b; b = t; } }
__global__ void sort_shared(unsigned* data, unsigned n)
{
    extern __shared__ unsigned s[];
    unsigned t = threadIdx.x;
    s[t] = data[t], s[t + n / 2] = data[t + n / 2];
    for (unsigned size = 2; size <= n; size <<= 1) {
        bool up = !(t & (size / 2));
        for (unsigned stride = size / 2; stride > 0; stride >>= 1) {
            __syncthreads();
            unsigned pos = 2 * t - (t & (stride - 1));
            comparator(s[pos], s[pos + stride], size == n ? true : up);
        }
    }
    __syncthreads();
    data[t] = s[t], data[t + n / 2] = s[t + n / 2];
}
__global__ void step(unsigned* data, unsigned j, unsigned k)
{
    unsigned i = threadIdx.x + blockDim.x * blockIdx.x, other = i ^ j;
    if (other > i) comparator(data[i], data[other], (i & k) == 0);
}
int main()
{
    const unsigned n = 256;
    std::vector<unsigned> h(n), r(n);
    for (unsigned i = 0; i < n; i++) h[i] = i * 2654435761u >> 7;
    unsigned* d;
    cudaMalloc(&d, n * 4);
    auto expected = h;
    std::sort(expected.begin(), expected.end());
    cudaMemcpy(d, h.data(), n * 4, cudaMemcpyHostToDevice);
    sort_shared<<<1, n / 2, n * sizeof(unsigned)>>>(d, n);
    cudaMemcpy(r.data(), d, n * 4, cudaMemcpyDeviceToHost);
    if (r != expected) return puts("shared is wrong"), 1;
    cudaMemcpy(d, h.data(), n * 4, cudaMemcpyHostToDevice);
    for (unsigned k = 2; k <= n; k <<= 1) for (unsigned j = k >> 1; j > 0; j >>= 1) step<<<4, n / 4>>>(d, j, k);
    cudaMemcpy(r.data(), d, n * 4, cudaMemcpyDeviceToHost);
    puts(r == expected ? "OK" : "global is wrong");
}
