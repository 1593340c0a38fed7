// v = alpha diag(M' N) + beta v and the like, with sizes that are no multiple of the tiles.
#include "cudamatrix/cu-kernels.cu"

int main()
{
    const int rows = 70, columns = 50;
    float *m, *n, *v;
    cudaMalloc(&m, rows * columns * 4), cudaMalloc(&n, rows * columns * 4), cudaMalloc(&v, columns * 4);
    cudaMemset(m, 0, rows * columns * 4), cudaMemset(n, 0, rows * columns * 4), cudaMemset(v, 0, columns * 4);
    const MatrixDim dim = {rows, columns, columns};
    const dim3 grid((columns + 15) / 16), block(16, 16);
    (void)grid, (void)block;
#if defined(MTN)
    cudaF_add_diag_mat_mat_MTN(grid, block, 1, m, columns, n, dim, 1, v);
#elif defined(MN)
    cudaF_add_diag_mat_mat_MN(grid, block, 1, m, rows, n, dim, 1, v);
#else
    (void)dim;
    cudaF_add_diag_mat_mat(4, 256, 1, v, columns, m, rows, rows, 1, n, columns, 1, 16, 1);
#endif
    return cudaDeviceSynchronize();
}
