#include <cstdio>
#include <vector>
const int TILE_DIM = 32, BLOCK_ROWS = 8;
__global__ void copySharedMem(float* odata, const float* idata)
{
    __shared__ float tile[TILE_DIM * TILE_DIM];
    int x = blockIdx.x * TILE_DIM + threadIdx.x, y = blockIdx.y * TILE_DIM + threadIdx.y, width = gridDim.x * TILE_DIM;
    for (int j = 0; j < TILE_DIM; j += BLOCK_ROWS) tile[(threadIdx.y + j) * TILE_DIM + threadIdx.x] = idata[(y + j) * width + x];
    __syncthreads();
    for (int j = 0; j < TILE_DIM; j += BLOCK_ROWS) odata[(y + j) * width + x] = tile[(threadIdx.y + j) * TILE_DIM + threadIdx.x];
}
template <int PAD> __global__ void transpose(float* odata, const float* idata)
{
    __shared__ float tile[TILE_DIM][TILE_DIM + PAD];
    int x = blockIdx.x * TILE_DIM + threadIdx.x, y = blockIdx.y * TILE_DIM + threadIdx.y, width = gridDim.x * TILE_DIM, height = gridDim.y * TILE_DIM;
    for (int j = 0; j < TILE_DIM; j += BLOCK_ROWS) tile[threadIdx.y + j][threadIdx.x] = idata[(y + j) * width + x];
    __syncthreads();
    x = blockIdx.y * TILE_DIM + threadIdx.x, y = blockIdx.x * TILE_DIM + threadIdx.y;
    for (int j = 0; j < TILE_DIM; j += BLOCK_ROWS) odata[(y + j) * height + x] = tile[threadIdx.x][threadIdx.y + j];
}
int main()
{
    const int nx = 96, ny = 64;
    std::vector<float> h(nx * ny), r(nx * ny);
    for (int i = 0; i < nx * ny; i++) h[i] = i;
    float *in, *out;
    cudaMalloc(&in, nx * ny * 4), cudaMalloc(&out, nx * ny * 4);
    cudaMemcpy(in, h.data(), nx * ny * 4, cudaMemcpyHostToDevice);
    dim3 grid(nx / TILE_DIM, ny / TILE_DIM, 1), block(TILE_DIM, BLOCK_ROWS, 1);
    copySharedMem<<<grid, block>>>(out, in);
    cudaMemcpy(r.data(), out, nx * ny * 4, cudaMemcpyDeviceToHost);
    if (r != h) return 1;
    transpose<0><<<grid, block>>>(out, in);
    transpose<1><<<grid, block>>>(out, in);
    cudaMemcpy(r.data(), out, nx * ny * 4, cudaMemcpyDeviceToHost);
    for (int i = 0; i < nx * ny; i++) if (r[i % nx * ny + i / nx] != h[i]) { printf("wrong at %d\n", i); return 1; }
    printf("OK\n");
}
