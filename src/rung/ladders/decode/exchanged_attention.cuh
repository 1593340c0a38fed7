// Attention by all blocks: queries, keys and values of the new token arrive as packets, and so do the parts' outputs.
#pragma once
#include "one_kernel_layout.cuh"

namespace decode {

constexpr int KEY_LANES = HS / VEC, KEYS_AT_ONCE = WARP_SIZE / KEY_LANES, KEY_COUNT = KEY_LOADS * KEYS_AT_ONCE;
constexpr int KEY_GROUP = KEY_SLOTS * NH;  // keys per unit: a slot has room for NH keys of one head
static_assert(HS % VEC == 0 && WARP_SIZE % KEY_LANES == 0, "a key must be 1, 2, 4 ... 32 pieces of 16 bytes");

// How a head's cached keys are divided: into few enough parts that every warp has enough work.
struct KeyParts
{
    int size, count;

    __device__ __forceinline__ KeyParts(int length, int most)
        : size(max(KEY_PART, ceil_div(length, most))), count(max(1, ceil_div(length, size)))
    {
    }
};

// One part of one head of one row, heads of several rows counted on; most blocks have one, or none.
struct KeyRange
{
    int head, first, end;
    bool wanted, last;

    __device__ __forceinline__ KeyRange(const KeyParts& parts, int key_parts, int length, int item)
    {
        const int part = item % key_parts;
        head = item / key_parts, first = part * parts.size, end = min(length, first + parts.size);
        wanted = item < B * NH * key_parts && part < parts.count, last = part == parts.count - 1;
    }
};

// Sum over the lanes of one key.
__device__ __forceinline__ float over_key(float x)
{
#pragma unroll
    for (int offset = KEY_LANES / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(ALL_LANES, x, offset);
    return x;
}

// In a step of several rows: the query's row, the first row of its text, the text's slot in the cache, and how many rows from the
// first on have new keys that the query attends to.
struct QueryRow
{
    int row = 0, first = 0, cache = 0, fresh = 1;
};

// Cached keys and values come through the ring, like the weights; the last part also handles the new ones, which arrive as
// packets.
struct Attention
{
    // The packet, and the element in it, with element i of a head's query, key and value.
    static __device__ __forceinline__ unsigned origin_of(const Mailboxes& mailboxes, int head, int i)
    {
        i = min(i, 3 * HS - 1);
        const int row = i / HS * C + head * HS + i % HS;
        const int block = mailboxes.qkv.share.owner(row), within = row - mailboxes.qkv.share.begin(block);
        return (block * mailboxes.qkv.each + within / 3) * 4 + within % 3;
    }

    static __device__ __forceinline__ float number(const Packet& got, unsigned origin)
    {
        return __uint_as_float(origin % 4 == 0 ? got.word[0] : origin % 4 == 1 ? got.word[1] : got.word[2]);
    }

    // A query, and the new keys and values that it sees, row after row.
    static __device__ __forceinline__ void receive_fresh(float* fresh, const Mailboxes& mailboxes, int head,
                                                         const QueryRow& query, float scale, uint32_t epoch)
    {
        constexpr int EACH = ceil_div((2 * B + 1) * HS, THREADS);
        const int count = (2 * query.fresh + 1) * HS;
        const Packet* from[EACH];
        Packet got[EACH];
        unsigned origins[EACH];
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            const int i = min(int(threadIdx.x) + k * THREADS, count - 1), behind = max(i - HS, 0);
            const int row = i < HS ? query.row : query.first + behind / (2 * HS);
            origins[k] = origin_of(mailboxes, head, i < HS ? i : HS + behind % (2 * HS));
            from[k] = mailboxes.qkv.packets + row * mailboxes.qkv.count() + origins[k] / 4;
        }
        const auto wanted = [&](int k) { return int(threadIdx.x) + k * THREADS < count; };
        receive(got, epoch, [&](int k) { return from[k]; }, wanted);
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            const int i = threadIdx.x + k * THREADS;
            const float x = number(got[k], origins[k]);
            if (wanted(k)) fresh[i] = i < HS ? x * scale : to_float(from_float<Real>(x));
        }
    }

    static __device__ __forceinline__ void run(const Model& m, WeightSource& source, const Mailboxes& mailboxes,
                                               const KeyRange& part, const QueryRow& query, unsigned origin, int layer, int item,
                                               uint32_t epoch)
    {
        __shared__ float fresh[(2 * B + 1) * HS], ms[STEP_WARPS], ls[STEP_WARPS], ys[STEP_WARPS][HS];
        const int lane = lane_id(), warp = warp_id(), own = lane / KEY_LANES;
        const float scale = BY_LAYER ? m.scale / (layer + 1) : m.scale;
        static_assert(3 * HS <= THREADS, "a number each");
        const int i = threadIdx.x;
        source.watch.start(ATTENTION, MAIL);
        if (B > 1) {
            receive_fresh(fresh, mailboxes, part.head % NH, query, scale * 1.44269504f, epoch);
        } else if (i < 3 * HS) {
            Packet got[1];
            receive(got, epoch, [&](int) { return mailboxes.qkv.packets + origin / 4; });
            const float x = number(got[0], origin);
            fresh[i] = i < HS ? x * (scale * 1.44269504f) : to_float(from_float<Real>(x));  // the query is scaled for exp2
        }
        sync_computing();
        source.watch.start(PRODUCTS);
        float q[VEC], sum[VEC] = {}, top = -INFINITY, l = 0.0f;
#pragma unroll
        for (int j = 0; j < VEC; j++) q[j] = fresh[lane % KEY_LANES * VEC + j];
        if ((B == 1 ? warp == 0 : warp < query.fresh) && part.last) {  // a new key each
            const float* key = fresh + HS + (B == 1 ? 0 : warp * 2 * HS);
            float dot = 0.0f;
#pragma unroll
            for (int j = 0; j < VEC; j++) dot += key[lane % KEY_LANES * VEC + j] * q[j];
            top = over_key(dot);
            if (lane < KEY_LANES) {
                l = 1.0f;
#pragma unroll
                for (int j = 0; j < VEC; j++) sum[j] = key[HS + lane * VEC + j];
            }
        }
#pragma unroll 1
        // perhaps never several turns: a unit may hold a part of the keys
        for (int first = part.first; first < part.end; first += KEY_GROUP) {
            const int count = min(KEY_GROUP, part.end - first), slots = ceil_div(count, NH);
            const size_t begins = cached(layer, query.cache, B == 1 ? part.head : part.head % NH, first);
            const auto piece = [&](const Real* cache, int key, int behind) {
                return source.key_piece(cache + begins, key, behind, lane % KEY_LANES);
            };
            source.await();
#pragma unroll 1
            // perhaps never several turns: the warps mostly take a unit of keys at once
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
            source.release(2 * slots);
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
        source.watch.start(SENDING);
        if (warp * WARP_SIZE >= HS) return;
        const int d = min(i, HS - 1);
        float most = ms[0], all = 0.0f, y = 0.0f;
#pragma unroll
        for (int w = 1; w < STEP_WARPS; w++) most = fmaxf(most, ms[w]);
#pragma unroll
        for (int w = 0; w < STEP_WARPS; w++) {
            const float weight = exp2f(ms[w] - most);  // 0 for a warp without keys; at least one warp has some
            y += weight * ys[w][d], all += weight * ls[w];
        }
        y *= __fdividef(1.0f, all);
        const float next = __shfl_down_sync(ALL_LANES, y, 1);
        const uint32_t word = TWO_TERM_TF32 ? __float_as_uint(y) : pack2<__half>(in_half(y), in_half(next));
        const uint32_t second = TWO_TERM_TF32 ? __float_as_uint(next) : __shfl_down_sync(ALL_LANES, word, 2);
        if (i < HS && i % OUTPUTS == 0)
            send(mailboxes.attention + (item * HS + i) / OUTPUTS, word, second, __float_as_uint(most + __log2f(all)), epoch + 1);
    }
};

// Element j of a packet; one that was not requested has value and weight zero.
__device__ __forceinline__ float output(const Packet& got, int j)
{
    if (TWO_TERM_TF32) return __uint_as_float(got.word[j]);
    const uint32_t word = got.word[j / 2];
    return __half2float(__ushort_as_half(static_cast<unsigned short>(j % 2 ? word >> 16 : word)));
}

// All heads' outputs, row after row, merged from the parts of their keys: AT_ONCE packets per thread, from packet `first` on.
// `parts_of` gives a row's number of parts.
constexpr int OUTPUT_PACKETS = B * C / OUTPUTS;
template <int AT_ONCE, class PartsOf>
__device__ __forceinline__ void receive_attention(const Mailboxes& mailboxes, PartsOf parts_of, const Vector& to, uint32_t epoch,
                                                  int first = 0)
{
    constexpr int OF_ROW = C / OUTPUTS, PACKETS = OUTPUT_PACKETS, OF_HEAD = HS / OUTPUTS;
    const int thread = opaque(threadIdx.x) + first;
    const Packet* from[AT_ONCE];
    float y[AT_ONCE][OUTPUTS] = {}, sum[AT_ONCE] = {}, top[AT_ONCE];
    int parts[AT_ONCE], most = 0;
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        const int at = min(thread + i * THREADS, PACKETS - 1);
        from[i] = mailboxes.attention + at / OF_HEAD * mailboxes.key_parts * OF_HEAD + at % OF_HEAD, top[i] = -INFINITY;
        parts[i] = parts_of(B == 1 ? 0 : at / OF_ROW), most = i == 0 ? parts[i] : max(most, parts[i]);
    }
#pragma unroll 1
    // perhaps never several turns: heads have few parts where a GPU has few multiprocessors
    for (int part = 0; part < most; part += PARTS_AT_ONCE) {
        Packet got[AT_ONCE * PARTS_AT_ONCE];
        receive(
            got, epoch, [&](int i) { return from[i / PARTS_AT_ONCE] + (part + i % PARTS_AT_ONCE) * OF_HEAD; },
            [&](int i) { return part + i % PARTS_AT_ONCE < parts[i / PARTS_AT_ONCE]; });
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const Packet* packets = got + i * PARTS_AT_ONCE;
            const auto weight_of = [&](int j) { return part + j < parts[i] ? __uint_as_float(packets[j].word[2]) : -INFINITY; };
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
                for (int k = 0; k < OUTPUTS; k++) y[i][k] += weight * output(packets[j], k);
            }
        }
    }
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++) {
        const int at = thread + i * THREADS;
        const float sure = __fdividef(1.0f, sum[i]);
#pragma unroll
        for (int j = 0; j < OUTPUTS; j++)
            if (B == 1) {
                if (at < PACKETS) to.set(OUTPUTS * at + j, y[i][j] * sure);
            } else if (at < PACKETS) {
                to.set(at / OF_ROW, OUTPUTS * (at % OF_ROW) + j, y[i][j] * sure);
            }
    }
}

}  // namespace decode
