// thrust::cuda::par and par.on(stream): the algorithms run on the CPU, at once.
#pragma once
#include <thrust/system/cpp/execution_policy.h>

namespace thrust {
namespace cuda {
struct RungPolicy : std::decay<decltype(thrust::cpp::par)>::type
{
    const RungPolicy& on(cudaStream_t) const { return *this; }
    template <class A> const RungPolicy& operator()(A&&) const { return *this; }
};
static const RungPolicy par, par_nosync;
}  // namespace cuda
}  // namespace thrust
