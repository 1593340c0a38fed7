__device__ volatile int flag;
__global__ void wait_for_nobody() { while (flag == 0) {} }  // fault: deadlock
int main()
{
    wait_for_nobody<<<1, 1>>>();
    cudaDeviceSynchronize();
}
