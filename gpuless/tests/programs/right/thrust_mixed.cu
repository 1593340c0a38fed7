#include <thrust/device_malloc.h>
#include <thrust/device_free.h>
#include <thrust/host_vector.h>
#include <thrust/sort.h>
#include <thrust/device_vector.h>
#include <thrust/for_each.h>
#include <thrust/inner_product.h>
#include <thrust/transform_reduce.h>
#include <thrust/scan.h>
#include <thrust/copy.h>
#include <thrust/unique.h>
#include <thrust/remove.h>
#include <curand_kernel.h>
#include <thrust/extrema.h>
#include <thrust/binary_search.h>
#include <thrust/random.h>
#include <thrust/device_ptr.h>
#include <thrust/system/cuda/execution_policy.h>
#include <thrust/iterator/transform_iterator.h>
#include <cuda/std/array>
#include <cuda/atomic>
#include <iostream>
#include <algorithm>
__global__ void count(const int* x, int* bins, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) { cuda::atomic_ref<int, cuda::thread_scope_device> bin(bins[x[i] % 8]); bin.fetch_add(1, cuda::memory_order_relaxed); }
}
int main() {
  thrust::device_vector<int> x(4000), bins(8, 0);
  thrust::default_random_engine rng(3); thrust::uniform_int_distribution<int> u(0, 99);
  thrust::host_vector<int> h(4000); for (auto& v : h) v = u(rng);
  x = h;
  cudaStream_t s; cudaStreamCreate(&s);
  count<<<16, 256, 0, s>>>(x.data().get(), thrust::raw_pointer_cast(bins.data()), 4000);
  int* raw = thrust::raw_pointer_cast(bins.data());
  thrust::for_each(thrust::cuda::par.on(s), thrust::counting_iterator<int>(0), thrust::counting_iterator<int>(100), [raw] __device__ (int i) { atomicAdd(raw + i % 8, 1); });
  int total = thrust::reduce(bins.begin(), bins.end());
  auto top = thrust::max_element(bins.begin(), bins.end());
  thrust::exclusive_scan(bins.begin(), bins.end(), bins.begin());
  thrust::sort(x.begin(), x.end());
  auto end = thrust::unique(x.begin(), x.end());
  thrust::device_vector<int> y = h, left(4000);
  auto kept = thrust::remove_copy(y.begin(), y.end(), left.begin(), 5);
  if (kept - left.begin() != 4000 - std::count(h.begin(), h.end(), 5)) return CURAND_STATUS_INTERNAL_ERROR;
  thrust::device_ptr<int> p = thrust::device_malloc<int>(10); thrust::fill(p, p + 10, 7); thrust::device_free(p);
  cuda::std::array<int, 3> a = {1, 2, 3};
  std::cout << total << ' ' << (end - x.begin()) << ' ' << bins[0] << ' ' << a.size() << (total == 4100 && end - x.begin() == 100 ? " OK\n" : " wrong\n");
}
