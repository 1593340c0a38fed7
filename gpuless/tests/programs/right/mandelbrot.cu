#include <complex>
#include <cstdio>
#include <vector>
template <class T> struct Complex { T re, im; __host__ __device__ T norm() const { return re * re + im * im; } };
template <class T> __host__ __device__ Complex<T> operator*(Complex<T> a, Complex<T> b) { return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re}; }
template <class T> __host__ __device__ Complex<T> operator+(Complex<T> a, Complex<T> b) { return {a.re + b.re, a.im + b.im}; }
template <class T> __host__ __device__ int escape(Complex<T> c, int most)
{
    Complex<T> z{0, 0};
    int i = 0;
    while (i < most && z.norm() < 4) z = z * z + c, i++;
    return i;
}
__global__ void mandelbrot(int* out, int w, int h, int most)
{
    for (int y = blockIdx.y * blockDim.y + threadIdx.y; y < h; y += gridDim.y * blockDim.y)
        for (int x = blockIdx.x * blockDim.x + threadIdx.x; x < w; x += gridDim.x * blockDim.x)
            out[y * w + x] = escape(Complex<double>{-2.0 + 3.0 * x / w, -1.0 + 2.0 * y / h}, most);
}
int main()
{
    const int w = 40, h = 30, most = 50;
    std::vector<int> r(w * h);
    int* d;
    cudaMalloc(&d, w * h * sizeof(int));
    mandelbrot<<<dim3(2, 2), dim3(8, 8)>>>(d, w, h, most);
    cudaMemcpy(r.data(), d, w * h * sizeof(int), cudaMemcpyDeviceToHost);
    for (int i = 0; i < w * h; i++) if (r[i] != escape(Complex<double>{-2.0 + 3.0 * (i % w) / w, -1.0 + 2.0 * (i / w) / h}, most)) return puts("wrong"), 1;
    puts("OK");
}
