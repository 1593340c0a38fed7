// What the step for few tokens and the passes over many share: number formats, threads, the tensors of a model.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>
#include <sched.h>
#if defined(__linux__)
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__SSE2__)
#include <immintrin.h>
#endif

// A model's work with a step or a pass. Not in the unnamed namespace, since one library calls what another derives.
class Model
{
public:
    virtual ~Model() = default;
    virtual void work(int me) = 0;  // by every thread: its share
};

class Many : public Model
{
public:
    virtual void begin() = 0;  // by one thread
};

namespace {

enum Activation : int32_t { GELU_TANH = 0, GELU_ERF = 1, RELU = 2, SWIGLU = 3, GEGLU_TANH = 4 };

// Whether values have gates before them.
inline bool gated(int32_t activation) { return activation == SWIGLU || activation == GEGLU_TANH; }

struct BFloat16
{ uint16_t bits; };

// The weights' format, for which the library is compiled, and that of keys and values.
#if RUNG_BITS == 32
using Weight = float;
using Cached = float;
#else
using Weight = std::conditional_t<RUNG_BITS == 16, BFloat16, int8_t>;
using Cached = BFloat16;
#endif

inline float to_float(float x) { return x; }
inline float to_float(BFloat16 x)
{
    uint32_t word = uint32_t(x.bits) << 16;
    float f;
    std::memcpy(&f, &word, sizeof f);
    return f;
}
inline void store(float* p, float x) { *p = x; }
inline void store(BFloat16* p, float x)
{
    uint32_t word;
    std::memcpy(&word, &x, sizeof word);
    p->bits = uint16_t((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);  // to nearest, ties to even
}

// As many numbers as a register holds: a compiler that splits longer vectors keeps the parts in memory.
#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif
typedef float Floats __attribute__((vector_size(4 * LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * LANES)));
typedef uint32_t Words __attribute__((vector_size(4 * LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * LANES)));

inline Floats load(const float* p)
{
    Floats f;
    std::memcpy(&f, p, sizeof f);
    return f;
}
inline Floats load(const BFloat16* p)
{
#if defined(__AVX2__) && !defined(__AVX512F__)  // g++ widens in two halves
    return (Floats)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16);
#endif
    Halves h;
    std::memcpy(&h, p, sizeof h);
    return (Floats)(__builtin_convertvector(h, Words) << 16);
}
template <typename To, typename Vector>
inline void save(To* p, Vector v)
{ std::memcpy(p, &v, sizeof v); }

// The first n numbers, then zeros.
template <typename T>
inline Floats part(const T* p, int n)
{
    if (n >= LANES) return load(p);
    T some[LANES] = {};
    std::memcpy(some, p, n * sizeof(T));
    return load(some);
}
inline Floats part(Floats f, int n) { return n >= LANES ? f : part((const float*)&f, n); }

// a * b + c: rounded once if the processor has an instruction for it, else twice.
inline float fma(float a, float b, float c)
{
#if defined(__FP_FAST_FMAF) || defined(__FMA__)
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}
inline Floats fma(Floats a, Floats b, Floats c)
{
#if defined(__AVX512F__)
    return (Floats)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (Floats)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    for (int i = 0; i < LANES; ++i) c[i] = fma(a[i], b[i], c[i]);
    return c;
#endif
}

inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }
inline float largest(Floats f)
{
    float most = f[0];
    for (int i = 1; i < LANES; ++i) most = std::max(most, float(f[i]));
    return most;
}

// The sum of a vector's numbers: halves are added until one is left.
template <int N = LANES, typename Vector>
inline float total(Vector f)
{
    if constexpr (N == 1) {
        float sum;
        std::memcpy(&sum, &f, sizeof sum);
        return sum;
    } else {
        typedef float Half __attribute__((vector_size(2 * N)));
        Half low, high;
        std::memcpy(&low, &f, sizeof low), std::memcpy(&high, (const char*)&f + sizeof low, sizeof high);
        return total<N / 2>(low + high);
    }
}

// 2^n * 2^f with f in [-1/2, 1/2], below 2e-7 relative.
inline Floats exp(Floats x)
{
    Floats y = x * 1.44269504088896f;
    y = y < -126.0f ? Floats{} - 126.0f : y;
    y = y > 126.0f ? Floats{} + 126.0f : y;
    const Ints exponent = __builtin_convertvector(y + 127.5f, Ints);  // rounds down, being positive: n + 127
    const Floats f = y - __builtin_convertvector(exponent - 127, Floats);
    Floats p = Floats{} + 1.5252734e-5f;
    for (float c : {1.5403531e-4f, 1.3333558e-3f, 9.6181291e-3f, 5.5504109e-2f, 2.4022651e-1f, 6.9314718e-1f, 1.0f})
        p = fma(p, f, Floats{} + c);
    return p * (Floats)(exponent << 23);
}

inline Floats activated(Floats x, int kind)
{
    if (kind == RELU) return larger(Floats{}, x);
    if (kind == SWIGLU) return x / (1.0f + exp(-x));  // of a gate
    // x/2 (1 + tanh u) = x / (1 + exp(-2u)), which does not cancel for negative x
    if (kind == GELU_TANH || kind == GEGLU_TANH) return x / (1.0f + exp(-1.5957691216f * fma(0.044715f * x * x, x, x)));
    float y[LANES];
    std::memcpy(y, &x, sizeof y);
    for (float& f : y) f = 0.5f * f * std::erfc(-0.70710678f * f);
    return load(y);
}

// Moves existing memory to pages of 2 MB where Linux can do that (since 6.1): otherwise reading the weights once per
// token waits for page tables. A page that is not entirely of one mapping is left alone.
inline void in_large_pages(const void* begin, size_t bytes)
{
#if defined(__linux__)
    constexpr uintptr_t PAGE = 2 << 20;
    constexpr int COLLAPSE = 25;
    if (bytes < PAGE / 2) return;
    for (uintptr_t page = uintptr_t(begin) / PAGE * PAGE; page < uintptr_t(begin) + bytes; page += PAGE)
        madvise(reinterpret_cast<void*>(page), PAGE, COLLAPSE);
#endif
}

// ---------------------------------------------------------------- threads

inline void pause()
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

class Barrier
{
public:
    explicit Barrier(int n) : n_(n) {}
    void wait()
    {
        const uint32_t turn = turn_.load(std::memory_order_relaxed);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) == n_ - 1) {
            arrived_.store(0, std::memory_order_relaxed);
            turn_.store(turn + 1, std::memory_order_release);
            return;
        }
        for (int spins = 0; turn_.load(std::memory_order_acquire) == turn; ++spins)
            spins < 4000 ? pause() : (void)sched_yield();
    }

private:
    const int n_;
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<uint32_t> turn_{0};
};

// ---------------------------------------------------------------- the model

struct Linear
{
    const void* weight;  // (OC, K)
    const float* bias;   // (OC) or null
    const float* scale;  // (OC) for int8 weights, else null
};
struct Norm
{ const float *weight, *bias; };  // without a bias RMSNorm; without a weight none
struct Layer
{
    Norm ln_1;
    Linear qkv;
    Norm q_norm, k_norm;  // of each head
    Linear attn_proj;
    Norm ln_1_post;  // of what attention adds to the residual stream, and of what the MLP adds; may be missing
    Norm ln_2;
    Linear fc, mlp_proj;
    Norm ln_2_post;
    int window = 0;  // tokens that a token sees, itself the last
    int table = 0;   // of angles
};

}  // namespace

extern "C" struct Shape
{
    int32_t activation, threads, L, C, NH, NKV, HS, F, V;  // F: width of the MLP
    int32_t tables, positions;                             // of angles, by which queries and keys are turned
    float eps;
};

// Keys and values in pages: token t of a row is token t % page of the page table[row * reach + t / page]. In each layer
// a page is (NKV, page, HS); distances are in numbers.
extern "C" struct Memory
{
    void *k, *v;
    const int32_t* table;
    int64_t reach, page, between_layers, between_pages;
};

// Neighbouring tokens of one sequence: its row of the cache, and the place of the first of them there.
extern "C" struct Run
{
    int64_t row, position, count;
};

namespace {

// Where a token of a row begins, in its first head of the first layer.
inline int64_t place_in(const Memory& m, int64_t row, int64_t position, int HS)
{ return m.table[row * m.reach + position / m.page] * m.between_pages + position % m.page * HS; }

// Tokens of a row from `first` on, as far as they lie together: each(place, how many were before them, their number).
template <typename Each>
inline void each_page(const Memory& m, int64_t row, int64_t first, int T, int HS, const Each& each)
{
    for (int t = 0, count; t < T; t += count) {
        count = int(std::min<int64_t>(T - t, m.page - (first + t) % m.page));
        each(place_in(m, row, first + t, HS), t, count);
    }
}

// The tensors, in order.
struct Network
{
    Network(const Shape& shape, const void* const* t) : s(shape)
    {
        const auto norm = [&] {
            Norm n{(const float*)t[0], (const float*)t[1]};
            t += 2;
            return n;
        };
        const auto linear = [&](size_t OC, size_t K) {
            const Linear l{t[0], (const float*)t[1], (const float*)t[2]};
            in_large_pages(l.weight, OC * K * sizeof(Weight));
            t += 3;
            return l;
        };
        for (int i = 0; i < s.L; ++i) {
            Layer& layer = layers.emplace_back();
            layer.ln_1 = norm(), layer.qkv = linear(Q + 2 * KV, s.C), layer.q_norm = norm(), layer.k_norm = norm();
            layer.attn_proj = linear(s.C, Q), layer.ln_1_post = norm();
            layer.ln_2 = norm(), layer.fc = linear(FC, s.C), layer.mlp_proj = linear(s.C, s.F);
            layer.ln_2_post = norm();
        }
        ln_f = norm(), head = linear(s.V, s.C);
        scale = (const float*)t[0];
        for (int i = 0; i < s.L; ++i) {
            layers[i].window = static_cast<const int32_t*>(t[1])[i];
            layers[i].table = static_cast<const int32_t*>(t[2])[i];
        }
        cosines = (const float*)t[3], sines = (const float*)t[4];
        turned = cosines ? Q + KV : Q;
    }

    const Shape s;
    const int Q = s.NH * s.HS, KV = s.NKV * s.HS;        // widths of a token's queries, and of its keys
    const int FC = gated(s.activation) ? 2 * s.F : s.F;  // with a gate before each value
    const int widest = std::max({s.C, Q, s.F});          // inputs of a product
    std::vector<Layer> layers;
    Norm ln_f;
    Linear head;
    const float* scale;            // (L): what queries times keys are multiplied by
    const float *cosines, *sines;  // (tables, positions, HS / 2): how queries and keys are turned; null if they are not
    // Where the angles of a position begin.
    size_t angles(int table, int64_t position) const { return (size_t(table) * s.positions + position) * (s.HS / 2); }
    int turned;  // of a token's queries, keys and values, this many wait for that; the others go to the cache at once
};

// One pass's arguments, shared by all threads.
struct Pass
{
    int runs;
    const Run* run;
    const float* x;  // (tokens, C)
    Memory memory;
    const int64_t* wanted;  // (tokens), or null for logits
    bool whole;             // ranks and entropies as well
    float* out;
    bool means = false;  // of each run's last hidden states, in place of logits

    bool alone() const { return !memory.k; }  // texts whose keys and values nobody reads later
};

constexpr int QUANTA = 32767;  // the largest input of a product with 8-bit weights

// A register of 16-bit numbers, whose products with another's are added in pairs to 32-bit sums.
#if defined(__AVX512BW__)
#define RUNG_INTEGERS
using Integers = __m512i;
constexpr int SHORTS = 32;
inline Integers widened(const int8_t* p) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)p)); }
inline Integers multiply_add(Integers sum, Integers a, Integers b)
{
#if defined(__AVX512VNNI__)
    return _mm512_dpwssd_epi32(sum, a, b);
#else
    return _mm512_add_epi32(sum, _mm512_madd_epi16(a, b));
#endif
}
inline int64_t total(Integers s)
{
    const __m512i high = _mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64(s, 1));
    return _mm512_reduce_add_epi64(_mm512_add_epi64(_mm512_cvtepi32_epi64(_mm512_castsi512_si256(s)), high));
}
#elif defined(__AVX2__) && !defined(__AVX512F__)
#define RUNG_INTEGERS
using Integers = __m256i;
constexpr int SHORTS = 16;
inline Integers widened(const int8_t* p) { return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)p)); }
inline Integers multiply_add(Integers sum, Integers a, Integers b)
{ return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)); }
inline int64_t total(Integers s)
{
    const __m256i high = _mm256_cvtepi32_epi64(_mm256_extracti128_si256(s, 1));
    const __m256i both = _mm256_add_epi64(_mm256_cvtepi32_epi64(_mm256_castsi256_si128(s)), high);
    return both[0] + both[1] + both[2] + both[3];
}
#endif

}  // namespace
