#include <cuda_runtime.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

__global__ void vectorAdd(const float *A, const float *B, float *C, int numElements) {
  int i = blockDim.x * blockIdx.x + threadIdx.x;
  if (i < numElements) {
    C[i] = A[i] + B[i] + 0.0f;
  }
}

int main(void) {
  cudaError_t err = cudaSuccess;
  int numElements = 5000;
  size_t size = numElements * sizeof(float);
  float *h_A = (float *)malloc(size), *h_B = (float *)malloc(size), *h_C = (float *)malloc(size);
  for (int i = 0; i < numElements; ++i) h_A[i] = rand() / (float)RAND_MAX, h_B[i] = rand() / (float)RAND_MAX;
  float *d_A = NULL, *d_B = NULL, *d_C = NULL;
  err = cudaMalloc((void **)&d_A, size);
  err = cudaMalloc((void **)&d_B, size);
  err = cudaMalloc((void **)&d_C, size);
  if (err != cudaSuccess) { fprintf(stderr, "Failed to allocate (error code %s)!\n", cudaGetErrorString(err)); exit(EXIT_FAILURE); }
  cudaMemcpy(d_A, h_A, size, cudaMemcpyHostToDevice);
  cudaMemcpy(d_B, h_B, size, cudaMemcpyHostToDevice);
  int threadsPerBlock = 256;
  int blocksPerGrid = (numElements + threadsPerBlock - 1) / threadsPerBlock;
  printf("CUDA kernel launch with %d blocks of %d threads\n", blocksPerGrid, threadsPerBlock);
  vectorAdd << <blocksPerGrid, threadsPerBlock >> > (d_A, d_B, d_C, numElements);
  err = cudaGetLastError();
  if (err != cudaSuccess) { fprintf(stderr, "Failed to launch (error code %s)!\n", cudaGetErrorString(err)); exit(EXIT_FAILURE); }
  cudaMemcpy(h_C, d_C, size, cudaMemcpyDeviceToHost);
  for (int i = 0; i < numElements; ++i)
    if (fabs(h_A[i] + h_B[i] - h_C[i]) > 1e-5) { fprintf(stderr, "Result verification failed at element %d!\n", i); exit(EXIT_FAILURE); }
  printf("Test PASSED OK\n");
  cudaFree(d_A), cudaFree(d_B), cudaFree(d_C), free(h_A), free(h_B), free(h_C);
  return 0;
}
