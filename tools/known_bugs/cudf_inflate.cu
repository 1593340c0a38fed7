// A stream with one stored block.
#include <cstdint>
#include <cuda/std/tuple>
#define CUDF_KERNEL static __global__

template <class T>
struct device_span
{
    T* first;
    size_t count;
    __device__ T* data() const { return first; }
    __device__ size_t size() const { return count; }
    __device__ T& operator[](size_t i) const { return first[i]; }
};
enum class codec_status { SUCCESS, OUTPUT_OVERFLOW, FAILURE };
struct codec_exec_result
{
    size_t bytes_written;
    codec_status status;
};
enum class gzip_header_included { NO, YES };
namespace detail::GZIPHeaderFlag {
enum { fhcrc = 2, fextra = 4, fname = 8, fcomment = 16 };
}
namespace inflating {
template <class T>
__device__ T shuffle(T value, int lane = 0)
{
    return __shfl_sync(~0u, value, lane);
}
__device__ uint32_t ballot(int what) { return __ballot_sync(~0u, what); }
#include <cut.cuh>
}  // namespace inflating

int main()
{
    const uint8_t stream[16] = {1, 5, 0, 0xfa, 0xff, 'h', 'e', 'l', 'l', 'o'};
    uint8_t *in, *out;
    device_span<uint8_t const>* ins;
    device_span<uint8_t>* outs;
    codec_exec_result* results;
    cudaMalloc(&in, 64), cudaMalloc(&out, 64), cudaMalloc(&results, sizeof *results);
    cudaMalloc(&ins, sizeof *ins), cudaMalloc(&outs, sizeof *outs);
    cudaMemset(in, 0, 64), cudaMemcpy(in, stream, 16, cudaMemcpyHostToDevice);
    const device_span<uint8_t const> from{in, 10};
    const device_span<uint8_t> to{out, 64};
    cudaMemcpy(ins, &from, sizeof from, cudaMemcpyHostToDevice), cudaMemcpy(outs, &to, sizeof to, cudaMemcpyHostToDevice);
    inflating::inflate_kernel<128><<<1, 128>>>(device_span<device_span<uint8_t const> const>{ins, 1},
                                               device_span<device_span<uint8_t> const>{outs, 1},
                                               device_span<codec_exec_result>{results, 1}, gzip_header_included::NO);
    return cudaDeviceSynchronize();
}
