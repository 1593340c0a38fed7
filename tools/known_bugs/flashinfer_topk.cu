// The 100 largest of 20,000 numbers, of which more are alike than the buffer of candidates holds.
#include <flashinfer/math.cuh>

#include <flashinfer/topk.cuh>
#include <vector>

int main()
{
    constexpr unsigned count = 20000, k = 100;
    std::vector<float> x(count);
    for (unsigned i = 0; i < count; i++) x[i] = 1.0f + float(i * 7919 % count) * 1e-7f;
    const int length = count;
    float *in, *values;
    int *indices, *lengths;
    cudaMalloc(&in, count * 4), cudaMalloc(&values, k * 4), cudaMalloc(&indices, k * 4), cudaMalloc(&lengths, 4);
    cudaMemcpy(in, x.data(), count * 4, cudaMemcpyHostToDevice);
    cudaMemcpy(lengths, &length, 4, cudaMemcpyHostToDevice);
    flashinfer::sampling::FilteredTopK<float, int>(in, indices, values, lengths, 1, k, count);
    return cudaDeviceSynchronize();
}
