__constant__ float weights[4];
int main()
{
    float host[8] = {};
    cudaMemcpyToSymbol(weights, host, sizeof host);  // fault: copy
}
