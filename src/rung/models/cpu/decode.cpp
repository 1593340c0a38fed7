// A model for a few tokens at a time, on the CPU, in one call.
//
// A product with a single row is limited by memory alone, so the whole step only streams the weights once: there is no
// framework between the operations, threads synchronize at spinning barriers, and activations are float for any weight
// format. A "column" is one token of one sequence; all columns use each weight that was read.
// Compiled for this machine (-march=native); loops are written so that the compiler vectorises them.
#include "shared.h"

namespace {

struct Column
{ int64_t row, position, output; };  // its sequence, its position there, its row of the logits or -1

// What a matrix product reads: floats, or 16-bit integers if weights have 8 bits. Integers keep unpacking off the
// critical path: 32 weights take one widening and one multiply-add, where 16 floats take two and one.
// Memory aligned to cache lines, so that no vector load of a column crosses one.
template <typename T>
struct InLines
{
    using value_type = T;
    InLines() = default;
    template <typename U>
    InLines(const InLines<U>&)
    {
    }
    T* allocate(size_t n) { return static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t(64))); }
    void deallocate(T* p, size_t) { ::operator delete(p, std::align_val_t(64)); }
    bool operator==(const InLines&) const { return true; }
    bool operator!=(const InLines&) const { return false; }
};

template <typename X>
struct Inputs
{
    std::vector<X, InLines<X>> x;  // (columns, K)
    std::vector<float> scale;      // (columns), for integers
};

using X = std::conditional_t<std::is_same_v<Weight, int8_t>, int16_t, float>;

constexpr int MAX_COLUMNS = 32;

// Prefetches weights AHEAD bytes further on, also across rows: the hardware prefetcher's distance is shorter.
constexpr int AHEAD = 2048;
inline void ahead(const void* w, int bytes)
{
    for (int i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const char*>(w) + AHEAD + i);
}

// Dot products of R rows of weights with N columns, each loaded once. The order of additions is explicit, so that a
// column's result does not depend on the other columns, to the last bit. FIRST: these weights are not in the cache yet.
template <int R, int N, bool FIRST, typename W>
__attribute__((noinline)) void dots(const W* w, const float* x, int K, float (*sum)[N])
{
    Floats s[R][N][2] = {};
    int k = 0;
    for (; k + 2 * LANES <= K; k += 2 * LANES) {
        Floats f[R][2];
        for (int r = 0; r < R; ++r) {
            const W* row = w + size_t(r) * K + k;
            if (FIRST) ahead(row, 2 * LANES * sizeof(W));
            f[r][0] = load(row), f[r][1] = load(row + LANES);
        }
        for (int c = 0; c < N; ++c) {
            const Floats x0 = load(x + size_t(c) * K + k), x1 = load(x + size_t(c) * K + k + LANES);
            for (int r = 0; r < R; ++r)
                s[r][c][0] = fma(f[r][0], x0, s[r][c][0]), s[r][c][1] = fma(f[r][1], x1, s[r][c][1]);
        }
    }
    for (; k < K; k += LANES)
        for (int c = 0; c < N; ++c) {
            const Floats column = part(x + size_t(c) * K + k, K - k);
            for (int r = 0; r < R; ++r) s[r][c][0] = fma(part(w + size_t(r) * K + k, K - k), column, s[r][c][0]);
        }
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < N; ++c) sum[r][c] = total(s[r][c][0] + s[r][c][1]);
}

template <int R, int N, bool FIRST>
__attribute__((noinline)) void dots(const int8_t* w, const int16_t* x, int K, float (*sum)[N])
{
    int64_t exact[R][N] = {};
#if defined(RUNG_INTEGERS)
    constexpr int SAFE = 256 * SHORTS;  // 2 * 127 * 32767 fits 256 times into a 32-bit lane
#else
    constexpr int SAFE = 8192;
#endif
    for (int k = 0; k < K;) {
        const int end = std::min(K, k + SAFE);
#if defined(RUNG_INTEGERS)
        constexpr int CHAINS = R * N == 1 ? 4 : 1;  // independent sums hide the latency of an addition
        Integers s[CHAINS][R][N] = {};
        const auto add = [&](int chain, int k) {
            Integers f[R];
            for (int r = 0; r < R; ++r) f[r] = widened(w + size_t(r) * K + k);
            for (int c = 0; c < N; ++c) {
                Integers column;
                std::memcpy(&column, x + size_t(c) * K + k, sizeof column);
                for (int r = 0; r < R; ++r) s[chain][r][c] = multiply_add(s[chain][r][c], f[r], column);
            }
        };
        for (; k + SHORTS * CHAINS <= end; k += SHORTS * CHAINS) {
            if (FIRST)
                for (int r = 0; r < R; ++r) ahead(w + size_t(r) * K + k, SHORTS * CHAINS);
            for (int i = 0; i < CHAINS; ++i) add(i, k + SHORTS * i);
        }
        for (; k + SHORTS <= end; k += SHORTS) add(0, k);
        for (int r = 0; r < R; ++r)
            for (int c = 0; c < N; ++c) {
                for (int i = 1; i < CHAINS; ++i) s[0][r][c] = (Integers)((Ints)s[0][r][c] + (Ints)s[i][r][c]);
                exact[r][c] += total(s[0][r][c]);
            }
#endif
        for (int part; k < end; k += part) {
            part = std::min(end - k, 512);  // 512 * 127 * 32767 fits into 32 bits
            for (int r = 0; r < R; ++r)
                for (int c = 0; c < N; ++c) {
                    int32_t s = 0;
                    for (int j = k; j < k + part; ++j)
                        s += int32_t(int16_t(w[size_t(r) * K + j])) * int32_t(x[size_t(c) * K + j]);
                    exact[r][c] += s;
                }
        }
    }
    for (int r = 0; r < R; ++r)
        for (int c = 0; c < N; ++c) sum[r][c] = float(exact[r][c]);
}

inline void put(Inputs<float>& in, int c, int K, const float* x)
{ std::memcpy(&in.x[size_t(c) * K], x, sizeof(float) * K); }

inline void put(Inputs<int16_t>& in, int c, int K, const float* x)
{
    Floats most = Floats{} + 1e-30f;
    for (int k = 0; k < K; k += LANES) {
        const Floats f = part(x + k, K - k);
        most = larger(most, larger(f, -f));
    }
    const float widest = largest(most), quantum = QUANTA / widest;
    int16_t* q = &in.x[size_t(c) * K];
    for (int k = 0; k < K; ++k) q[k] = int16_t(std::nearbyint(x[k] * quantum));
    in.scale[c] = widest / QUANTA;
}

// One step's arguments, shared by all threads.
struct Step
{
    int n;
    const Column* columns;
    Memory memory;
    float* logits;
};

class Forward final : public Model
{
    struct Scratch
    {
        Inputs<X> in;
        std::vector<float> row;     // a normalised or activated column
        std::vector<float> scores;  // one head against the keys of its sequence
    };

public:
    Forward(const Network& network, const Step& step)
        : net_(network), s_(network.s), step_(step), barrier_(s_.threads), next_(8 * s_.L + 1), scratch_(s_.threads)
    {
        const size_t n = MAX_COLUMNS, widest = net_.widest;
        x_.resize(n * s_.C), q_.resize(n * net_.turned), attn_.resize(n * net_.Q), hidden_.resize(n * net_.FC);
        part_.resize(n * s_.C);
        for (Scratch& scratch : scratch_) {
            scratch.in.x.resize(n * widest), scratch.in.scale.resize(n);
            scratch.row.resize(widest + LANES);
        }
    }

    void begin(const float* x)
    {  // by one thread: x (n, C), the embedded tokens
        std::memcpy(x_.data(), x, sizeof(float) * step_.n * s_.C);
        for (int c = 0; c < step_.n; ++c)
            place_[c] = place_in(step_.memory, step_.columns[c].row, step_.columns[c].position, s_.HS);
        for (auto& counter : next_) counter.store(0, std::memory_order_relaxed);
    }

    void work(int me) override
    {
        const int n = step_.n, C = s_.C, F = s_.F, HS = s_.HS, Q = net_.Q, FC = net_.FC;
        Scratch& my = scratch_[me];
        std::atomic<int>* next = next_.data();
        // Writes a product into the residual stream, or beside it where a norm comes first.
        const auto adding = [&](const Norm& post) {
            return [this, apart = post.weight != nullptr](int c, int o, float y) {
                float& to = (apart ? part_ : x_)[size_t(c) * s_.C + o];
                to = apart ? y : to + y;
            };
        };
        for (int i = 0; i < s_.L; ++i) {
            const Layer& layer = net_.layers[i];
            for (int c = 0; c < n; ++c) normalize(my, c, &x_[size_t(c) * C], layer.ln_1);
            product(my.in, layer.qkv, n, C, Q + 2 * net_.KV, *next++, [&](int c, int o, float y) {
                if (o < net_.turned)
                    q_[size_t(c) * net_.turned + o] = y;
                else
                    store(place(o < Q + net_.KV ? step_.memory.k : step_.memory.v, i, c, (o - Q) % net_.KV / HS) +
                              o % HS,
                          y);
            });
            barrier_.wait();
            if (net_.cosines) {
                const int heads = s_.NH + s_.NKV;
                for (int item; (item = (*next)++) < n * heads;) turn(layer, i, item / heads, item % heads);
                ++next;
                barrier_.wait();
            }
            for (int item; (item = (*next)++) < n * s_.NH;) attend(my, i, item / s_.NH, item % s_.NH);
            ++next;
            barrier_.wait();
            for (int c = 0; c < n; ++c) put(my.in, c, Q, &attn_[size_t(c) * Q]);
            product(my.in, layer.attn_proj, n, Q, C, *next++, adding(layer.ln_1_post));
            barrier_.wait();
            if (layer.ln_1_post.weight) settle(my, layer.ln_1_post, n, *next++);
            for (int c = 0; c < n; ++c) normalize(my, c, &x_[size_t(c) * C], layer.ln_2);
            product(my.in, layer.fc, n, C, FC, *next++,
                    [&](int c, int o, float y) { hidden_[size_t(c) * FC + o] = y; });
            barrier_.wait();
            for (int c = 0; c < n; ++c) activate(my, c);
            product(my.in, layer.mlp_proj, n, F, C, *next++, adding(layer.ln_2_post));
            barrier_.wait();
            if (layer.ln_2_post.weight) settle(my, layer.ln_2_post, n, *next++);
        }
        int asked[MAX_COLUMNS], outputs = 0;
        for (int c = 0; c < n; ++c)
            if (step_.columns[c].output >= 0) {
                asked[outputs] = c;
                normalize(my, outputs++, &x_[size_t(c) * C], net_.ln_f);
            }
        product(my.in, net_.head, outputs, C, s_.V, *next++,
                [&](int c, int o, float y) { step_.logits[step_.columns[asked[c]].output * s_.V + o] = y; });
        barrier_.wait();
    }

private:
    Cached* head(void* cache, int layer, int h) const
    { return static_cast<Cached*>(cache) + layer * step_.memory.between_layers + h * step_.memory.page * s_.HS; }
    Cached* place(void* cache, int layer, int c, int h) const { return head(cache, layer, h) + place_[c]; }

    // Adds what waits beside the residual stream, after its norm.
    void settle(Scratch& my, const Norm& norm, int n, std::atomic<int>& next)
    {
        for (int c; (c = next++) < n;) {
            const float* row = normalized(my, &part_[size_t(c) * s_.C], norm);
            for (int k = 0; k < s_.C; ++k) x_[size_t(c) * s_.C + k] += row[k];
        }
        barrier_.wait();
    }

    void normalize(Scratch& my, int c, const float* x, const Norm& norm) const
    { put(my.in, c, s_.C, normalized(my, x, norm)); }

    const float* normalized(Scratch& my, const float* x, const Norm& norm) const
    {
        const int C = s_.C;
        Floats sum{}, squares{};
        if (norm.bias)
            for (int k = 0; k < C; k += LANES) sum += part(x + k, C - k);
        const float mean = total(sum) / C;
        for (int k = 0; k < C; k += LANES) {
            const Floats d = part(part(x + k, C - k) - mean, C - k);
            squares = fma(d, d, squares);
        }
        const float rstd = 1.0f / std::sqrt(total(squares) / C + s_.eps);
        float* row = my.row.data();
        for (int k = 0; k < C; ++k) row[k] = (x[k] - mean) * rstd * norm.weight[k] + (norm.bias ? norm.bias[k] : 0.0f);
        return row;
    }

    // A head of queries, or of keys on their way to the cache.
    void turn(const Layer& layer, int i, int c, int h)
    {
        const int HS = s_.HS, half = HS / 2;
        float* x = &q_[size_t(c) * net_.turned + h * HS];
        if (const float* weight = (h < s_.NH ? layer.q_norm : layer.k_norm).weight) {
            Floats squares{};
            for (int j = 0; j < HS; j += LANES) squares = fma(part(x + j, HS - j), part(x + j, HS - j), squares);
            const float rstd = 1.0f / std::sqrt(total(squares) / HS + s_.eps);
            for (int j = 0; j < HS; ++j) x[j] *= rstd * weight[j];
        }
        const size_t angles = net_.angles(layer.table, step_.columns[c].position);
        const float *cosine = net_.cosines + angles, *sine = net_.sines + angles;
        for (int j = 0; j < half; ++j) {
            const float a = x[j], b = x[j + half];
            x[j] = a * cosine[j] - b * sine[j], x[j + half] = b * cosine[j] + a * sine[j];
        }
        if (h < s_.NH) return;
        Cached* key = place(step_.memory.k, i, c, h - s_.NH);
        for (int j = 0; j < HS; ++j) store(key + j, x[j]);
    }

    void activate(Scratch& my, int c) const
    {
        const int F = s_.F;
        const float* x = &hidden_[size_t(c) * net_.FC];
        float* row = my.row.data();
        for (int k = 0; k < F; k += LANES)
            if (gated(s_.activation)) {  // a gate before each value
                float pairs[2 * LANES] = {}, gate[LANES], value[LANES];
                std::memcpy(pairs, x + 2 * k, 2 * std::min(LANES, F - k) * sizeof(float));
                for (int i = 0; i < LANES; ++i) gate[i] = pairs[2 * i], value[i] = pairs[2 * i + 1];
                save(row + k, activated(load(gate), s_.activation) * load(value));
            } else {
                save(row + k, activated(part(x + k, F - k), s_.activation));
            }
        put(my.in, c, F, row);
    }

    void attend(Scratch& my, int layer, int c, int h)
    {
        const int HS = s_.HS, before = int(step_.columns[c].position) + 1,
                  T = std::min(before, net_.layers[layer].window);
        const float* q = &q_[size_t(c) * net_.turned + h * HS];
        const int shared = h / (s_.NH / s_.NKV);
        const auto each = [&](void* cache, const auto& some) {
            const Cached* from = head(cache, layer, shared);
            each_page(step_.memory, step_.columns[c].row, before - T, T, HS, [&](int64_t place, int first, int count) {
                some(from + place, my.scores.data() + first, count);
            });
        };
        if (int(my.scores.size()) < T + LANES) my.scores.resize(T + LANES);
        float* p = my.scores.data();
        const float scale = net_.scale[layer];
        each(step_.memory.k, [=](const Cached* k, float* p, int count) {
            for (int t = 0; t < count; ++t) {
                Floats s{};
                for (int j = 0; j < HS; j += LANES)
                    s = fma(part(q + j, HS - j), part(k + size_t(t) * HS + j, HS - j), s);
                p[t] = total(s) * scale;
            }
        });
        std::fill(p + T, p + T + LANES, -INFINITY);
        Floats most = load(p), sums{};
        for (int t = LANES; t < T; t += LANES) most = larger(most, load(p + t));
        const float highest = largest(most);
        for (int t = 0; t < T; t += LANES) {
            const Floats e = part(exp(load(p + t) - highest), T - t);
            sums += e, save(p + t, e);
        }
        const float sum = total(sums);
        float* out = &attn_[size_t(c) * net_.Q + h * HS];
        std::fill(out, out + HS, 0.0f);
        each(step_.memory.v, [=](const Cached* v, const float* p, int count) {
            for (int t = 0; t < count; ++t) {
                const float share = p[t] / sum;
                for (int j = 0; j < HS; ++j) out[j] = fma(share, to_float(v[size_t(t) * HS + j]), out[j]);
            }
        });
    }

    template <typename Write>
    void product(const Inputs<X>& in, const Linear& linear, int n, int K, int OC, std::atomic<int>& next,
                 const Write& write) const
    {
        // Small shares, taken dynamically: a thread that was interrupted does not delay the others for long.
        const int share = std::clamp(OC / (8 * s_.threads), 8, 256);
        for (int first; (first = next.fetch_add(share, std::memory_order_relaxed)) < OC;) {
            const int end = std::min(OC, first + share);
            const auto rows = [&](auto count, int o) {
                constexpr int R = count();
                float y[4][R];
                for (int c = 0, columns; c < n; c += columns) {
                    columns = n - c >= 4   ? some<R, 4>(in, linear, K, o, c, y)
                              : n - c >= 2 ? some<R, 2>(in, linear, K, o, c, y)
                                           : some<R, 1>(in, linear, K, o, c, y);
                    for (int j = 0; j < columns; ++j)
                        for (int r = 0; r < R; ++r) write(c + j, o + r, y[j][r]);
                }
            };
            int o = first;
            if (LANES > 8 && n > 8)  // with fewer columns memory is the limit, and one stream of rows is fastest; so it
                                     // is with 16 registers
                for (; o + 2 <= end; o += 2) rows(std::integral_constant<int, 2>(), o);
            for (; o < end; ++o) rows(std::integral_constant<int, 1>(), o);
        }
    }

    // y: the products of R rows of weights from o on with N columns from c on; returns N. Not inlined: five uses of a
    // product would each compile their own.
    template <int R, int N>
    __attribute__((noinline)) int some(const Inputs<X>& in, const Linear& linear, int K, int o, int c,
                                       float (*y)[R]) const
    {
        const Weight* row = static_cast<const Weight*>(linear.weight) + size_t(o) * K;
        const X* x = &in.x[size_t(c) * K];
        float sum[R][N];
        c == 0 ? dots<R, N, true>(row, x, K, sum) : dots<R, N, false>(row, x, K, sum);
        for (int j = 0; j < N; ++j)
            for (int r = 0; r < R; ++r) {
                y[j][r] = sum[r][j];
                if constexpr (std::is_same_v<Weight, int8_t>)
                    y[j][r] =
                        sum[r][j] * (in.scale[c + j] * linear.scale[o + r]) + (linear.bias ? linear.bias[o + r] : 0);
                else if (linear.bias)
                    y[j][r] += linear.bias[o + r];
            }
        return N;
    }

    const Network& net_;
    const Shape& s_;
    const Step& step_;
    Barrier barrier_;
    std::vector<std::atomic<int>> next_;  // the next row to take, for each phase of the step
    std::vector<Scratch> scratch_;
    std::vector<float> x_, q_, attn_, hidden_;
    std::vector<float> part_;     // what a norm comes before, until it is added to x_
    int64_t place_[MAX_COLUMNS];  // of each column's keys and values, in their first head of the first layer
};

// The threads; the caller is the first of them. Between steps they poll for work briefly, then sleep.
class Engine
{
public:
    Engine(const Shape& shape, const void* const* tensors) : network_(shape, tensors)
    {
        few_ = std::make_unique<Forward>(network_, step_);
        for (int i = 1; i < shape.threads; ++i) threads_.emplace_back([this, i] { serve(i); });
    }

    ~Engine()
    {
        stop_ = true;
        announce();
        for (std::thread& thread : threads_) thread.join();
    }

    void step(const Step& step, const float* x)
    {
        step_ = step;
        few_->begin(x);
        run(*few_);
    }

    void join(Many* (*passes)(const Network&, const Pass&)) { many_.reset(passes(network_, pass_)); }

    void pass(const Pass& pass)
    {
        pass_ = pass;
        many_->begin();
        run(*many_);
    }

private:
    void run(Model& model)
    {
        at_work_ = &model;
        announce();
        model.work(0);
    }

    void announce()
    {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            turn_.fetch_add(1, std::memory_order_release);
        }
        wake_.notify_all();
    }

    void serve(int me)
    {
        using Clock = std::chrono::steady_clock;
        for (uint32_t seen = 0;; ++seen) {
            const auto has_work = [&] { return turn_.load(std::memory_order_acquire) != seen; };
            for (const auto until = Clock::now() + std::chrono::microseconds(200); !has_work() && Clock::now() < until;)
                for (int i = 0; i < 32; ++i) pause();
            if (!has_work()) {
                std::unique_lock<std::mutex> lock(mutex_);
                wake_.wait(lock, has_work);
            }
            if (stop_) return;
            at_work_->work(me);
        }
    }

    const Network network_;
    Step step_{};
    Pass pass_{};
    std::unique_ptr<Forward> few_;
    std::unique_ptr<Many> many_;
    Model* at_work_ = nullptr;
    std::vector<std::thread> threads_;
    std::mutex mutex_;
    std::condition_variable wake_;
    std::atomic<uint32_t> turn_{0};
    std::atomic<bool> stop_{false};
};

}  // namespace

extern "C" {

int32_t rung_max_columns() { return MAX_COLUMNS; }

void* rung_new(const Shape* shape, const void* const* tensors) { return new Engine(*shape, tensors); }

// Before the first pass: the other library's function.
void rung_join(void* engine, Many* (*passes)(const Network&, const Pass&))
{ static_cast<Engine*>(engine)->join(passes); }

void rung_free(void* engine) { delete static_cast<Engine*>(engine); }

// columns: (n) of token's row, position and output; x: (n, C); logits: (outputs, V)
void rung_step(void* engine, int32_t n, const Column* columns, const float* x, const Memory* memory, float* logits)
{ static_cast<Engine*>(engine)->step(Step{n, columns, *memory, logits}, x); }

// The tokens of all runs, one after the other: x (tokens, C); logits (runs, V) after the last token of each run.
void rung_read(void* engine, int32_t runs, const Run* run, const float* x, const Memory* memory, float* logits)
{ static_cast<Engine*>(engine)->pass(Pass{runs, run, x, *memory, nullptr, false, logits}); }

// Independent texts: figures (tokens, 3) of the tokens wanted, each after its token: log-probability, and if `whole`
// rank and entropy.
void rung_rate(void* engine, int32_t runs, const Run* run, const float* x, const int64_t* wanted, int32_t whole,
               float* figures)
{ static_cast<Engine*>(engine)->pass(Pass{runs, run, x, Memory{}, wanted, whole != 0, figures}); }

// The mean of each run's last hidden states (runs, C); without memory, runs are independent texts.
void rung_mean(void* engine, int32_t runs, const Run* run, const float* x, const Memory* memory, float* means)
{ static_cast<Engine*>(engine)->pass(Pass{runs, run, x, memory ? *memory : Memory{}, nullptr, false, means, true}); }
}
