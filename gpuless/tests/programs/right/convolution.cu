#include <cstdio>
#include <vector>
#define RADIUS 3
#define TILE 16
__constant__ float c_kernel[2 * RADIUS + 1];
__global__ void rows(float* dst, const float* src, int w, int h)
{
    __shared__ float s[TILE][TILE + 2 * RADIUS];
    int x = blockIdx.x * TILE + threadIdx.x, y = blockIdx.y * TILE + threadIdx.y;
    for (int i = threadIdx.x; i < TILE + 2 * RADIUS; i += TILE) {
        int sx = blockIdx.x * TILE + i - RADIUS;
        s[threadIdx.y][i] = sx >= 0 && sx < w && y < h ? src[y * w + sx] : 0;
    }
    __syncthreads();
    if (x >= w || y >= h) return;
    float sum = 0;
#pragma unroll
    for (int k = -RADIUS; k <= RADIUS; k++) sum += c_kernel[RADIUS - k] * s[threadIdx.y][threadIdx.x + RADIUS + k];
    dst[y * w + x] = sum;
}
int main()
{
    const int w = 45, h = 20;
    float kernel[2 * RADIUS + 1];
    for (int i = 0; i <= 2 * RADIUS; i++) kernel[i] = 0.1f * (i + 1);
    std::vector<float> src(w * h), dst(w * h);
    for (int i = 0; i < w * h; i++) src[i] = i % 10;
    float *d_src, *d_dst;
    cudaMalloc(&d_src, w * h * 4), cudaMalloc(&d_dst, w * h * 4);
    cudaMemcpyToSymbol(c_kernel, kernel, sizeof kernel);
    cudaMemcpy(d_src, src.data(), w * h * 4, cudaMemcpyHostToDevice);
    rows<<<dim3((w + TILE - 1) / TILE, (h + TILE - 1) / TILE), dim3(TILE, TILE)>>>(d_dst, d_src, w, h);
    cudaMemcpy(dst.data(), d_dst, w * h * 4, cudaMemcpyDeviceToHost);
    for (int y = 0; y < h; y++) for (int x = 0; x < w; x++) {
        float sum = 0;
        for (int k = -RADIUS; k <= RADIUS; k++) if (x + k >= 0 && x + k < w) sum += kernel[RADIUS - k] * src[y * w + x + k];
        if (std::abs(sum - dst[y * w + x]) > 1e-4f) return printf("wrong at %d %d\n", x, y), 1;
    }
    puts("OK");
}
