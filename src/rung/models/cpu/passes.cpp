// A model for many tokens at a time: prompts, and texts to score. A library of its own, since a text that begins with
// few tokens does not wait for its compilation.
//
// Each vector lane holds one token, from the embedding to the head: activations are stored as (block of tokens,
// feature, token of the block). Weights are broadcast in place, norms and softmax need no sums across lanes, and every
// sum is added up in index order. So a token's bits depend only on the tokens that it attends to.
#include "shared.h"

namespace {

#if defined(__AVX512F__)
constexpr int STRIPS = 4;  // vectors of a block: what 32 registers hold
#else
constexpr int STRIPS = 2;
#endif
constexpr int BLOCK = STRIPS * LANES;
constexpr int ROWS = 192;   // of weights at most that are multiplied with one block after the other: they stay in L2
constexpr int DEPTH = 128;  // features of a block, which stay in L1 meanwhile

#if defined(__AVX512BF16__)
constexpr bool BFLOAT16_PAIRS = true;  // this processor multiplies pairs of bfloat16
#else
constexpr bool BFLOAT16_PAIRS = false;
#endif
struct Pair
{ uint32_t bits; };  // two numbers in bfloat16, the first below

constexpr int tile_rows(int strips) { return strips == STRIPS ? 6 : strips == 3 ? 8 : 12; }

inline Floats add_product(Floats sum, float w, Floats x) { return fma(Floats{} + w, x, sum); }

// Both hold pairs of 16-bit integers.
inline Ints add_product(Ints sum, int32_t w, Ints x)
{
    const Ints pairs = Ints{} + w;
#if defined(RUNG_INTEGERS)
    return (Ints)multiply_add((Integers)sum, (Integers)pairs, (Integers)x);
#else
    return sum + ((pairs << 16) >> 16) * ((x << 16) >> 16) + (pairs >> 16) * (x >> 16);
#endif
}

#if defined(__AVX512BF16__)
inline Floats add_product(Floats sum, Pair w, Words x)
{ return (Floats)_mm512_dpbf16_ps((__m512)sum, (__m512bh)(Words{} + w.bits), (__m512bh)x); }
#endif

// A vector of inputs of a product, and of its sums.
template <typename V>
struct VectorOf
{
    using Input = Floats;
    using Sum = Floats;
};
template <>
struct VectorOf<int32_t>
{
    using Input = Ints;
    using Sum = Ints;
};
template <>
struct VectorOf<Pair>
{
    using Input = Words;
    using Sum = Floats;
};

// y (O, BLOCK) = or += w (O, K) times x (K, BLOCK), the first N vectors of each row; ACROSS: w is (K, O).
template <int N, int O, bool ACROSS, typename V>
__attribute__((noinline)) void tile(const V* __restrict w, size_t stride, const V* __restrict x, int K,
                                    float* __restrict y, bool more)
{
    using Input = typename VectorOf<V>::Input;
    using Sum = typename VectorOf<V>::Sum;
    constexpr bool exact = std::is_same_v<Sum, Ints>;
    Sum s[O][N];
#pragma GCC unroll 16
    for (int o = 0; o < O; ++o)
#pragma GCC unroll 4
        for (int v = 0; v < N; ++v) {
            if (!exact && more)
                std::memcpy(&s[o][v], y + o * BLOCK + v * LANES, sizeof(Sum));
            else
                s[o][v] = Sum{};
        }
    for (int k = 0; k < K; ++k) {
        Input f[N];
#pragma GCC unroll 4
        for (int v = 0; v < N; ++v) std::memcpy(&f[v], x + size_t(k) * BLOCK + v * LANES, sizeof(Input));
#pragma GCC unroll 16
        for (int o = 0; o < O; ++o) {
            const V g = ACROSS ? w[k * stride + o] : w[o * stride + k];
#pragma GCC unroll 4
            for (int v = 0; v < N; ++v) s[o][v] = add_product(s[o][v], g, f[v]);
        }
    }
#pragma GCC unroll 16
    for (int o = 0; o < O; ++o)
#pragma GCC unroll 4
        for (int v = 0; v < N; ++v) {
            float* to = y + o * BLOCK + v * LANES;
            if constexpr (exact)
                save(to, (more ? load(to) : Floats{}) + __builtin_convertvector(s[o][v], Floats));
            else
                save(to, s[o][v]);
        }
}

template <int N, int O, bool ACROSS, typename V>
void tiles(const V* w, size_t stride, const V* x, int K, int count, float* y, bool more)
{
    for (; count >= O; count -= O, w += ACROSS ? O : O * stride, y += O * BLOCK)
        tile<N, O, ACROSS>(w, stride, x, K, y, more);
    if constexpr (O > 1)
        if (count) tiles<N, O / 2, ACROSS>(w, stride, x, K, count, y, more);
}

// y (count, BLOCK) = w (count, K) times x (K, BLOCK), the first `strips` vectors of each row.
template <bool ACROSS, typename V>
void multiply(int strips, const V* w, size_t stride, const V* x, int K, int count, float* y)
{
    for (int k = 0; k < K; k += DEPTH, w += ACROSS ? DEPTH * stride : DEPTH, x += DEPTH * BLOCK) {
        const int depth = std::min(DEPTH, K - k);
        const auto go = [&](auto n) { tiles<n(), tile_rows(n()), ACROSS>(w, stride, x, depth, count, y, k > 0); };
        if constexpr (STRIPS > 2) {
            if (strips == 4) go(std::integral_constant<int, 4>());
            if (strips == 3) go(std::integral_constant<int, 3>());
        }
        if (strips == 2) go(std::integral_constant<int, 2>());
        if (strips == 1) go(std::integral_constant<int, 1>());
    }
}

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__)
#define RUNG_TILES 1
// Sixteen rows of 64 bytes in each of the processor's eight tiles.
struct alignas(64) TileShapes
{
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// Whether Linux lets this process use tiles.
inline bool tiles_allowed()
{
    constexpr long REQUEST = 0x1023, TILE_DATA = 18;
    static const bool allowed = syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
    return allowed;
}

// A compiler barrier: the compiler does not see what tile instructions read, so earlier writes must be in memory here.
inline void written(const void* p) { asm volatile("" : : "r"(p) : "memory"); }

// Per thread, from here to the end of its work.
struct TilesInUse
{
    explicit TilesInUse(bool used) : used_(used)
    {
        const TileShapes shapes;
        written(&shapes);
        if (used_) _tile_loadconfig(&shapes);
    }
    ~TilesInUse()
    {
        if (used_) _tile_release();
    }
    const bool used_;
};

// Tiles 0 to 3 hold sums of 2 x 16 rows of weights with two sets of sixteen tokens.
template <typename W>
inline void multiply_tiles()
{
    if constexpr (std::is_same_v<W, BFloat16>) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    } else {  // tile 6 holds the inputs' upper bytes, tile 7 the lower ones
        _tile_dpbssd(0, 4, 6);
        _tile_dpbsud(1, 4, 7);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbsud(3, 5, 7);
    }
}

// y (count, BLOCK) = w (count, K) times the first `strips` vectors of x. Weights are read in place, sixteen rows at a
// time, so w has to hold a multiple of sixteen rows; K is a multiple of 64. For bfloat16 x is (K / 2, BLOCK) pairs, for
// 8 bits (K / 4, 2, BLOCK): four upper bytes, four lower bytes. A chunk of K stays in L1 for all rows and tokens.
template <typename W>
void tiled(int strips, const W* w, const Words* x, int K, int count, float* y)
{
    written(x);
    constexpr bool integers = std::is_same_v<W, int8_t>;
    constexpr int STEP = 64 / sizeof(W), CHUNK = 8 * STEP, SETS = integers ? 1 : 2;
    constexpr int STEP_OF_X = 16 * STRIPS * (integers ? 2 : 1);
    constexpr int STRIDE = BLOCK * sizeof(float), STRIDE_OF_X = STEP_OF_X / 16 * sizeof(Words);
    const size_t row = K * sizeof(W);
    for (int begin = 0; begin < K; begin += CHUNK)
        for (int o = 0; o < count; o += 32)
            for (int v = 0; v < strips; v += SETS) {
                const bool two_rows = count - o > 16, two_sets = integers || strips - v > 1, more = !integers && begin;
                const W *w0 = w + size_t(o) * K, *w1 = two_rows ? w0 + size_t(16) * K : w0;
                const Words *x0 = x + begin / STEP * STEP_OF_X + v, *x1 = integers   ? x0 + STRIPS
                                                                          : two_sets ? x0 + 1
                                                                                     : x0;
                float *y0 = y + size_t(o) * BLOCK + v * LANES, *y1 = y0 + 16 * BLOCK;
                _tile_zero(0);
                _tile_zero(1);
                _tile_zero(2);
                _tile_zero(3);
                if (more) {
                    _tile_loadd(0, y0, STRIDE);
                    if (two_sets) _tile_loadd(1, y0 + LANES, STRIDE);
                    if (two_rows) _tile_loadd(2, y1, STRIDE);
                    if (two_rows && two_sets) _tile_loadd(3, y1 + LANES, STRIDE);
                }
                for (int k = begin; k < std::min(K, begin + CHUNK); k += STEP, x0 += STEP_OF_X, x1 += STEP_OF_X) {
                    _tile_loadd(4, w0 + k, row);
                    _tile_loadd(6, x0, STRIDE_OF_X);
                    _tile_loadd(7, x1, STRIDE_OF_X);
                    _tile_loadd(5, w1 + k, row);
                    multiply_tiles<W>();
                }
                if constexpr (integers) {
                    alignas(64) Ints sums[2][2][16];
                    _tile_stored(0, sums[0][0], 64);
                    _tile_stored(1, sums[0][1], 64);
                    _tile_stored(2, sums[1][0], 64);
                    _tile_stored(3, sums[1][1], 64);
                    for (int i = 0; i < (two_rows ? 32 : 16); ++i) {
                        const auto& [upper, lower] = sums[i / 16];
                        float* to = y0 + size_t(i) * BLOCK;
                        const Floats sum = __builtin_convertvector(upper[i % 16] * 256 + lower[i % 16], Floats);
                        save(to, begin ? load(to) + sum : sum);
                    }
                } else {
                    _tile_stored(0, y0, STRIDE);
                    if (two_sets) _tile_stored(1, y0 + LANES, STRIDE);
                    if (two_rows) _tile_stored(2, y1, STRIDE);
                    if (two_rows && two_sets) _tile_stored(3, y1 + LANES, STRIDE);
                }
            }
}
#else
#define RUNG_TILES 0
inline bool tiles_allowed() { return false; }
struct TilesInUse
{
    explicit TilesInUse(bool) {}
};
#endif

// A row of weights, or keys and values, as products read them.
inline void unpack(const float* from, size_t count, float* to) { std::memcpy(to, from, count * sizeof *to); }
inline void unpack(const BFloat16* from, size_t count, float* to)
{
    for (size_t i = 0; i < count; ++i) to[i] = to_float(from[i]);
}
inline void unpack(const BFloat16* from, size_t count, Pair* to)
{
    std::memcpy(to, from, count * sizeof *from);
    if (count % 2) to[count / 2].bits &= 0xffffu;
}
inline void unpack(const int8_t* from, size_t count, int32_t* to)
{
    int16_t* pairs = reinterpret_cast<int16_t*>(to);
    for (size_t i = 0; i < count; ++i) pairs[i] = from[i];
    if (count % 2) pairs[count] = 0;
}

// TILES: the processor's matrix unit multiplies; it needs widths that are multiples of 64.
template <typename W, typename KV, bool TILES>
class Lanes final : public Many
{
    static constexpr bool INTEGERS = std::is_same_v<W, int8_t>;
    static constexpr bool PAIRS = std::is_same_v<W, BFloat16> && (TILES || BFLOAT16_PAIRS);
    static constexpr bool PACKED = INTEGERS || PAIRS;  // products read two numbers in 32 bits
    using V = std::conditional_t<INTEGERS, int32_t, std::conditional_t<PAIRS, Pair, float>>;
    struct alignas(4 * LANES) Line
    { float f[LANES]; };
    using Buffer = std::vector<Line>;  // (blocks, features, BLOCK)
    enum Figure { LARGEST, SUM, WEIGHTED, RANK, FIGURES };

    struct Scratch
    {
        std::vector<V> weights;   // as products read them
        std::vector<W> gathered;  // rows of the head
        std::vector<float> keys, values;
        Buffer scores;  // (keys, BLOCK)
        Buffer y;       // (rows of weights, BLOCK)
    };

public:
    Lanes(const Network& network, const Pass& pass)
        : net_(network), s_(network.s), pass_(pass), barrier_(s_.threads), next_(14 * s_.L + 6), scratch_(s_.threads)
    {
    }

    void begin() override
    {
        first_.clear();
        n_ = 0;
        for (int r = 0; r < pass_.runs; n_ += int(pass_.run[r++].count)) first_.push_back(n_);
        memory_ = pass_.memory;
        if (pass_.alone()) {  // keys and values serve one layer after the other
            own_k_.resize(std::max(own_k_.size(), size_t(n_) * net_.KV)), own_v_.resize(own_k_.size());
            memory_ = Memory{own_k_.data(), own_v_.data(), &FIRST_PAGE, 1, n_, 0, 0};
        }
        run_of_.resize(n_), place_.resize(n_);
        for (int r = 0; r < pass_.runs; ++r)
            for (int i = 0; i < pass_.run[r].count; ++i) {
                run_of_[first_[r] + i] = r;
                place_[first_[r] + i] = place_in(memory_, pass_.run[r].row, pass_.run[r].position + i, s_.HS);
            }
        grow(x_, n_, s_.C), grow(q_, n_, net_.turned), grow(norm_, n_, std::max(s_.C, net_.Q));
        grow(hidden_, n_, std::max(s_.C, s_.F));
        grow(own_, n_, 1);
        if (net_.cosines) grow(turns_, n_, s_.tables * s_.HS);
        if (PACKED) grow(packed_, n_, (net_.widest + 1) / 2);
        if (INTEGERS) grow(quanta_, n_, 1);
        if (pass_.wanted) grow(figures_, n_, FIGURES * shares());
        for (auto& counter : next_) counter.store(0, std::memory_order_relaxed);
    }

    void work(int me) override
    {
        const TilesInUse tiles(TILES);
        Scratch& my = scratch_[me];
        my.weights.resize(size_t(std::max(ROWS, BLOCK)) * (net_.widest + 1));
        my.y.resize(std::max({ROWS, BLOCK, s_.HS}) * STRIPS);
        std::atomic<int>* next = next_.data();
        const int C = s_.C, F = s_.F, HS = s_.HS, Q = net_.Q, heads = s_.NH + s_.NKV;
        const int strips = (n_ + LANES - 1) / LANES, blocks = (n_ + BLOCK - 1) / BLOCK;
        const auto each = [&](int items, const auto& work) {
            for (int i; (i = next->fetch_add(1, std::memory_order_relaxed)) < items;) work(i);
            ++next, barrier_.wait();
        };
        const auto linear = [&](const Linear& linear, const Buffer& in, int K, int OC, const auto& write) {
            if (PACKED) each(strips, [&](int i) { pack(in, K, i * LANES); });
            const int share = std::clamp(OC / (4 * s_.threads) / 24 * 24, 24, ROWS);
            product(my, linear, in, n_, K, OC, share, *next++, [&](int t, int width, int first, int count) {
                for (int o = 0; o < count; ++o)
                    for (int v = 0; v < width; ++v) write(first + o, t + v * LANES, load(my.y[o * STRIPS + v].f));
            });
            barrier_.wait();
        };
        const auto add = [&](int o, int t, Floats f) {
            float* to = at(x_, C, o, t);
            save(to, load(to) + f);
        };
        each(strips, [&](int i) { embed(i * LANES); });
        for (int l = 0; l < s_.L; ++l) {
            const Layer& layer = net_.layers[l];
            each(strips, [&](int i) { normalize(x_, layer.ln_1, i * LANES); });
            linear(layer.qkv, norm_, C, Q + 2 * net_.KV, [&](int o, int t, Floats f) {
                if (o < net_.turned)
                    save(at(q_, net_.turned, o, t), f);
                else
                    keep(o < Q + net_.KV ? memory_.k : memory_.v, l, (o - Q) % net_.KV / HS, o % HS, t, f);
            });
            if (net_.cosines) each(strips * heads, [&](int i) { turn(layer, l, i / heads * LANES, i % heads); });
            each(blocks * s_.NH, [&](int i) { attend(my, l, (blocks - 1 - i / s_.NH) * BLOCK, i % s_.NH); });
            const Norm &post = layer.ln_1_post, &end = layer.ln_2_post;
            if (post.weight)
                linear(layer.attn_proj, norm_, Q, C, [&](int o, int t, Floats f) { save(at(hidden_, C, o, t), f); });
            else
                linear(layer.attn_proj, norm_, Q, C, add);
            each(strips, [&](int i) {
                if (post.weight) settle(hidden_, post, i * LANES);
                normalize(x_, layer.ln_2, i * LANES);
            });
            linear(layer.fc, norm_, C, net_.FC, [&](int o, int t, Floats f) {
                if (!gated(s_.activation)) return save(at(hidden_, F, o, t), activated(f, s_.activation));
                float* to = at(hidden_, F, o / 2, t);  // a gate, then its value
                save(to, o % 2 ? activated(load(to), s_.activation) * f : f);
            });
            if (end.weight) {
                linear(layer.mlp_proj, hidden_, F, C, [&](int o, int t, Floats f) { save(at(norm_, C, o, t), f); });
                each(strips, [&](int i) { settle(norm_, end, i * LANES); });
            } else {
                linear(layer.mlp_proj, hidden_, F, C, add);
            }
        }
        if (!pass_.wanted && !pass_.means) return last(my, next, each);
        each(strips, [&](int i) { normalize(x_, net_.ln_f, i * LANES); });
        if (pass_.means) return each(pass_.runs, [&](int r) { mean(r); });
        if (PACKED) each(strips, [&](int i) { pack(norm_, C, i * LANES); });
        each(blocks, [&](int i) { look_up(my, i * BLOCK); });
        product(my, net_.head, norm_, n_, C, s_.V, ROWS, *next++, [&](int t, int width, int first, int count) {
            for (int v = 0; v < width; ++v) digest(my.y.data() + v, t + v * LANES, first, count);
        });
        barrier_.wait();
        each(strips, [&](int i) { sum_up(i * LANES); });
    }

private:
    static void grow(Buffer& buffer, int tokens, size_t features)
    {
        const size_t lines = size_t(tokens + BLOCK - 1) / BLOCK * STRIPS * features;
        if (lines <= buffer.size()) return;
        buffer.resize(lines);
        in_large_pages(buffer.data(), lines * sizeof(Line));
    }

    int shares() const { return (s_.V + ROWS - 1) / ROWS; }

    // Feature k of token t, a multiple of LANES, and of the tokens after it.
    static float* at(Buffer& buffer, int features, int k, int t)
    { return buffer[(size_t(t / BLOCK) * features + k) * STRIPS + t % BLOCK / LANES].f; }
    static const float* at(const Buffer& buffer, int features, int k, int t)
    { return at(const_cast<Buffer&>(buffer), features, k, t); }

    KV* head(void* cache, int layer, int h) const
    { return static_cast<KV*>(cache) + layer * memory_.between_layers + h * memory_.page * s_.HS; }

    void embed(int t)
    {
        for (int k = 0; k < s_.C; ++k) {
            float* to = at(x_, s_.C, k, t);
            for (int i = 0; i < LANES; ++i) to[i] = t + i < n_ ? pass_.x[size_t(t + i) * s_.C + k] : 0.0f;
        }
        if (!net_.cosines) return;
        const int half = s_.HS / 2;
        for (int i = 0; i < LANES; ++i) {
            const int token = std::min(t + i, n_ - 1), r = run_of_[token];
            const int64_t before =
                pass_.alone() ? 0 : pass_.run[r].position;  // of a text to score: where its keys are stored
            for (int table = 0; table < s_.tables; ++table) {
                const size_t angles = net_.angles(table, before + token - first_[r]);
                for (int j = 0; j < half; ++j) {
                    angle(table, j, t)[i] = net_.cosines[angles + j];
                    angle(table, half + j, t)[i] = net_.sines[angles + j];
                }
            }
        }
    }

    // A cosine or a sine of a vector of tokens.
    float* angle(int table, int j, int t) { return at(turns_, s_.tables * s_.HS, table * s_.HS + j, t); }

    // 1 / sqrt(x + eps)
    Floats inverse_root(Floats x) const
    {
        float f[LANES];
        save(f, x + s_.eps);
        for (float& y : f) y = 1.0f / std::sqrt(y);
        return load(f);
    }

    // A head of queries, or of keys on their way to the cache.
    void turn(const Layer& layer, int l, int t, int h)
    {
        const int HS = s_.HS, half = HS / 2;
        const auto x = [&](int j) { return at(q_, net_.turned, h * HS + j, t); };
        if (const float* weight = (h < s_.NH ? layer.q_norm : layer.k_norm).weight) {
            Floats squares{};
            for (int j = 0; j < HS; ++j) squares = fma(load(x(j)), load(x(j)), squares);
            const Floats rstd = inverse_root(squares / float(HS));
            for (int j = 0; j < HS; ++j) save(x(j), load(x(j)) * rstd * weight[j]);
        }
        for (int j = 0; j < half; ++j) {
            const Floats a = load(x(j)), b = load(x(j + half));
            const Floats cosine = load(angle(layer.table, j, t)), sine = load(angle(layer.table, half + j, t));
            save(x(j), a * cosine - b * sine), save(x(j + half), b * cosine + a * sine);
        }
        for (int j = 0; h >= s_.NH && j < HS; ++j) keep(memory_.k, l, h - s_.NH, j, t, load(x(j)));
    }

    void normalize(const Buffer& in, const Norm& norm, int t)
    {
        const int C = s_.C;
        Floats sum{}, squares{};
        if (norm.bias)
            for (int k = 0; k < C; ++k) sum += load(at(in, C, k, t));
        const Floats mean = sum / float(C);
        for (int k = 0; k < C; ++k) {
            const Floats d = load(at(in, C, k, t)) - mean;
            squares = fma(d, d, squares);
        }
        const Floats rstd = inverse_root(squares / float(C));
        for (int k = 0; k < C; ++k) {
            const float bias = norm.bias ? norm.bias[k] : 0.0f;
            save(at(norm_, C, k, t), (load(at(in, C, k, t)) - mean) * rstd * norm.weight[k] + bias);
        }
    }

    // Adds what a product has left, after its norm, to the residual stream.
    void settle(const Buffer& part, const Norm& norm, int t)
    {
        normalize(part, norm, t);
        for (int k = 0; k < s_.C; ++k) {
            float* to = at(x_, s_.C, k, t);
            save(to, load(to) + load(at(norm_, s_.C, k, t)));
        }
    }

    void pack(const Buffer& in, int K, int t)
    {
        if constexpr (INTEGERS)
            quantise(in, K, t);
        else
            for (int k = 0; k < K; k += 2) {
                const Words low = rounded(load(at(in, K, k, t))) >> 16;
                const Words high = k + 1 < K ? rounded(load(at(in, K, k + 1, t))) & 0xffff0000u : Words{};
                save(at(packed_, (K + 1) / 2, k / 2, t), low | high);
            }
    }

    // The upper halves are bfloat16, to nearest, ties to even.
    static Words rounded(Floats f) { return (Words)f + 0x7fffu + ((Words)f >> 16 & 1u); }

    void quantise(const Buffer& in, int K, int t)
    {
        Floats largest = Floats{} + 1e-30f;
        for (int k = 0; k < K; ++k) {
            const Floats f = load(at(in, K, k, t));
            largest = larger(largest, larger(f, -f));
        }
        const Floats quantum = float(QUANTA) / largest;
        save(at(quanta_, 1, 0, t), largest / float(QUANTA));
        const auto integer = [&](int k) {
            const Floats f = load(at(in, K, k, t)) * quantum;
            return __builtin_convertvector(f + (f < 0.0f ? Floats{} - 0.5f : Floats{} + 0.5f), Ints);
        };
        const int pairs = (K + 1) / 2;
        if constexpr (TILES) {
            for (int k = 0; k < K; k += 4) {
                Words upper{}, lower{};
                for (int i = 0; i < 4; ++i) {
                    const Words f = (Words)integer(k + i);
                    upper |= (f >> 8 & 0xffu) << 8 * i, lower |= (f & 0xffu) << 8 * i;
                }
                save(at(packed_, pairs, k / 2, t), upper), save(at(packed_, pairs, k / 2 + 1, t), lower);
            }
        } else {
            for (int k = 0; k < pairs; ++k) {
                const Words low = (Words)integer(2 * k), high = 2 * k + 1 < K ? (Words)integer(2 * k + 1) : Words{};
                save(at(packed_, pairs, k, t), (low & 0xffffu) | (high << 16));
            }
        }
    }

    // What a product reads of the tokens from t on, and how many numbers per token.
    const V* inputs(const Buffer& in, int K, int t) const
    {
        if constexpr (PACKED)
            return reinterpret_cast<const V*>(at(packed_, (K + 1) / 2, 0, t));
        else
            return at(in, K, 0, t);
    }
    static int depth(int K) { return PACKED ? (K + 1) / 2 : K; }

    // Each share of the rows of weights with all n tokens, a block at a time: done(t, strips, first row, rows) finds
    // the results in my.y.
    template <typename Done>
    void product(Scratch& my, const Linear& linear, const Buffer& in, int n, int K, int OC, int share,
                 std::atomic<int>& next, const Done& done)
    {
        for (int first; (first = next.fetch_add(share, std::memory_order_relaxed)) < OC;) {
            const int count = std::min(share, OC - first);
            const W* rows = static_cast<const W*>(linear.weight) + size_t(first) * K;
            const auto* weights = held(my, rows, K, count);
            for (int t = 0; t < n; t += BLOCK) {
                const int strips = std::min(STRIPS, (n - t + LANES - 1) / LANES);
                linearly(strips, weights, inputs(in, K, t), K, count, my.y[0].f);
                for (int o = 0; o < count; ++o) finish(my.y.data() + o * STRIPS, linear, first + o, t, strips);
                done(t, strips, first, count);
            }
        }
    }

    // Rows of weights as products read them: in place, or unpacked.
    const auto* held(Scratch& my, const W* rows, int K, int count)
    {
        if constexpr (TILES) {
            if (count % 16 == 0) return rows;
            W* copied = reinterpret_cast<W*>(my.weights.data());
            std::memcpy(copied, rows, size_t(count) * K * sizeof(W));
            std::memset((void*)(copied + size_t(count) * K), 0, size_t(16 - count % 16) * K * sizeof(W));
            return const_cast<const W*>(copied);
        } else if constexpr (std::is_same_v<W, V>) {
            return rows;
        } else {
            for (int o = 0; o < count; ++o) unpack(rows + size_t(o) * K, K, my.weights.data() + size_t(o) * depth(K));
            return const_cast<const V*>(my.weights.data());
        }
    }

    template <typename Weights>
    void linearly(int strips, const Weights* weights, const V* x, int K, int count, float* y) const
    {
#if RUNG_TILES
        if constexpr (TILES) return tiled(strips, weights, reinterpret_cast<const Words*>(x), K, count, y);
#endif
        if constexpr (!TILES) multiply<false>(strips, weights, depth(K), x, depth(K), count, y);
    }

    void finish(Line* y, const Linear& linear, int o, int t, int strips) const
    {
        for (int v = 0; v < strips; ++v) {
            Floats f = load(y[v].f);
            if constexpr (INTEGERS) f *= load(at(quanta_, 1, 0, t + v * LANES)) * linear.scale[o];
            if (linear.bias) f += linear.bias[o];
            save(y[v].f, f);
        }
    }

    void keep(void* cache, int layer, int h, int j, int t, Floats f) const
    {
        KV* to = head(cache, layer, h) + j;
        float y[LANES];
        save(y, f);
        for (int i = 0; i < std::min(LANES, n_ - t); ++i) store(to + place_[t + i], y[i]);
    }

    // One head of a block of tokens, run after run.
    void attend(Scratch& my, int layer, int block, int h)
    {
        const int HS = s_.HS, shared = h / (s_.NH / s_.NKV), block_end = std::min(n_, block + BLOCK);
        for (int r = run_of_[block]; r < pass_.runs && first_[r] < block_end; ++r) {
            const Run& run = pass_.run[r];
            const int begin = std::max(block, first_[r]), end = std::min(block_end, first_[r] + int(run.count));
            const int64_t position = run.position + begin - first_[r];
            const int64_t low = std::max(pass_.alone() ? run.position : 0, position - net_.layers[layer].window + 1);
            const int before = int(position - low),
                      T = before + end - begin;  // keys before the run's first token here; all
            const float* k = floats(head(memory_.k, layer, shared), run.row, low, T, my.keys);
            const float* v = floats(head(memory_.v, layer, shared), run.row, low, T, my.values);
            const int t = begin / LANES * LANES, strips = (end - t + LANES - 1) / LANES;
            my.scores.resize(std::max(my.scores.size(), size_t(T) * STRIPS));
            multiply<false>(strips, k, HS, at(q_, net_.turned, h * HS, t), HS, T, my.scores[0].f);
            Floats sums[STRIPS];
            for (int s = 0; s < strips; ++s) {
                Ints lane;
                for (int i = 0; i < LANES; ++i) lane[i] = std::clamp(t + s * LANES + i - begin, 0, end - begin - 1);
                sums[s] = softmax(my.scores.data() + s, T, before + lane, net_.scale[layer], net_.layers[layer].window);
            }
            multiply<true>(strips, v, HS, my.scores[0].f, T, HS, my.y[0].f);
            for (int s = 0; s < strips; ++s) {
                Ints token;
                for (int i = 0; i < LANES; ++i) token[i] = t + s * LANES + i;
                for (int j = 0; j < HS; ++j) {  // other lanes belong to other runs
                    float* to = at(norm_, net_.Q, h * HS + j, t + s * LANES);
                    save(to, token >= begin & token < end ? load(my.y[j * STRIPS + s].f) / sums[s] : load(to));
                }
            }
        }
    }

    // Tokens of a row from `first` on: in place where they are floats and lie together.
    const float* floats(const KV* from, int64_t row, int64_t first, int T, std::vector<float>& to) const
    {
        const int HS = s_.HS;
        if constexpr (std::is_same_v<KV, float>)
            if (first / memory_.page == (first + T - 1) / memory_.page) return from + place_in(memory_, row, first, HS);
        to.resize(std::max(to.size(), size_t(T) * HS));
        each_page(memory_, row, first, T, HS, [&](int64_t place, int t, int count) {
            unpack(from + place, size_t(count) * HS, to.data() + size_t(t) * HS);
        });
        return to.data();
    }

    // exp(score - the largest) of the keys that each lane sees, up to its own; their sums.
    Floats softmax(Line* scores, int T, Ints own, float scale, int window) const
    {
        Floats largest = Floats{} - INFINITY, sum{};
        for (int t = 0; t < T; ++t) {
            float* score = scores[size_t(t) * STRIPS].f;
            const Floats s = (t <= own & t > own - window) ? load(score) * scale : Floats{} - INFINITY;
            save(score, s);
            largest = larger(s, largest);
        }
        for (int t = 0; t < T; ++t) {
            float* score = scores[size_t(t) * STRIPS].f;
            const Floats s = load(score), p = s == -INFINITY ? Floats{} : exp(s - largest);
            save(score, p);
            sum += p;
        }
        return sum;
    }

    // The logits after each run's last token.
    template <typename Each>
    void last(Scratch& my, std::atomic<int>*& next, const Each& each)
    {
        const int C = s_.C, strips = (pass_.runs + LANES - 1) / LANES;
        each(strips, [&](int i) {
            for (int k = 0; k < C; ++k)
                for (int lane = 0; lane < LANES; ++lane) {
                    const int r = std::min(i * LANES + lane, pass_.runs - 1),
                              token = first_[r] + int(pass_.run[r].count) - 1;
                    at(hidden_, C, k, i * LANES)[lane] = at(x_, C, k, token / LANES * LANES)[token % LANES];
                }
            normalize(hidden_, net_.ln_f, i * LANES);
            if (PACKED) pack(norm_, C, i * LANES);
        });
        product(my, net_.head, norm_, pass_.runs, C, s_.V, ROWS, *next++, [&](int t, int width, int first, int count) {
            for (int o = 0; o < count; ++o)
                for (int i = 0; i < std::min(width * LANES, pass_.runs - t); ++i)
                    pass_.out[size_t(t + i) * s_.V + first + o] = my.y[o * STRIPS].f[i];
        });
        barrier_.wait();
    }

    void mean(int r)
    {
        for (int k = 0; k < s_.C; ++k) {
            double sum = 0;
            for (int t = first_[r]; t < first_[r] + pass_.run[r].count; ++t)
                sum += at(norm_, s_.C, k, t / LANES * LANES)[t % LANES];
            pass_.out[size_t(r) * s_.C + k] = float(sum / double(pass_.run[r].count));
        }
    }

    // The logit of each token that is wanted, by the same products as all others.
    void look_up(Scratch& my, int block)
    {
        const int C = s_.C, count = std::min(BLOCK, n_ - block), strips = (count + LANES - 1) / LANES;
        const W* rows = static_cast<const W*>(net_.head.weight);
        my.gathered.resize(size_t(count) * C);
        for (int i = 0; i < count; ++i)
            std::memcpy(&my.gathered[size_t(i) * C], rows + size_t(pass_.wanted[block + i]) * C, C * sizeof(W));
        const auto* weights = held(my, my.gathered.data(), C, count);
        linearly(strips, weights, inputs(norm_, C, block), C, count, my.y[0].f);
        for (int i = 0; i < count; ++i) {
            finish(my.y.data() + i * STRIPS, net_.head, int(pass_.wanted[block + i]), block, strips);
            at(own_, 1, 0, block)[i] = my.y[i * STRIPS].f[i];
        }
    }

    float* figure(Figure which, int first, int t)
    { return at(figures_, FIGURES * shares(), FIGURES * (first / ROWS) + which, t); }

    // A share of the vocabulary for a vector of tokens.
    void digest(const Line* y, int t, int first, int count)
    {
        Floats largest = load(y->f), sum{}, weighted{};
        Ints rank{};
        for (int o = 1; o < count; ++o) largest = larger(largest, load(y[o * STRIPS].f));
        const Floats own = load(at(own_, 1, 0, t));
        for (int o = 0; o < count; ++o) {
            const Floats f = load(y[o * STRIPS].f), e = exp(f - largest);
            sum += e;
            if (pass_.whole) weighted += e * f, rank -= f > own;
        }
        save(figure(LARGEST, first, t), largest), save(figure(SUM, first, t), sum);
        if (!pass_.whole) return;
        save(figure(WEIGHTED, first, t), weighted);
        save(figure(RANK, first, t), __builtin_convertvector(rank, Floats));
    }

    void sum_up(int t)
    {
        Floats largest = load(figure(LARGEST, 0, t)), sum{}, weighted{}, rank{};
        for (int o = ROWS; o < s_.V; o += ROWS) largest = larger(largest, load(figure(LARGEST, o, t)));
        for (int o = 0; o < s_.V; o += ROWS) {
            const Floats share = exp(load(figure(LARGEST, o, t)) - largest);
            sum += share * load(figure(SUM, o, t));
            if (pass_.whole) weighted += share * load(figure(WEIGHTED, o, t)), rank += load(figure(RANK, o, t));
        }
        for (int i = 0; i < std::min(LANES, n_ - t); ++i) {
            float* to = pass_.out + size_t(t + i) * 3;
            const double total = double(largest[i]) + std::log(double(sum[i]));
            to[0] = float(at(own_, 1, 0, t)[i] - total);
            if (pass_.whole) to[1] = rank[i], to[2] = float(total - double(weighted[i]) / sum[i]);
        }
    }

    const Network& net_;
    const Shape& s_;
    const Pass& pass_;
    Barrier barrier_;
    std::vector<std::atomic<int>> next_;  // the next item of each phase
    std::vector<Scratch> scratch_;
    int n_ = 0;                   // tokens
    std::vector<int> first_;      // of each run
    std::vector<int> run_of_;     // of each token
    std::vector<int64_t> place_;  // of each token in the cache, in its first head of the first layer
    Memory memory_{};
    static constexpr int32_t FIRST_PAGE = 0;
    std::vector<KV> own_k_, own_v_;
    Buffer x_, q_, turns_, norm_, hidden_, packed_, quanta_, own_, figures_;
};

}  // namespace

extern "C" Many* rung_passes(const Network& network, const Pass& pass)
{
    constexpr bool TILES = RUNG_TILES && !std::is_same_v<Weight, float>;
    const bool fits = network.s.C % 64 == 0 && network.Q % 64 == 0 && network.s.F % 64 == 0;
    if (TILES && fits && tiles_allowed()) return new Lanes<Weight, Cached, TILES>(network, pass);
    return new Lanes<Weight, Cached, false>(network, pass);
}
