#include <cstdio>
#include <functional>
#include <vector>
template <class F, class... Args> __global__ void run(F f, int n, Args... args)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) f(i, args...);
}
struct Axpy { float a; __device__ void operator()(int i, float* y, const float* x) const { y[i] += a * x[i]; } };
template <class F> void for_each(int n, F f) { run<<<4, 32>>>(f, n); }
class Field
{
    float* data_; int n_;
public:
    Field(int n) : n_(n) { cudaMalloc(&data_, n * sizeof(float)); }
    ~Field() { cudaFree(data_); }
    float* data() { return data_; }
    void fill(float v) { float* d = data_; for_each(n_, [=] __device__(int i) { d[i] = v; }); }
    std::vector<float> host() const { std::vector<float> h(n_); cudaMemcpy(h.data(), data_, n_ * sizeof(float), cudaMemcpyDeviceToHost); return h; }
};
int main()
{
    const int n = 200;
    Field x(n), y(n);
    x.fill(2), y.fill(1);
    run<<<2, 64>>>(Axpy{3}, n, y.data(), x.data());
    auto twice = [] __host__ __device__(float v) { return 2 * v; };
    float* p = y.data();
    for_each(n, [p, twice] __device__(int i) { p[i] = twice(p[i]); });
    for (float v : y.host()) if (v != 14) return printf("%f\n", v), 1;
    puts("OK");
}
