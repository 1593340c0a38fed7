__global__ void copy(float* out, const float* in) { reinterpret_cast<float4*>(out)[0] = reinterpret_cast<const float4*>(in + 1)[0]; }  // fault: bounds
int main()
{
    float *in, *out;
    cudaMalloc(&in, 128), cudaMalloc(&out, 128);
    copy<<<1, 1>>>(out, in);
    cudaDeviceSynchronize();
}
