// Attention of the decode rung with 8-bit keys and values: integers with one scale per key and one per value.
#pragma once
#include "key_chunks.cuh"
#include "quantised.cuh"

using namespace decode;

// ---- attention --------------------------------------------------------------------------------------------------

constexpr int EACH = QUANTISED_EACH;           // numbers in 16 bytes
constexpr int LANES = HS / EACH;               // per key
constexpr int AT_ONCE = WARP_SIZE / LANES;     // keys per access of a warp
constexpr int CHUNK = KEY_LOADS * AT_ONCE;     // keys
constexpr int PIECES = KEY_LOADS * WARP_SIZE;  // of 16 bytes: a chunk's keys, or its values
constexpr int SCALES = CHUNK / 4;              // pieces of 16 bytes: its keys' scales, or its values'
constexpr int SLOT = 2 * (PIECES + SCALES);
constexpr int FRESH = EACH / VEC;  // pieces of a lane's part of a new key
static_assert(HS % EACH == 0 && WARP_SIZE % LANES == 0, "a key must be 1, 2, 4 ... 32 pieces of 16 bytes");
static_assert(CHUNK % 4 == 0 && MAXT % 4 == 0, "scales are copied in pieces of 16 bytes");

__device__ __forceinline__ size_t scales_start(int layer, int item) { return (size_t(layer) * ITEMS + item) * MAXT; }

// What a launch reads of the caches.
struct Cached
{
    const int8_t *k, *v;
    const float *k_scales, *v_scales;
};

// A warp's own ring: each slot holds a chunk's keys, its values, and the scales of both. Where there is a copy engine, one lane
// issues all copies; elsewhere every lane has a share of them.
struct KeyRing
{
    Cached cached;
    uint4* slots;
    uint64_t* arrived;    // one barrier per slot
    Chunks<CHUNK> ahead;  // the next chunk to request
    int layer, slot, round;

    __device__ __forceinline__ KeyRing(uint4* all, uint64_t* barriers, const int* lengths, const Cached& cached_, int layer_)
        : cached(cached_), slots(all + warp_id() * KEY_SLOTS * SLOT), arrived(barriers + warp_id() * KEY_SLOTS), ahead(lengths),
          layer(layer_), slot(0), round(0)
    {
        set_up();
#pragma unroll
        for (int i = 0; i < KEY_SLOTS; i++) request(i);
    }

    // Requests the next chunk into a slot.
    __device__ __forceinline__ void request(int to)
    {
        if (ahead.item < ITEMS) {
            const size_t from = scales_start(layer, ahead.item) + ahead.first;
            copy(slots + to * SLOT, {cached.k + from * HS, cached.v + from * HS, cached.k_scales + from, cached.v_scales + from},
                 ahead.count());
            ahead.go_on();
        }
        commit();
    }

    // Reads the lane's pieces of the next chunk's keys, and their scales.
    __device__ __forceinline__ void take_keys(uint4 (&k)[KEY_LOADS], float (&scale)[KEY_LOADS])
    {
        await();
        read(slots + slot * SLOT, 0, k, scale);
    }

    // The same of its values, and refills its slot.
    __device__ __forceinline__ void take_values(uint4 (&v)[KEY_LOADS], float (&scale)[KEY_LOADS])
    {
        read(slots + slot * SLOT, 1, v, scale);
        __syncwarp();  // all lanes have read the slot, which may now be refilled
        request(slot);
        if (++slot == KEY_SLOTS) slot = 0, round ^= 1;
    }

    static __device__ __forceinline__ void read(const uint4* from, int part, uint4 (&pieces)[KEY_LOADS],
                                                float (&scale)[KEY_LOADS])
    {
        const float* scales = reinterpret_cast<const float*>(from + 2 * PIECES + part * SCALES) + lane_id() / LANES;
#pragma unroll
        for (int i = 0; i < KEY_LOADS; i++)
            pieces[i] = from[part * PIECES + i * WARP_SIZE + lane_id()], scale[i] = scales[i * AT_ONCE];
    }

    // Whole pieces of scales: up to three more than there are keys.
    static __device__ __forceinline__ int scale_pieces(int count) { return (count + 3) / 4; }

#if __CUDA_ARCH__ >= 900
    __device__ __forceinline__ void set_up() const
    {
        if (lane_id() < KEY_SLOTS) byte_barrier_init(arrived + lane_id());
        __syncwarp();
    }
    __device__ __forceinline__ void copy(uint4* to, const Cached& from, int count) const
    {
        if (lane_id() > 0) return;
        uint64_t* barrier = arrived + (to - slots) / SLOT;
        const unsigned bytes = unsigned(count) * HS, of_scales = unsigned(scale_pieces(count)) * 16;
        byte_barrier_expect(barrier, 2 * (bytes + of_scales));
        if (bytes == 0) return;
        bulk_copy_once(to, from.k, bytes, barrier);
        bulk_copy_once(to + 2 * PIECES, from.k_scales, of_scales, barrier);
        bulk_copy_once(to + PIECES, from.v, bytes, barrier);
        bulk_copy_once(to + 2 * PIECES + SCALES, from.v_scales, of_scales, barrier);
    }
    __device__ __forceinline__ void commit() const {}
    __device__ __forceinline__ void await() const { byte_barrier_wait(arrived + slot, round); }
#else
    __device__ __forceinline__ void set_up() const {}
    static __device__ __forceinline__ void copy_pieces(uint4* to, const void* from, int count)
    {
        for (int i = lane_id(); i < count; i += WARP_SIZE) cp_async_16(to + i, static_cast<const uint4*>(from) + i);
    }
    __device__ __forceinline__ void copy(uint4* to, const Cached& from, int count) const
    {
        copy_pieces(to, from.k, count * LANES);
        copy_pieces(to + PIECES, from.v, count * LANES);
        copy_pieces(to + 2 * PIECES, from.k_scales, scale_pieces(count));
        copy_pieces(to + 2 * PIECES + SCALES, from.v_scales, scale_pieces(count));
    }
    __device__ __forceinline__ void commit() const { cp_async_commit(); }
    __device__ __forceinline__ void await() const
    {
        cp_async_wait<KEY_SLOTS - 1>();
        __syncwarp();  // a scale is read by other lanes than the one that copied it
    }
#endif
};

// ---- new keys and values ----------------------------------------------------------------------------------------

// A lane's part of an item's new query, key and value.
struct Fresh
{
    uint4 query[FRESH], key[FRESH], value[FRESH];

    __device__ __forceinline__ void request(const Real* qkv, int item)
    {
        if (item >= ITEMS) return;
        const Real* row = qkv + size_t(item / NH) * 2 * C + size_t(item) * HS;  // the head's part of the sequence's row
        const uint4* from = reinterpret_cast<const uint4*>(row) + lane_id() % LANES * FRESH;
#pragma unroll
        for (int i = 0; i < FRESH; i++)
            query[i] = __ldcg(from + i), key[i] = __ldcg(from + C / VEC + i), value[i] = __ldcg(from + 2 * C / VEC + i);
    }
};

__device__ __forceinline__ float fresh_at(const uint4 (&part)[FRESH], int j)
{
    return weight_at(part[j / VEC], j % VEC, (const Real*)nullptr);
}

__device__ __forceinline__ Quantised in_eight_bits(const uint4 (&part)[FRESH])
{
    return quantised(LANES, [&](int j) { return fresh_at(part, j); });
}

// ---- softmax ----------------------------------------------------------------------------------------------------

// The softmax of an item's scores, starting with the new key, and a lane's part of the weighted values.
struct Attention
{
    float q[EACH], sum[EACH], m, l;

    __device__ __forceinline__ Attention(const Fresh& fresh, float scale)
    {
        scale *= 1.44269504f;  // for exp2
#pragma unroll
        for (int j = 0; j < EACH; j++) q[j] = fresh_at(fresh.query, j) * scale;
#pragma unroll
        for (int j = 0; j < EACH; j += 2) {  // otherwise the compiler would compute them again for every chunk
            const uint4 kept = renewed(make_uint4(__float_as_uint(q[j]), __float_as_uint(q[j + 1]), 0, 0));
            q[j] = __uint_as_float(kept.x), q[j + 1] = __uint_as_float(kept.y);
        }
        const bool counts = lane_id() < LANES;
        float dot = 0.0f;
#pragma unroll
        for (int j = 0; j < EACH; j++) dot += fresh_at(fresh.key, j) * q[j];
        m = over_lanes(dot), l = counts ? 1.0f : 0.0f;
#pragma unroll
        for (int j = 0; j < EACH; j++) sum[j] = counts ? fresh_at(fresh.value, j) : 0.0f;
    }

    // The sum over a key's lanes; all of them get it.
    static __device__ __forceinline__ float over_lanes(float part)
    {
#pragma unroll
        for (int offset = LANES / 2; offset > 0; offset /= 2) part += __shfl_xor_sync(ALL_LANES, part, offset);
        return part;
    }

    // The dot product with a key; all lanes of the key get it.
    __device__ __forceinline__ float score(const uint4& key, float scale) const
    {
        float dot = 0.0f;
#pragma unroll
        for (int j = 0; j < EACH; j++) dot += weight_at(key, j, (const int8_t*)nullptr) * q[j];
        return over_lanes(dot) * scale;
    }

    // The next chunk of the ring, of which `keys` are keys; the memory after them is undefined.
    __device__ __forceinline__ void add(KeyRing& ring, int keys)
    {
        uint4 pieces[KEY_LOADS];
        float scales[KEY_LOADS], s[KEY_LOADS], top = m;
        ring.take_keys(pieces, scales);
#pragma unroll
        for (int i = 0; i < KEY_LOADS; i++) s[i] = score(pieces[i], scales[i]);
        ring.take_values(pieces, scales);
        if (keys < CHUNK)
#pragma unroll
            for (int i = 0; i < KEY_LOADS; i++)
                if (i * AT_ONCE + lane_id() / LANES >= keys) s[i] = -INFINITY, scales[i] = 0.0f;
#pragma unroll
        for (int i = 0; i < KEY_LOADS; i++) top = fmaxf(top, s[i]);
#pragma unroll
        for (int offset = WARP_SIZE / 2; offset >= LANES; offset /= 2) top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, offset));
        const float shrink = exp2f(m - top);
        m = top;
        l *= shrink;
#pragma unroll
        for (int j = 0; j < EACH; j++) sum[j] *= shrink;
#pragma unroll
        for (int i = 0; i < KEY_LOADS; i++) {
            const float p = exp2f(s[i] - m), weight = p * scales[i];
            l += p;
#pragma unroll
            for (int j = 0; j < EACH; j++) sum[j] += weight * weight_at(pieces[i], j, (const int8_t*)nullptr);
        }
    }

    // Merges the lanes of different keys into the item's output.
    __device__ __forceinline__ void finish(Real* out)
    {
#pragma unroll
        for (int offset = WARP_SIZE / 2; offset >= LANES; offset /= 2) {
            l += __shfl_xor_sync(ALL_LANES, l, offset);
#pragma unroll
            for (int j = 0; j < EACH; j++) sum[j] += __shfl_xor_sync(ALL_LANES, sum[j], offset);
        }
        if (lane_id() < LANES)
#pragma unroll
            for (int i = 0; i < FRESH; i++) {
                Vec16<Real> numbers;
#pragma unroll
                for (int j = 0; j < VEC; j++) numbers[j] = from_float<Real>(sum[i * VEC + j] / l);
                store_vec(out + lane_id() * EACH + i * VEC, numbers);
            }
    }
};

// Persistent blocks of independent warps, as in rung 8. New keys and values take part as they are, and are quantised into the
// caches at the end: their scales last, since the ring copies whole pieces of scales.
extern "C" __global__ void __launch_bounds__(KEY_WARPS * 32, 1)
    attend(const int* lengths, const Real* qkv, int8_t* k_cache, int8_t* v_cache, float* k_scales, float* v_scales, Real* y,
           int layer, float scale)
{
    extern __shared__ uint4 shared[];
    __shared__ uint64_t barriers[KEY_WARPS * KEY_SLOTS];
    KeyRing ring(shared, barriers, lengths, {k_cache, v_cache, k_scales, v_scales}, layer);
    int length = length_of(lengths, first_item());
    pdl_wait();
    pdl_launch_dependents();
    Fresh coming;
    coming.request(qkv, first_item());
#pragma unroll 1
    // perhaps never several turns: as many sequences as make more items than blocks are too slow to emulate
    for (int item = first_item(); item < ITEMS; item += item_step()) {
        const Fresh fresh = coming;
        const int following = length_of(lengths, item + item_step());
        coming.request(qkv, item + item_step());
        Attention attention(fresh, scale);
        const Quantised key = in_eight_bits(fresh.key), value = in_eight_bits(fresh.value);
        const size_t at = scales_start(layer, item) + length;
        if (lane_id() < LANES) {
            reinterpret_cast<uint4*>(k_cache)[at * LANES + lane_id()] = key.bits;
            reinterpret_cast<uint4*>(v_cache)[at * LANES + lane_id()] = value.bits;
        }
        int first = 0;
#pragma unroll 1
        do {
            attention.add(ring, length - first);
            first += CHUNK;
        } while (first < length);
        if (lane_id() == 0) k_scales[at] = key.scale, v_scales[at] = value.scale;
        attention.finish(y + size_t(item) * HS);
        length = following;
    }
}
