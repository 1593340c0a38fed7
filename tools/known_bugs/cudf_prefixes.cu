// Strings of which each takes a prefix of the one before it.
#include <cstdint>
namespace cudf::detail {
constexpr int warp_size = 32;
}
struct Lengths
{
    __device__ uint64_t value_at(uint32_t i) const { return i % 7; }
};
struct Decoder
{
    Lengths prefixes;
#include <cut.cuh>
};

__global__ void decode(uint8_t* out, const uint8_t* last)
{
    Decoder decoder;
    decoder.string_scan(out, last, 0, 32, 8 * threadIdx.x, threadIdx.x);
}

int main()
{
    uint8_t *out, *last;
    cudaMalloc(&out, 256), cudaMalloc(&last, 32);
    cudaMemset(out, 'a', 256), cudaMemset(last, 'b', 32);
    decode<<<1, 32>>>(out, last);
    return cudaDeviceSynchronize();
}
