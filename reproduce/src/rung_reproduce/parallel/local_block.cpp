// Exact attention of a block of queries to a block of keys, merged into what the queries have seen before.
//
// Positions decide which keys a query sees, so a block may hold any rows of the sequence in ascending order. Scores are
// computed in tiles of 64 x 64 that stay in the cache; the compiler maps vectors of 16 floats to the processor's width.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

namespace {

typedef float Vec __attribute__((vector_size(64)));
typedef int32_t IntVec __attribute__((vector_size(64)));
constexpr int LANES = 16;
constexpr int KEYS = 64;      // of a tile
constexpr int TOGETHER = 4;   // rows whose sums are held in registers at the same time
constexpr int MAX_ROWS = 64;  // of a unit of work
constexpr float NONE = -std::numeric_limits<float>::infinity();

inline Vec load(const float* p)
{
    Vec v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

inline void store(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }

// e^x for x <= 0, to within two units in the last place; below the smallest normal number, 0.
inline Vec exp_nonpositive(Vec x)
{
    const float round = 12582912.0f;  // 1.5 * 2^23: adding it leaves no fraction
    Vec clamped = x < -87.0f ? Vec{} - 87.0f : x;
    Vec n = (clamped * 1.44269504f + round) - round;
    Vec r = clamped - n * 0.693359375f + n * 2.12194440e-4f;
    Vec p = Vec{} + 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    IntVec power = (__builtin_convertvector(n, IntVec) + 127) << 23;
    Vec scale;
    std::memcpy(&scale, &power, sizeof scale);
    return x < -87.0f ? Vec{} : p * scale;
}

struct Block
{
    const float* q;  // (H, rows, D)
    const int64_t* q_at;
    const float *k, *v;  // head h begins at h * head_stride
    const int64_t* k_at;
    int64_t head_stride;
    int heads, rows, keys, D;
    float scale;
    bool causal;
    float* out;  // (H, rows, D), attention to the keys seen so far
    float* lse;  // (H, rows), log of the sum of their weights
};

// A thread's scratch memory.
struct Scratch
{
    int width;  // D, rounded up to whole pairs of vectors
    std::vector<float> memory;
    float *keys, *values, *weights, *sums;  // (D, KEYS) (KEYS, width) (MAX_ROWS, KEYS) (MAX_ROWS, width)

    explicit Scratch(int D) : width((D + 2 * LANES - 1) / (2 * LANES) * (2 * LANES))
    {
        memory.resize(size_t(D) * KEYS + size_t(KEYS + MAX_ROWS) * width + MAX_ROWS * KEYS + LANES);
        auto at = reinterpret_cast<uintptr_t>(memory.data());
        keys = memory.data() + ((64 - at % 64) % 64) / sizeof(float);
        values = keys + size_t(D) * KEYS;
        weights = values + size_t(KEYS) * width;
        sums = weights + MAX_ROWS * KEYS;
    }
};

// Keys transposed, so that adjacent elements of a vector are adjacent keys; missing keys are zero.
void pack(const Block& b, int h, int key0, int count, Scratch& s)
{
    const float* k = b.k + h * b.head_stride + int64_t(key0) * b.D;
    const float* v = b.v + h * b.head_stride + int64_t(key0) * b.D;
    std::fill(s.values, s.values + size_t(KEYS) * s.width, 0.0f);
    for (int d = 0; d < b.D; d++) {
        for (int j = 0; j < KEYS; j++) s.keys[d * KEYS + j] = j < count ? k[int64_t(j) * b.D + d] : 0.0f;
    }
    for (int j = 0; j < count; j++) std::copy(v + int64_t(j) * b.D, v + int64_t(j + 1) * b.D, s.values + j * s.width);
}

// weights (TOGETHER, KEYS) = scale * q @ keys
void scores(const float* const* q, const Scratch& s, int D, float scale, float* weights)
{
    for (int j = 0; j < KEYS; j += 2 * LANES) {
        Vec sum[TOGETHER][2] = {};
        for (int d = 0; d < D; d++) {
            Vec low = load(s.keys + d * KEYS + j), high = load(s.keys + d * KEYS + j + LANES);
            for (int i = 0; i < TOGETHER; i++) {
                sum[i][0] += q[i][d] * low;
                sum[i][1] += q[i][d] * high;
            }
        }
        for (int i = 0; i < TOGETHER; i++) {
            store(weights + i * KEYS + j, sum[i][0] * scale);
            store(weights + i * KEYS + j + LANES, sum[i][1] * scale);
        }
    }
}

// Turns scores into weights relative to the row's maximum so far; returns the factor by which older weights shrink.
float soften(float* weights, int count, float& m, float& l)
{
    float largest = m;
    for (int j = 0; j < count; j++) largest = weights[j] > largest ? weights[j] : largest;
    const float base = largest == NONE ? 0.0f : largest;
    for (int j = count; j < KEYS; j++) weights[j] = NONE;
    Vec sum = {};
    for (int j = 0; j < KEYS; j += LANES) {
        Vec w = exp_nonpositive(load(weights + j) - base);
        sum += w;
        store(weights + j, w);
    }
    const float shrink = m == NONE ? 0.0f : std::exp(m - base);
    l *= shrink;
    for (int i = 0; i < LANES; i++) l += sum[i];
    m = largest;
    return shrink;
}

// sums (TOGETHER, width) = shrink * sums + weights @ values. A masked value is skipped, not multiplied by zero: it may
// be infinite or NaN.
void gather(const float* weights, const float* shrink, const int* count, const Scratch& s, float* sums)
{
    const int shared = *std::min_element(count, count + TOGETHER);
    for (int d = 0; d < s.width; d += 2 * LANES) {
        Vec sum[TOGETHER][2];
        for (int i = 0; i < TOGETHER; i++) {
            sum[i][0] = shrink[i] * load(sums + i * s.width + d);
            sum[i][1] = shrink[i] * load(sums + i * s.width + d + LANES);
        }
        for (int j = 0; j < shared; j++) {
            Vec low = load(s.values + j * s.width + d), high = load(s.values + j * s.width + d + LANES);
            for (int i = 0; i < TOGETHER; i++) {
                sum[i][0] += weights[i * KEYS + j] * low;
                sum[i][1] += weights[i * KEYS + j] * high;
            }
        }
        for (int i = 0; i < TOGETHER; i++) {
            for (int j = shared; j < count[i]; j++) {
                sum[i][0] += weights[i * KEYS + j] * load(s.values + j * s.width + d);
                sum[i][1] += weights[i * KEYS + j] * load(s.values + j * s.width + d + LANES);
            }
            store(sums + i * s.width + d, sum[i][0]);
            store(sums + i * s.width + d + LANES, sum[i][1]);
        }
    }
}

// Merges two softmaxes over different keys: each is weighted by its share of the sum of weights.
void merge(const float* sums, float m, float l, int D, float* out, float& lse)
{
    if (l == 0.0f) return;
    const float here = m + std::log(l);
    const bool first = lse == NONE;
    const float most = std::max(lse, here);
    const float total = first ? here : most + std::log(std::exp(lse - most) + std::exp(here - most));
    const float before = first ? 0.0f : std::exp(lse - total), now = std::exp(here - total) / l;
    for (int d = 0; d < D; d++) out[d] = (first ? 0.0f : before * out[d]) + now * sums[d];
    lse = total;
}

void attend_rows(const Block& b, int h, int row0, int rows, Scratch& s)
{
    float m[MAX_ROWS], l[MAX_ROWS] = {};
    int end[MAX_ROWS];  // how many of the keys each row sees
    for (int r = 0; r < rows; r++) {
        m[r] = NONE;
        end[r] = b.causal ? int(std::upper_bound(b.k_at, b.k_at + b.keys, b.q_at[row0 + r]) - b.k_at) : b.keys;
    }
    if (end[rows - 1] == 0) return;
    std::fill(s.sums, s.sums + size_t(MAX_ROWS) * s.width, 0.0f);
    for (int key0 = 0; key0 < end[rows - 1]; key0 += KEYS) {
        const int present = std::min(KEYS, b.keys - key0);
        pack(b, h, key0, present, s);
        for (int r = 0; r < rows; r += TOGETHER) {
            const int last = std::min(rows, r + TOGETHER) - 1;
            if (end[last] <= key0) continue;
            const float* q[TOGETHER];
            for (int i = 0; i < TOGETHER; i++) {  // the last group repeats a row; its copies are dropped
                q[i] = b.q + (int64_t(h) * b.rows + row0 + std::min(r + i, last)) * b.D;
            }
            float* weights = s.weights + r * KEYS;
            scores(q, s, b.D, b.scale, weights);
            float shrink[TOGETHER] = {};
            int count[TOGETHER];
            for (int i = 0; i < TOGETHER; i++) {
                count[i] = std::clamp(end[std::min(r + i, last)] - key0, 0, present);
                if (r + i <= last) shrink[i] = soften(weights + i * KEYS, count[i], m[r + i], l[r + i]);
            }
            gather(weights, shrink, count, s, s.sums + r * s.width);
        }
    }
    for (int r = 0; r < rows; r++) {
        const int64_t row = int64_t(h) * b.rows + row0 + r;
        merge(s.sums + r * s.width, m[r], l[r], b.D, b.out + row * b.D, b.lse[row]);
    }
}

}  // namespace

extern "C" void attend(const float* q, const int64_t* q_at, const float* k, const float* v, const int64_t* k_at,
                       int64_t head_stride, int heads, int rows, int keys, int D, float scale, int causal, float* out, float* lse,
                       int threads)
{
    if (heads == 0 || rows == 0 || keys == 0) return;
    const Block block{q, q_at, k, v, k_at, head_stride, heads, rows, keys, D, scale, causal != 0, out, lse};
    int size = MAX_ROWS;
    while (size > 2 * TOGETHER && int64_t(heads) * ((rows + size - 1) / size) < 4 * threads) size /= 2;
    const int units_a_head = (rows + size - 1) / size, units = heads * units_a_head;
    std::atomic<int> next{units};
    auto work = [&] {
        Scratch scratch(D);
        for (int unit = --next; unit >= 0; unit = --next) {  // the last rows see most keys: they go first
            const int row0 = unit / heads * size;
            attend_rows(block, unit % heads, row0, std::min(size, rows - row0), scratch);
        }
    };
    std::vector<std::thread> others;
    for (int i = 1; i < std::min(threads, units); i++) others.emplace_back(work);
    work();
    for (std::thread& other : others) other.join();
}
