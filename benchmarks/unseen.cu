// Twenty kernels on which no rule of the counters was tuned (benchmarks/nsight.py): f(a, out, n), with n a power of two.
#include <cuda_fp16.h>

__global__ void axpy(const float* a, float* out, int n)
{
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) out[i] = 2.5f * a[i] + out[i];
}

__global__ void every_fifth(const float* a, float* out, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = a[i * 5 % n];
}

__global__ void to_structs(const float* a, float* out, int n)  // x, y, z of a point beside each other
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x, third = n / 4;
    if (i >= third) return;
    out[3 * i] = a[i], out[3 * i + 1] = a[i + third], out[3 * i + 2] = a[i + 2 * third];
}

__global__ void vectors(const float* a, float* out, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n / 4) return;
    float4 v = reinterpret_cast<const float4*>(a)[i];
    v.x *= v.y, v.z += v.w;
    reinterpret_cast<float4*>(out)[i] = v;
}

__global__ void row_sums(const float* a, float* out, int n)  // a row of 64 per thread
{
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= n / 64) return;
    float sum = 0;
    for (int i = 0; i < 64; i++) sum += a[row * 64 + i];
    out[row] = sum;
}

__global__ void column_sums(const float* a, float* out, int n)
{
    const int column = blockIdx.x * blockDim.x + threadIdx.x, columns = gridDim.x * blockDim.x;
    float sum = 0;
    for (int i = column; i < n; i += columns) sum += a[i];
    out[column] = sum;
}

__global__ void stencil(const float* a, float* out, int n)
{
    __shared__ float tile[256 + 6];
    const int i = blockIdx.x * 256 + threadIdx.x;
    tile[threadIdx.x + 3] = a[i];
    if (threadIdx.x < 3) {
        tile[threadIdx.x] = i >= 3 ? a[i - 3] : 0.0f;
        tile[threadIdx.x + 259] = i + 256 < n ? a[i + 256] : 0.0f;
    }
    __syncthreads();
    float sum = 0;
    for (int k = 0; k < 7; k++) sum += tile[threadIdx.x + k] * (k + 1);
    out[i] = sum;
}

__global__ void image(const float* a, float* out, int n)  // 3 x 3 of 64 columns
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x, y = i / 64, x = i % 64;
    float sum = 0;
    for (int dy = -1; dy <= 1; dy++)
        for (int dx = -1; dx <= 1; dx++)
            if (y + dy >= 0 && y + dy < n / 64 && x + dx >= 0 && x + dx < 64) sum += a[(y + dy) * 64 + x + dx];
    out[i] = sum / 9.0f;
}

__global__ void histogram(const float* a, float* out, int n)
{
    __shared__ int bins[64];
    if (threadIdx.x < 64) bins[threadIdx.x] = 0;
    __syncthreads();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        atomicAdd(&bins[__float_as_int(a[i]) >> 17 & 63], 1);
    __syncthreads();
    if (threadIdx.x < 64) atomicAdd(&out[threadIdx.x], float(bins[threadIdx.x]));
}

__global__ void scan(const float* a, float* out, int n)  // in each warp
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x, lane = threadIdx.x % 32;
    float v = a[i];
    for (int d = 1; d < 32; d *= 2) {
        const float before = __shfl_up_sync(0xffffffffu, v, d);
        if (lane >= d) v += before;
    }
    out[i] = v;
}

__global__ void bitonic(const float* a, float* out, int n)
{
    __shared__ float s[256];
    const int t = threadIdx.x;
    s[t] = a[blockIdx.x * 256 + t];
    for (int size = 2; size <= 256; size *= 2)
        for (int step = size / 2; step > 0; step /= 2) {
            __syncthreads();
            const int other = t ^ step;
            if (other > t) {
                const bool up = (t & size) == 0;
                const float x = s[t], y = s[other];
                if ((x > y) == up) s[t] = y, s[other] = x;
            }
        }
    __syncthreads();
    out[blockIdx.x * 256 + t] = s[t];
}

__global__ void butterflies(const float* a, float* out, int n)  // of a Hadamard transform
{
    __shared__ float s[512];
    const int t = threadIdx.x;
    s[t] = a[blockIdx.x * 512 + t], s[t + 256] = a[blockIdx.x * 512 + t + 256];
    for (int h = 1; h < 512; h *= 2) {
        __syncthreads();
        const int i = t / h * 2 * h + t % h;
        const float x = s[i], y = s[i + h];
        s[i] = x + y, s[i + h] = x - y;
    }
    __syncthreads();
    out[blockIdx.x * 512 + t] = s[t], out[blockIdx.x * 512 + t + 256] = s[t + 256];
}

__global__ void swizzled(const float* a, float* out, int n)  // tiles of 32 x 32, transposed
{
    __shared__ float s[32][32];
    const int x = threadIdx.x % 32, y = threadIdx.x / 32;
    for (int r = y; r < 32; r += 8) s[r][x ^ r] = a[blockIdx.x * 1024 + r * 32 + x];
    __syncthreads();
    for (int r = y; r < 32; r += 8) out[blockIdx.x * 1024 + r * 32 + x] = s[x][r ^ x];
}

__global__ void unswizzled(const float* a, float* out, int n)
{
    __shared__ float s[32][32];
    const int x = threadIdx.x % 32, y = threadIdx.x / 32;
    for (int r = y; r < 32; r += 8) s[r][x] = a[blockIdx.x * 1024 + r * 32 + x];
    __syncthreads();
    for (int r = y; r < 32; r += 8) out[blockIdx.x * 1024 + r * 32 + x] = s[x][r];
}

__global__ void polynomial(const float* a, float* out, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    float y = 0;
    for (int k = 0; k < 12; k++) y = y * a[i] + 0.25f * k;
    out[i] = y;
}

__global__ void sigmoid(const float* a, float* out, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = a[i] / (1.0f + expf(-a[i]));
}

__global__ void distances(const float* a, float* out, int n)  // of 128 points to each other
{
    __shared__ float p[128];
    const int t = threadIdx.x;
    p[t] = a[blockIdx.x * 128 + t];
    __syncthreads();
    float sum = 0;
    for (int i = 0; i < 128; i++) {
        const float d = p[i] - p[t];
        sum += rsqrtf(d * d + 0.5f);
    }
    out[blockIdx.x * 128 + t] = sum;
}

__global__ void matrix_vector(const float* a, float* out, int n)  // a warp per row of 128
{
    const int row = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    float sum = 0;
    for (int i = lane; i < 128; i += 32) sum += a[(row * 128 + i) % n] * a[i];
    for (int d = 16; d > 0; d /= 2) sum += __shfl_down_sync(0xffffffffu, sum, d);
    if (lane == 0) out[row] = sum;
}

__global__ void halves(const float* a, float* out, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const __half2* h = reinterpret_cast<const __half2*>(a);
    out[i] = __half2float(h[i].x) * 0.5f + __half2float(h[i].y);
}

__global__ void collatz(const float* a, float* out, int n)  // loops of different lengths
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    unsigned x = i + 1, steps = 0;
    float sum = 0;
    while (x != 1 && steps < 60) {
        sum += a[x % n];
        x = x % 2 ? 3 * x + 1 : x / 2;
        steps++;
    }
    out[i] = sum;
}
