// cuRAND's device functions: Philox 4x32-10 and XORWOW draw the numbers that a GPU draws. Normal numbers differ from a GPU's in
// their last bits, since its fast sine and logarithm do.
#pragma once
#include "rung_host/program.h"

#define QUALIFIERS __device__
enum curandDirectionVectorSet_t : int;

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

inline uint4 rung_philox(uint4 c, uint2 k)
{
    for (int round = 0; round < 10; round++) {
        const unsigned long long a = 0xD2511F53ull * c.x, b = 0xCD9E8D57ull * c.z;
        c = {unsigned(b >> 32) ^ c.y ^ k.x, unsigned(b), unsigned(a >> 32) ^ c.w ^ k.y, unsigned(a)};
        k.x += 0x9E3779B9u, k.y += 0xBB67AE85u;
    }
    return c;
}
inline void rung_advance(uint4& c, unsigned long long low, unsigned long long high)
{
    unsigned long long first = c.x | (unsigned long long)c.y << 32, second = c.z | (unsigned long long)c.w << 32;
    first += low, second += high + (first < low);
    c = {unsigned(first), unsigned(first >> 32), unsigned(second), unsigned(second >> 32)};
}
inline void skipahead(unsigned long long n, curandStatePhilox4_32_10* state)
{
    n += state->position;
    rung_advance(state->counter, n / 4, 0);
    state->position = unsigned(n % 4), state->output = rung_philox(state->counter, state->key);
}
inline void skipahead_sequence(unsigned long long n, curandStatePhilox4_32_10* state)
{
    rung_advance(state->counter, 0, n), state->output = rung_philox(state->counter, state->key);
}
inline void curand_init(unsigned long long seed, unsigned long long sequence, unsigned long long offset, curandStatePhilox4_32_10* state)
{
    *state = {};
    state->key = {unsigned(seed), unsigned(seed >> 32)};
    skipahead_sequence(sequence, state), skipahead(offset, state);
}
inline unsigned curand(curandStatePhilox4_32_10* state)
{
    const unsigned drawn = (&state->output.x)[state->position];
    skipahead(1, state);
    return drawn;
}
inline uint4 curand4(curandStatePhilox4_32_10* state)
{
    uint4 drawn;
    for (unsigned* at : {&drawn.x, &drawn.y, &drawn.z, &drawn.w}) *at = curand(state);
    return drawn;
}

// ---- XORWOW (Marsaglia, "Xorshift RNGs") ----------------------------------------------------------------------------------------

struct curandStateXORWOW
{
    unsigned d, v[5];
    bool has_normal;
    float normal;
};
typedef curandStateXORWOW curandStateXORWOW_t, curandState, curandState_t;

namespace rung_host {
RUNG_HOST void skip_xorwow(unsigned* v, unsigned long long n, bool sequences);  // n steps, or n times 2^67
}
inline void skipahead(unsigned long long n, curandStateXORWOW* state)
{
    rung_host::skip_xorwow(state->v, n, false), state->d += unsigned(n) * 362437u;
}
inline void skipahead_sequence(unsigned long long n, curandStateXORWOW* state) { rung_host::skip_xorwow(state->v, n, true); }
inline void curand_init(unsigned long long seed, unsigned long long sequence, unsigned long long offset, curandStateXORWOW* state)
{
    const unsigned low = (unsigned(seed) ^ 0xaad26b49u) * 1099087573u, high = (unsigned(seed >> 32) ^ 0xf7dcefddu) * 2591861531u;
    *state = {6615241u + low + high, {123456789u + low, 362436069u ^ low, 521288629u + high, 88675123u ^ high, 5783321u + low}, false, 0};
    skipahead_sequence(sequence, state), skipahead(offset, state);
}
inline unsigned curand(curandStateXORWOW* state)
{
    unsigned* const v = state->v;
    const unsigned t = v[0] ^ v[0] >> 2;
    for (int i = 0; i < 4; i++) v[i] = v[i + 1];
    v[4] = (v[4] ^ v[4] << 4) ^ (t ^ t << 1);
    return v[4] + (state->d += 362437u);
}

// ---- distributions --------------------------------------------------------------------------------------------------------------

inline float rung_uniform(unsigned x) { return float(x) * 2.3283064e-10f + 2.3283064e-10f / 2; }  // in (0, 1]
inline double rung_uniform(unsigned x, unsigned y)
{
    return double((unsigned long long)x ^ (unsigned long long)y << 21) * 1.1102230246251565e-16 + 1.1102230246251565e-16 / 2;
}
inline float2 rung_normal(unsigned x, unsigned y)  // Box and Muller
{
    const float radius = sqrtf(-2.0f * logf(rung_uniform(x))), angle = float(y) * 1.46291807e-09f + 1.46291807e-09f / 2;
    return {radius * sinf(angle), radius * cosf(angle)};
}
template <class S> float curand_uniform(S* state) { return rung_uniform(curand(state)); }
inline double curand_uniform_double(curandStateXORWOW* state)
{
    const unsigned x = curand(state);
    return rung_uniform(x, curand(state));
}
inline double curand_uniform_double(curandStatePhilox4_32_10* state) { return curand(state) * 2.3283064365386963e-10 + 2.3283064365386963e-10; }
template <class S> float2 curand_normal2(S* state)
{
    const unsigned x = curand(state);
    return rung_normal(x, curand(state));
}
template <class S> float curand_normal(S* state)
{
    if (!(state->has_normal = !state->has_normal)) return state->normal;
    const float2 two = curand_normal2(state);
    state->normal = two.y;
    return two.x;
}
template <class S> double curand_normal_double(S* state)
{
    const double u = curand_uniform_double(state), v = curand_uniform_double(state);
    return sqrt(-2 * log(u)) * sin(2 * 3.14159265358979323846 * v);
}
template <class S> float curand_log_normal(S* state, float mean, float deviation) { return expf(mean + deviation * curand_normal(state)); }
template <class S> unsigned curand_poisson(S* state, double lambda)
{
    unsigned count = 0;
    if (lambda > 64) return unsigned(fmax(0.0, lambda + sqrt(lambda) * curand_normal_double(state) + 0.5));
    for (double product = curand_uniform_double(state), limit = exp(-lambda); product > limit; count++) product *= curand_uniform_double(state);
    return count;
}
inline float4 curand_uniform4(curandStatePhilox4_32_10* state)
{
    const uint4 x = curand4(state);
    return {rung_uniform(x.x), rung_uniform(x.y), rung_uniform(x.z), rung_uniform(x.w)};
}
inline float4 curand_normal4(curandStatePhilox4_32_10* state)
{
    const uint4 x = curand4(state);
    const float2 a = rung_normal(x.x, x.y), b = rung_normal(x.z, x.w);
    return {a.x, a.y, b.x, b.y};
}
