#include <cstdio>
#include <iostream>
#include <numeric>
#include <vector>
// What only the host calls, in a class that kernels name; lambdas inside of a kernel; results copied in quarters.
__global__ void scale(float* x, float by, int n)
{
    const auto product = [] __device__(float a, float b) { return a * b; };
    const auto scaled = [=] __device__(int i) { return product(x[i], by); };
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] = scaled(i);
}
class Matrix
{
public:
    int n;
    float *host, *device;
    Matrix(int size) : n(size) { host = new float[n]; cudaMalloc(&device, bytes()); }
    ~Matrix() { delete[] host; cudaFree(device); }
    __host__ __device__ size_t bytes() const { return n * sizeof(float); }
    void up() { cudaMemcpy(device, host, bytes(), cudaMemcpyHostToDevice); }
    void down(int part) { cudaMemcpy(host + part * n / 4, device + part * n / 4, bytes() / 4, cudaMemcpyDeviceToHost); }
    void scale_by(float by);
    friend std::ostream& operator<<(std::ostream& out, const Matrix& of) { return out << of.n << " numbers"; }
};
void Matrix::scale_by(float by) { scale<<<(n + 127) / 128, 128>>>(device, by, n); }
__global__ void measure(const Matrix* of, size_t* bytes) { *bytes = of->bytes(); }
int main()
{
    Matrix m(1000);
    std::iota(m.host, m.host + m.n, 0.f);
    m.up(), m.scale_by(3);
    for (int part = 0; part < 4; part++) m.down(part);
    Matrix* on_device;
    size_t *bytes, h;
    cudaMalloc(&on_device, sizeof m), cudaMalloc(&bytes, sizeof h);
    cudaMemcpy(on_device, &m, sizeof m, cudaMemcpyHostToDevice);
    measure<<<1, 1>>>(on_device, bytes);
    cudaMemcpy(&h, bytes, sizeof h, cudaMemcpyDeviceToHost);
    cudaFree(on_device), cudaFree(bytes);
    if (h != m.bytes()) return printf("%zu\n", h), 1;
    for (int i = 0; i < m.n; i++)
        if (m.host[i] != 3 * i) return printf("%f\n", m.host[i]), 1;
    std::cout << m << " OK\n";
}
