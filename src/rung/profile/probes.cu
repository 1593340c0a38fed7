// Small kernels, each of which measures a constant of the model of time (emulator/timing.py) by the clock of its multiprocessor.
#include <stdint.h>

__device__ __forceinline__ uint32_t now()
{
    uint32_t t;
    asm volatile("mov.u32 %0, %%clock;" : "=r"(t)::"memory");
    return t;
}

extern "C" __global__ void empty(float* out) {}
extern "C" __global__ void store_one(float* out) { out[blockIdx.x * blockDim.x + threadIdx.x] = 1; }
extern "C" __global__ void load_one(const float* x, float* out) { out[blockIdx.x * blockDim.x + threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x]; }

// The same 2048 instructions twice: clocks of the first pass and of the second.
extern "C" __global__ void code(float* out)
{
    float a = threadIdx.x, b = threadIdx.x * 2.0f, c = threadIdx.x * 3.0f, d = threadIdx.x * 4.0f;
    uint32_t took[2];
#pragma unroll 1
    for (int pass = 0; pass < 2; pass++) {
        const uint32_t began = now();
#pragma unroll
        for (int i = 0; i < 512; i++)
            asm volatile("fma.rn.f32 %0, %0, %1, %2; fma.rn.f32 %1, %1, %2, %3; fma.rn.f32 %2, %2, %3, %0; fma.rn.f32 %3, %3, %0, %1;" : "+f"(a), "+f"(b), "+f"(c), "+f"(d));
        took[pass] = now() - began;
    }
    if (!threadIdx.x) out[2 * blockIdx.x] = took[0], out[2 * blockIdx.x + 1] = took[1];
    if (a + b + c + d == 1.25f) out[1000] = a;
}

// A chain of loads; `x` holds at each place the index of the next.
extern "C" __global__ void chase_cached(const int* x, float* out, int n)
{
    int at = 0;
    for (int i = 0; i < 64; i++) asm volatile("ld.global.ca.s32 %0, [%1];" : "=r"(at) : "l"(x + at) : "memory");
    at = 0;
    const uint32_t began = now();
    for (int i = 0; i < n; i++) asm volatile("ld.global.ca.s32 %0, [%1];" : "=r"(at) : "l"(x + at) : "memory");
    out[0] = float(now() - began) / n, out[1] = at;
}
extern "C" __global__ void chase(const int* x, float* out, int n)
{
    int at = 0;
    const uint32_t began = now();
    for (int i = 0; i < n; i++) asm volatile("ld.global.cg.s32 %0, [%1];" : "=r"(at) : "l"(x + at) : "memory");
    out[0] = float(now() - began) / n, out[1] = at;
}
extern "C" __global__ void chase_shared(const int* x, float* out, int n)
{
    __shared__ int s[1024];
    for (int i = threadIdx.x; i < 1024; i += 32) s[i] = (i * 33 + 32) % 1024;
    __syncthreads();
    int at = threadIdx.x;
    const uint32_t began = now();
    for (int i = 0; i < n; i++) at = ((volatile int*)s)[at];
    out[0] = float(now() - began) / n, out[1] = at;
}

#define MMA(d, a, b) \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a), "r"(a + 1), "r"(a + 2), "r"(a + 3), "r"(b), "r"(b + 1))
template <int CHAINS>
__device__ void products(float* out, int n)
{
    float d[CHAINS][4] = {};
    const uint32_t a = threadIdx.x, b = threadIdx.x * 3;
    __syncthreads();
    const uint32_t began = now();
    for (int i = 0; i < n; i++)
#pragma unroll
        for (int c = 0; c < CHAINS; c++) MMA(d[c], a, b);
    const uint32_t took = now() - began;
    float sum = 0;
    for (int c = 0; c < CHAINS; c++) sum += d[c][0] + d[c][3];
    if (!threadIdx.x) out[0] = float(took) / n / CHAINS;
    out[1 + threadIdx.x] = sum;
}
extern "C" __global__ void products_1(float* out, int n) { products<1>(out, n); }
extern "C" __global__ void products_8(float* out, int n) { products<8>(out, n); }

#define MMA8(d, a, b) \
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]) : "r"(a), "r"(a + 1), "r"(a + 2), "r"(a + 3), "r"(b), "r"(b + 1))
#define MMA32(d, a, b) \
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a), "r"(a + 1), "r"(a + 2), "r"(a + 3), "r"(b), "r"(b + 1))
extern "C" __global__ void products_s8(float* out, int n)
{
    int d[8][4] = {};
    const uint32_t a = threadIdx.x, b = threadIdx.x * 3, began = now();
    for (int i = 0; i < n; i++)
#pragma unroll
        for (int c = 0; c < 8; c++) MMA8(d[c], a, b);
    const uint32_t took = now() - began;
    int sum = 0;
    for (int c = 0; c < 8; c++) sum += d[c][0] + d[c][3];
    if (!threadIdx.x) out[0] = float(took) / n / 8;
    out[1 + threadIdx.x] = sum;
}
extern "C" __global__ void products_tf32(float* out, int n)
{
    float d[8][4] = {};
    const uint32_t a = threadIdx.x, b = threadIdx.x * 3, began = now();
    for (int i = 0; i < n; i++)
#pragma unroll
        for (int c = 0; c < 8; c++) MMA32(d[c], a, b);
    const uint32_t took = now() - began;
    float sum = 0;
    for (int c = 0; c < 8; c++) sum += d[c][0] + d[c][3];
    if (!threadIdx.x) out[0] = float(took) / n / 8;
    out[1 + threadIdx.x] = sum;
}

extern "C" __global__ void barrier(float* out, int n)
{
    __syncthreads();
    const uint32_t began = now();
    for (int i = 0; i < n; i++) {
        __syncthreads(); __syncthreads(); __syncthreads(); __syncthreads();
        __syncthreads(); __syncthreads(); __syncthreads(); __syncthreads();
    }
    if (!threadIdx.x) out[0] = float(now() - began) / n / 8;
}
extern "C" __global__ void special(float* out, int n)  // a chain of 2^x
{
    float x = threadIdx.x * 1e-3f;
    const uint32_t began = now();
    for (int i = 0; i < n; i++)
#pragma unroll
        for (int k = 0; k < 8; k++) asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
    if (!threadIdx.x) out[0] = float(now() - began) / n / 8;
    out[1 + threadIdx.x] = x;
}
extern "C" __global__ void special_many(float* out, int n)
{
    float x[8];
    for (int k = 0; k < 8; k++) x[k] = threadIdx.x * 1e-3f + k;
    const uint32_t began = now();
    for (int i = 0; i < n; i++)
#pragma unroll
        for (int k = 0; k < 8; k++) asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(x[k]));
    if (!threadIdx.x) out[0] = float(now() - began) / n / 8;
    for (int k = 0; k < 8; k++) out[1 + threadIdx.x] = x[k] + out[1 + threadIdx.x];
}
extern "C" __global__ void shuffles(float* out, int n)  // a chain
{
    float x = threadIdx.x;
    const uint32_t began = now();
    for (int i = 0; i < n; i++)
#pragma unroll
        for (int k = 0; k < 8; k++) x = __shfl_xor_sync(~0u, x, 1);
    if (!threadIdx.x) out[0] = float(now() - began) / n / 8;
    out[1 + threadIdx.x] = x;
}
extern "C" __global__ void loop(float* out, int n)
{
    const uint32_t began = now();
#pragma unroll 1
    for (int i = 0; i < n; i++) asm volatile("" ::: "memory");
    if (!threadIdx.x) out[0] = float(now() - began) / n;
}
extern "C" __global__ void atomics(int* x, float* out, int n)
{
    int a = 0;
    const uint32_t began = now();
    for (int i = 0; i < n; i++) a = atomicAdd(x + (a & 1), 0);
    out[0] = float(now() - began) / n, out[1] = a;
}
extern "C" __global__ void shared_atomics(float* out, int n)
{
    __shared__ int s[32];
    s[threadIdx.x] = 0;
    int a = 0;
    const uint32_t began = now();
    for (int i = 0; i < n; i++) a = atomicAdd(s + threadIdx.x + (a & 0x40000000), 1);
    out[0] = float(now() - began) / n, out[1] = a;
}
extern "C" __global__ void fence(float* out, int n)
{
    const uint32_t began = now();
    for (int i = 0; i < n; i++) __threadfence();
    out[0] = float(now() - began) / n;
}
extern "C" __global__ void fence_block(float* out, int n)
{
    const uint32_t began = now();
    for (int i = 0; i < n; i++) __threadfence_block();
    out[0] = float(now() - began) / n;
}
// Requests of 32 lanes `step` words apart, of lines that the first cache holds; clocks for one.
extern "C" __global__ void lines(const float* x, float* out, int n, int step, int lanes)
{
    float sum = 0;
    const float* at = x + threadIdx.x % lanes * step;
    for (int k = 0; k < 2; k++) sum += __ldg(at + k);
    __syncthreads();
    const uint32_t began = now();
    for (int i = 0; i < n; i++)
#pragma unroll
        for (int k = 0; k < 8; k++) {
            float v;
            asm volatile("ld.global.ca.f32 %0, [%1];" : "=f"(v) : "l"(at + (i * 5 + k & 7)) : "memory");
            sum += v;
        }
    __syncthreads();
    if (!threadIdx.x) out[0] = float(now() - began) / n / 8 / (blockDim.x / 32);
    out[1 + threadIdx.x] = sum;
}
extern "C" __global__ void lines_stored(float* x, float* out, int n, int step)
{
    float* at = x + threadIdx.x % 32 * step;
    __syncthreads();
    const uint32_t began = now();
    for (int i = 0; i < n; i++)
#pragma unroll
        for (int k = 0; k < 8; k++) asm volatile("st.global.f32 [%0], %1;" ::"l"(at + (i * 5 + k & 7)), "f"(float(i)) : "memory");
    __syncthreads();
    if (!threadIdx.x) out[0] = float(now() - began) / n / 8 / (blockDim.x / 32);
}
// As `lines`, but each warp has lines of its own, and each load is of a sector that no load has asked for.
extern "C" __global__ void lines_missed(const float* x, float* out, int n, int step)
{
    float sum = 0;
    const float* at = x + (blockIdx.x * blockDim.x + threadIdx.x) * step;
    __syncthreads();
    const uint32_t began = now();
    for (int i = 0; i < n; i++) {
        float v;
        asm volatile("ld.global.ca.f32 %0, [%1];" : "=f"(v) : "l"(at + i * 8) : "memory");
        sum += v;
    }
    __syncthreads();
    if (!threadIdx.x) out[0] = float(now() - began) / n / (blockDim.x / 32);
    out[1 + threadIdx.x] = sum;
}
extern "C" __global__ void shared_reads(float* out, int n, int step)
{
    __shared__ float s[4096];
    for (int i = threadIdx.x; i < 4096; i += blockDim.x) s[i] = i;
    __syncthreads();
    float sum = 0;
    const volatile float* at = s + threadIdx.x % 32 * step;
    const uint32_t began = now();
    for (int i = 0; i < n; i++)
#pragma unroll
        for (int k = 0; k < 8; k++) sum += at[k];
    __syncthreads();
    if (!threadIdx.x) out[0] = float(now() - began) / n / 8 / (blockDim.x / 32);
    out[1 + threadIdx.x] = sum;
}
// Sum of a part of x by each block, over and over: bytes a clock and multiprocessor.
extern "C" __global__ void stream(const float4* x, float* out, int count, int rounds, int parts)
{
    float sum = 0;
    const float4* const mine = x + size_t(blockIdx.x % parts) * count;
    const uint32_t began = now();
    for (int r = 0; r < rounds; r++)
        for (int i = threadIdx.x; i < count; i += blockDim.x * 4) {
            float4 v[4];
#pragma unroll
            for (int k = 0; k < 4; k++) asm volatile("ld.global.cg.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v[k].x), "=f"(v[k].y), "=f"(v[k].z), "=f"(v[k].w) : "l"(mine + min(i + k * blockDim.x, count - 1)) : "memory");
#pragma unroll
            for (int k = 0; k < 4; k++) sum += v[k].x + v[k].w;
        }
    __syncthreads();
    if (!threadIdx.x) out[1 + blockIdx.x] = float(count) * rounds * 16 / (now() - began);
    if (sum == 1.2345f) out[0] = sum;
}
// Independent instructions of one unit: clocks for one of a warp, with a warp in each quarter.
template <class F, class T>
__device__ void many(float* out, int n, T first, F step)
{
    T x[8];
    for (int k = 0; k < 8; k++) x[k] = first + T(k);
    __syncthreads();
    const uint32_t began = now();
#pragma unroll 1
    for (int i = 0; i < n; i++)
#pragma unroll
        for (int k = 0; k < 64; k++) step(x[k % 8]);
    __syncthreads();
    if (!threadIdx.x) out[0] = float(now() - began) / n / 64;
    T sum = 0;
    for (int k = 0; k < 8; k++) sum += x[k];
    out[1 + threadIdx.x] = float(sum);
}
extern "C" __global__ void ffma_many(float* out, int n)
{
    many(out, n, float(threadIdx.x), [](float& x) { asm volatile("fma.rn.f32 %0, %0, %0, %0;" : "+f"(x)); });
}
extern "C" __global__ void logic_many(float* out, int n)
{
    many(out, n, threadIdx.x, [](unsigned& x) { asm volatile("lop3.b32 %0, %0, 0x5555, 0x1234, 0x96;" : "+r"(x)); });
}
extern "C" __global__ void imad_many(float* out, int n)
{
    many(out, n, threadIdx.x, [](unsigned& x) { asm volatile("mad.lo.u32 %0, %0, %0, %0;" : "+r"(x)); });
}
extern "C" __global__ void dfma_many(float* out, int n)
{
    many(out, n, double(threadIdx.x), [](double& x) { asm volatile("fma.rn.f64 %0, %0, %0, %0;" : "+d"(x)); });
}
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
// A bulk copy of `bytes` into shared memory, and the wait for it.
extern "C" __global__ void bulk(const float* x, float* out, int n, int bytes)
{
    __shared__ __align__(128) uint8_t s[16384];
    __shared__ __align__(8) uint64_t b;
    const uint32_t at = uint32_t(__cvta_generic_to_shared(s)), bar = uint32_t(__cvta_generic_to_shared(&b));
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(bar));
    asm volatile("fence.mbarrier_init.release.cluster;");
    const uint32_t began = now();
    for (int i = 0; i < n; i++) {
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(at), "l"(x), "r"(bytes), "r"(bar) : "memory");
        uint32_t done = 0;
        while (!done)
            asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}" : "=r"(done) : "r"(bar), "r"(i & 1) : "memory");
    }
    out[0] = float(now() - began) / n;
}
extern "C" __global__ void byte_barrier(float* out, int n)  // arrival and wait of one thread
{
    __shared__ __align__(8) uint64_t b;
    const uint32_t bar = uint32_t(__cvta_generic_to_shared(&b));
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(bar));
    const uint32_t began = now();
    for (int i = 0; i < n; i++) {
        asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(bar) : "memory");
        uint32_t done = 0;
        while (!done)
            asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}" : "=r"(done) : "r"(bar), "r"(i & 1) : "memory");
    }
    out[0] = float(now() - began) / n;
}
#endif
