#include <curand.h>
#include <curand_kernel.h>
#include <cmath>
#include <cstdio>
#include <vector>

__global__ void philox(unsigned* out, unsigned long long seed)
{
    curandStatePhilox4_32_10_t state;
    curand_init(seed, threadIdx.x, 0, &state);
    for (int i = 0; i < 8; i++) out[threadIdx.x * 8 + i] = curand(&state);
}
__global__ void xorwow(unsigned* out)
{
    curandState plain, ahead, far;
    curand_init(1234, 1, 0, &plain);
    curand_init(1234, 1, 1000, &ahead);
    curand_init(1234, 0, 0, &far);
    for (int i = 0; i < 1000; i++) curand(&plain);
    for (int i = 0; i < 16; i++) skipahead(1ull << 63, &far);  // 2^67
    skipahead(1000, &far);
    out[0] = curand(&plain), out[1] = curand(&ahead), out[2] = curand(&far);
}
__global__ void setup(curandState* states, unsigned long long seed)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    curand_init(seed, i, 0, &states[i]);
}
__global__ void estimate(curandState* states, unsigned* inside, int draws)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    curandState local = states[i];
    unsigned count = 0;
    for (int n = 0; n < draws; n++) {
        float x = curand_uniform(&local), y = curand_uniform(&local);
        count += x * x + y * y <= 1.0f;
    }
    states[i] = local;
    atomicAdd(inside, count);
}

int main()
{
    // The known answers of Philox 4x32-10 for a counter and a key of zero.
    const unsigned known[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    unsigned *d, h[256];
    cudaMalloc(&d, sizeof h);
    philox<<<1, 32>>>(d, 0);
    cudaMemcpy(h, d, sizeof h, cudaMemcpyDeviceToHost);
    for (int i = 0; i < 4; i++) if (h[i] != known[i]) return printf("philox %d: %08x\n", i, h[i]), 1;
    if (h[8] == h[0]) return puts("sequences are equal"), 1;
    xorwow<<<1, 1>>>(d);
    cudaMemcpy(h, d, 12, cudaMemcpyDeviceToHost);
    if (h[0] != h[1] || h[0] != h[2]) return printf("xorwow: %08x %08x %08x\n", h[0], h[1], h[2]), 1;

    curandState* states;
    cudaMalloc(&states, 256 * sizeof *states), cudaMemset(d, 0, 4);
    setup<<<2, 128>>>(states, 7);
    estimate<<<2, 128>>>(states, d, 100);
    cudaMemcpy(h, d, 4, cudaMemcpyDeviceToHost);
    if (fabs(4.0 * h[0] / 25600 - 3.14159) > 0.05) return printf("pi: %f\n", 4.0 * h[0] / 25600), 1;

    curandGenerator_t generator;
    curandCreateGenerator(&generator, CURAND_RNG_PSEUDO_DEFAULT);
    curandSetPseudoRandomGeneratorSeed(generator, 1234ull);
    const int n = 20000;
    float *x, *z;
    cudaMalloc(&x, n * 4), cudaMalloc(&z, n * 4);
    curandGenerateUniform(generator, x, n);
    curandGenerateNormal(generator, z, n, 2.0f, 3.0f);
    std::vector<float> u(n), g(n);
    cudaMemcpy(u.data(), x, n * 4, cudaMemcpyDeviceToHost);
    cudaMemcpy(g.data(), z, n * 4, cudaMemcpyDeviceToHost);
    double mean = 0, normal = 0, square = 0;
    for (int i = 0; i < n; i++) mean += u[i] / n, normal += g[i] / n, square += (g[i] - 2.0) * (g[i] - 2.0) / n;
    for (float one : u) if (!(one > 0 && one <= 1)) return printf("outside: %f\n", one), 1;
    if (fabs(mean - 0.5) > 0.01 || fabs(normal - 2) > 0.1 || fabs(square - 9) > 0.4) return printf("%f %f %f\n", mean, normal, square), 1;
    curandDestroyGenerator(generator);
    for (void* p : {(void*)d, (void*)states, (void*)x, (void*)z}) cudaFree(p);
    puts("OK");
}
