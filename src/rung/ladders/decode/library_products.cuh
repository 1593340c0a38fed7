// Rung 8's kernels between the library's products: one for the embedding, one for each norm, one for attention,
// and two after the head. Each may start while its predecessor ends, and reads that kernel's output after pdl_wait.
#pragma once
#include "key_chunks.cuh"
#include "stream_row.cuh"

using namespace decode;

__device__ __forceinline__ void wait_for_input()
{
    pdl_wait();
    pdl_launch_dependents();
}

// ---- the residual stream ----------------------------------------------------------------------------------------

__device__ __forceinline__ float4 plus(float4 a, float4 b) { return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w); }

extern "C" __global__ void __launch_bounds__(ROW_THREADS)
    embed(const int* tokens, const int* lengths, const Real* wte, const Real* wpe, const Real* gains, const Real* shifts,
          float* x, Real* n, float eps)
{
    const int b = blockIdx.x;
    StreamRow row;
    row.request(gains, shifts);
    wait_for_input();
    const size_t token = size_t(load_fresh(tokens + b)) * C, position = size_t(load_fresh(lengths + b)) * C;
    row.each([&](int i, int f) { row.v[i] = plus(four_floats(wte + token + 4 * f), four_floats(wpe + position + 4 * f)); });
    row.store(x, n, eps);
}

extern "C" __global__ void __launch_bounds__(ROW_THREADS)
    add_norm(const float* product, int parts, const Real* bias, const Real* gains, const Real* shifts, float* x, Real* n,
             float eps)
{
    const size_t start = size_t(blockIdx.x) * C;
    StreamRow row;
    row.request(gains, shifts);
    row.each([&](int i, int f) { row.v[i] = four_floats(bias + 4 * f); });
    wait_for_input();
    row.each([&](int i, int f) {
        const float4 before = load_fresh(reinterpret_cast<const float4*>(x + start) + f);
        float4 part[FC2_SPLIT];  // partial sums: a product's depth may be split
#pragma unroll
        for (int p = 0; p < FC2_SPLIT; p++)
            if (p < parts) part[p] = load_fresh(reinterpret_cast<const float4*>(product + size_t(p) * B * C + start) + f);
#pragma unroll
        for (int p = 0; p < FC2_SPLIT; p++)
            if (p < parts) row.v[i] = plus(row.v[i], part[p]);
        row.v[i] = plus(before, row.v[i]);
    });
    row.store(x, n, eps);
}

// ---- attention --------------------------------------------------------------------------------------------------

constexpr int LANES = HS / VEC;                // per key, 16 bytes each
constexpr int AT_ONCE = WARP_SIZE / LANES;     // keys per access of a warp
constexpr int CHUNK = KEY_LOADS * AT_ONCE;     // keys
constexpr int PIECES = KEY_LOADS * WARP_SIZE;  // of 16 bytes: a chunk's keys, or its values
static_assert(HS % VEC == 0 && WARP_SIZE % LANES == 0, "a key must be 1, 2, 4 ... 32 pieces of 16 bytes");

__device__ __forceinline__ size_t item_start(int layer, int item) { return (size_t(layer) * ITEMS + item) * MAXT * HS; }

// A warp's own ring: each slot holds a chunk's keys followed by its values. Where there is a copy engine, one lane issues both
// copies; elsewhere every lane copies the pieces that it will read.
struct KeyRing
{
    const Real *k_cache, *v_cache;
    uint4* slots;
    uint64_t* arrived;    // one barrier per slot
    Chunks<CHUNK> ahead;  // the next chunk to request
    int layer, slot, round;

    __device__ __forceinline__ KeyRing(uint4* all, uint64_t* barriers, const int* lengths, const Real* k, const Real* v,
                                       int layer_)
        : k_cache(k), v_cache(v), slots(all + warp_id() * KEY_SLOTS * 2 * PIECES), arrived(barriers + warp_id() * KEY_SLOTS),
          ahead(lengths), layer(layer_), slot(0), round(0)
    {
        set_up();
#pragma unroll
        for (int i = 0; i < KEY_SLOTS; i++) request(i);
    }

    __device__ __forceinline__ uint4* keys(int number) const { return slots + number * 2 * PIECES; }

    // Requests the next chunk into a slot.
    __device__ __forceinline__ void request(int to)
    {
        if (ahead.item < ITEMS) {
            const size_t from = item_start(layer, ahead.item) + size_t(ahead.first) * HS;
            copy(to, k_cache + from, v_cache + from, ahead.count());
            ahead.go_on();
        }
        commit();
    }

    // Reads the lane's pieces of the next chunk, and refills its slot.
    __device__ __forceinline__ void take(uint4 (&k)[KEY_LOADS], uint4 (&v)[KEY_LOADS])
    {
        await();
        const uint4* from = keys(slot) + lane_id();
#pragma unroll
        for (int i = 0; i < KEY_LOADS; i++) k[i] = from[i * WARP_SIZE], v[i] = from[PIECES + i * WARP_SIZE];
        __syncwarp();  // all lanes have read the slot, which may now be refilled
        request(slot);
        if (++slot == KEY_SLOTS) slot = 0, round ^= 1;
    }

#if __CUDA_ARCH__ >= 900
    __device__ __forceinline__ void set_up() const
    {
        if (lane_id() < KEY_SLOTS) byte_barrier_init(arrived + lane_id());
        __syncwarp();
    }
    __device__ __forceinline__ void copy(int to, const Real* k, const Real* v, int count) const
    {
        if (lane_id() > 0) return;
        const unsigned bytes = unsigned(count) * HS * sizeof(Real);
        byte_barrier_expect(arrived + to, 2 * bytes);
        if (bytes == 0) return;
        bulk_copy_once(keys(to), k, bytes, arrived + to);
        bulk_copy_once(keys(to) + PIECES, v, bytes, arrived + to);
    }
    __device__ __forceinline__ void commit() const {}
    __device__ __forceinline__ void await() const { byte_barrier_wait(arrived + slot, round); }
#else
    __device__ __forceinline__ void set_up() const {}
    __device__ __forceinline__ void copy(int to, const Real* k, const Real* v, int count) const
    {
#pragma unroll
        for (int i = 0; i < KEY_LOADS; i++) {
            const int piece = i * WARP_SIZE + lane_id();
            if (piece >= count * LANES) break;
            cp_async_16(keys(to) + piece, reinterpret_cast<const uint4*>(k) + piece);
            cp_async_16(keys(to) + PIECES + piece, reinterpret_cast<const uint4*>(v) + piece);
        }
    }
    __device__ __forceinline__ void commit() const { cp_async_commit(); }
    __device__ __forceinline__ void await() const { cp_async_wait<KEY_SLOTS - 1>(); }
#endif
};

// A lane's piece of an item's new query, key and value.
struct Fresh
{
    uint4 query, key, value;

    __device__ __forceinline__ void request(const Real* qkv, int item)
    {
        if (item >= ITEMS) return;
        const Real* row = qkv + size_t(item / NH) * 2 * C + size_t(item) * HS;  // the head's part of the sequence's row
        const uint4* from = reinterpret_cast<const uint4*>(row) + lane_id() % LANES;
        query = __ldcg(from), key = __ldcg(from + C / VEC), value = __ldcg(from + 2 * C / VEC);
    }
};

// The softmax of an item's scores, starting with the new key, and a lane's part of the weighted values.
struct Attention
{
    float q[VEC], sum[VEC], m, l;

    __device__ __forceinline__ Attention(const Fresh& fresh, float scale)
    {
        scale *= 1.44269504f;  // for exp2
#pragma unroll
        for (int j = 0; j < VEC; j++) q[j] = weight_at(fresh.query, j, (const Real*)nullptr) * scale;
#pragma unroll
        for (int j = 0; j < VEC; j += 2) {  // otherwise the compiler would compute them again for every chunk
            const uint4 kept = renewed(make_uint4(__float_as_uint(q[j]), __float_as_uint(q[j + 1]), 0, 0));
            q[j] = __uint_as_float(kept.x), q[j + 1] = __uint_as_float(kept.y);
        }
        const bool counts = lane_id() < LANES;
        m = score(fresh.key), l = counts ? 1.0f : 0.0f;
#pragma unroll
        for (int j = 0; j < VEC; j++) sum[j] = counts ? weight_at(fresh.value, j, (const Real*)nullptr) : 0.0f;
    }

    // The dot product with a key; all lanes of the key get it.
    __device__ __forceinline__ float score(const uint4& key) const
    {
        float dot = 0.0f;
#pragma unroll
        for (int j = 0; j < VEC; j++) dot += weight_at(key, j, (const Real*)nullptr) * q[j];
#pragma unroll
        for (int offset = LANES / 2; offset > 0; offset /= 2) dot += __shfl_xor_sync(ALL_LANES, dot, offset);
        return dot;
    }

    // A chunk with `keys` keys; the memory after them is undefined.
    __device__ __forceinline__ void add(const uint4 (&k)[KEY_LOADS], uint4 (&v)[KEY_LOADS], int count)
    {
        float s[KEY_LOADS], top = m;
#pragma unroll
        for (int i = 0; i < KEY_LOADS; i++) s[i] = score(k[i]);
        if (count < CHUNK)
#pragma unroll
            for (int i = 0; i < KEY_LOADS; i++)
                if (i * AT_ONCE + lane_id() / LANES >= count) s[i] = -INFINITY, v[i] = zero_bits();
#pragma unroll
        for (int i = 0; i < KEY_LOADS; i++) top = fmaxf(top, s[i]);
#pragma unroll
        for (int offset = WARP_SIZE / 2; offset >= LANES; offset /= 2) top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, offset));
        const float shrink = exp2f(m - top);
        m = top;
        l *= shrink;
#pragma unroll
        for (int j = 0; j < VEC; j++) sum[j] *= shrink;
#pragma unroll
        for (int i = 0; i < KEY_LOADS; i++) {
            const float p = exp2f(s[i] - m);
            l += p;
#pragma unroll
            for (int j = 0; j < VEC; j++) sum[j] += p * weight_at(v[i], j, (const Real*)nullptr);
        }
    }

    // Merges the lanes of different keys into the item's output.
    __device__ __forceinline__ void finish(Real* out)
    {
#pragma unroll
        for (int offset = WARP_SIZE / 2; offset >= LANES; offset /= 2) {
            l += __shfl_xor_sync(ALL_LANES, l, offset);
#pragma unroll
            for (int j = 0; j < VEC; j++) sum[j] += __shfl_xor_sync(ALL_LANES, sum[j], offset);
        }
        Vec16<Real> numbers;
#pragma unroll
        for (int j = 0; j < VEC; j++) numbers[j] = from_float<Real>(sum[j] / l);
        if (lane_id() < LANES) store_vec(out + lane_id() * VEC, numbers);
    }
};

// Persistent blocks of independent warps: each warp takes whole heads of sequences, one after the other, and the first chunks of
// the next head are in flight while it adds up the last of this one. The first chunks are requested before the new query is
// ready. New keys and values are copied from the packed product into the caches at the end.
extern "C" __global__ void __launch_bounds__(KEY_WARPS * 32, 1)
    attend(const int* lengths, const Real* qkv, Real* k_cache, Real* v_cache, Real* y, int layer, float scale)
{
    extern __shared__ uint4 shared[];
    __shared__ uint64_t barriers[KEY_WARPS * KEY_SLOTS];
    KeyRing ring(shared, barriers, lengths, k_cache, v_cache, layer);
    int length = length_of(lengths, first_item());
    wait_for_input();
    Fresh coming;
    coming.request(qkv, first_item());
#pragma unroll 1
    // perhaps never several turns: as many sequences as make more items than blocks are too slow to emulate
    for (int item = first_item(); item < ITEMS; item += item_step()) {
        const Fresh fresh = coming;
        const int following = length_of(lengths, item + item_step());
        coming.request(qkv, item + item_step());
        Attention attention(fresh, scale);
        if (lane_id() < LANES) {
            const size_t at = item_start(layer, item) / VEC + length * LANES + lane_id();
            reinterpret_cast<uint4*>(k_cache)[at] = fresh.key;
            reinterpret_cast<uint4*>(v_cache)[at] = fresh.value;
        }
        int first = 0;
#pragma unroll 1
        do {
            uint4 k[KEY_LOADS], v[KEY_LOADS];
            ring.take(k, v);
            attention.add(k, v, length - first);
            first += CHUNK;
        } while (first < length);
        attention.finish(y + size_t(item) * HS);
        length = following;
    }
}

// ---- after the head ---------------------------------------------------------------------------------------------

constexpr int PICK_THREADS = 256, PICK_WARPS = PICK_THREADS / WARP_SIZE, IN_FLIGHT = 4;

// The argmax of a row, from the maxima of the tiles of the head's product.
extern "C" __global__ void __launch_bounds__(PICK_THREADS)
    pick(const float* best_value, const int* best_index, int* next, int slots)
{
    __shared__ Best winners[PICK_WARPS];
    const size_t row = size_t(blockIdx.x) * slots;
    wait_for_input();
    Best best = {-INFINITY, INT_MAX};
#pragma unroll 1
    // perhaps never several turns: so large a vocabulary is too slow to emulate at every rung
    for (int first = threadIdx.x; first < slots; first += IN_FLIGHT * PICK_THREADS) {
        Best some[IN_FLIGHT];
#pragma unroll
        for (int i = 0; i < IN_FLIGHT; i++) {
            const int at = min(first + i * PICK_THREADS, slots - 1);
            some[i] = {load_fresh(best_value + row + at), load_fresh(best_index + row + at)};
        }
#pragma unroll
        for (int i = 0; i < IN_FLIGHT; i++) best = better(best, some[i]);
    }
    best = warp_best(best);
    if (lane_id() == 0) winners[warp_id()] = best;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < PICK_WARPS; w++) best = better(best, winners[w]);
    if (threadIdx.x == 0) next[blockIdx.x] = min(best.index, V - 1);  // if all logits are NaN there is no maximum
}
