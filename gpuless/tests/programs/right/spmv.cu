#include <cstdio>
#include <tuple>
#include <vector>
template <typename T, int THREADS_PER_ROW> __global__ void spmv_csr(const int* __restrict__ row_ptr, const int* __restrict__ cols, const T* __restrict__ vals, const T* __restrict__ x, T* y, int rows)
{
    const int row = (blockIdx.x * blockDim.x + threadIdx.x) / THREADS_PER_ROW, lane = threadIdx.x & (THREADS_PER_ROW - 1);
    T sum = 0;
    if (row < rows) for (int j = row_ptr[row] + lane; j < row_ptr[row + 1]; j += THREADS_PER_ROW) sum += vals[j] * __ldg(&x[cols[j]]);
    for (int d = THREADS_PER_ROW / 2; d > 0; d >>= 1) sum += __shfl_down_sync(0xffffffffu, sum, d, THREADS_PER_ROW);
    if (row < rows && lane == 0) y[row] = sum;
}
template <typename T> T* upload(const std::vector<T>& v)
{
    T* p;
    cudaMalloc(&p, v.size() * sizeof(T));
    cudaMemcpy(p, v.data(), v.size() * sizeof(T), cudaMemcpyHostToDevice);
    return p;
}
int main()
{
    const int n = 101;
    std::vector<int> ptr{0}, cols;
    std::vector<float> vals, x(n), y(n), e(n);
    for (int i = 0; i < n; i++) x[i] = i % 5;
    for (int r = 0; r < n; r++) {
        for (int c = r % 3; c < n; c += 1 + r % 7) cols.push_back(c), vals.push_back(1 + (r + c) % 4), e[r] += vals.back() * x[c];
        ptr.push_back(cols.size());
    }
    auto [p, c, v] = std::make_tuple(upload(ptr), upload(cols), upload(vals));
    float *dx = upload(x), *dy = upload(y);
    spmv_csr<float, 8><<<(n * 8 + 127) / 128, 128>>>(p, c, v, dx, dy, n);
    cudaMemcpy(y.data(), dy, n * sizeof(float), cudaMemcpyDeviceToHost);
    puts(y == e ? "OK" : "wrong");
}
