// Objects with virtual functions that kernels make, use and delete; and malloc in every thread.
#include <cstdio>
#include <vector>
struct Shape
{
    __device__ virtual ~Shape() {}
    __device__ virtual float area() const = 0;
};
struct Square : Shape
{
    float side;
    __device__ explicit Square(float side) : side(side) {}
    __device__ float area() const override { return side * side; }
};
struct Circle : Shape
{
    float radius;
    __device__ explicit Circle(float radius) : radius(radius) {}
    __device__ float area() const override { return 3.0f * radius * radius; }
};
__global__ void make(Shape** shapes, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    if (i % 2) shapes[i] = new Square(float(i));
    else shapes[i] = new Circle(float(i));
}
__global__ void areas(Shape* const* shapes, float* out, int n)
{
    for (int i = threadIdx.x; i < n; i += blockDim.x) out[i] = shapes[i]->area();
}
__global__ void unmake(Shape** shapes, int n)
{
    for (int i = threadIdx.x; i < n; i += blockDim.x) delete shapes[i];
}
__global__ void reversed(int* out)
{
    int* own = static_cast<int*>(malloc(4 * sizeof(int)));
    if (!own) return;
    for (int i = 0; i < 4; i++) own[i] = threadIdx.x * 4 + i;
    for (int i = 0; i < 4; i++) out[threadIdx.x * 4 + i] = own[3 - i];
    free(own);
}
__global__ void too_much(int* out)
{
    size_t large = size_t(1) << 30;
    *out = malloc(large) == nullptr;
}
int main()
{
    const int n = 100;
    Shape** shapes;
    float *out, h[n];
    int *r, hr[256], none = 0;
    cudaMalloc(&shapes, n * sizeof(Shape*)), cudaMalloc(&out, sizeof h), cudaMalloc(&r, sizeof hr);
    cudaDeviceSetLimit(cudaLimitMallocHeapSize, 16 << 20);
    make<<<4, 32>>>(shapes, n);
    areas<<<1, 64>>>(shapes, out, n);
    unmake<<<1, 64>>>(shapes, n);
    cudaMemcpy(h, out, sizeof h, cudaMemcpyDeviceToHost);
    reversed<<<1, 64>>>(r);
    cudaMemcpy(hr, r, sizeof hr, cudaMemcpyDeviceToHost);
    too_much<<<1, 1>>>(r);
    cudaMemcpy(&none, r, sizeof none, cudaMemcpyDeviceToHost);
    bool good = none == 1;
    for (int i = 0; i < n; i++) good &= h[i] == (i % 2 ? 1.0f : 3.0f) * i * i;
    for (int i = 0; i < 256; i++) good &= hr[i] == i / 4 * 4 + 3 - i % 4;
    cudaFree(shapes), cudaFree(out), cudaFree(r);
    puts(good ? "OK" : "wrong");
    return !good;
}
