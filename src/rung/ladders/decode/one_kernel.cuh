// A whole step for one sequence by blocks that stay: one on each multiprocessor, with the weights of all layers streaming
// through its shared memory, and numbers sent from block to block. What the layers repeat must be short: code that does not
// stay in the instruction cache is fetched again in every layer.
#pragma once
#include "weight_ring.cuh"

namespace decode {

struct Model
{
    const int *tokens, *lengths;
    const Real *wte, *wpe, *ln1_w, *ln1_b, *qkv_w, *qkv_b, *proj_w, *proj_b, *ln2_w, *ln2_b, *fc_w, *fc_b, *fc2_w, *fc2_b;
    const Real *lnf_w, *lnf_b, *head_w;
    Real *k_cache, *v_cache;
    float* logits;
    int* next;
    float eps, scale;
};

enum Phase { QKV, PROJ, FC, FC2, PHASES, HEAD = PHASES };

// Of each phase: the first of this block's rows, and how many they are.
struct Shares
{
    int2 of[HEAD + 1];

    __device__ __forceinline__ Shares()
    {
        const int block = blockIdx.x;
        const Share<1> c(C), c3(3 * C), v(V);
        const Share<2> f(F);
        of[QKV] = make_int2(c3.begin(block), c3.count(block)), of[FC] = make_int2(f.begin(block), f.count(block));
        of[PROJ] = of[FC2] = make_int2(c.begin(block), c.count(block)), of[HEAD] = make_int2(v.begin(block), v.count(block));
    }

    __device__ __forceinline__ Weights weights(const Model& m, int phase, int layer) const
    {
        const size_t at = size_t(layer) * C;
        const int2 own = of[phase];
        if (phase == QKV) return {m.qkv_w + at * 3 * C, own, 1, m.qkv_b + 3 * at, m.ln1_w + at, m.ln1_b + at};
        if (phase == PROJ) return {m.proj_w + at * C, own, 1, m.proj_b + at, nullptr, nullptr};
        if (phase == FC) return {m.fc_w + at * F, own, 1, m.fc_b + size_t(layer) * F, m.ln2_w + at, m.ln2_b + at};
        if (phase == FC2) return {m.fc2_w + at * F, own, PARTS, m.fc2_b + at, nullptr, nullptr};
        return {m.head_w, own, 1, nullptr, m.lnf_w, m.lnf_b};
    }
};

// What lies in shared memory beside the ring: the vector of a phase, sums of the warps for two batches of rows, and the
// block's own rows of the residual stream.
struct Rooms
{
    uint4* ring;
    Real* vector;
    float *partial, *residual;

    __device__ __forceinline__ explicit Rooms(uint4* shared)
    {
        ring = shared;
        vector = reinterpret_cast<Real*>(ring + SLOTS * PIECES);
        partial = reinterpret_cast<float*>(vector + (F > 2 * C ? F : 2 * C));
        residual = partial + 2 * STEP_WARPS * BATCH;
    }
};

// Five kinds of mail, each with a place of its own: a letter of one layer is replaced by that of the next, which nobody
// writes before he has read what all others wrote after they had read the letter.
struct Mail
{
    Shared<3> qkv, after_attention, after_mlp;
    Shared<6, 2> hidden;
    Parcel *attention, *best;
    int key_parts;

    __device__ __forceinline__ explicit Mail(Parcel* at)
        : qkv(at, 3 * C), after_attention(at + qkv.parcels(), C), after_mlp(after_attention.mail + after_attention.parcels(), C),
          hidden(after_mlp.mail + after_mlp.parcels(), F), attention(hidden.mail + hidden.parcels()),
          key_parts(max(1, int(gridDim.x) / NH))
    {
        best = attention + NH * key_parts * (HS / 2);
    }
};

// ---- the residual stream, and its norm --------------------------------------------------------------------------

constexpr int HELD = ceil_div(C / 3 + MOST_BLOCKS, THREADS);  // parcels of a vector of C that a thread receives

struct Stream
{
    float v[HELD][3];
    Place places[HELD];
    float about = 0.0f;  // the mean of the last vector: deviations from it can be squared and summed without loss

    __device__ __forceinline__ void look_up(const Shared<3>& shared)
    {
#pragma unroll
        for (int i = 0; i < HELD; i++) places[i] = Place::of(shared, int(threadIdx.x) + i * THREADS);
    }

    __device__ __forceinline__ void receive_from(const Parcel* mail, int parcels, uint32_t round)
    {
        Parcel got[HELD];
        const int thread = again(threadIdx.x);
        receive(got, round, [&](int i) { return mail + min(thread + i * THREADS, parcels - 1); });  // one too many: the last
#pragma unroll
        for (int i = 0; i < HELD; i++)
#pragma unroll
            for (int j = 0; j < 3; j++) v[i][j] = __uint_as_float(got[i].word[j]);
    }

    __device__ __forceinline__ void embed(const Real* token, const Real* position)
    {
#pragma unroll
        for (int i = 0; i < HELD; i++)
#pragma unroll
            for (int j = 0; j < 3; j++) {
                const int channel = min(places[i].first() + j, C - 1);
                v[i][j] = to_float(token[channel]) + to_float(position[channel]);
            }
    }

    // The vector's layer norm, to where products take it.
    __device__ __forceinline__ void normalise(const Vector& to, const Real* gain, const Real* shift, float eps)
    {
        __shared__ float2 sums[STEP_WARPS];
        float sum = 0.0f, square = 0.0f;
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            const int count = places[i].renewed().count();
#pragma unroll
            for (int j = 0; j < 3; j++) {
                v[i][j] -= about;
                const float own = j < count ? v[i][j] : 0.0f;
                sum += own, square += own * own;
            }
        }
        sum = warp_sum(sum), square = warp_sum(square);
        if (lane_id() == 0) sums[warp_id()] = make_float2(sum, square);
        sync_computing();
        sum = square = 0.0f;
#pragma unroll
        for (int w = 0; w < STEP_WARPS; w++) sum += sums[w].x, square += sums[w].y;
        const float mean = sum / C, rstd = rsqrtf(fmaxf(square / C - mean * mean, 0.0f) + eps);
        about += mean;
        float g[HELD][3], b[HELD][3];  // asked for together: behind branches each would wait for itself
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            const Place place = places[i].renewed();
#pragma unroll
            for (int j = 0; j < 3; j++) {
                const int channel = min(place.first() + j, C - 1);
                g[i][j] = to_float(gain[channel]), b[i][j] = to_float(shift[channel]);
            }
        }
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            const Place place = places[i].renewed();
#pragma unroll
            for (int j = 0; j < 3; j++) {
                const float x = (v[i][j] - mean) * rstd * g[i][j] + b[i][j];
                if (j < place.count()) to.set(place.first() + j, x);
            }
        }
    }
};

// ---- attention --------------------------------------------------------------------------------------------------

constexpr int KEY_LANES = HS / VEC, KEYS_AT_ONCE = WARP_SIZE / KEY_LANES, KEY_COUNT = KEY_LOADS * KEYS_AT_ONCE;
static_assert(HS % VEC == 0 && WARP_SIZE % KEY_LANES == 0, "a key must be 1, 2, 4 ... 32 pieces of 16 bytes");

// How a head's cached keys are cut: in so few parts that each block has enough to ask for at once.
struct KeyParts
{
    int size, count;

    __device__ __forceinline__ KeyParts(int length, int most)
        : size(max(STEP_WARPS * KEY_COUNT, ceil_div(length, most))), count(max(1, ceil_div(length, size)))
    {
    }
};

struct KeyPieces
{
    uint4 bits[KEY_LOADS];

    __device__ __forceinline__ void request(const uint4* from, int t, int end)
    {
        from += t * KEY_LANES;
#pragma unroll
        for (int i = 0; i < KEY_LOADS; i++) {
            bits[i] = zero_bits();
            if (t + i * KEYS_AT_ONCE < end) bits[i] = __ldcg(from + i * KEYS_AT_ONCE * KEY_LANES);
        }
    }
};

// Of numbers that the lanes on one key have.
__device__ __forceinline__ float over_key(float x)
{
#pragma unroll
    for (int offset = KEY_LANES / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(ALL_LANES, x, offset);
    return x;
}

// One part of one head; most blocks have one, or none. The cached keys are asked for before the query is there; the new one
// is the last part's affair.
struct Attention
{
    const uint4 *keys, *values;
    KeyPieces k, v;
    int head, first, end;
    bool wanted, last;

    __device__ __forceinline__ void request(const Model& m, const KeyParts& parts, int key_parts, int length, int layer, int item)
    {
        head = item / key_parts;
        const int part = item % key_parts;
        wanted = item < NH * key_parts && part < parts.count, last = part == parts.count - 1;
        if (!wanted) return;
        keys = reinterpret_cast<const uint4*>(m.k_cache + cached(layer, 0, head, 0)) + lane_id() % KEY_LANES;
        values = reinterpret_cast<const uint4*>(m.v_cache + cached(layer, 0, head, 0)) + lane_id() % KEY_LANES;
        first = part * parts.size + warp_id() * KEY_COUNT, end = min(length, (part + 1) * parts.size);
        k.request(keys, first + lane_id() / KEY_LANES, end);
        v.request(values, first + lane_id() / KEY_LANES, end);
    }

    // Which parcel, and which number in it, has the thread's number of a head's query, key and value.
    static __device__ __forceinline__ unsigned origin_of(const Mail& mail, int head)
    {
        const int i = min(int(threadIdx.x), 3 * HS - 1), row = i / HS * C + head * HS + i % HS;
        const int block = mail.qkv.share.owner(row), within = row - mail.qkv.share.begin(block);
        return (block * mail.qkv.each + within / 3) * 4 + within % 3;
    }

    __device__ __forceinline__ void run(const Mail& mail, unsigned origin, float scale, int item, uint32_t round)
    {
        __shared__ float fresh[3 * HS], ms[STEP_WARPS], ls[STEP_WARPS], ys[STEP_WARPS][HS];
        const int lane = lane_id(), warp = warp_id(), own = lane / KEY_LANES;
        if (!wanted) return;
        static_assert(3 * HS <= THREADS, "a number each");
        const int i = threadIdx.x;
        if (i < 3 * HS) {
            Parcel got[1];
            receive(got, round, [&](int) { return mail.qkv.mail + origin / 4; });
            const uint32_t word = origin % 4 == 0 ? got[0].word[0] : origin % 4 == 1 ? got[0].word[1] : got[0].word[2];
            const float number = __uint_as_float(word);
            fresh[i] = i < HS ? number * (scale * 1.44269504f) : to_float(from_float<Real>(number));  // the query for exp2
        }
        sync_computing();
        float q[VEC], sum[VEC] = {}, top = -INFINITY, l = 0.0f;
#pragma unroll
        for (int j = 0; j < VEC; j++) q[j] = fresh[lane % KEY_LANES * VEC + j];
        if (warp == 0 && last) {
            float dot = 0.0f;
#pragma unroll
            for (int j = 0; j < VEC; j++) dot += fresh[HS + lane % KEY_LANES * VEC + j] * q[j];
            top = over_key(dot);
            if (lane < KEY_LANES) {
                l = 1.0f;
#pragma unroll
                for (int j = 0; j < VEC; j++) sum[j] = fresh[2 * HS + lane * VEC + j];
            }
        }
#pragma unroll 1
        for (; first < end; first += STEP_WARPS * KEY_COUNT) {
            const int following = first + STEP_WARPS * KEY_COUNT;
            float s[KEY_LOADS], most = top;
#pragma unroll
            for (int i = 0; i < KEY_LOADS; i++) {
                float dot = 0.0f;
#pragma unroll
                for (int j = 0; j < VEC; j++) dot += weight_at(k.bits[i], j, (const Real*)nullptr) * q[j];
                dot = over_key(dot);
                s[i] = first + i * KEYS_AT_ONCE + own < end ? dot : -INFINITY;
                most = fmaxf(most, s[i]);
            }
            k.request(keys, following + own, end);
#pragma unroll
            for (int offset = WARP_SIZE / 2; offset >= KEY_LANES; offset /= 2)
                most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, offset));
            const float shrink = exp2f(top - most);
            top = most, l *= shrink;
#pragma unroll
            for (int j = 0; j < VEC; j++) sum[j] *= shrink;
#pragma unroll
            for (int i = 0; i < KEY_LOADS; i++) {
                const float p = exp2f(s[i] - top);
                l += p;
#pragma unroll
                for (int j = 0; j < VEC; j++) sum[j] += p * weight_at(v.bits[i], j, (const Real*)nullptr);
            }
            v.request(values, following + own, end);
        }
#pragma unroll
        for (int offset = WARP_SIZE / 2; offset >= KEY_LANES; offset /= 2) {
            l += __shfl_xor_sync(ALL_LANES, l, offset);
#pragma unroll
            for (int j = 0; j < VEC; j++) sum[j] += __shfl_xor_sync(ALL_LANES, sum[j], offset);
        }
        if (lane == 0) ms[warp] = top, ls[warp] = l;
        if (lane < KEY_LANES)
#pragma unroll
            for (int j = 0; j < VEC; j++) ys[warp][lane * VEC + j] = sum[j];
        sync_computing();
        for (int d = threadIdx.x; d < HS / 2; d += THREADS) {
            float most = ms[0], all = 0.0f, y0 = 0.0f, y1 = 0.0f;
#pragma unroll
            for (int w = 1; w < STEP_WARPS; w++) most = fmaxf(most, ms[w]);
#pragma unroll
            for (int w = 0; w < STEP_WARPS; w++) {
                const float weight = exp2f(ms[w] - most);  // 0 for a warp without keys; one of them has some
                y0 += weight * ys[w][2 * d], y1 += weight * ys[w][2 * d + 1];
                all += weight * ls[w];
            }
            const float sure = 1.0f / all;
            send(mail.attention + item * (HS / 2) + d, __float_as_uint(y0 * sure), __float_as_uint(y1 * sure),
                 __float_as_uint(most + log2f(all)), round + 1);
        }
    }
};

// All heads' outputs, from the parts of their keys.
__device__ __forceinline__ void receive_attention(const Mail& mail, int parts, const Vector& to, uint32_t round)
{
    constexpr int PAIRS = C / 2, AT_ONCE = ceil_div(PAIRS, THREADS);
    const int thread = again(threadIdx.x);
    const Parcel* from[AT_ONCE];
    float y[AT_ONCE][2] = {}, sum[AT_ONCE] = {}, top[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        const int at = min(thread + i * THREADS, PAIRS - 1);
        from[i] = mail.attention + at / (HS / 2) * mail.key_parts * (HS / 2) + at % (HS / 2), top[i] = -INFINITY;
    }
#pragma unroll 1
    for (int part = 0; part < parts; part++) {
        Parcel got[AT_ONCE];
        receive(got, round, [&](int i) { return from[i] + part * (HS / 2); });
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const float own = __uint_as_float(got[i].word[2]), higher = fmaxf(top[i], own);
            const float shrink = exp2f(top[i] - higher), weight = exp2f(own - higher);
            top[i] = higher, sum[i] = sum[i] * shrink + weight;
#pragma unroll
            for (int j = 0; j < 2; j++) y[i][j] = y[i][j] * shrink + weight * __uint_as_float(got[i].word[j]);
        }
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        const int at = thread + i * THREADS;
        const float sure = __fdividef(1.0f, sum[i]);
        if (at < PAIRS) to.set(2 * at, y[i][0] * sure), to.set(2 * at + 1, y[i][1] * sure);
    }
}

// ---- the MLP ----------------------------------------------------------------------------------------------------

struct Hidden
{
    static constexpr int HELD = ceil_div(F / 6 + MOST_BLOCKS, THREADS);
    Place places[HELD];

    __device__ __forceinline__ void look_up(const Shared<6, 2>& shared)
    {
#pragma unroll
        for (int i = 0; i < HELD; i++) places[i] = Place::of(shared, int(threadIdx.x) + i * THREADS);
    }

    __device__ __forceinline__ void receive_from(const Shared<6, 2>& shared, const Vector& to, uint32_t round) const
    {
        Parcel got[HELD];
        const int thread = again(threadIdx.x);
        receive(got, round, [&](int i) { return shared.mail + min(thread + i * THREADS, shared.parcels() - 1); });
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            const Place place = places[i].renewed();
#pragma unroll
            for (int j = 0; j < 3; j++)
                if (2 * j < place.count()) reinterpret_cast<uint32_t*>(to.numbers)[place.first() / 2 + j] = got[i].word[j];
        }
    }
};

// ---- the head ---------------------------------------------------------------------------------------------------

// The largest of each block's own goes to the first block, which picks.
__device__ __forceinline__ void pick(const Model& m, const Mail& mail, Best best, uint32_t round)
{
    __shared__ Best winners[STEP_WARPS];
    best = warp_best(best);
    if (lane_id() == 0) winners[warp_id()] = best;
    sync_computing();
    if (threadIdx.x == 0) {
        for (int w = 1; w < STEP_WARPS; w++) best = better(best, winners[w]);
        send(mail.best + blockIdx.x, __float_as_uint(best.value), uint32_t(best.index), 0, round);
    }
    everyone_has_sent();
    if (blockIdx.x > 0 || warp_id() > 0) return;
    for (int i = lane_id(); i < int(gridDim.x); i += WARP_SIZE) {
        Parcel got[1];
        receive(got, round, [&](int) { return mail.best + i; });
        best = better(best, {__uint_as_float(got[0].word[0]), int(got[0].word[1])});
    }
    best = warp_best(best);
    if (lane_id() == 0) *m.next = best.index;
}

// ---- the step ---------------------------------------------------------------------------------------------------

struct Step
{
    const Model& m;
    const Mail& mail;  // in shared memory, as the next: in registers they would push out what is needed more often
    const Shares& shares;
    const Rooms rooms;
    Ring ring;
    int length;

    // What becomes of a row's sum.
    __device__ __forceinline__ float finish(int phase, int row, float sum) const
    {
        if (phase == FC) {
            sum = activate<ACT>(sum);
        } else if (phase != QKV) {
            sum += rooms.residual[row];
            rooms.residual[row] = sum;
        }
        return sum;
    }

    // Keys and values are for later steps, too.
    __device__ __forceinline__ void cache(int layer, int row, float x) const
    {
        const int which = row / C, channel = row % C;
        Real* to = which == 1 ? m.k_cache : m.v_cache;
        if (which > 0) to[cached(layer, 0, channel / HS, length) + channel % HS] = from_float<Real>(x);
    }

    static __device__ __forceinline__ int row_of(int phase, int at, int j)
    {
        const int word = at / 4 * 3 + at % 4;
        return phase == FC ? 2 * word + j : word;
    }

    // The numbers of a batch of rows go out in parcels: four lanes make one, three of them a word each, of one number or of
    // two. A block with fewer rows than others sends empty parcels, so that all hear from it.
    __device__ __forceinline__ void send_rows(int phase, int layer, const Weights& w, const float* sums, const Real (&bias)[2],
                                              int first, int rows, uint32_t round) const
    {
        const int numbers = phase == FC ? 2 : 1, per = 3 * numbers;
        const int each = phase == QKV ? mail.qkv.each : phase == FC ? mail.hidden.each : mail.after_mlp.each;
        Parcel* to = (phase == QKV ? mail.qkv.mail : phase == PROJ ? mail.after_attention.mail
                      : phase == FC ? mail.hidden.mail : mail.after_mlp.mail) + blockIdx.x * each;
        const int before = phase == FC ? first / 6 : first / 3;
        const int count = first + BATCH < w.rows ? BATCH / per : each - before;
#pragma unroll 1
        for (int at = threadIdx.x; at / WARP_SIZE * WARP_SIZE < 4 * count; at += THREADS) {
            float out[2] = {};
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const int row = row_of(phase, at, j);
                if (j < numbers && at % 4 < 3 && row < rows) {
                    const bool foreseen = first == 0 && at == int(threadIdx.x);
                    out[j] = finish(phase, first + row, whole_sum(sums, row) + to_float(foreseen ? bias[j] : shares.weights(m, phase, layer).bias[first + row]));
                }
            }
            const uint32_t word = phase == FC ? pack2<Real>(out[0], out[1]) : __float_as_uint(out[0]);
            const uint32_t second = __shfl_down_sync(ALL_LANES, word, 1), third = __shfl_down_sync(ALL_LANES, word, 2);
            if (at % 4 == 0 && at / 4 < count) send(to + before + at / 4, word, second, third, round);
            if (phase == QKV && at % 4 < 3 && row_of(phase, at, 0) < rows)
                cache(layer, w.begin + first + row_of(phase, at, 0), out[0]);
        }
    }

    __device__ __forceinline__ void compute(uint32_t round)
    {
        Stream stream;
        Hidden hidden;
        Best best = {-INFINITY, INT_MAX};
        const KeyParts parts(length, mail.key_parts);
        stream.look_up(mail.after_mlp);
        hidden.look_up(mail.hidden);
        const Real *token = m.wte + size_t(load_fresh(m.tokens)) * C, *position = m.wpe + size_t(length) * C;
        for (int i = threadIdx.x; i < shares.of[PROJ].y; i += THREADS) {
            const int channel = shares.of[PROJ].x + i;
            rooms.residual[i] = to_float(token[channel]) + to_float(position[channel]);
        }
        const unsigned origin = Attention::origin_of(mail, min(int(blockIdx.x) / mail.key_parts, NH - 1));
        int turn = 0;
#pragma unroll 1
        for (int number = 0; number <= PHASES * L; number++) {  // phases, all through the same code: see above
            const int layer = number / PHASES, phase = number == PHASES * L ? int(HEAD) : number % PHASES;
#ifdef RUNG_EMULATOR
            const Weights w = shares.weights(m, phase, layer);
#else
            const Weights w(shares.of[phase], phase == FC2 ? PARTS : 1);
#endif
            const Vector x = {rooms.vector, phase == FC2 ? 0 : C};
            Real bias[2];
            ring.await(ring.unit);
#pragma unroll
            for (int j = 0; j < 2; j++)
                if (phase < HEAD)
                    bias[j] = ring.bias(w)[max(0, min(row_of(phase, threadIdx.x, j), w.rows - 1))];
            if (phase == PROJ) {
                receive_attention(mail, parts.count, x, round + 1);
            } else if (phase == FC2) {
                hidden.receive_from(mail.hidden, x, round + 3);
            } else {
                if (number == 0)
                    stream.embed(m.wte + size_t(load_fresh(m.tokens)) * C, m.wpe + size_t(length) * C);
                else
                    stream.receive_from(phase == FC ? mail.after_attention.mail : mail.after_mlp.mail, mail.after_mlp.parcels(),
                                        phase == FC ? round + 2 : round - 1);
                stream.normalise(x, ring.gain(w), ring.shift(w), m.eps);
            }
            ring.release(Weights::EXTRAS);
            sync_computing();
#pragma unroll 1
            for (int first = 0; first == 0 || first < w.rows; first += BATCH, turn ^= 1) {
                const int rows = min(BATCH, w.rows - first);
                float* sums = rooms.partial + turn * STEP_WARPS * BATCH;
                multiply(ring, w, x, sums, first, rows);
                sync_computing();
                if (phase < HEAD) {
                    send_rows(phase, layer, w, sums, bias, first, rows, phase == QKV ? round : round + 1 + phase);
                    continue;
                }
                for (int row = threadIdx.x; row < rows; row += THREADS) {
                    const int token = w.begin + first + row;
                    const float logit = whole_sum(sums, row);
                    m.logits[token] = logit;
                    best = better(best, {logit, token});
                }
            }
            if (phase < HEAD) everyone_has_sent();
            if (phase == FC2) round += 5;
            if (phase != QKV) continue;
#pragma unroll 1
            for (int item = blockIdx.x; item < NH * mail.key_parts; item += gridDim.x) {
                Attention attention;
                attention.request(m, parts, mail.key_parts, length, layer, item);
                const unsigned from = item == int(blockIdx.x) ? origin : Attention::origin_of(mail, item / mail.key_parts);
                attention.run(mail, from, BY_LAYER ? m.scale / (layer + 1) : m.scale, item, round);
            }
            everyone_has_sent();
        }
        pick(m, mail, best, round);
    }

#ifndef RUNG_EMULATOR
    __device__ __forceinline__ void copy(int* sizes) const
    {
        Copier copier = {ring, sizes};
        const KeyParts parts(length, mail.key_parts);
#pragma unroll 1
        for (int layer = 0; layer < L; layer++) {
            if (blockIdx.x < NH * mail.key_parts) {
                const int head = blockIdx.x / mail.key_parts, first = blockIdx.x % mail.key_parts * parts.size;
                const int count = (min(length, first + parts.size) - first) * HS;
                prefetch(m.k_cache + cached(layer, 0, head, first), count);
                prefetch(m.v_cache + cached(layer, 0, head, first), count);
            }
#pragma unroll 1
            for (int phase = QKV; phase < PHASES; phase++) copier.copy(shares.weights(m, phase, layer));
        }
        copier.copy(shares.weights(m, HEAD, L));
    }
#endif
};

__device__ __forceinline__ void whole_step(const Model& m, Parcel* parcels, int* clock)
{
    extern __shared__ uint4 shared[];
    __shared__ uint64_t barriers[2 * UNITS];
    __shared__ uint4 room_of_mail[(sizeof(Mail) + 15) / 16], room_of_shares[(sizeof(Shares) + 15) / 16];
    Mail& mail = *reinterpret_cast<Mail*>(room_of_mail);
    Shares& shares = *reinterpret_cast<Shares*>(room_of_shares);
    if (threadIdx.x == 0) mail = Mail(parcels), shares = Shares();
    __syncthreads();
    const Rooms rooms(shared);
    const uint32_t round = uint32_t(load_fresh(clock)) + 1;  // of the first letters; as many are sent in every step
    Step step = {m, mail, shares, rooms, {rooms.ring, barriers, barriers + UNITS, place(rooms.ring), place(barriers), 0, 0}, load_fresh(m.lengths)};
#ifndef RUNG_EMULATOR
    __shared__ int sizes[UNITS];
    const bool copying = warp_id() == STEP_WARPS;
    if (copying) step.ring.set_up(lane_id());
    __syncthreads();
    if (copying) {
        if (lane_id() == 0) step.copy(sizes);
        return;
    }
#endif
    step.compute(round);
    // The first block is done when it has heard from all others, and they have read the clock.
    if (blockIdx.x == 0 && threadIdx.x == 0) *clock = int(round + 5 * L);
}

}  // namespace decode
