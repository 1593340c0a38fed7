#include <cstdio>
// Each face of a cube holds its number, and of the second cube 10 more; a texel beside the middle of the first face is greater by a half.
__global__ void look(cudaTextureObject_t one, cudaTextureObject_t two, float* out)
{
    const float x[] = {1, -1, 0, 0, 0, 0, 1}, y[] = {0, 0, 2, -3, 0.5f, 0, -0.6f}, z[] = {0.1f, 0, 0, 0, 4, -1, -0.6f};
    const int i = threadIdx.x;
    out[i] = texCubemap<float>(one, x[i], y[i], z[i]);
    out[7 + i] = texCubemapLayered<float>(two, x[i], y[i], z[i], 1);
}
int main()
{
    const int side = 4, texels = 12 * side * side;
    float h[texels], *d, found[14];
    for (int i = 0; i < texels; i++) h[i] = i / (side * side) % 6 + (i >= texels / 2 ? 10 : 0);
    h[3 * side + 3] += 0.5f;
    cudaTextureObject_t texture[2];
    cudaArray_t array[2];
    for (int cubes = 1; cubes <= 2; cubes++) {
        const cudaExtent extent = make_cudaExtent(side, side, 6 * cubes);
        const cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
        cudaMalloc3DArray(&array[cubes - 1], &format, extent, cudaArrayCubemap | (cubes > 1 ? cudaArrayLayered : 0));
        cudaMemcpy3DParms copy = {};
        copy.srcPtr = make_cudaPitchedPtr(h, side * sizeof(float), side, side);
        copy.dstArray = array[cubes - 1], copy.extent = extent, copy.kind = cudaMemcpyHostToDevice;
        cudaMemcpy3D(&copy);
        cudaResourceDesc resource = {};
        resource.resType = cudaResourceTypeArray, resource.res.array.array = array[cubes - 1];
        cudaTextureDesc how = {};
        how.normalizedCoords = true;
        cudaCreateTextureObject(&texture[cubes - 1], &resource, &how, nullptr);
    }
    cudaMalloc(&d, sizeof found);
    look<<<1, 7>>>(texture[0], texture[1], d);
    cudaMemcpy(found, d, sizeof found, cudaMemcpyDeviceToHost);
    bool good = true;
    for (int i = 0; i < 6; i++) good &= found[i] == i && found[7 + i] == 10 + i;
    good &= found[6] == 0.5f && found[13] == 10;
    for (int i = 0; i < 2; i++) cudaDestroyTextureObject(texture[i]), cudaFreeArray(array[i]);
    cudaFree(d);
    puts(good ? "OK" : "wrong");
    return !good;
}
