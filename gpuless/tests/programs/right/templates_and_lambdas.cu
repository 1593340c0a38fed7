#include <cstdio>
#include <functional>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>
template <class F> __global__ void for_each_index(size_t n, F f)
{
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += size_t(gridDim.x) * blockDim.x) f(i);
}
template <class F> void parallel_for(size_t n, F&& f, cudaStream_t s = nullptr)
{
    for_each_index<<<dim3(unsigned((n + 127) / 128)), dim3(128), 0, s>>>(n, std::forward<F>(f));
    if (auto e = cudaGetLastError(); e != cudaSuccess) throw std::runtime_error(cudaGetErrorString(e));
}
struct CudaFree { void operator()(void* p) const { cudaFree(p); } };
template <class T> class DeviceVector {
public:
    explicit DeviceVector(size_t n) : size_(n) { T* p; if (cudaMalloc(&p, n * sizeof(T)) != cudaSuccess) throw std::bad_alloc(); data_.reset(p); }
    DeviceVector(const std::vector<T>& h) : DeviceVector(h.size()) { cudaMemcpy(data_.get(), h.data(), h.size() * sizeof(T), cudaMemcpyHostToDevice); }
    T* data() const { return data_.get(); }
    size_t size() const { return size_; }
    std::vector<T> host() const { std::vector<T> h(size_); cudaMemcpy(h.data(), data(), size_ * sizeof(T), cudaMemcpyDeviceToHost); return h; }
private:
    std::unique_ptr<T, CudaFree> data_;
    size_t size_;
};
template <class T, int N> struct Vec {
    T v[N];
    template <class... A> __host__ __device__ constexpr Vec(A... a) : v{T(a)...} {}
    __host__ __device__ constexpr T sum() const { T s{}; for (auto x : v) s += x; return s; }
};
template <class Op, class T> __device__ T warp_reduce(T x, Op op)
{
#pragma unroll
    for (int o = warpSize / 2; o > 0; o >>= 1) x = op(x, __shfl_down_sync(0xffffffffu, x, o));
    return x;
}
template <bool Square, class T> __global__ void norm(const T* in, T* out, int n)
{
    T acc = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        if constexpr (Square) acc += in[i] * in[i];
        else acc += in[i] < T(0) ? -in[i] : in[i];
    }
    acc = warp_reduce(acc, [](T a, T b) { return a + b; });
    if (threadIdx.x % warpSize == 0) atomicAdd(out, acc);
}
enum class Act { Relu, Leaky };
template <Act A> struct Activation;
template <> struct Activation<Act::Relu> { __device__ float operator()(float x) const { return fmaxf(x, 0.f); } };
template <> struct Activation<Act::Leaky> { float slope; __device__ float operator()(float x) const { return x > 0 ? x : slope * x; } };
template <class... Fs> __global__ void compose(float* x, int n, Fs... fs)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = x[i];
    ((v = fs(v)), ...);
    x[i] = v;
}
__global__ void sum_vec(const Vec<double, 4>* v, double* out) { out[threadIdx.x] = v[threadIdx.x].sum(); }
int main()
{
    std::vector<float> a(1000), b(1000);
    std::iota(a.begin(), a.end(), -500.f), std::iota(b.begin(), b.end(), 1.f);
    DeviceVector<float> da(a), db(b), dc(a.size());
    float alpha = 2.5f;
    auto pa = da.data(), pb = db.data(), pc = dc.data();
    parallel_for(a.size(), [=] __device__(size_t i) { pc[i] = alpha * pa[i] + pb[i]; });
    auto c = dc.host();
    bool ok = true;
    for (size_t i = 0; i < c.size(); i++) ok &= c[i] == alpha * a[i] + b[i];
    auto twice = [] __host__ __device__(float x) { return 2 * x; };
    compose<<<8, 128>>>(pc, 1000, Activation<Act::Leaky>{0.1f}, twice, Activation<Act::Relu>{});
    auto d = dc.host();
    for (size_t i = 0; i < d.size(); i++) ok &= d[i] == (c[i] > 0 ? twice(c[i]) : 0.f);
    DeviceVector<float> sums(std::vector<float>(2, 0.f));
    norm<true><<<1, 64>>>(pb, sums.data(), 100);
    norm<false><<<1, 64>>>(pa, sums.data() + 1, 100);
    auto s = sums.host();
    ok &= s[0] == 338350.f && s[1] == 45050.f;
    std::vector<Vec<double, 4>> vs(32, Vec<double, 4>(1, 2, 3, 4));
    DeviceVector<Vec<double, 4>> dv(vs);
    DeviceVector<double> dd(32);
    sum_vec<<<1, 32>>>(dv.data(), dd.data());
    for (double x : dd.host()) ok &= x == 10;
    std::puts(ok ? "OK" : "FAILED");
    return !ok;
}
