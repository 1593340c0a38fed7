#include <cublasLt.h>
#include <cublas_v2.h>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>
#define CHECK(x) do { if (auto s = (x)) { printf("%s: %d\n", #x, int(s)); exit(1); } } while (0)

static float gelu(float x) { return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x))); }

// out (BT, OC) = gelu(inp (BT, C) weight (OC, C)^T + bias), as a forward pass calls it.
void forward(cublasLtHandle_t lt, float* out, float* before, const float* inp, const float* weight, const float* bias, int BT, int C, int OC)
{
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t w, x, y;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t heuristic;
    CHECK(cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    cublasOperation_t transposed = CUBLAS_OP_T;
    cublasLtEpilogue_t epilogue = before ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_RELU_BIAS;
    CHECK(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed));
    CHECK(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
    CHECK(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias));
    if (before) {
        int64_t ld = OC;
        CHECK(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &before, sizeof before));
        CHECK(cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &ld, sizeof ld));
    }
    CHECK(cublasLtMatrixLayoutCreate(&w, CUDA_R_32F, C, OC, C));
    CHECK(cublasLtMatrixLayoutCreate(&x, CUDA_R_32F, C, BT, C));
    CHECK(cublasLtMatrixLayoutCreate(&y, CUDA_R_32F, OC, BT, OC));
    CHECK(cublasLtMatmulPreferenceCreate(&preference));
    size_t room = 0;
    CHECK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, sizeof room));
    int found = 0;
    cublasLtMatmulAlgoGetHeuristic(lt, product, w, x, y, y, preference, 1, &heuristic, &found);
    if (!found) printf("no algorithm\n"), exit(1);
    const float one = 1.0f, zero = 0.0f;
    CHECK(cublasLtMatmul(lt, product, &one, weight, w, inp, x, &zero, out, y, out, y, &heuristic.algo, nullptr, 0, 0));
    cublasLtMatmulPreferenceDestroy(preference), cublasLtMatmulDescDestroy(product);
    cublasLtMatrixLayoutDestroy(w), cublasLtMatrixLayoutDestroy(x), cublasLtMatrixLayoutDestroy(y);
}

__global__ void shift(float* x, int n, float by)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) x[i] += by;
}

int main()
{
    const int BT = 9, C = 17, OC = 12;
    std::vector<float> inp(BT * C), weight(OC * C), bias(OC), out(BT * OC), before(BT * OC), rectified(BT * OC);
    for (auto* v : {&inp, &weight, &bias})
        for (float& x : *v) x = rand() / float(RAND_MAX) - 0.5f;
    float *d_inp, *d_weight, *d_bias, *d_out, *d_before;
    cudaMalloc(&d_inp, inp.size() * 4), cudaMalloc(&d_weight, weight.size() * 4), cudaMalloc(&d_bias, OC * 4);
    cudaMalloc(&d_out, out.size() * 4), cudaMalloc(&d_before, out.size() * 4);
    cudaMemcpy(d_inp, inp.data(), inp.size() * 4, cudaMemcpyHostToDevice);
    cudaMemcpy(d_weight, weight.data(), weight.size() * 4, cudaMemcpyHostToDevice);
    cudaMemcpy(d_bias, bias.data(), OC * 4, cudaMemcpyHostToDevice);
    shift<<<1, 64>>>(d_bias, OC, 0.25f);
    for (float& x : bias) x += 0.25f;
    cublasLtHandle_t lt;
    CHECK(cublasLtCreate(&lt));
    forward(lt, d_out, d_before, d_inp, d_weight, d_bias, BT, C, OC);
    cudaMemcpy(out.data(), d_out, out.size() * 4, cudaMemcpyDeviceToHost);
    cudaMemcpy(before.data(), d_before, out.size() * 4, cudaMemcpyDeviceToHost);
    forward(lt, d_out, nullptr, d_inp, d_weight, d_bias, BT, C, OC);
    cudaMemcpy(rectified.data(), d_out, out.size() * 4, cudaMemcpyDeviceToHost);
    CHECK(cublasLtDestroy(lt));
    for (int t = 0; t < BT; t++)
        for (int o = 0; o < OC; o++) {
            float sum = bias[o];
            for (int c = 0; c < C; c++) sum += inp[t * C + c] * weight[o * C + c];
            const int at = t * OC + o;
            if (fabsf(before[at] - sum) > 1e-5f || fabsf(out[at] - gelu(sum)) > 1e-5f || fabsf(rectified[at] - fmaxf(sum, 0)) > 1e-5f)
                return printf("wrong at %d %d\n", t, o), 1;
        }

    // The same product, a batch of pointers.
    cublasHandle_t blas;
    CHECK(cublasCreate(&blas));
    const float *a[2] = {d_weight, d_weight}, *b[2] = {d_inp, d_inp};
    float *c[2] = {d_out, d_before}, one = 1.0f, zero = 0.0f, **d_c;
    const float **d_a, **d_b;
    cudaMalloc(&d_a, sizeof a), cudaMalloc(&d_b, sizeof b), cudaMalloc(&d_c, sizeof c);
    cudaMemcpy(d_a, a, sizeof a, cudaMemcpyHostToDevice), cudaMemcpy(d_b, b, sizeof b, cudaMemcpyHostToDevice);
    cudaMemcpy(d_c, c, sizeof c, cudaMemcpyHostToDevice);
    CHECK(cublasSgemmBatched(blas, CUBLAS_OP_T, CUBLAS_OP_N, OC, BT, C, &one, d_a, C, d_b, C, &zero, d_c, OC, 2));
    std::vector<float> first(BT * OC), second(BT * OC);
    cudaMemcpy(first.data(), d_out, out.size() * 4, cudaMemcpyDeviceToHost);
    cudaMemcpy(second.data(), d_before, out.size() * 4, cudaMemcpyDeviceToHost);
    for (int i = 0; i < BT * OC; i++)
        if (first[i] != second[i] || fabsf(first[i] + bias[i % OC] - before[i]) > 1e-5f) return printf("wrong batch at %d\n", i), 1;
    cublasDestroy(blas);
    for (void* p : {(void*)d_inp, (void*)d_weight, (void*)d_bias, (void*)d_out, (void*)d_before, (void*)d_a, (void*)d_b, (void*)d_c}) cudaFree(p);
    puts("OK");
}
