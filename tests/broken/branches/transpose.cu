/*---
idea = "Whole tiles of large matrices without tests, others with them; a single row or column is a copy."
dtypes = ["f32"]
[[launch]]
kernel = "transpose"
grid = ["ceil_div(C, 32)", "ceil_div(R, 32)"]
block = [32, 8]
---*/
extern "C" __global__ void transpose(const float* x, float* out, int R, int C)
{
    __shared__ float tile[32][33];
    const int r = blockIdx.y * 32 + threadIdx.y, c = blockIdx.x * 32 + threadIdx.x;
    const int ro = blockIdx.x * 32 + threadIdx.y, co = blockIdx.y * 32 + threadIdx.x;
    if (R == 1) {
        if (threadIdx.y == 0 && c < C) out[c] = x[c];
    } else if ((R & 31) == 0 && (C & 31) == 0 && R * C >= 20000) {
        for (int i = 0; i < 32; i += 8) tile[threadIdx.y + i][threadIdx.x] = x[size_t(r + i) * C + c];
        __syncthreads();
        for (int i = 0; i < 32; i += 8) out[size_t(ro + i) * R + co] = tile[threadIdx.x][threadIdx.y + i];
    } else {
        for (int i = 0; i < 32; i += 8)
            if (r + i < R && c < C) tile[threadIdx.y + i][threadIdx.x] = x[size_t(r + i) * C + c];
        __syncthreads();
        for (int i = 0; i < 32; i += 8)
            if (ro + i < C && co < R) out[size_t(ro + i) * R + co] = tile[threadIdx.x][threadIdx.y + i];
    }
}
