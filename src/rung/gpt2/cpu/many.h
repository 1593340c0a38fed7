// GPT-2 for many tokens at a time: prompts, and texts that are rated.
//
// A lane of a vector is a token, from the embedding to the head: activations lie as (block of tokens, feature, token
// of the block). Weights are broadcast from where they lie, norms and softmax need no sums across lanes, and every sum
// is added up in the order of its index. So a token's bits depend on the tokens that it sees and on nothing else.
#pragma once
#include "shared.h"

namespace {

#if defined(__AVX512F__)
constexpr int STRIPS = 4;  // vectors of a block: what 32 registers hold
#else
constexpr int STRIPS = 1;
#endif
constexpr int BLOCK = STRIPS * LANES;
constexpr int ROWS = 96;    // of weights at most that meet one block after the other: they stay in L2
constexpr int DEPTH = 128;  // features of a block that stay in L1 meanwhile

constexpr int tile_rows(int strips) { return STRIPS == 1 || strips == 4 ? 6 : strips == 3 ? 8 : 12; }

inline Floats add_product(Floats sum, float w, Floats x) { return sum + w * x; }

// Both hold pairs of 16-bit integers.
inline Ints add_product(Ints sum, int32_t w, Ints x) {
  const Ints pairs = Ints{} + w;
#if defined(__AVX512BW__)
  return (Ints)multiply_add((__m512i)sum, (__m512i)pairs, (__m512i)x);
#elif defined(__AVX2__)
  __m256i a[2], b[2];
  std::memcpy(a, &pairs, sizeof a), std::memcpy(b, &x, sizeof b);
  for (int i = 0; i < 2; ++i) a[i] = _mm256_madd_epi16(a[i], b[i]);
  Ints products;
  std::memcpy(&products, a, sizeof a);
  return sum + products;
#else
  return sum + ((pairs << 16) >> 16) * ((x << 16) >> 16) + (pairs >> 16) * (x >> 16);
#endif
}

template <typename V> struct VectorOf { using type = Floats; };
template <> struct VectorOf<int32_t> { using type = Ints; };

// y (O, BLOCK) = or += w (O, K) times x (K, BLOCK), the first N vectors of each row; ACROSS: w is (K, O).
template <int N, int O, bool ACROSS, typename V>
__attribute__((noinline)) void tile(const V* __restrict w, size_t stride, const V* __restrict x, int K,
                                    float* __restrict y, bool more) {
  using Vector = typename VectorOf<V>::type;
  constexpr bool exact = std::is_same_v<Vector, Ints>;
  Vector s[O][N];
#pragma GCC unroll 16
  for (int o = 0; o < O; ++o)
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) {
      if (!exact && more) std::memcpy(&s[o][v], y + o * BLOCK + v * LANES, sizeof(Vector));
      else s[o][v] = Vector{};
    }
  for (int k = 0; k < K; ++k) {
    Vector f[N];
#pragma GCC unroll 4
    for (int v = 0; v < N; ++v) std::memcpy(&f[v], x + size_t(k) * BLOCK + v * LANES, sizeof(Vector));
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
      if constexpr (exact) save(to, (more ? load(to) : Floats{}) + __builtin_convertvector(s[o][v], Floats));
      else save(to, s[o][v]);
    }
}

template <int N, int O, bool ACROSS, typename V>
void tiles(const V* w, size_t stride, const V* x, int K, int count, float* y, bool more) {
  for (; count >= O; count -= O, w += ACROSS ? O : O * stride, y += O * BLOCK)
    tile<N, O, ACROSS>(w, stride, x, K, y, more);
  if constexpr (O > 1)
    if (count) tiles<N, O / 2, ACROSS>(w, stride, x, K, count, y, more);
}

// y (count, BLOCK) = w (count, K) times x (K, BLOCK), the first `strips` vectors of each row.
template <bool ACROSS, typename V>
void multiply(int strips, const V* w, size_t stride, const V* x, int K, int count, float* y) {
  for (int k = 0; k < K; k += DEPTH, w += ACROSS ? DEPTH * stride : DEPTH, x += DEPTH * BLOCK) {
    const int depth = std::min(DEPTH, K - k);
    const auto go = [&](auto n) { tiles<n(), tile_rows(n()), ACROSS>(w, stride, x, depth, count, y, k > 0); };
    if constexpr (STRIPS > 1) {
      if (strips == 4) go(std::integral_constant<int, 4>());
      if (strips == 3) go(std::integral_constant<int, 3>());
      if (strips == 2) go(std::integral_constant<int, 2>());
    }
    if (strips == 1) go(std::integral_constant<int, 1>());
  }
}

// 2^n * 2^f with f in [-1/2, 1/2], below 2e-7 relative.
inline Floats exp(Floats x) {
  Floats y = x * 1.44269504088896f;
  y = y < -126.0f ? Floats{} - 126.0f : y;
  y = y > 126.0f ? Floats{} + 126.0f : y;
  const Ints exponent = __builtin_convertvector(y + 127.5f, Ints);  // rounds down, being positive: n + 127
  const Floats f = y - __builtin_convertvector(exponent - 127, Floats);
  Floats p = Floats{} + 1.5252734e-5f;
  for (float c : {1.5403531e-4f, 1.3333558e-3f, 9.6181291e-3f, 5.5504109e-2f, 2.4022651e-1f, 6.9314718e-1f, 1.0f})
    p = p * f + c;
  return p * (Floats)(exponent << 23);
}

inline Floats larger(Floats a, Floats b) { return a > b ? a : b; }

inline Floats activated(Floats x, int kind) {
  if (kind == RELU) return larger(x, Floats{});
  if (kind == GELU_TANH) return x / (1.0f + exp(-1.5957691216f * (x + 0.044715f * x * x * x)));
  float y[LANES];
  save(y, x);
  for (float& f : y) f = 0.5f * f * std::erfc(-0.70710678f * f);
  return load(y);
}

// A row of weights, or keys and values, as products read them.
inline void unpack(const float* from, size_t count, float* to) { std::memcpy(to, from, count * sizeof *to); }
inline void unpack(const BFloat16* from, size_t count, float* to) {
  for (size_t i = 0; i < count; ++i) to[i] = to_float(from[i]);
}
inline void unpack(const int8_t* from, size_t count, int32_t* to) {
  int16_t* pairs = reinterpret_cast<int16_t*>(to);
  for (size_t i = 0; i < count; ++i) pairs[i] = from[i];
  if (count % 2) pairs[count] = 0;
}

}  // namespace

// Neighbouring tokens of one sequence: its row of the cache, and the place of the first of them there.
extern "C" struct Run { int64_t row, position, count; };

namespace {

// One pass's question, shared by all threads.
struct Pass {
  int runs;
  const Run* run;
  const float* x;  // (tokens, C)
  void *k, *v;
  int64_t rows, capacity;
  const int64_t* wanted;  // (tokens), or null for logits
  bool whole;             // ranks and entropies as well
  float* out;
};

class Many : public Model {
 public:
  virtual void begin() = 0;  // by one thread
};

template <typename W, typename KV>
class Lanes final : public Many {
  static constexpr bool INTEGERS = std::is_same_v<W, int8_t>;
  using V = std::conditional_t<INTEGERS, int32_t, float>;
  struct alignas(64) Line { float f[LANES]; };
  using Buffer = std::vector<Line>;  // (blocks, features, BLOCK)
  enum Figure { LARGEST, SUM, WEIGHTED, RANK, FIGURES };

  struct Scratch {
    std::vector<V> weights;        // as products read them
    std::vector<float> keys, values;
    Buffer scores;                 // (keys, BLOCK)
    Buffer y;                      // (rows of weights, BLOCK)
  };

 public:
  Lanes(const Network& network, const Pass& pass)
      : net_(network), s_(network.s), pass_(pass), barrier_(s_.threads), next_(11 * s_.L + 6), scratch_(s_.threads) {}

  void begin() override {
    first_.clear();
    n_ = 0;
    for (int r = 0; r < pass_.runs; n_ += int(pass_.run[r++].count)) first_.push_back(n_);
    rows_ = pass_.rows, capacity_ = pass_.capacity, layers_ = s_.L;
    k_ = static_cast<KV*>(pass_.k), v_ = static_cast<KV*>(pass_.v);
    if (pass_.wanted) {  // keys and values serve one layer after the other
      own_k_.resize(std::max(own_k_.size(), size_t(n_) * s_.C)), own_v_.resize(own_k_.size());
      capacity_ = n_, layers_ = 1, k_ = own_k_.data(), v_ = own_v_.data();
    }
    run_of_.resize(n_), place_.resize(n_);
    for (int r = 0; r < pass_.runs; ++r)
      for (int i = 0; i < pass_.run[r].count; ++i) {
        run_of_[first_[r] + i] = r;
        place_[first_[r] + i] = (pass_.run[r].row * s_.NH * capacity_ + pass_.run[r].position + i) * (s_.C / s_.NH);
      }
    const int C = s_.C, F = std::max(C, s_.F);
    for (Buffer* buffer : {&x_, &q_, &norm_}) grow(*buffer, n_, C);
    grow(hidden_, n_, F);
    grow(own_, n_, 1);
    if (INTEGERS) grow(integers_, n_, (F + 1) / 2), grow(quanta_, n_, 1);
    if (pass_.wanted) grow(figures_, n_, FIGURES * shares());
    for (auto& counter : next_) counter.store(0, std::memory_order_relaxed);
  }

  void work(int me) override {
    Scratch& my = scratch_[me];
    my.weights.resize(size_t(std::max(ROWS, BLOCK)) * (std::max(s_.C, s_.F) + 1));
    my.y.resize(std::max({ROWS, BLOCK, s_.C / s_.NH}) * STRIPS);
    std::atomic<int>* next = next_.data();
    const int C = s_.C, F = s_.F, HS = C / s_.NH, strips = (n_ + LANES - 1) / LANES, blocks = (n_ + BLOCK - 1) / BLOCK;
    const auto each = [&](int items, const auto& work) {
      for (int i; (i = next->fetch_add(1, std::memory_order_relaxed)) < items;) work(i);
      ++next, barrier_.wait();
    };
    const auto linear = [&](const Linear& linear, const Buffer& in, int K, int OC, const auto& write) {
      if (INTEGERS) each(strips, [&](int i) { quantise(in, K, i * LANES); });
      const int share = std::clamp(OC / (4 * s_.threads) / 24 * 24, 24, ROWS);
      product(my, linear, in, n_, K, OC, share, *next++, [&](int t, int width, int first, int count) {
        for (int o = 0; o < count; ++o)
          for (int v = 0; v < width; ++v) write(first + o, t + v * LANES, load(my.y[o * STRIPS + v].f));
      });
      barrier_.wait();
    };
    const auto add = [&](int o, int t, Floats f) { float* to = at(x_, C, o, t); save(to, load(to) + f); };
    each(strips, [&](int i) { embed(i * LANES); });
    for (int l = 0; l < s_.L; ++l) {
      const Layer& layer = net_.layers[l];
      each(strips, [&](int i) { normalize(x_, layer.ln_1, i * LANES); });
      linear(layer.qkv, norm_, C, 3 * C, [&](int o, int t, Floats f) {
        if (o < C) save(at(q_, C, o, t), f);
        else keep(o < 2 * C ? k_ : v_, l, o % C / HS, o % HS, t, f);
      });
      each(blocks * s_.NH, [&](int i) { attend(my, l, (blocks - 1 - i / s_.NH) * BLOCK, i % s_.NH); });
      linear(layer.attn_proj, norm_, C, C, add);
      each(strips, [&](int i) { normalize(x_, layer.ln_2, i * LANES); });
      linear(layer.fc, norm_, C, F, [&](int o, int t, Floats f) {
        save(at(hidden_, F, o, t), activated(f, s_.activation));
      });
      linear(layer.mlp_proj, hidden_, F, C, add);
    }
    if (!pass_.wanted) return last(my, next, each);
    each(strips, [&](int i) { normalize(x_, net_.ln_f, i * LANES); });
    if (INTEGERS) each(strips, [&](int i) { quantise(norm_, C, i * LANES); });
    each(blocks, [&](int i) { look_up(my, i * BLOCK); });
    product(my, net_.head, norm_, n_, C, s_.V, ROWS, *next++, [&](int t, int width, int first, int count) {
      for (int v = 0; v < width; ++v) digest(my.y.data() + v, t + v * LANES, first, count);
    });
    barrier_.wait();
    each(strips, [&](int i) { sum_up(i * LANES); });
  }

 private:
  static void grow(Buffer& buffer, int tokens, size_t features) {
    buffer.resize(std::max(buffer.size(), size_t(tokens + BLOCK - 1) / BLOCK * STRIPS * features));
  }

  int shares() const { return (s_.V + ROWS - 1) / ROWS; }

  // Feature k of token t, a multiple of LANES, and of the tokens behind it.
  static float* at(Buffer& buffer, int features, int k, int t) {
    return buffer[(size_t(t / BLOCK) * features + k) * STRIPS + t % BLOCK / LANES].f;
  }
  static const float* at(const Buffer& buffer, int features, int k, int t) {
    return at(const_cast<Buffer&>(buffer), features, k, t);
  }

  KV* cached(KV* cache, int layer, int64_t place, int h) const {  // (L, rows, NH, capacity, HS)
    return cache + place + (layer % layers_ * rows_ * s_.NH + h) * capacity_ * (s_.C / s_.NH);
  }

  void embed(int t) {
    for (int k = 0; k < s_.C; ++k) {
      float* to = at(x_, s_.C, k, t);
      for (int i = 0; i < LANES; ++i) to[i] = t + i < n_ ? pass_.x[size_t(t + i) * s_.C + k] : 0.0f;
    }
  }

  void normalize(const Buffer& in, const Norm& norm, int t) {
    const int C = s_.C;
    Floats sum{}, squares{};
    for (int k = 0; k < C; ++k) sum += load(at(in, C, k, t));
    const Floats mean = sum / float(C);
    for (int k = 0; k < C; ++k) {
      const Floats d = load(at(in, C, k, t)) - mean;
      squares += d * d;
    }
    float rstd[LANES];
    save(rstd, squares / float(C) + s_.eps);
    for (float& f : rstd) f = 1.0f / std::sqrt(f);
    for (int k = 0; k < C; ++k)
      save(at(norm_, C, k, t), (load(at(in, C, k, t)) - mean) * load(rstd) * norm.weight[k] + norm.bias[k]);
  }

  void quantise(const Buffer& in, int K, int t) {
    Floats largest = Floats{} + 1e-30f;
    for (int k = 0; k < K; ++k) {
      const Floats f = load(at(in, K, k, t));
      largest = larger(largest, larger(f, -f));
    }
    const Floats quantum = float(QUANTA) / largest;
    save(at(quanta_, 1, 0, t), largest / float(QUANTA));
    const auto rounded = [&](int k) {
      const Floats f = load(at(in, K, k, t)) * quantum;
      return __builtin_convertvector(f + (f < 0.0f ? Floats{} - 0.5f : Floats{} + 0.5f), Ints);
    };
    const int pairs = (K + 1) / 2;
    for (int k = 0; k < pairs; ++k) {
      const Words low = (Words)rounded(2 * k), high = 2 * k + 1 < K ? (Words)rounded(2 * k + 1) : Words{};
      save(at(integers_, pairs, k, t), (low & 0xffffu) | (high << 16));
    }
  }

  // What a product reads of tokens from t on, and how many numbers it is for each.
  const V* inputs(const Buffer& in, int K, int t) const {
    if constexpr (INTEGERS) return reinterpret_cast<const int32_t*>(at(integers_, (K + 1) / 2, 0, t));
    else return at(in, K, 0, t);
  }
  static int depth(int K) { return INTEGERS ? (K + 1) / 2 : K; }

  // Each share of the rows of weights with all n tokens, a block at a time: done(t, strips, first row, rows) finds the
  // results in my.y.
  template <typename Done>
  void product(Scratch& my, const Linear& linear, const Buffer& in, int n, int K, int OC, int share,
               std::atomic<int>& next, const Done& done) {
    for (int first; (first = next.fetch_add(share, std::memory_order_relaxed)) < OC;) {
      const int count = std::min(share, OC - first);
      const W* rows = static_cast<const W*>(linear.weight) + size_t(first) * K;
      const V* weights = my.weights.data();
      if constexpr (std::is_same_v<W, V>) weights = rows;
      else
        for (int o = 0; o < count; ++o) unpack(rows + size_t(o) * K, K, my.weights.data() + size_t(o) * depth(K));
      for (int t = 0; t < n; t += BLOCK) {
        const int strips = std::min(STRIPS, (n - t + LANES - 1) / LANES);
        multiply<false>(strips, weights, depth(K), inputs(in, K, t), depth(K), count, my.y[0].f);
        for (int o = 0; o < count; ++o) finish(my.y.data() + o * STRIPS, linear, first + o, t, strips);
        done(t, strips, first, count);
      }
    }
  }

  void finish(Line* y, const Linear& linear, int o, int t, int strips) const {
    for (int v = 0; v < strips; ++v) {
      Floats f = load(y[v].f);
      if constexpr (INTEGERS) f *= load(at(quanta_, 1, 0, t + v * LANES)) * linear.scale[o];
      if (linear.bias) f += linear.bias[o];
      save(y[v].f, f);
    }
  }

  void keep(KV* cache, int layer, int h, int j, int t, Floats f) const {
    KV* to = cached(cache, layer, j, h);
    float y[LANES];
    save(y, f);
    for (int i = 0; i < std::min(LANES, n_ - t); ++i) store(to + place_[t + i], y[i]);
  }

  // One head of a block of tokens, run after run.
  void attend(Scratch& my, int layer, int block, int h) {
    const int HS = s_.C / s_.NH, block_end = std::min(n_, block + BLOCK);
    for (int r = run_of_[block]; r < pass_.runs && first_[r] < block_end; ++r) {
      const Run& run = pass_.run[r];
      const int begin = std::max(block, first_[r]), end = std::min(block_end, first_[r] + int(run.count));
      const int64_t position = run.position + begin - first_[r];
      const int64_t low = std::max(pass_.wanted ? run.position : 0, position - s_.window + 1);
      const int before = int(position - low), T = before + end - begin;  // keys before the run's first token here; all
      const int64_t place = (run.row * s_.NH * capacity_ + low) * HS;
      const float* k = floats(cached(k_, layer, place, h), T, my.keys);
      const float* v = floats(cached(v_, layer, place, h), T, my.values);
      const int t = begin / LANES * LANES, strips = (end - t + LANES - 1) / LANES;
      my.scores.resize(std::max(my.scores.size(), size_t(T) * STRIPS));
      multiply<false>(strips, k, HS, at(q_, s_.C, h * HS, t), HS, T, my.scores[0].f);
      Floats sums[STRIPS];
      for (int s = 0; s < strips; ++s) {
        Ints lane;
        for (int i = 0; i < LANES; ++i) lane[i] = std::clamp(t + s * LANES + i - begin, 0, end - begin - 1);
        sums[s] = softmax(my.scores.data() + s, T, before + lane, net_.scale[layer]);
      }
      multiply<true>(strips, v, HS, my.scores[0].f, T, HS, my.y[0].f);
      for (int s = 0; s < strips; ++s) {
        Ints token;
        for (int i = 0; i < LANES; ++i) token[i] = t + s * LANES + i;
        for (int j = 0; j < HS; ++j) {  // other lanes belong to other runs
          float* to = at(norm_, s_.C, h * HS + j, t + s * LANES);
          save(to, token >= begin & token < end ? load(my.y[j * STRIPS + s].f) / sums[s] : load(to));
        }
      }
    }
  }

  const float* floats(const KV* from, int T, std::vector<float>& to) const {
    if constexpr (std::is_same_v<KV, float>) return from;
    else {
      const size_t count = size_t(T) * (s_.C / s_.NH);
      to.resize(std::max(to.size(), count));
      unpack(from, count, to.data());
      return to.data();
    }
  }

  // exp(score - the largest) of what each lane sees, up to its own key; their sums.
  Floats softmax(Line* scores, int T, Ints own, float scale) const {
    Floats largest = Floats{} - INFINITY, sum{};
    for (int t = 0; t < T; ++t) {
      float* score = scores[size_t(t) * STRIPS].f;
      const Floats s = (t <= own & t > own - s_.window) ? load(score) * scale : Floats{} - INFINITY;
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

  // The logits behind each run's last token.
  template <typename Each>
  void last(Scratch& my, std::atomic<int>*& next, const Each& each) {
    const int C = s_.C, strips = (pass_.runs + LANES - 1) / LANES;
    each(strips, [&](int i) {
      for (int k = 0; k < C; ++k)
        for (int lane = 0; lane < LANES; ++lane) {
          const int r = std::min(i * LANES + lane, pass_.runs - 1), token = first_[r] + int(pass_.run[r].count) - 1;
          at(hidden_, C, k, i * LANES)[lane] = at(x_, C, k, token / LANES * LANES)[token % LANES];
        }
      normalize(hidden_, net_.ln_f, i * LANES);
      if (INTEGERS) quantise(norm_, C, i * LANES);
    });
    product(my, net_.head, norm_, pass_.runs, C, s_.V, ROWS, *next++, [&](int t, int width, int first, int count) {
      for (int o = 0; o < count; ++o)
        for (int i = 0; i < std::min(width * LANES, pass_.runs - t); ++i)
          pass_.out[size_t(t + i) * s_.V + first + o] = my.y[o * STRIPS].f[i];
    });
    barrier_.wait();
  }

  // The logit of each token that is wanted, by the same products as all others.
  void look_up(Scratch& my, int block) {
    const int C = s_.C, count = std::min(BLOCK, n_ - block), strips = (count + LANES - 1) / LANES;
    const W* rows = static_cast<const W*>(net_.head.weight);
    for (int i = 0; i < count; ++i)
      unpack(rows + size_t(pass_.wanted[block + i]) * C, C, my.weights.data() + size_t(i) * depth(C));
    multiply<false>(strips, my.weights.data(), depth(C), inputs(norm_, C, block), depth(C), count, my.y[0].f);
    for (int i = 0; i < count; ++i) {
      finish(my.y.data() + i * STRIPS, net_.head, int(pass_.wanted[block + i]), block, strips);
      at(own_, 1, 0, block)[i] = my.y[i * STRIPS].f[i];
    }
  }

  float* figure(Figure which, int first, int t) {
    return at(figures_, FIGURES * shares(), FIGURES * (first / ROWS) + which, t);
  }

  // A share of the vocabulary for 16 tokens.
  void digest(const Line* y, int t, int first, int count) {
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

  void sum_up(int t) {
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
  int n_ = 0;                                      // tokens
  std::vector<int> first_;                         // of each run
  std::vector<int> run_of_;                        // of each token
  std::vector<int64_t> place_;                     // of each token in the cache, in its first head of the first layer
  KV *k_ = nullptr, *v_ = nullptr;
  int64_t rows_ = 0, capacity_ = 0, layers_ = 1;   // of k_ and v_
  std::vector<KV> own_k_, own_v_;
  Buffer x_, q_, norm_, hidden_, integers_, quanta_, own_, figures_;
};

}  // namespace
