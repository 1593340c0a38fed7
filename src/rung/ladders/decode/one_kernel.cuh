// A whole step for one sequence by blocks that stay: one on each multiprocessor, with the weights of all layers streaming
// through its shared memory, and numbers sent from block to block. What the layers repeat must be short: code that does not
// stay in the instruction cache is fetched again in every layer.
#pragma once
#include "weight_ring.cuh"

namespace decode {

struct Model
{
    const int *tokens, *lengths;
    const Real *wte, *wpe, *ln1_w, *ln1_b;
    const Weight* qkv_w;
    const Real* qkv_b;
    const Weight* proj_w;
    const Real *proj_b, *ln2_w, *ln2_b;
    const Weight* fc_w;
    const Real* fc_b;
    const Weight* fc2_w;
    const Real *fc2_b, *lnf_w, *lnf_b;
    const Weight* head_w;
    Real *k_cache, *v_cache;
    float* logits;
    int* next;
    float eps, scale;
    const float *qkv_s = nullptr, *proj_s = nullptr, *fc_s = nullptr, *fc2_s = nullptr, *head_s = nullptr;  // of rows of eight bits
};

// Of each phase: the first of this block's rows, and how many they are.
struct Shares
{
    int2 of[HEAD + 1];

    __device__ __forceinline__ Shares()
    {
        const int block = blockIdx.x;
        const Share<1> c(C), c3(3 * C), v(V);
        const Share<4 / sizeof(Factor)> f(F);
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

    // Of the block's rows; from memory, well before they are needed.
    __device__ __forceinline__ float scale(const Model& m, int phase, int layer, int row) const
    {
        if (!SCALED) return 1.0f;
        const float* all = phase == QKV ? m.qkv_s + size_t(layer) * 3 * C : phase == PROJ ? m.proj_s + size_t(layer) * C
                           : phase == FC ? m.fc_s + size_t(layer) * F : phase == FC2 ? m.fc2_s + size_t(layer) * C : m.head_s;
        return __ldg(all + of[phase].x + max(0, min(row, of[phase].y - 1)));
    }
};

__device__ __forceinline__ float scaled(float sum, float scale) { return SCALED ? sum * scale : sum; }

constexpr int HIDDEN_PARTS = SPLIT ? 2 : 1;  // hidden numbers travel as the tensor cores take them, but for floats

// What lies in shared memory beside the ring: the vector of a phase, sums of the warps for two batches of rows, and the
// block's own rows of the residual stream.
struct Rooms
{
    uint4* ring;
    Factor* vector;
    float *partial, *residual;

    __device__ __forceinline__ explicit Rooms(uint4* shared)
    {
        ring = shared;
        vector = reinterpret_cast<Factor*>(ring + SLOTS * PIECES);  // of the stream with its rest, or of hidden numbers
        partial = reinterpret_cast<float*>(vector + (HIDDEN_PARTS * F > 2 * C ? HIDDEN_PARTS * F : 2 * C));
        residual = partial + 2 * STEP_WARPS * BATCH;
    }
};

// Numbers in a parcel of hidden ones, and those of them in a word.
constexpr int HIDDEN_IN_WORD = 4 / sizeof(Factor), HIDDEN = 3 * HIDDEN_IN_WORD;
using HiddenMail = Shared<HIDDEN, HIDDEN_IN_WORD>;

constexpr int OUTPUTS = SPLIT ? 2 : 4;  // numbers of a head's output in a parcel, as floats or halves, with their weight

// Five kinds of mail, each with a place of its own: a letter of one layer is replaced by that of the next, which nobody
// writes before he has read what all others wrote after they had read the letter.
struct Mail
{
    Shared<3> qkv, after_attention, after_mlp;
    HiddenMail hidden;
    Parcel *attention, *best;
    int key_parts;

    __device__ __forceinline__ explicit Mail(Parcel* at)
        : qkv(at, 3 * C), after_attention(at + qkv.parcels(), C), after_mlp(after_attention.mail + after_attention.parcels(), C),
          hidden(after_mlp.mail + after_mlp.parcels(), F), attention(hidden.mail + hidden.parcels()),
          key_parts(max(1, int(gridDim.x) / NH))
    {
        best = attention + NH * key_parts * (HS / OUTPUTS);
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
constexpr int KEY_GROUP = KEY_SLOTS * NH;  // keys of a unit: a slot has room for as many of a head as there are heads
static_assert(HS % VEC == 0 && WARP_SIZE % KEY_LANES == 0, "a key must be 1, 2, 4 ... 32 pieces of 16 bytes");

// How a head's cached keys are cut: in so few parts that the warps of a block have enough to do.
struct KeyParts
{
    int size, count;

    __device__ __forceinline__ KeyParts(int length, int most)
        : size(max(KEY_PART, ceil_div(length, most))), count(max(1, ceil_div(length, size)))
    {
    }
};

// One part of one head; most blocks have one, or none.
struct Part
{
    int head, first, end;
    bool wanted, last;

    __device__ __forceinline__ Part(const KeyParts& parts, int key_parts, int length, int item)
    {
        const int part = item % key_parts;
        head = item / key_parts, first = part * parts.size, end = min(length, first + parts.size);
        wanted = item < NH * key_parts && part < parts.count, last = part == parts.count - 1;
    }
};

// Of numbers that the lanes on one key have.
__device__ __forceinline__ float over_key(float x)
{
#pragma unroll
    for (int offset = KEY_LANES / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(ALL_LANES, x, offset);
    return x;
}

// The cached keys and values come through the ring, as the weights do; the new ones, by mail, are the last part's affair.
struct Attention
{
    // Which parcel, and which number in it, has the thread's number of a head's query, key and value.
    static __device__ __forceinline__ unsigned origin_of(const Mail& mail, int head)
    {
        const int i = min(int(threadIdx.x), 3 * HS - 1), row = i / HS * C + head * HS + i % HS;
        const int block = mail.qkv.share.owner(row), within = row - mail.qkv.share.begin(block);
        return (block * mail.qkv.each + within / 3) * 4 + within % 3;
    }

    static __device__ __forceinline__ void run(const Model& m, Ring& ring, const Mail& mail, const Part& part, unsigned origin,
                                               int layer, int item, uint32_t round)
    {
        __shared__ float fresh[3 * HS], ms[STEP_WARPS], ls[STEP_WARPS], ys[STEP_WARPS][HS];
        const int lane = lane_id(), warp = warp_id(), own = lane / KEY_LANES;
        const float scale = BY_LAYER ? m.scale / (layer + 1) : m.scale;
        static_assert(3 * HS <= THREADS, "a number each");
        const int i = threadIdx.x;
        ring.watch.start(ATTENTION, MAIL);
        if (i < 3 * HS) {
            Parcel got[1];
            receive(got, round, [&](int) { return mail.qkv.mail + origin / 4; });
            const uint32_t word = origin % 4 == 0 ? got[0].word[0] : origin % 4 == 1 ? got[0].word[1] : got[0].word[2];
            const float number = __uint_as_float(word);
            fresh[i] = i < HS ? number * (scale * 1.44269504f) : to_float(from_float<Real>(number));  // the query for exp2
        }
        sync_computing();
        ring.watch.start(PRODUCTS);
        float q[VEC], sum[VEC] = {}, top = -INFINITY, l = 0.0f;
#pragma unroll
        for (int j = 0; j < VEC; j++) q[j] = fresh[lane % KEY_LANES * VEC + j];
        if (warp == 0 && part.last) {
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
        for (int first = part.first; first < part.end; first += KEY_GROUP) {
            const int count = min(KEY_GROUP, part.end - first), slots = ceil_div(count, NH);
            const auto piece = [&](const Real* cache, int key, int behind) {
#ifdef RUNG_EMULATOR
                return at<uint4>(place(cache + cached(layer, 0, part.head, first + key)) + lane % KEY_LANES * 16);
#else
                return at<uint4>(ring.address(behind + key / NH) + key % NH * (HS * int(sizeof(Real))) + lane % KEY_LANES * 16);
#endif
            };
            ring.await(ring.unit);
#pragma unroll 1
            for (int begin = warp * KEYS_AT_ONCE; begin < count; begin += STEP_WARPS * KEY_COUNT) {
                float s[KEY_LOADS], most = top;
#pragma unroll
                for (int i = 0; i < KEY_LOADS; i++) {
                    const int key = begin + own + i * (STEP_WARPS * KEYS_AT_ONCE);
                    const uint4 bits = piece(m.k_cache, min(key, count - 1), 0);
                    float dot = 0.0f;
#pragma unroll
                    for (int j = 0; j < VEC; j++) dot += weight_at(bits, j, (const Real*)nullptr) * q[j];
                    dot = over_key(dot);
                    s[i] = key < count ? dot : -INFINITY;
                    most = fmaxf(most, s[i]);
                }
#pragma unroll
                for (int offset = WARP_SIZE / 2; offset >= KEY_LANES; offset /= 2)
                    most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, offset));
                const float shrink = exp2f(top - most);
                top = most, l *= shrink;
#pragma unroll
                for (int j = 0; j < VEC; j++) sum[j] *= shrink;
#pragma unroll
                for (int i = 0; i < KEY_LOADS; i++) {
                    const int key = min(begin + own + i * (STEP_WARPS * KEYS_AT_ONCE), count - 1);
                    const uint4 bits = piece(m.v_cache, key, slots);
                    const float p = exp2f(s[i] - top);
                    l += p;
#pragma unroll
                    for (int j = 0; j < VEC; j++) sum[j] += p * weight_at(bits, j, (const Real*)nullptr);
                }
            }
            ring.release(2 * slots);
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
        ring.watch.start(SENDING);
        if (warp * WARP_SIZE >= HS) return;
        const int d = min(i, HS - 1);
        float most = ms[0], all = 0.0f, y = 0.0f;
#pragma unroll
        for (int w = 1; w < STEP_WARPS; w++) most = fmaxf(most, ms[w]);
#pragma unroll
        for (int w = 0; w < STEP_WARPS; w++) {
            const float weight = exp2f(ms[w] - most);  // 0 for a warp without keys; one of them has some
            y += weight * ys[w][d], all += weight * ls[w];
        }
        y *= __fdividef(1.0f, all);
        const float next = __shfl_down_sync(ALL_LANES, y, 1);
        const uint32_t word = SPLIT ? __float_as_uint(y) : pack2<__half>(in_half(y), in_half(next));
        const uint32_t second = SPLIT ? __float_as_uint(next) : __shfl_down_sync(ALL_LANES, word, 2);
        if (i < HS && i % OUTPUTS == 0)
            send(mail.attention + (item * HS + i) / OUTPUTS, word, second, __float_as_uint(most + __log2f(all)), round + 1);
    }
};

// Number j of those in a parcel; one that was not asked for has none, and no weight.
__device__ __forceinline__ float output(const Parcel& got, int j)
{
    if (SPLIT) return __uint_as_float(got.word[j]);
    const uint32_t word = got.word[j / 2];
    return __half2float(__ushort_as_half(static_cast<unsigned short>(j % 2 ? word >> 16 : word)));
}

// All heads' outputs, from the parts of their keys.
__device__ __forceinline__ void receive_attention(const Mail& mail, int parts, const Vector& to, uint32_t round)
{
    constexpr int PARCELS = C / OUTPUTS, OF_HEAD = HS / OUTPUTS, AT_ONCE = ceil_div(PARCELS, THREADS);
    const int thread = again(threadIdx.x);
    const Parcel* from[AT_ONCE];
    float y[AT_ONCE][OUTPUTS] = {}, sum[AT_ONCE] = {}, top[AT_ONCE];
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        const int at = min(thread + i * THREADS, PARCELS - 1);
        from[i] = mail.attention + at / OF_HEAD * mail.key_parts * OF_HEAD + at % OF_HEAD, top[i] = -INFINITY;
    }
#pragma unroll 1
    for (int part = 0; part < parts; part += PARTS_AT_ONCE) {
        Parcel got[AT_ONCE * PARTS_AT_ONCE];
        receive(got, round, [&](int i) { return from[i / PARTS_AT_ONCE] + (part + i % PARTS_AT_ONCE) * OF_HEAD; },
                [&](int i) { return part + i % PARTS_AT_ONCE < parts; });
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const Parcel* parcels = got + i * PARTS_AT_ONCE;
            const auto weight_of = [&](int j) { return part + j < parts ? __uint_as_float(parcels[j].word[2]) : -INFINITY; };
            float higher = top[i];
#pragma unroll
            for (int j = 0; j < PARTS_AT_ONCE; j++) higher = fmaxf(higher, weight_of(j));
            const float shrink = exp2f(top[i] - higher);
            top[i] = higher, sum[i] *= shrink;
#pragma unroll
            for (int k = 0; k < OUTPUTS; k++) y[i][k] *= shrink;
#pragma unroll
            for (int j = 0; j < PARTS_AT_ONCE; j++) {
                const float weight = exp2f(weight_of(j) - higher);
                sum[i] += weight;
#pragma unroll
                for (int k = 0; k < OUTPUTS; k++) y[i][k] += weight * output(parcels[j], k);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        const int at = thread + i * THREADS;
        const float sure = __fdividef(1.0f, sum[i]);
#pragma unroll
        for (int j = 0; j < OUTPUTS; j++)
            if (at < PARCELS) to.set(OUTPUTS * at + j, y[i][j] * sure);
    }
}

// Hidden numbers as they travel: two halves in a word, or a float.
template <class T>
__device__ __forceinline__ uint32_t packed(float a, float b, const T*) { return pack2<T>(within_range(a), within_range(b)); }
__device__ __forceinline__ uint32_t packed(float a, float, const float*) { return __float_as_uint(a); }
__device__ __forceinline__ uint32_t hidden_word(float a, float b) { return packed(a, b, (const Factor*)nullptr); }

// ---- the MLP ----------------------------------------------------------------------------------------------------

// GELU by tanh without a division that rounds correctly: both of a thread's numbers then go through it side by side.
__device__ __forceinline__ float activated(float x)
{
    if (ACT != 0) return activate<ACT>(x);
    return __fdividef(x, 1.0f + __expf(-1.5957691216f * (x + 0.044715f * x * x * x)));
}

struct Hidden
{
    static constexpr int HELD = ceil_div(F / HIDDEN + MOST_BLOCKS, THREADS);
    Place places[HELD];

    __device__ __forceinline__ void look_up(const HiddenMail& shared)
    {
#pragma unroll
        for (int i = 0; i < HELD; i++) places[i] = Place::of(shared, int(threadIdx.x) + i * THREADS);
    }

    __device__ __forceinline__ void receive_from(const HiddenMail& shared, const Vector& to, uint32_t round) const
    {
        Parcel got[HELD];
        const int thread = again(threadIdx.x);
        receive(got, round, [&](int i) { return shared.mail + min(thread + i * THREADS, shared.parcels() - 1); });
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            const Place place = places[i].renewed();
#pragma unroll
            for (int j = 0; j < 3; j++) {
                if (j * HIDDEN_IN_WORD >= place.count()) continue;
                if (SPLIT)
                    to.set(place.first() + j, __uint_as_float(got[i].word[j]));
                else
                    reinterpret_cast<uint32_t*>(to.numbers)[place.first() / 2 + j] = got[i].word[j];
            }
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
    int length = 0;      // known when the step before has ended, as the next
    uint32_t round = 0;  // of the letters that are sent first

    // What lies before this runs while the step before does.
    __device__ __forceinline__ void wait_for_input()
    {
        pdl_wait();
        length = load_fresh(m.lengths);
    }

    // Keys and values are for later steps, too.
    __device__ __forceinline__ void cache(int layer, int row, float x) const
    {
        const int which = row / C, channel = row % C;
        Real* to = which == 1 ? m.k_cache : m.v_cache;
        if (which > 0) to[cached(layer, 0, channel / HS, length) + channel % HS] = from_float<Real>(x);
    }

    // What a thread sends of a batch of rows, found out before the rows' sums are there. The numbers go out in parcels: four
    // lanes make one, three of them a word each, of one number or of two. A block with fewer rows than others sends empty
    // parcels, so that all hear from it.
    struct Letter
    {
        Parcel* to;
        int row;           // of the batch; the hidden numbers' words are of two
        bool some, sends;  // whether there is such a row, and whether the lane has a parcel
        float bias[2], residual, scale[2];
    };

    __device__ __forceinline__ Letter address(int phase, int layer, const Weights& w, int first, const Real* biases, int thread) const
    {
        const bool wide = phase == FC && HIDDEN_IN_WORD > 1;
        const int word = thread / 4 * 3 + thread % 4;
        const int each = phase == QKV ? mail.qkv.each : phase == FC ? mail.hidden.each : mail.after_mlp.each;
        Parcel* to = phase == QKV ? mail.qkv.mail : phase == PROJ ? mail.after_attention.mail
                     : phase == FC ? mail.hidden.mail : mail.after_mlp.mail;
        const int before = wide ? first / 6 : first / 3;
        const int parcels = first + BATCH < w.rows ? (wide ? BATCH / 6 : BATCH / 3) : each - before;
        Letter letter;
        letter.to = to + blockIdx.x * each + before + thread / 4;
        letter.sends = thread % 4 == 0 && thread / 4 < parcels;
        letter.row = wide ? 2 * word : word;
        letter.some = thread % 4 < 3 && letter.row < min(BATCH, w.rows - first);
#pragma unroll
        for (int j = 0; j < 2; j++) letter.bias[j] = to_float(biases[first + max(0, min(letter.row + j, w.rows - first - 1))]);
#pragma unroll
        for (int j = 0; j < 2; j++) letter.scale[j] = shares.scale(m, phase, layer, first + letter.row + j);
        letter.residual = letter.some && (phase == PROJ || phase == FC2) ? rooms.residual[first + letter.row] : 0.0f;
        return letter;
    }

    __device__ __forceinline__ void post(int phase, int layer, const Letter& letter, const float* sums, int first, int begin,
                                         uint32_t round) const
    {
        float out[2] = {};
        if (letter.some) {
            out[0] = scaled(whole_sum(sums, letter.row), letter.scale[0]) + letter.bias[0];
            if (phase == FC) {
                if (HIDDEN_IN_WORD > 1)
                    out[1] = activated(scaled(whole_sum(sums, letter.row + 1), letter.scale[1]) + letter.bias[1]);
                out[0] = activated(out[0]);
            } else {
                out[0] += letter.residual;
            }
        }
        const uint32_t word = phase == FC ? hidden_word(out[0], out[1]) : __float_as_uint(out[0]);
        const uint32_t second = __shfl_down_sync(ALL_LANES, word, 1), third = __shfl_down_sync(ALL_LANES, word, 2);
        if (letter.sends) send(letter.to, word, second, third, round);
        if (!letter.some || phase == FC) return;
        if (phase == QKV)
            cache(layer, begin + first + letter.row, out[0]);
        else
            rooms.residual[first + letter.row] = out[0];
    }

    __device__ __forceinline__ void compute(const int* clock)
    {
        Stream stream;
        Hidden hidden;
        Best best = {-INFINITY, INT_MAX};
        stream.look_up(mail.after_mlp);
        hidden.look_up(mail.hidden);
        const unsigned origin = Attention::origin_of(mail, min(int(blockIdx.x) / mail.key_parts, NH - 1));
        ring.watch.start(MAIL);
        wait_for_input();
        ring.watch.start(SENDING);
        round = uint32_t(load_fresh(clock)) + 1;  // as many are sent in every step
        const KeyParts parts(length, mail.key_parts);
        const Real *token = m.wte + size_t(load_fresh(m.tokens)) * C, *position = m.wpe + size_t(length) * C;
        for (int i = threadIdx.x; i < shares.of[PROJ].y; i += THREADS) {
            const int channel = shares.of[PROJ].x + i;
            rooms.residual[i] = to_float(token[channel]) + to_float(position[channel]);
        }
        const Part own(parts, mail.key_parts, length, blockIdx.x);
        int turn = 0;
#pragma unroll 1
        for (int number = 0; number <= PHASES * L; number++) {  // phases, all through the same code: see above
            const int layer = number / PHASES, phase = number == PHASES * L ? int(HEAD) : number % PHASES;
#ifdef RUNG_EMULATOR
            const Weights w = shares.weights(m, phase, layer);
#else
            const Weights w(shares.of[phase], phase == FC2 ? PARTS : 1);
#endif
            const Vector x = {rooms.vector, phase != FC2 ? C : SPLIT ? F : 0};
            ring.watch.start(phase, SENDING);
            ring.await(ring.unit);
            Letter letter;
            if (phase < HEAD) letter = address(phase, layer, w, 0, ring.bias(w), again(threadIdx.x));
            ring.watch.start(MAIL);
            if (phase == PROJ) {
                if (!own.wanted) keep_quiet(QUIET_IDLE);
                receive_attention(mail, parts.count, x, round + 1);
            } else if (phase == FC2) {
                keep_quiet(QUIET_HIDDEN);
                hidden.receive_from(mail.hidden, x, round + 3);
            } else {
                if (number > 0) keep_quiet(QUIET_STREAM);
                if (number == 0)
                    stream.embed(token, position);
                else
                    stream.receive_from(phase == FC ? mail.after_attention.mail : mail.after_mlp.mail, mail.after_mlp.parcels(),
                                        phase == FC ? round + 2 : round - 1);
                ring.watch.start(NORM);
                stream.normalise(x, ring.gain(w), ring.shift(w), m.eps);
            }
            ring.release(Weights::EXTRAS);
            sync_computing();
            ring.watch.start(PRODUCTS);
#pragma unroll 1
            for (int first = 0; first == 0 || first < w.rows; first += BATCH, turn ^= 1) {
                const int rows = min(BATCH, w.rows - first);
                float* sums = rooms.partial + turn * STEP_WARPS * BATCH;
                const float scale = phase == HEAD ? shares.scale(m, HEAD, 0, first + threadIdx.x) : 1.0f;
                multiply(ring, w, x, sums, first, rows);
                sync_computing();
                ring.watch.start(SENDING);
                if (phase < HEAD) {
                    const uint32_t of = phase == QKV ? round : round + 1 + phase;
                    if (first > 0) letter = address(phase, layer, w, first, shares.weights(m, phase, layer).bias, threadIdx.x);
                    post(phase, layer, letter, sums, first, w.begin, of);
                    for (int later = THREADS; later < 4 * (BATCH / 3 + 1); later += THREADS) {  // if there are few warps
                        letter = address(phase, layer, w, first, shares.weights(m, phase, layer).bias, threadIdx.x + later);
                        post(phase, layer, letter, sums, first, w.begin, of);
                    }
                    ring.watch.start(PRODUCTS);
                    continue;
                }
                for (int row = threadIdx.x; row < rows; row += THREADS) {
                    const int token = w.begin + first + row;
                    const float own = row == int(threadIdx.x) ? scale : shares.scale(m, HEAD, 0, first + row);
                    const float logit = scaled(whole_sum(sums, row), own);
                    m.logits[token] = logit;
                    best = better(best, {logit, token});
                }
                ring.watch.start(PRODUCTS);
            }
            if (phase < HEAD) everyone_has_sent();
            if (phase == FC2) round += 5;
            if (phase != QKV) continue;
#pragma unroll 1
            for (int item = blockIdx.x; item < NH * mail.key_parts; item += gridDim.x) {
                Part part = own;
                unsigned from = origin;
                if (item != int(blockIdx.x))
                    part = Part(parts, mail.key_parts, length, item), from = Attention::origin_of(mail, part.head);
                if (part.wanted) Attention::run(m, ring, mail, part, from, layer, item, round);
            }
            everyone_has_sent();
        }
        ring.watch.start(MAIL);
        pick(m, mail, best, round);
    }

#ifndef RUNG_EMULATOR
    __device__ __forceinline__ void copy(int* sizes, int* spent)
    {
        Copier copier = {ring, sizes};
#pragma unroll 1
        for (int layer = 0; layer < L; layer++) {
#pragma unroll 1
            for (int phase = QKV; phase < PHASES; phase++) {
                copier.copy(shares.weights(m, phase, layer));
                if (phase > QKV) continue;
                if (layer == 0) wait_for_input();  // weights nobody writes, keys the step before
                const KeyParts parts(length, mail.key_parts);
#pragma unroll 1
                for (int item = blockIdx.x; item < NH * mail.key_parts; item += gridDim.x) {
                    const Part part(parts, mail.key_parts, length, item);
#pragma unroll 1
                    for (int first = part.first; part.wanted && first < part.end; first += KEY_GROUP) {
                        const size_t begin = cached(layer, 0, part.head, first);
                        copier.copy_keys(m.k_cache + begin, m.v_cache + begin, min(KEY_GROUP, part.end - first));
                    }
                }
            }
        }
        copier.copy(shares.weights(m, HEAD, L));
        copier.ring.watch.stop(spent, COPIES, COPIES);
    }
#endif
};

__device__ __forceinline__ void whole_step(const Model& m, Parcel* parcels, int* clock, int* spent)
{
    extern __shared__ uint4 shared[];
    __shared__ uint64_t barriers[2 * UNITS];
    __shared__ uint4 room_of_mail[(sizeof(Mail) + 15) / 16], room_of_shares[(sizeof(Shares) + 15) / 16];
    Mail& mail = *reinterpret_cast<Mail*>(room_of_mail);
    Shares& shares = *reinterpret_cast<Shares*>(room_of_shares);
    const Rooms rooms(shared);
    pdl_launch_dependents();
    const bool copying = warp_id() == STEP_WARPS;
    const int first = copying ? int(COPIES) : int(QKV), last = copying ? int(COPIES) : int(ATTENTION);  // rows of the thread
    const Watch watch(copying || threadIdx.x == 0, first, last, SENDING);
    const Ring ring = {rooms.ring, barriers, barriers + UNITS, place(rooms.ring), place(barriers), 0, 0, watch};
    Step step = {m, mail, shares, rooms, ring};
    if (threadIdx.x == 0) mail = Mail(parcels);
    if (threadIdx.x == (STEP_WARPS - 1) * WARP_SIZE) shares = Shares();
#ifndef RUNG_EMULATOR
    if (copying) step.ring.set_up(lane_id());
#endif
    __syncthreads();
#ifndef RUNG_EMULATOR
    __shared__ int sizes[UNITS];
    if (copying) {
        if (elected()) step.copy(sizes, spent);
        return;
    }
#endif
    step.compute(clock);
    step.ring.watch.stop(spent, first, last);
    // The first block is done when it has heard from all others, and they have read the clock.
    if (blockIdx.x == 0 && threadIdx.x == 0) *clock = int(step.round);
}

}  // namespace decode
