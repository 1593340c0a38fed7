// Sums of rows with CUB.
#include <cub/cub.cuh>
#include <iostream>

template <int BLOCK_THREADS>
__global__ void row_sums(const float* d_in, float* d_out, int num_rows, int num_cols) {
    typedef cub::BlockReduce<float, BLOCK_THREADS> BlockReduce;
    __shared__ typename BlockReduce::TempStorage temp_storage;
    float sum = 0.0f;
    for (int i = threadIdx.x; i < num_cols; i += BLOCK_THREADS) sum += d_in[(size_t)blockIdx.x * num_cols + i];
    float aggregate = BlockReduce(temp_storage).Sum(sum);
    if (threadIdx.x == 0) d_out[blockIdx.x] = aggregate;
}

int main() {
    std::cout << "sums of rows\n";
    return 0;
}
