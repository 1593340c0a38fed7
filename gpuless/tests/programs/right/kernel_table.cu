#include <cstdio>
typedef void (*Kernel)(int*, int);
namespace ops {
template <int N> struct By { static constexpr int value = N; };
template <class B> __global__ void add(int* x, int n) { if (threadIdx.x < n) x[threadIdx.x] += B::value; }
__global__ void negate(int* x, int n) { if (threadIdx.x < n) x[threadIdx.x] = -x[threadIdx.x]; }
}
__global__ void over(int* x, int n) { if (threadIdx.x < n) x[threadIdx.x] *= 2; }
__global__ void over(int* x, int n, int by) { if (threadIdx.x < n) x[threadIdx.x] *= by; }
struct Table { Kernel kernels[2] = {ops::add<ops::By<3>>, ops::negate}; Kernel get(int i) { return kernels[i]; } };
int main()
{
    const int n = 20;
    int h[n], *d;
    cudaMalloc(&d, sizeof h), cudaMemset(d, 0, sizeof h);
    Table table, *t = &table;
    table.kernels[0]<<<1, 32>>>(d, n);             // 3
    t->kernels[1]<<<dim3(1), dim3(32)>>>(d, n);    // -3
    ::ops::add<ops::By<(5 > 3 ? 4 : 2)>><<<1, 32>>>(d, n);  // 1
    over<<<1, 32>>>(d, n), over<<<1, 32>>>(d, n, 5);        // 10
    auto k = &ops::negate;
    (*k)<<<1, 32, 0, 0>>>(d, n);                   // -10
    if (n > 3) t->get(0)<<<1, 32>>>(d, n); else ops::negate<<<1, 1>>>(nullptr, 0);  // -7
    void* args[] = {&d, (void*)&n};
    cudaLaunchKernel((const void*)ops::add<ops::By<7>>, dim3(1), dim3(32), args, 0, nullptr);  // 0
    cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost);
    for (int x : h) if (x != 0) return printf("%d\n", x), 1;
    puts("OK");
}
