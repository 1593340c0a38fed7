// cuRAND's device functions, for kernels and for the host's part of programs: Philox 4x32-10 and XORWOW draw the numbers that cuRAND
// draws.
#pragma once

#if !defined(__CUDACC_RTC__) && __has_include(<curand.h>)
#include <curand.h>  // NVIDIA's header brings the host's functions, too
#endif

#define QUALIFIERS __device__

// ---- Philox (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"), ten rounds ---------------------------------------

struct curandStatePhilox4_32_10
{
    uint4 counter, output;
    uint2 key;
    unsigned position;  // of the next number in `output`
    bool has_normal;
    float normal;
};
typedef curandStatePhilox4_32_10 curandStatePhilox4_32_10_t;

__host__ __device__ inline uint4 rung_philox(uint4 c, uint2 k)
{
    for (int round = 0; round < 10; round++) {
        const unsigned long long a = 0xD2511F53ull * c.x, b = 0xCD9E8D57ull * c.z;
        c = {unsigned(b >> 32) ^ c.y ^ k.x, unsigned(b), unsigned(a >> 32) ^ c.w ^ k.y, unsigned(a)};
        k.x += 0x9E3779B9u, k.y += 0xBB67AE85u;
    }
    return c;
}
__host__ __device__ inline void rung_advance(uint4& c, unsigned long long low, unsigned long long high)
{
    unsigned long long first = c.x | (unsigned long long)c.y << 32, second = c.z | (unsigned long long)c.w << 32;
    first += low, second += high + (first < low);
    c = {unsigned(first), unsigned(first >> 32), unsigned(second), unsigned(second >> 32)};
}
__host__ __device__ inline void skipahead(unsigned long long n, curandStatePhilox4_32_10* state)
{
    n += state->position;
    rung_advance(state->counter, n / 4, 0);
    state->position = unsigned(n % 4), state->output = rung_philox(state->counter, state->key);
}
__host__ __device__ inline void skipahead_sequence(unsigned long long n, curandStatePhilox4_32_10* state)
{
    rung_advance(state->counter, 0, n), state->output = rung_philox(state->counter, state->key);
}
__host__ __device__ inline void curand_init(unsigned long long seed, unsigned long long sequence, unsigned long long offset, curandStatePhilox4_32_10* state)
{
    *state = {};
    state->key = {unsigned(seed), unsigned(seed >> 32)};
    skipahead_sequence(sequence, state), skipahead(offset, state);
}
__host__ __device__ inline unsigned curand(curandStatePhilox4_32_10* state)
{
    const unsigned drawn = (&state->output.x)[state->position];
    skipahead(1, state);
    return drawn;
}
__host__ __device__ inline uint4 curand4(curandStatePhilox4_32_10* state)
{
    const unsigned x = curand(state), y = curand(state), z = curand(state);
    return {x, y, z, curand(state)};
}

// ---- XORWOW (Marsaglia, "Xorshift RNGs") ----------------------------------------------------------------------------------------

struct curandStateXORWOW
{
    unsigned d, v[5];
    bool has_normal;
    float normal;
};
typedef curandStateXORWOW curandStateXORWOW_t, curandState, curandState_t;

// A step is a linear map of 160 bits. Its power n is a polynomial in it: x^n modulo the map's characteristic polynomial, whose bits
// below x^160 are rung_modulus.
__host__ __device__ inline unsigned rung_modulus(int i) { return i == 0 ? 0x60001u : i == 1 ? 0x8610030u : i == 2 ? 0x62121u : i == 3 ? 0xf3c0035u : 0xf0eu; }
__host__ __device__ inline void rung_step(unsigned* v)
{
    const unsigned t = v[0] ^ v[0] >> 2;
    for (int i = 0; i < 4; i++) v[i] = v[i + 1];
    v[4] = (v[4] ^ v[4] << 4) ^ (t ^ t << 1);
}
__host__ __device__ inline void rung_multiply(unsigned* a, const unsigned* b)
{
    unsigned product[5] = {};
    for (int bit = 159; bit >= 0; bit--) {
        const unsigned over = 0u - (product[4] >> 31), adds = 0u - (b[bit / 32] >> bit % 32 & 1);
        for (int i = 4; i >= 0; i--) product[i] = (product[i] << 1 | (i ? product[i - 1] >> 31 : 0)) ^ (rung_modulus(i) & over) ^ (a[i] & adds);
    }
    for (int i = 0; i < 5; i++) a[i] = product[i];
}
// n steps, or n times 2^67.
__host__ __device__ inline void rung_skip(unsigned* v, unsigned long long n, bool sequences)
{
    if (!n) return;
    unsigned power[5] = {2}, whole[5] = {1}, sum[5] = {};
    if (sequences) power[0] = 0x26294934u, power[1] = 0x77bbc248u, power[2] = 0x1a87dad0u, power[3] = 0x930052d4u, power[4] = 0x947e6dd2u;
    for (; n; n >>= 1) {
        if (n & 1) rung_multiply(whole, power);
        if (n > 1) rung_multiply(power, power);
    }
    for (int bit = 0; bit < 160; bit++, rung_step(v))
        if (whole[bit / 32] >> bit % 32 & 1)
            for (int i = 0; i < 5; i++) sum[i] ^= v[i];
    for (int i = 0; i < 5; i++) v[i] = sum[i];
}
__host__ __device__ inline void skipahead(unsigned long long n, curandStateXORWOW* state)
{
    rung_skip(state->v, n, false), state->d += unsigned(n) * 362437u;
}
__host__ __device__ inline void skipahead_sequence(unsigned long long n, curandStateXORWOW* state) { rung_skip(state->v, n, true); }
__host__ __device__ inline void curand_init(unsigned long long seed, unsigned long long sequence, unsigned long long offset, curandStateXORWOW* state)
{
    const unsigned low = (unsigned(seed) ^ 0xaad26b49u) * 1099087573u, high = (unsigned(seed >> 32) ^ 0xf7dcefddu) * 2591861531u;
    *state = {6615241u + low + high, {123456789u + low, 362436069u ^ low, 521288629u + high, 88675123u ^ high, 5783321u + low}, false, 0};
    skipahead_sequence(sequence, state), skipahead(offset, state);
}
__host__ __device__ inline unsigned curand(curandStateXORWOW* state)
{
    rung_step(state->v);
    return state->v[4] + (state->d += 362437u);
}

// ---- distributions --------------------------------------------------------------------------------------------------------------

__host__ __device__ inline float rung_uniform(unsigned x) { return float(x) * 2.3283064e-10f + 2.3283064e-10f / 2; }  // in (0, 1]
__host__ __device__ inline double rung_uniform(unsigned x, unsigned y)
{
    return double((unsigned long long)x ^ (unsigned long long)y << 21) * 1.1102230246251565e-16 + 1.1102230246251565e-16 / 2;
}
__host__ __device__ inline float2 rung_normal(unsigned x, unsigned y)  // Box and Muller
{
    const float radius = sqrtf(-2.0f * logf(rung_uniform(x))), angle = float(y) * 1.46291807e-09f + 1.46291807e-09f / 2;
    return {radius * sinf(angle), radius * cosf(angle)};
}
template <class _S> __host__ __device__ float curand_uniform(_S* state) { return rung_uniform(curand(state)); }
__host__ __device__ inline double curand_uniform_double(curandStateXORWOW* state)
{
    const unsigned x = curand(state);
    return rung_uniform(x, curand(state));
}
__host__ __device__ inline double curand_uniform_double(curandStatePhilox4_32_10* state) { return curand(state) * 2.3283064365386963e-10 + 2.3283064365386963e-10; }
template <class _S> __host__ __device__ float2 curand_normal2(_S* state)
{
    const unsigned x = curand(state);
    return rung_normal(x, curand(state));
}
template <class _S> __host__ __device__ float curand_normal(_S* state)
{
    if (!(state->has_normal = !state->has_normal)) return state->normal;
    const float2 two = curand_normal2(state);
    state->normal = two.y;
    return two.x;
}
template <class _S> __host__ __device__ double curand_normal_double(_S* state)
{
    const double u = curand_uniform_double(state), v = curand_uniform_double(state);
    return sqrt(-2 * log(u)) * sin(2 * 3.14159265358979323846 * v);
}
template <class _S> __host__ __device__ float curand_log_normal(_S* state, float mean, float deviation) { return expf(mean + deviation * curand_normal(state)); }
template <class _S> __host__ __device__ unsigned curand_poisson(_S* state, double lambda)
{
    unsigned count = 0;
    if (lambda > 64) return unsigned(fmax(0.0, lambda + sqrt(lambda) * curand_normal_double(state) + 0.5));
    for (double product = curand_uniform_double(state), limit = exp(-lambda); product > limit; count++) product *= curand_uniform_double(state);
    return count;
}
__host__ __device__ inline float4 curand_uniform4(curandStatePhilox4_32_10* state)
{
    const uint4 x = curand4(state);
    return {rung_uniform(x.x), rung_uniform(x.y), rung_uniform(x.z), rung_uniform(x.w)};
}
__host__ __device__ inline float4 curand_normal4(curandStatePhilox4_32_10* state)
{
    const uint4 x = curand4(state);
    const float2 a = rung_normal(x.x, x.y), b = rung_normal(x.z, x.w);
    return {a.x, a.y, b.x, b.y};
}
