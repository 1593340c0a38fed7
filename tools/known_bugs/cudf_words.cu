// The words of a string, by a warp.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cstdint>
#include <cuda/std/cstddef>
#include <cuda/std/functional>
#include <cuda/std/iterator>
#include <cuda/std/limits>
#include <thrust/execution_policy.h>
#include <thrust/remove.h>
#define CUDF_KERNEL static __global__
constexpr int block_size = 128;
namespace cudf {
using size_type = int32_t;
struct string_view
{
    const char* text;
    int bytes;
    __device__ bool empty() const { return !bytes; }
    __device__ const char* data() const { return text; }
    __device__ int size_bytes() const { return bytes; }
};
struct column_device_view
{
    const char* text;
    int bytes;
    __device__ int size() const { return 1; }
    __device__ bool is_null(int64_t) const { return false; }
    template <class T>
    __device__ T element(int64_t) const
    {
        return T{text, bytes};
    }
};
namespace detail {
constexpr int warp_size = 32;
struct grid_1d
{
    static __device__ int64_t global_thread_id() { return blockIdx.x * blockDim.x + threadIdx.x; }
};
}  // namespace detail
}  // namespace cudf
constexpr cudf::size_type no_word = cuda::std::numeric_limits<cudf::size_type>::max();
constexpr int64_t no_word64 = cuda::std::numeric_limits<int64_t>::max();
#include <cut.cuh>

int main()
{
    char text[600], *chars;
    for (int i = 0; i < 600; i++) text[i] = i % 4 == 3 ? ' ' : 'a';
    const int64_t offsets[2] = {0, 150};
    int64_t *at, *starts;
    int* sizes;
    cudaMalloc(&chars, 600), cudaMalloc(&at, 16), cudaMalloc(&starts, 1200), cudaMalloc(&sizes, 600);
    cudaMemcpy(chars, text, 600, cudaMemcpyHostToDevice), cudaMemcpy(at, offsets, 16, cudaMemcpyHostToDevice);
    find_words_kernel<<<1, block_size>>>(cudf::column_device_view{chars, 600}, chars, at, starts, sizes);
    return cudaDeviceSynchronize();
}
