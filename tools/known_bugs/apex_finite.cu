// A flag that the first thread clears, in as many blocks as the host's function launches; a number is not finite.
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

namespace at {
struct Tensor
{
    void* data;
    int count;
    int numel() const { return count; }
    int scalar_type() const { return 0; }
    template <class T>
    T* data_ptr() const
    {
        return static_cast<T*>(data);
    }
};
using Half = float;
namespace cuda {
inline cudaStream_t getCurrentCUDAStream() { return nullptr; }
namespace detail {
inline bool canUse32BitIndexMath(const Tensor&) { return true; }
}  // namespace detail
}  // namespace cuda
}  // namespace at
__device__ void convert(uint8_t from, float& to) { to = from; }
#define AT_ASSERTM(...)
#define DATA_PTR data_ptr
#define THCudaCheck(what) what
#define DISPATCH_FLOAT_HALF_AND_BYTE(TYPE, LEVEL, NAME, ...)                                                                     \
    {                                                                                                                            \
        using scalar_t_0 = float;                                                                                                \
        __VA_ARGS__                                                                                                              \
    }
#include <cut.cuh>

int main()
{
    at::Tensor flag{nullptr, 1}, numbers{nullptr, 2048};
    cudaMalloc(&flag.data, 4), cudaMalloc(&numbers.data, 8192);
    cudaMemset(flag.data, 0, 4), cudaMemset(numbers.data, 0xff, 8192);
    fused_strided_check_finite(flag, numbers, 1, 1);
    return cudaDeviceSynchronize();
}
