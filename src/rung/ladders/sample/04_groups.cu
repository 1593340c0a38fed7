/*---
idea   = "The whole GPU reads the vocabulary once, and computes for each 32 tokens their largest logit and the sum of their exponentials; one block then draws from these, and reads only the groups in which a candidate can be."
expect = "Temperature alone needs no second pass: a draw among 1571 groups, then among 32 tokens, some 7 us for gpt2 instead of 85. Top-k reads at most k groups: two bisections of 32 steps over a few numbers per thread, some 15 us instead of 56; a nucleus wider than GROUPS groups is found as in the first rung, and as slowly."
found  = "Slower than rung 2 for a nucleus, in the same engine (gpt2 in bf16 on an H200, one sequence): 2,307 tokens/s at top-p 0.95, against 3,752 and a greedy 5,656; 4,166 with top-k 50 as well (4,316). A list of 512 groups seems too short for this nucleus, and each bisection step then reads a row of 200 KB from memory, where rung 2 has it in shared memory (04.md)."
provenance = "ours"
rewrite = "The vocabulary is read by the whole GPU in its own kernel; a second one draws from groups instead of logits."
dtypes = ["f32"]
dims   = ["V"]
[tune]
BLOCK = [1024, 512]
GROUPS = [512, 256, 1024]
TOGETHER = [4, 2, 8]
[buffers.maxima]
shape = ["B", "ceil_div(V, 32)"]
dtype = "f32"
[buffers.sums]
shape = ["B", "ceil_div(V, 32)"]
dtype = "f32"
[buffers.work]
shape = ["B", "V"]
dtype = "f32"
[[launch]]
kernel = "survey"
grid   = ["ceil_div(V, 32 * 8 * TOGETHER)", "B"]
block  = 256
pdl    = true
[[launch]]
kernel = "sample"
grid   = "B"
block  = "BLOCK"
shared = "GROUPS * 33 * 4"
pdl    = true
[model]
serves = { sample = 5 }
---*/
#include "sample.cuh"

using namespace sample_steps;

constexpr int G = (V + WARP_SIZE - 1) / WARP_SIZE, EACH = (G + BLOCK - 1) / BLOCK;

__device__ __forceinline__ double scan(double x)
{
    for (int offset = 1; offset < WARP_SIZE; offset *= 2) {
        const double left = __shfl_up_sync(ALL_LANES, x, offset);
        if (lane_id() >= offset) x += left;
    }
    return x;
}

// A row of logits after penalties; -infinity beyond its end.
struct Row
{
    const float* logits;
    const int* marks;
    const Settings& s;

    __device__ __forceinline__ float at(int i) const
    {
        if (i >= V) return -INFINITY;
        const float logit = __ldcg(logits + i);
        return s.penalised() ? s.penalise(logit, __ldcg(marks + i)) : logit;
    }
};

// A lane reads one token in each of TOGETHER neighbouring groups.
extern "C" __global__ void __launch_bounds__(256)
    survey(const float* logits, const int* marks, const float* settings, float* maxima, float* sums)
{
    const int b = blockIdx.y, first = (blockIdx.x * 8 + warp_id()) * TOGETHER;
    pdl_wait();
    pdl_launch_dependents();
    const Settings s(settings + 8 * b);
    const Row row = {logits + size_t(b) * V, marks + size_t(b) * V, s};
    const float unit = s.temperature > 0.0f ? 1.0f / s.temperature : 0.0f;
    float z[TOGETHER];
#pragma unroll
    for (int j = 0; j < TOGETHER; j++) z[j] = row.at((first + j) * WARP_SIZE + lane_id());
#pragma unroll
    for (int j = 0; j < TOGETHER; j++) {
        if (first + j >= G) return;
        const float m = warp_max(z[j]);
        const float sum = warp_sum(z[j] > -INFINITY ? expf((z[j] - m) * unit) : 0.0f);
        if (lane_id() == 0) maxima[size_t(b) * G + first + j] = m, sums[size_t(b) * G + first + j] = sum;
    }
}

// A thread's part: EACH neighbouring groups.
struct Survey
{
    float m[EACH], sum[EACH];

    __device__ __forceinline__ Survey(const float* maxima, const float* sums)
    {
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int g = int(threadIdx.x) * EACH + j;
            m[j] = g < G ? __ldcg(maxima + g) : -INFINITY;
            sum[j] = g < G ? __ldcg(sums + g) : 0.0f;
        }
    }

    __device__ __forceinline__ float largest() const
    {
        float own = m[0];
#pragma unroll
        for (int j = 1; j < EACH; j++) own = fmaxf(own, m[j]);
        return block_max(own);
    }

    // The sum of all exponentials in group j of the thread.
    __device__ __forceinline__ double whole(int j, float largest, float unit) const
    {
        return m[j] > -INFINITY ? double(sum[j]) * double(expf((m[j] - largest) * unit)) : 0.0;
    }

    // The largest value that at least this many groups reach: at least as many tokens are that large.
    __device__ __forceinline__ float reached_by(int groups, float largest) const
    {
        return bisect(largest, [&](float edge) {
            int count = 0;
#pragma unroll
            for (int j = 0; j < EACH; j++) count += m[j] >= edge;
            return block_count(count) >= groups;
        });
    }

    // Lists the groups that reach `edge`, in order; returns their number (none are listed if more than GROUPS).
    __device__ __forceinline__ int list(float edge, int* groups) const
    {
        __shared__ int counts[WARPS];
        int own = 0;
#pragma unroll
        for (int j = 0; j < EACH; j++) own += m[j] >= edge;
        int upto = own;
        for (int offset = 1; offset < WARP_SIZE; offset *= 2) {
            const int left = __shfl_up_sync(ALL_LANES, upto, offset);
            if (lane_id() >= offset) upto += left;
        }
        if (lane_id() == WARP_SIZE - 1) counts[warp_id()] = upto;
        __syncthreads();
        int at = upto - own, all = 0;
        for (int w = 0; w < WARPS; w++) {
            if (w < warp_id()) at += counts[w];
            all += counts[w];
        }
        if (all <= GROUPS)
#pragma unroll
            for (int j = 0; j < EACH; j++)
                if (m[j] >= edge) groups[at++] = int(threadIdx.x) * EACH + j;
        __syncthreads();
        return all;
    }
};

// The first index of the maximum; the first warp gets it.
__device__ __forceinline__ int likeliest(const Survey& survey, const Row& row, float largest)
{
    int group = G - 1;
#pragma unroll
    for (int j = EACH - 1; j >= 0; j--)
        if (survey.m[j] == largest) group = min(group, int(threadIdx.x) * EACH + j);
    const int token = block_least(group) * WARP_SIZE;
    if (warp_id() > 0) return 0;
    return token + __ffs(int(__ballot_sync(ALL_LANES, row.at(token + lane_id()) == largest))) - 1;
}

// Where the cumulative sum of all exponentials first passes u times the whole; the first warp gets it.
__device__ __forceinline__ int draw_from_all(const Survey& survey, const Row& row, float largest, float unit, float u)
{
    __shared__ double warps[WARPS], before_group;
    __shared__ int drawn;
    double own = 0.0;
#pragma unroll
    for (int j = 0; j < EACH; j++) own += survey.whole(j, largest, unit);
    const double upto = scan(own);
    if (lane_id() == WARP_SIZE - 1) warps[warp_id()] = upto;
    __syncthreads();
    double before = upto - own, all = 0.0;
    for (int w = 0; w < WARPS; w++) {
        if (w < warp_id()) before += warps[w];
        all += warps[w];
    }
    const double target = double(u) * all;
    // The last of those that begin at or before the target: this is valid even if rounding moves the target past the end.
    const int thread = -block_least(own > 0.0 && before <= target ? -int(threadIdx.x) : 0);
    if (int(threadIdx.x) == thread) {
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const double part = survey.whole(j, largest, unit);
            if (part > 0.0 && before <= target) drawn = thread * EACH + j, before_group = before;
            before += part;
        }
    }
    __syncthreads();
    if (warp_id() > 0) return 0;
    const int token = drawn * WARP_SIZE;
    const float value = expf((row.at(token + lane_id()) - largest) * unit);
    const double begins = before_group + scan(double(value)) - double(value);
    const unsigned begun = __ballot_sync(ALL_LANES, value > 0.0f && (begins <= target));
    const unsigned any = __ballot_sync(ALL_LANES, value > 0.0f);
    return token + (begun ? 31 - __clz(int(begun)) : __ffs(int(any)) - 1);
}

// Gathers the listed groups, without logits below `edge`: groups that are not listed may contain such too.
__device__ __forceinline__ void gather(const Row& row, const int* groups, int count, float edge, float* list)
{
#pragma unroll 4
    for (int i = threadIdx.x; i < count * WARP_SIZE; i += BLOCK) {
        const float z = row.at(groups[i / WARP_SIZE] * WARP_SIZE + i % WARP_SIZE);
        list[i] = z >= edge ? z : -INFINITY;
    }
    __syncthreads();
}

// The draw when not all tokens take part; every thread gets it.
__device__ __forceinline__ int draw_from_some(const Survey& survey, const Row& row, float largest, float u, float* list,
                                              float* work)
{
    const Settings& s = row.s;
    const float unit = 1.0f / s.temperature;
    const bool some = s.top_k > 0 && s.top_k < V;
    int* groups = reinterpret_cast<int*>(list + GROUPS * WARP_SIZE);
    float edge = -FLT_MAX;
    if (some) {
        if (s.top_k <= G) edge = survey.reached_by(s.top_k, largest);
    } else if (s.top_p < 1.0f) {
        if (G > GROUPS) edge = survey.reached_by(GROUPS, largest);
    } else {  // min-p alone, with a margin: the logits in the list are tested again
        edge = largest + s.temperature * (logf(s.min_p) - 0.001f) - 1e-5f * fabsf(largest);
    }
    const int count = survey.list(edge, groups);
    bool listed = count <= GROUPS;
    Numbers numbers = {listed ? list : work, listed ? count * WARP_SIZE : V};
    if (listed)
        gather(row, groups, count, edge, list);
    else
        numbers.load(row.logits, s.penalised() ? row.marks : nullptr, s);
    if (some) {
        const float least = bisect(largest, [&](float e) { return numbers.count_from(e) >= s.top_k; });
        numbers.drop_below(least, -INFINITY);
    }
    float whole = block_sum(numbers.exponentials(largest, s.temperature));
    if (s.top_p < 1.0f) {
        if (!some && listed) {
            double own = 0.0;
#pragma unroll
            for (int j = 0; j < EACH; j++) own += survey.whole(j, largest, unit);
            const float there = whole;
            whole = block_sum(float(own));
            if (there < s.top_p * whole) {
                listed = false;
                numbers = {work, V};
                numbers.load(row.logits, s.penalised() ? row.marks : nullptr, s);
                whole = block_sum(numbers.exponentials(largest, s.temperature));
            }
        }
        const float wanted = s.top_p * whole;
        numbers.keep_nucleus(bisect(1.0f, [&](float e) { return numbers.sum_from(e) >= wanted; }), wanted);
    }
    numbers.drop_below(s.min_p, 0.0f);
    const int token = numbers.draw(u);
    return listed ? groups[token / WARP_SIZE] * WARP_SIZE + token % WARP_SIZE : token;
}

extern "C" __global__ void __launch_bounds__(BLOCK)
    sample(const float* logits, int* marks, const float* settings, const int* seeds, const int* steps, const float* maxima,
           const float* sums, int* next, float* work)
{
    extern __shared__ float list[];  // GROUPS groups of logits, then which groups they are
    const int b = blockIdx.x;
    pdl_wait();
    pdl_launch_dependents();
    const Settings s(settings + 8 * b);
    const Row row = {logits + size_t(b) * V, marks + size_t(b) * V, s};
    const Survey survey(maxima + size_t(b) * G, sums + size_t(b) * G);
    const float largest = survey.largest(), u = uniform(seeds + 4 * b, *steps);
    int token;
    if (s.temperature == 0.0f)
        token = likeliest(survey, row, largest);
    else if ((s.top_k <= 0 || s.top_k >= V) && s.top_p >= 1.0f && s.min_p <= 0.0f)
        token = draw_from_all(survey, row, largest, 1.0f / s.temperature, u);
    else
        token = draw_from_some(survey, row, largest, u, list, work + size_t(b) * V);
    __syncwarp();  // after every lane has read the marks
    if (threadIdx.x == 0) {
        next[b] = token;
        int* mark = marks + size_t(b) * V + token;
        *mark = (*mark | 1) + 2;
    }
}
