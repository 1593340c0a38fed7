#include <cstdio>
#include <iostream>
struct Vector
{
    int n; float* data;
    static void* operator new(size_t bytes) { void* p; cudaMallocManaged(&p, bytes); cudaDeviceSynchronize(); return p; }
    static void operator delete(void* p) { cudaDeviceSynchronize(); cudaFree(p); }
    Vector(int n) : n(n) { cudaMallocManaged(&data, n * sizeof(float)); }
    ~Vector() { cudaFree(data); }
    __host__ __device__ float& operator[](int i) { return data[i]; }
};
__global__ void double_all(Vector* v)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < v->n; i += blockDim.x * gridDim.x) (*v)[i] *= 2.0f;
}
int main()
{
    Vector* v = new Vector(500);
    for (int i = 0; i < v->n; i++) (*v)[i] = i;
    int id = 0;
    cudaGetDevice(&id);
    cudaMemAdvise(v->data, v->n * 4, cudaMemAdviseSetPreferredLocation, cudaMemLocation{cudaMemLocationTypeDevice, id});
    double_all<<<2, 128>>>(v);
    cudaDeviceSynchronize();
    for (int i = 0; i < v->n; i++) if ((*v)[i] != 2 * i) { std::cout << "wrong at " << i << '\n'; return 1; }
    delete v;
    std::cout << "OK\n";
}
