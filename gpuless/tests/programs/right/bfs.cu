#include <cstdio>
#include <queue>
#include <vector>
__global__ void level(const int* ptr, const int* edges, int* depth, int now, int n, int* changed)
{
    int v = blockIdx.x * blockDim.x + threadIdx.x;
    if (v >= n || atomicAdd(&depth[v], 0) != now) return;
    for (int e = ptr[v]; e < ptr[v + 1]; e++)
        if (atomicCAS(&depth[edges[e]], -1, now + 1) == -1) atomicExch(changed, 1);
}
int main()
{
    const int n = 300;
    std::vector<int> ptr{0}, edges, depth(n, -1), expected(n, -1);
    for (int v = 0; v < n; v++) { for (int k = 1; k < 4; k++) edges.push_back((v * k + 7 * k) % n); ptr.push_back(edges.size()); }
    std::queue<int> q; q.push(0); expected[0] = 0;
    while (!q.empty()) { int v = q.front(); q.pop(); for (int e = ptr[v]; e < ptr[v + 1]; e++) if (expected[edges[e]] < 0) expected[edges[e]] = expected[v] + 1, q.push(edges[e]); }
    int *d_ptr, *d_edges, *d_depth, *changed, again = 1;
    depth[0] = 0;
    cudaMalloc(&d_ptr, ptr.size() * 4), cudaMalloc(&d_edges, edges.size() * 4), cudaMalloc(&d_depth, n * 4), cudaMalloc(&changed, 4);
    cudaMemcpy(d_ptr, ptr.data(), ptr.size() * 4, cudaMemcpyDefault), cudaMemcpy(d_edges, edges.data(), edges.size() * 4, cudaMemcpyDefault), cudaMemcpy(d_depth, depth.data(), n * 4, cudaMemcpyDefault);
    for (int now = 0; again; now++) {
        cudaMemset(changed, 0, 4);
        level<<<(n + 63) / 64, 64>>>(d_ptr, d_edges, d_depth, now, n, changed);
        cudaMemcpy(&again, changed, 4, cudaMemcpyDeviceToHost);
    }
    cudaMemcpy(depth.data(), d_depth, n * 4, cudaMemcpyDeviceToHost);
    puts(depth == expected ? "OK" : "wrong");
}
