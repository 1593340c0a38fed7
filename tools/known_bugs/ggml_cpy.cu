// Four matrices of 64 by 64, transposed by one block after the other.
#include "cpy.cu"

int main()
{
    char *x, *out;
    cudaMalloc(&x, 65536), cudaMalloc(&out, 65536);
    cudaMemset(x, 0, 65536);
    cpy_scalar_transpose<float><<<dim3(2, 2), dim3(CUDA_CPY_TILE_DIM_2D, CUDA_CPY_BLOCK_ROWS)>>>(x, out, 4 * 64 * 64, 64, 64, 4,
                                                                                                 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
    return cudaDeviceSynchronize();
}
