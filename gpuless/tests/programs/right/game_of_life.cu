#include <cstdio>
#include <vector>
__global__ void life(const unsigned char* now, unsigned char* next, size_t pitch, int w, int h)
{
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= w || y >= h) return;
    int alive = 0;
    for (int dy = -1; dy <= 1; dy++) for (int dx = -1; dx <= 1; dx++)
        if (dx || dy) alive += now[(y + dy + h) % h * pitch + (x + dx + w) % w];
    next[y * pitch + x] = alive == 3 || (alive == 2 && now[y * pitch + x]);
}
int main()
{
    const int w = 40, h = 24;
    std::vector<unsigned char> a(w * h), b(w * h), r(w * h);
    for (int i = 0; i < w * h; i++) a[i] = (i * 37 % 101) % 3 == 0;
    unsigned char *d, *e; size_t pitch;
    cudaMallocPitch(&d, &pitch, w, h), cudaMallocPitch(&e, &pitch, w, h);
    cudaMemcpy2D(d, pitch, a.data(), w, w, h, cudaMemcpyHostToDevice);
    for (int step = 0; step < 4; step++) {
        life<<<dim3((w + 15) / 16, (h + 7) / 8), dim3(16, 8)>>>(d, e, pitch, w, h);
        std::swap(d, e);
        for (int y = 0; y < h; y++) for (int x = 0; x < w; x++) {
            int n = 0;
            for (int k = 0; k < 9; k++) if (k != 4) n += a[(y + k / 3 - 1 + h) % h * w + (x + k % 3 - 1 + w) % w];
            b[y * w + x] = n == 3 || (n == 2 && a[y * w + x]);
        }
        a = b;
    }
    cudaMemcpy2D(r.data(), w, d, pitch, w, h, cudaMemcpyDeviceToHost);
    puts(r == a ? "OK" : "wrong");
}
