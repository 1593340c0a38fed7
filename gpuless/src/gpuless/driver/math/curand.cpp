// cuRAND's host interface. XORWOW draws the numbers of its legacy ordering; the other generators draw Philox's numbers
// in their plain order, which is not a GPU's. Quasi-random generators are not declared.
#include <cuda.h>
#include <curand.h>
#include <math.h>
#include <vector_functions.h>

#include <functional>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))
#undef __host__
#undef __device__
#define __host__
#define __device__
#include "../../compile/standard/curand_kernel.h"

struct curandGenerator_st
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
            for (size_t i = 1; i < sequences.size(); i++)
                sequences[i] = sequences[i - 1], skipahead_sequence(1, &sequences[i]);
        } else if (!drawn)
            curand_init(seed, 0, 0, &philox);
        drawn++;
        return xorwow ? curand(&sequences[(drawn - 1) % 4096]) : curand(&philox);
    }
};

EXPORT curandStatus_t curandCreateGenerator(curandGenerator_t* generator, curandRngType_t type)
{ return *generator = new curandGenerator_st{type <= CURAND_RNG_PSEUDO_XORWOW, false}, CURAND_STATUS_SUCCESS; }
EXPORT curandStatus_t curandCreateGeneratorHost(curandGenerator_t* generator, curandRngType_t type)
{ return *generator = new curandGenerator_st{type <= CURAND_RNG_PSEUDO_XORWOW, true}, CURAND_STATUS_SUCCESS; }
EXPORT curandStatus_t curandDestroyGenerator(curandGenerator_t generator)
{
    cuStreamSynchronize(generator->stream);
    return delete generator, CURAND_STATUS_SUCCESS;
}
EXPORT curandStatus_t curandSetStream(curandGenerator_t generator, cudaStream_t stream)
{ return generator->stream = stream, CURAND_STATUS_SUCCESS; }
EXPORT curandStatus_t curandSetPseudoRandomGeneratorSeed(curandGenerator_t generator, unsigned long long seed)
{ return generator->seed = seed, generator->drawn = 0, CURAND_STATUS_SUCCESS; }
EXPORT curandStatus_t curandSetGeneratorOrdering(curandGenerator_t, curandOrdering_t) { return CURAND_STATUS_SUCCESS; }
EXPORT curandStatus_t curandSetGeneratorOffset(curandGenerator_t generator, unsigned long long offset)
{
    for (generator->drawn = 0; offset--;) generator->next();
    return CURAND_STATUS_SUCCESS;
}
EXPORT curandStatus_t curandGenerateSeeds(curandGenerator_t) { return CURAND_STATUS_SUCCESS; }
EXPORT curandStatus_t curandGetVersion(int* version) { return *version = 10400, CURAND_STATUS_SUCCESS; }

namespace random_numbers {
inline curandStatus_t draw(curandGenerator_t generator, std::function<void(curandGenerator_st&)> fill)
{
    if (!generator) return CURAND_STATUS_NOT_INITIALIZED;
    if (generator->on_host) return fill(*generator), CURAND_STATUS_SUCCESS;
    const auto run = [](void* held) { (*static_cast<std::function<void()>*>(held))(); };
    return cuLaunchHostFunc(generator->stream, run, new std::function<void()>([=] { fill(*generator); }))
               ? CURAND_STATUS_LAUNCH_FAILURE
               : CURAND_STATUS_SUCCESS;
}
}  // namespace random_numbers

EXPORT curandStatus_t curandGenerate(curandGenerator_t generator, unsigned* out, size_t n)
{
    return random_numbers::draw(generator, [=](curandGenerator_st& from) {
        for (size_t i = 0; i < n; i++) out[i] = from.next();
    });
}
EXPORT curandStatus_t curandGenerateUniform(curandGenerator_t generator, float* out, size_t n)
{
    return random_numbers::draw(generator, [=](curandGenerator_st& from) {
        for (size_t i = 0; i < n; i++) out[i] = rung_uniform(from.next());
    });
}
EXPORT curandStatus_t curandGenerateUniformDouble(curandGenerator_t generator, double* out, size_t n)
{
    return random_numbers::draw(generator, [=](curandGenerator_st& from) {
        for (size_t i = 0; i < n; i++) {
            const unsigned x = from.next();
            out[i] = rung_uniform(x, from.next());
        }
    });
}
#define NORMAL(NAME, T, MAP)                                                                                           \
    EXPORT curandStatus_t NAME(curandGenerator_t generator, T* out, size_t n, T mean, T deviation)                     \
    {                                                                                                                  \
        if (n % 2) return CURAND_STATUS_LENGTH_NOT_MULTIPLE;                                                           \
        return random_numbers::draw(generator, [=](curandGenerator_st& from) {                                         \
            for (size_t i = 0; i < n; i += 2) {                                                                        \
                const unsigned x = from.next();                                                                        \
                const float2 two = rung_normal(x, from.next());                                                        \
                out[i] = MAP(mean + deviation * T(two.x)), out[i + 1] = MAP(mean + deviation * T(two.y));              \
            }                                                                                                          \
        });                                                                                                            \
    }
NORMAL(curandGenerateNormal, float, )
NORMAL(curandGenerateNormalDouble, double, )
NORMAL(curandGenerateLogNormal, float, expf)
NORMAL(curandGenerateLogNormalDouble, double, exp)
#undef NORMAL
