// What is read plainly before the loop is taken for the number that the swap has replaced.
__device__ int add(int* at, int by)
{
    const int first = *at;  // fault: race
    int old = first, assumed;
    do {
        assumed = old;
        old = atomicCAS(at, assumed, assumed + by);  // fault: race
    } while (assumed != old);
    return first;
}
__global__ void places(int* total, int* place) { place[blockIdx.x * blockDim.x + threadIdx.x] = add(total, 1); }
int main()
{
    int *total, *place;
    cudaMalloc(&total, sizeof(int)), cudaMalloc(&place, 128 * sizeof(int));
    cudaMemset(total, 0, sizeof(int));
    places<<<4, 32>>>(total, place);
    cudaDeviceSynchronize();
    cudaFree(total), cudaFree(place);
}
