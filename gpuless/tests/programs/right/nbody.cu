#include <cmath>
#include <cstdio>
#include <vector>
__device__ float3 bodyBodyInteraction(float4 bi, float4 bj, float3 ai)
{
    float3 r = {bj.x - bi.x, bj.y - bi.y, bj.z - bi.z};
    float d = r.x * r.x + r.y * r.y + r.z * r.z + 0.01f, inv = rsqrtf(d), s = bj.w * inv * inv * inv;
    ai.x += r.x * s, ai.y += r.y * s, ai.z += r.z * s;
    return ai;
}
__global__ void forces(const float4* __restrict__ X, float3* A, int N)
{
    extern __shared__ float4 shPosition[];
    int gtid = blockIdx.x * blockDim.x + threadIdx.x;
    float3 acc = {0.0f, 0.0f, 0.0f};
    float4 mine = X[gtid];
    for (int i = 0, tile = 0; i < N; i += blockDim.x, tile++) {
        shPosition[threadIdx.x] = X[tile * blockDim.x + threadIdx.x];
        __syncthreads();
        for (unsigned j = 0; j < blockDim.x; j++) acc = bodyBodyInteraction(mine, shPosition[j], acc);
        __syncthreads();
    }
    A[gtid] = acc;
}
int main()
{
    const int N = 128, P = 32;
    std::vector<float4> x(N);
    std::vector<float3> a(N);
    for (int i = 0; i < N; i++) x[i] = make_float4(sinf(i), cosf(3 * i), sinf(7 * i), 1.0f + i % 3);
    float4* dx; float3* da;
    cudaMalloc(&dx, N * sizeof(float4)), cudaMalloc(&da, N * sizeof(float3));
    cudaMemcpy(dx, x.data(), N * sizeof(float4), cudaMemcpyHostToDevice);
    forces<<<N / P, P, P * sizeof(float4)>>>(dx, da, N);
    cudaMemcpy(a.data(), da, N * sizeof(float3), cudaMemcpyDeviceToHost);
    for (int i = 0; i < N; i++) {
        double s = 0;
        for (int j = 0; j < N; j++) {
            double rx = x[j].x - x[i].x, ry = x[j].y - x[i].y, rz = x[j].z - x[i].z, d = rx * rx + ry * ry + rz * rz + 0.01;
            s += rx * x[j].w / (d * std::sqrt(d));
        }
        if (std::abs(s - a[i].x) > 1e-2 * (1 + std::abs(s))) return printf("%d: %f, not %f\n", i, a[i].x, s), 1;
    }
    puts("OK");
}
