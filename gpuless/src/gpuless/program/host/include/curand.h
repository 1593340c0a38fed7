// cuRAND's host interface. XORWOW draws the numbers of its legacy ordering; the other generators draw Philox's numbers in their plain
// order, which is not a GPU's. Quasi-random generators are not declared, so that a program that asks for one is refused by name.
#pragma once
#define CURAND_H_
#include "../../../compile/standard/curand_kernel.h"

#include <functional>
#include <vector>

enum curandStatus_t { CURAND_STATUS_SUCCESS, CURAND_STATUS_VERSION_MISMATCH = 100, CURAND_STATUS_NOT_INITIALIZED, CURAND_STATUS_ALLOCATION_FAILED,
    CURAND_STATUS_TYPE_ERROR, CURAND_STATUS_OUT_OF_RANGE, CURAND_STATUS_LENGTH_NOT_MULTIPLE, CURAND_STATUS_DOUBLE_PRECISION_REQUIRED,
    CURAND_STATUS_LAUNCH_FAILURE = 201, CURAND_STATUS_PREEXISTING_FAILURE, CURAND_STATUS_INITIALIZATION_FAILED, CURAND_STATUS_ARCH_MISMATCH,
    CURAND_STATUS_INTERNAL_ERROR = 999 };
enum curandRngType_t { CURAND_RNG_PSEUDO_DEFAULT = 100, CURAND_RNG_PSEUDO_XORWOW, CURAND_RNG_PSEUDO_MRG32K3A = 121, CURAND_RNG_PSEUDO_MTGP32 = 141,
    CURAND_RNG_PSEUDO_MT19937, CURAND_RNG_PSEUDO_PHILOX4_32_10 = 161 };
typedef curandRngType_t curandRngType;
enum curandOrdering_t { CURAND_ORDERING_PSEUDO_BEST = 100, CURAND_ORDERING_PSEUDO_DEFAULT, CURAND_ORDERING_PSEUDO_SEEDED,
    CURAND_ORDERING_PSEUDO_LEGACY, CURAND_ORDERING_PSEUDO_DYNAMIC };

typedef struct RungRandom
{
    bool xorwow, on_host;
    cudaStream_t stream = nullptr;
    unsigned long long seed = 0, drawn = 0;
    std::vector<curandStateXORWOW> sequences = {};  // number n is the next one of sequence n mod 4096
    curandStatePhilox4_32_10 philox = {};

    unsigned next()
    {
        if (!drawn && xorwow) {
            sequences.resize(4096);
            curand_init(seed, 0, 0, &sequences[0]);
            for (size_t i = 1; i < sequences.size(); i++) sequences[i] = sequences[i - 1], skipahead_sequence(1, &sequences[i]);
        } else if (!drawn) curand_init(seed, 0, 0, &philox);
        drawn++;
        return xorwow ? curand(&sequences[(drawn - 1) % 4096]) : curand(&philox);
    }
}* curandGenerator_t;

inline curandStatus_t curandCreateGenerator(curandGenerator_t* generator, curandRngType_t type)
{
    return *generator = new RungRandom{type <= CURAND_RNG_PSEUDO_XORWOW, false}, CURAND_STATUS_SUCCESS;
}
inline curandStatus_t curandCreateGeneratorHost(curandGenerator_t* generator, curandRngType_t type)
{
    return *generator = new RungRandom{type <= CURAND_RNG_PSEUDO_XORWOW, true}, CURAND_STATUS_SUCCESS;
}
inline curandStatus_t curandDestroyGenerator(curandGenerator_t generator)
{
    cudaStreamSynchronize(generator->stream);
    return delete generator, CURAND_STATUS_SUCCESS;
}
inline curandStatus_t curandSetStream(curandGenerator_t generator, cudaStream_t stream) { return generator->stream = stream, CURAND_STATUS_SUCCESS; }
inline curandStatus_t curandSetPseudoRandomGeneratorSeed(curandGenerator_t generator, unsigned long long seed)
{
    return generator->seed = seed, generator->drawn = 0, CURAND_STATUS_SUCCESS;
}
inline curandStatus_t curandSetGeneratorOrdering(curandGenerator_t, curandOrdering_t) { return CURAND_STATUS_SUCCESS; }
inline curandStatus_t curandSetGeneratorOffset(curandGenerator_t generator, unsigned long long offset)
{
    for (generator->drawn = 0; offset--;) generator->next();
    return CURAND_STATUS_SUCCESS;
}
inline curandStatus_t curandGenerateSeeds(curandGenerator_t) { return CURAND_STATUS_SUCCESS; }
inline curandStatus_t curandGetVersion(int* version) { return *version = 10400, CURAND_STATUS_SUCCESS; }

namespace rung_host {
inline curandStatus_t draw(curandGenerator_t generator, std::function<void(RungRandom&)> fill)
{
    if (!generator) return CURAND_STATUS_NOT_INITIALIZED;
    if (generator->on_host) return fill(*generator), CURAND_STATUS_SUCCESS;
    const auto run = [](void* held) { (*static_cast<std::function<void()>*>(held))(); };
    return cudaLaunchHostFunc(generator->stream, run, new std::function<void()>([=] { fill(*generator); })) ? CURAND_STATUS_LAUNCH_FAILURE : CURAND_STATUS_SUCCESS;
}
}  // namespace rung_host

inline curandStatus_t curandGenerate(curandGenerator_t generator, unsigned* out, size_t n)
{
    return rung_host::draw(generator, [=](RungRandom& from) { for (size_t i = 0; i < n; i++) out[i] = from.next(); });
}
inline curandStatus_t curandGenerateUniform(curandGenerator_t generator, float* out, size_t n)
{
    return rung_host::draw(generator, [=](RungRandom& from) { for (size_t i = 0; i < n; i++) out[i] = rung_uniform(from.next()); });
}
inline curandStatus_t curandGenerateUniformDouble(curandGenerator_t generator, double* out, size_t n)
{
    return rung_host::draw(generator, [=](RungRandom& from) {
        for (size_t i = 0; i < n; i++) {
            const unsigned x = from.next();
            out[i] = rung_uniform(x, from.next());
        }
    });
}
#define RUNG_NORMAL(NAME, T, MAP) \
    inline curandStatus_t NAME(curandGenerator_t generator, T* out, size_t n, T mean, T deviation) \
    { \
        if (n % 2) return CURAND_STATUS_LENGTH_NOT_MULTIPLE; \
        return rung_host::draw(generator, [=](RungRandom& from) { \
            for (size_t i = 0; i < n; i += 2) { \
                const unsigned x = from.next(); \
                const float2 two = rung_normal(x, from.next()); \
                out[i] = MAP(mean + deviation * T(two.x)), out[i + 1] = MAP(mean + deviation * T(two.y)); \
            } \
        }); \
    }
RUNG_NORMAL(curandGenerateNormal, float, )
RUNG_NORMAL(curandGenerateNormalDouble, double, )
RUNG_NORMAL(curandGenerateLogNormal, float, expf)
RUNG_NORMAL(curandGenerateLogNormalDouble, double, exp)
#undef RUNG_NORMAL
