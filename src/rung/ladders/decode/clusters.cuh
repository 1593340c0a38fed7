// A whole step for one sequence by persistent clusters of blocks. A layer is two phases: attention, where a cluster has
// a head, and the MLP, where each cluster has a part of the hidden units. Within a phase data goes through distributed shared
// memory; partial sums for the residual stream are exchanged once per phase through L2. Weights have 16 bits, or 8 with one scale per
// row.
#pragma once
#include "exchange_epochs.cuh"
#include "eight_bits.cuh"
#include "step_vector.cuh"
#include "block_cluster.cuh"

namespace decode::clusters {

static_assert(B == 1 && sizeof(Real) == 2, "one sequence, numbers of 16 bits");

// ---- partition of the model -------------------------------------------------------------------------------------

constexpr int BLOCKS = CLUSTERS * CLUSTER;
constexpr int OUTPUTS = C / CLUSTER;     // of the residual stream per block; each cluster has all of them
constexpr int HEAD_ROWS = HS / CLUSTER;  // rows of a head's queries, keys and values each that a block computes
// Hidden units by which clusters may differ: two for each block, and sixteen bytes of a row.
constexpr int UNIT_WIDTH = 2 * CLUSTER * sizeof(Weight) > 16 ? 2 * CLUSTER : 16 / sizeof(Weight);
constexpr int HIDDEN_UNITS = F / UNIT_WIDTH, LEAST_UNITS = HIDDEN_UNITS / CLUSTERS, LONGER = HIDDEN_UNITS % CLUSTERS;
constexpr int MOST_HIDDEN = UNIT_WIDTH * (LEAST_UNITS + (LONGER > 0));
constexpr int MOST_KEYS = ceil_div(MAXT, CLUSTER);
constexpr bool ONE_HEAD = NH <= CLUSTERS;  // no cluster has a second head
static_assert(F % UNIT_WIDTH == 0 && LEAST_UNITS > 0 && HS % 32 == 0 && OUTPUTS % 8 == 0 && HS % CLUSTER == 0, "even shares");

// ---- shared memory ----------------------------------------------------------------------------------------------

// Consecutive rows that eight lanes read at once start 16 banks apart.
__host__ __device__ constexpr int padded_row(int bytes)
{
    return ceil_div(bytes, 64) * 64 + (ceil_div(bytes, 64) % 2 == 0 ? 64 : 0);
}
enum : int { SIZE = sizeof(Weight) };  // variables would become data of every kernel
constexpr int ROW = padded_row(SIZE * C), PROJ_ROW = padded_row(SIZE * HS), FC2_ROW = padded_row(SIZE * MOST_HIDDEN),
              KEY_BYTES = 2 * HS;
// Columns in shared memory: those that a head, or a cluster, does not have are zero.
enum : int { ROW_COLUMNS = ceil_div(C, CHUNK) * CHUNK, PROJ_COLUMNS = ceil_div(HS, CHUNK) * CHUNK, FC2_COLUMNS = FC2_ROW / SIZE };

// Tiles of eight rows of the head. 8-bit rows of whole chunks lie there as in memory, so that one copy fetches a tile.
#ifndef SLOTS
#define SLOTS STEP_WARPS
#endif
enum : int { HEAD_ROW = SCALED && C % CHUNK == 0 ? SIZE * C : ROW };

// Each kind of weights has its own buffer, refilled for the next layer as soon as all warps have read it. Tiles of the head reuse
// these buffers; the space before them is for tiles only, if a layer's weights leave any.
enum Buffer { AT_QKV, AT_PROJ, AT_FC, AT_FC2, AT_KEYS, BUFFERS };
enum : int {
    BYTES_BEFORE = SCALED ? WEIGHT_BYTES - (3 * HEAD_ROWS + MOST_HIDDEN / CLUSTER) * ROW - OUTPUTS * (PROJ_ROW + FC2_ROW) : 0
};
constexpr int BEGIN[] = {BYTES_BEFORE, BYTES_BEFORE + 3 * HEAD_ROWS * ROW,
                         BYTES_BEFORE + 3 * HEAD_ROWS * ROW + OUTPUTS * PROJ_ROW,
                         BYTES_BEFORE + 3 * HEAD_ROWS * ROW + OUTPUTS * PROJ_ROW + MOST_HIDDEN / CLUSTER * ROW, WEIGHT_BYTES};
static_assert(BEGIN[AT_FC2] + OUTPUTS * FC2_ROW <= WEIGHT_BYTES && SLOTS * 8 * HEAD_ROW <= WEIGHT_BYTES, "as the header has it");
// A warp has slots of its own: it waits for a slot's next tile only after the previous one, as the barrier's parity requires.
static_assert(SLOTS % STEP_WARPS == 0 && SLOTS <= WARP_SIZE, "a lane for each slot's barriers");
enum : int {
    EARLY_TILES = SLOTS < BYTES_BEFORE / (8 * HEAD_ROW) ? SLOTS : BYTES_BEFORE / (8 * HEAD_ROW)
};  // of the head, in that room
constexpr int CHUNKS_OF_ROW = ROW_COLUMNS / CHUNK;

// Warps that share a tile of eight rows of a product over all channels; tiles are assigned to such groups in turn.
template <int ROWS>
struct Split
{
    static constexpr int TILES = ceil_div(ROWS, 8), WANTED = STEP_WARPS / TILES;
    static constexpr int WARPS = WANTED < 1                              ? 1
                                 : WANTED >= 4 && CHUNKS_OF_ROW % 4 == 0 ? 4
                                 : WANTED >= 3 && CHUNKS_OF_ROW % 3 == 0 ? 3
                                 : WANTED >= 2 && CHUNKS_OF_ROW % 2 == 0 ? 2
                                                                         : 1;
    static constexpr int CHUNKS = CHUNKS_OF_ROW / WARPS, GROUPS = STEP_WARPS / WARPS;
};
using QkvSplit = Split<3 * HEAD_ROWS>;
using FcSplit = Split<MOST_HIDDEN / CLUSTER>;
constexpr int PARTIALS_QKV = QkvSplit::TILES * QkvSplit::WARPS, PARTIALS_FC = FcSplit::TILES * FcSplit::WARPS;
constexpr int PARTIALS = 8 * (PARTIALS_QKV > PARTIALS_FC ? PARTIALS_QKV : PARTIALS_FC);

// Data exchanged between blocks of a cluster, double-buffered: while one copy is read the next may already arrive.
struct ExchangeBuffers
{
    alignas(16) float x[2][C];
    float2 moments[2][C / 8];  // of eight neighbouring elements of x: their sum and sum of squares
    alignas(16) float qkv[2][3 * HS];
    alignas(16) float heads[2][CLUSTER][HS + 4];  // a part's outputs, its largest score, its sum
    alignas(16) Factor hidden[2][FC2_COLUMNS];
    alignas(16) Factor vector[2 * ROW_COLUMNS];  // the vector that rows are multiplied by, and its rounding errors
    alignas(16) Factor head_vector[2 * PROJ_COLUMNS];
    alignas(16) float outputs[STEP_WARPS][HS];  // partial outputs over each warp's keys
    alignas(16) float tops[STEP_WARPS], sums[STEP_WARPS];
    float partial[PARTIALS];
    Best winners[STEP_WARPS];
    uint64_t x_full[2], qkv_full[2], heads_full[2], hidden_full[2];
    uint64_t x_read;  // barrier: how many of the cluster's blocks have read the phase's x and everything before it
    uint64_t full[BUFFERS], empty[BUFFERS], tile_full[SLOTS], tile_empty[SLOTS];
};
constexpr unsigned X_BYTES = C * 4 + C / 8 * 8, QKV_BYTES = 3 * HS * 4, HEADS_BYTES = CLUSTER * (HS + 4) * 4;
#ifdef RUNG_SANITIZED
constexpr int ARRIVING = WARP_SIZE;
#else
constexpr int ARRIVING = 1;
#endif

__device__ __forceinline__ void st_async4(const void* to, const uint64_t* barrier, int peer, float4 v)
{
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                     cluster_address(to, peer)),
                 "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(cluster_address(barrier, peer))
                 : "memory");
}
__device__ __forceinline__ void st_async2(const void* to, const uint64_t* barrier, int peer, float2 v)
{
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(
                     cluster_address(to, peer)),
                 "f"(v.x), "f"(v.y), "r"(cluster_address(barrier, peer))
                 : "memory");
}
__device__ __forceinline__ void st_async1(const void* to, const uint64_t* barrier, int peer, uint32_t v)
{
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(cluster_address(to, peer)), "r"(v),
        "r"(cluster_address(barrier, peer))
        : "memory");
}

// Waits for the data of the cluster's blocks, which arrive in this block's own shared memory. The scope of the wait is the block:
// a wait of cluster scope invalidates the L1 cache each time. One thread then rearms the barrier for the exchange after next.
__device__ __forceinline__ void await_cluster(uint64_t* barrier, unsigned parity, unsigned next_bytes)
{
    byte_barrier_wait(barrier, parity);
    if (threadIdx.x == 0) byte_barrier_expect(barrier, next_bytes);
}

__device__ __forceinline__ void sync_computing() { sync_first<THREADS>(); }

// ---- partial sums through L2 ------------------------------------------------------------------------------------

// Four floats and the layer's epoch in 16 bytes: two of the epoch's low eight bits in the two low bits of each float.
__device__ __forceinline__ uint32_t with_epoch_bits(float x, uint32_t epoch, int i)
{
    return (__float_as_uint(x) & ~3u) | (epoch >> (2 * i) & 3u);
}
__device__ __forceinline__ float without_epoch_bits(uint32_t word) { return __uint_as_float(word & ~3u); }
__device__ __forceinline__ uint32_t epoch_bits(const Parcel& p)
{
    return (p.word[0] & 3u) | (p.word[1] & 3u) << 2 | (p.word[2] & 3u) << 4 | (p.epoch & 3u) << 6;
}

// Indexed by the epoch's parity, then (four outputs, part). Attention's parts are heads, the MLP's are clusters.
template <int PARTS_>
struct PartSums
{
    static constexpr int STRIDE = ceil_div(PARTS_, 16) * 16, SIZE = 2 * (C / 4) * STRIDE;
    Parcel* mail;

    __device__ __forceinline__ Parcel* at(uint32_t epoch, int column, int part) const
    {
        return mail + (int(epoch & 1) * (C / 4) + column) * STRIDE + part;
    }
};
static_assert(PartSums<NH>::SIZE + PartSums<CLUSTERS>::SIZE + BLOCKS == PARCELS, "as the header has it");

// Sends eight rows' sums, which lanes 0, 4, 8 ... hold, to the blocks that add them up.
template <int PARTS_>
__device__ __forceinline__ void send_sums(const PartSums<PARTS_>& to, uint32_t epoch, int column, int part, float sum)
{
    const int lane = lane_id();
    float v[4];
#pragma unroll
    for (int k = 0; k < 4; k++) v[k] = __shfl_sync(ALL_LANES, sum, (lane & 16) + 4 * k);
    if (lane % 16 == 0)
        send(to.at(epoch, column + lane / 16, part), with_epoch_bits(v[0], epoch, 0), with_epoch_bits(v[1], epoch, 1),
             with_epoch_bits(v[2], epoch, 2), with_epoch_bits(v[3], epoch, 3));
}

// Four outputs' sums over all parts, by half a warp: output lane % 16 / 4 in each lane.
template <int PARTS_>
__device__ __forceinline__ float add_parts(const PartSums<PARTS_>& from, uint32_t epoch, int column)
{
    const int lane = lane_id(), own = lane % 16;
    float v[4] = {};
#pragma unroll
    for (int first = 0; first < PARTS_; first += 16) {
        const Parcel* at = from.at(epoch, column, first + own);
        Parcel p = look_if(first + own < PARTS_, at, epoch >> 6 & 3u);
        if (first + own < PARTS_) {
            // perhaps never one turn: what is not there yet takes a while
            while (epoch_bits(p) != (epoch & 255u)) p = look(at);
            v[0] += without_epoch_bits(p.word[0]), v[1] += without_epoch_bits(p.word[1]), v[2] += without_epoch_bits(p.word[2]),
                v[3] += without_epoch_bits(p.epoch);
        }
    }
    __syncwarp();
    const bool upper = lane & 8, odd = lane & 4;
    const float a = (upper ? v[2] : v[0]) + __shfl_xor_sync(ALL_LANES, upper ? v[0] : v[2], 8);
    const float b = (upper ? v[3] : v[1]) + __shfl_xor_sync(ALL_LANES, upper ? v[1] : v[3], 8);
    float sum = (odd ? b : a) + __shfl_xor_sync(ALL_LANES, odd ? a : b, 4);
    sum += __shfl_xor_sync(ALL_LANES, sum, 2);
    return sum + __shfl_xor_sync(ALL_LANES, sum, 1);
}

// ---- products ---------------------------------------------------------------------------------------------------

// Up to eight rows times a vector in shared memory, N chunks of 32 columns: lanes 0, 4, 8 ... get the sum of row lane / 4. As in
// products_tensor_cores.cuh the vector's even and odd words are two columns of the tensor cores' tile, and their rounding errors,
// `errors_at` bytes further, two more.
template <int N, bool WITH_ERRORS>
__device__ __forceinline__ float tile_sum(Address rows, int stride, int first, int last, Address vector, int errors_at)
{
    constexpr int AT_ONCE = N <= 8 ? N : N % 8 == 0 ? 8 : N % 6 == 0 ? 6 : N % 5 == 0 ? 5 : N % 4 == 0 ? 4 : 1;
    const int g = lane_id() / 4, t = lane_id() % 4;
    const bool wanted = g < (WITH_ERRORS ? 4 : 2);
    const Address from = rows + min(first + g, last) * stride + t * 16;
    const Address x = vector + t * 16 + g % 2 * 4 + (WITH_ERRORS && g / 2 % 2 ? errors_at : 0);
    float acc[2][4] = {};
#pragma unroll
    for (int chunk = 0; chunk < N; chunk += AT_ONCE) {
        uint4 a[AT_ONCE];
        uint32_t b[AT_ONCE][2];
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            b[i][0] = b[i][1] = 0;
            if (wanted) b[i][0] = at<uint32_t>(x + (chunk + i) * 64), b[i][1] = at<uint32_t>(x + (chunk + i) * 64 + 8);
            a[i] = at<uint4>(from + (chunk + i) * 64);
        }
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            const uint32_t words[4] = {a[i].x, a[i].y, a[i].z, a[i].w};
            mma_m16n8k16<Factor>(acc[(chunk + i) % 2], words, b[i]);
        }
    }
    const float sum = (acc[0][0] + acc[1][0]) + (acc[0][3] + acc[1][3]);
    return WITH_ERRORS ? sum + __shfl_xor_sync(ALL_LANES, sum, 1) : sum;
}

// A vector's columns for products of up to eight rows, and such a product. 16-bit vectors are read with the rows.
template <int N, bool WITH_ERRORS, bool SWAPPED = false, bool EIGHT = SCALED>
struct Product
{
    const Factor* vector;
    int errors_at, part;  // which N chunks of the vector

    __device__ __forceinline__ float sum(Address rows, int stride, int first, int last) const
    {
        return tile_sum<N, WITH_ERRORS>(rows, stride, first, last, shared_address(vector) + part * N * 64, errors_at * 2);
    }
    static __device__ __forceinline__ int writer(int) { return 0; }  // the lane of four that has a row's sum
};

// With 8-bit rows a lane has sixteen columns of a chunk, of which one column of the tensor cores' tile takes the first eight, the
// other the last. Rows whose length is a multiple of 128 bytes all begin in the same bank: if SWAPPED, odd rows are multiplied by
// neighbouring chunks in the other order, for which the tile's other four columns have the vector.
template <int N, bool WITH_ERRORS, bool SWAPPED>
struct Product<N, WITH_ERRORS, SWAPPED, true>
{
    static_assert(!SWAPPED || (WITH_ERRORS && N % 2 == 0), "pairs of chunks");
    static constexpr int AT_ONCE = N <= 8 ? N : N % 6 == 0 ? 6 : N % 8 == 0 ? 8 : N % 4 == 0 ? 4 : N % 2 == 0 ? 2 : 1;
    uint4 x[N];

    __device__ __forceinline__ Product(const Factor* vector, int errors_at, int part)
    {
        const int g = lane_id() / 4, t = lane_id() % 4, other = SWAPPED ? g / 4 * 128 : 0;
        const Address from =
            shared_address(vector) + part * N * 128 + t * 32 + g % 2 * 16 + (WITH_ERRORS && g / 2 % 2 ? errors_at * 2 : 0);
#pragma unroll
        for (int i = 0; i < N; i++) {
            x[i] = make_uint4(0, 0, 0, 0);
            if (SWAPPED || g < (WITH_ERRORS ? 4 : 2)) x[i] = at<uint4>(from + i * 128 + (i % 2 ? -other : other));
        }
    }
    __device__ __forceinline__ float sum(Address rows, int stride, int first, int last) const
    {
        const int g = lane_id() / 4, t = lane_id() % 4, other = SWAPPED ? g % 2 * 64 : 0;
        const Address from = rows + min(first + g, last) * stride + t * 16;
        float acc[2][4] = {};
#pragma unroll
        for (int chunk = 0; chunk < N; chunk += AT_ONCE) {
            uint4 a[AT_ONCE];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) a[i] = at<uint4>(from + (chunk + i) * 64 + ((chunk + i) % 2 ? -other : other));
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                multiply(acc[0], a[i].x, a[i].z, x[chunk + i].x, x[chunk + i].y);
                multiply(acc[1], a[i].y, a[i].w, x[chunk + i].z, x[chunk + i].w);
            }
        }
        const float sum = (acc[0][0] + acc[1][0]) + (acc[0][3] + acc[1][3]);
        return WITH_ERRORS ? sum + __shfl_xor_sync(ALL_LANES, sum, 1) : sum;
    }
    static __device__ __forceinline__ int writer(int row) { return SWAPPED ? row % 2 * 2 : 0; }

    // Four bytes of a row times the words of the even column, and four more times those of the odd one.
    static __device__ __forceinline__ void multiply(float (&acc)[4], uint32_t even, uint32_t odd, uint32_t x0, uint32_t x1)
    {
        uint32_t a[4];
        as_halves(even, a[0], a[2]), as_halves(odd, a[1], a[3]);
        const uint32_t b[2] = {x0, x1};
        mma_m16n8k16<Factor>(acc, a, b);
    }
};

__device__ __forceinline__ float activated(float x)
{
    if (ACT != 0) return activate<ACT>(x);
    return __fdividef(x, 1.0f + __expf(-1.5957691216f * (x + 0.044715f * x * x * x)));
}

// ---- the step ---------------------------------------------------------------------------------------------------

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
    const float *qkv_s = nullptr, *proj_s = nullptr, *fc_s = nullptr, *fc2_s = nullptr,
                *head_s = nullptr;  // of 8-bit rows
};

// Loads for the next phase: the compiler would move an ordinary load to where its value is used.
__device__ __forceinline__ uint32_t load_pair_now(const Real* from)
{
    uint32_t bits;
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(bits) : "l"(from));
    return bits;
}
__device__ __forceinline__ float ask_scale(const float* from)
{
    uint32_t bits;
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(bits) : "l"(from));
    return __uint_as_float(bits);
}
__device__ __forceinline__ uint32_t load_now(const Real* from)
{
    uint16_t bits;
    asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(bits) : "l"(from));
    return bits;
}
__device__ __forceinline__ float lower(uint32_t bits) { return weight_at(make_uint4(bits, 0, 0, 0), 0, (const Real*)nullptr); }
__device__ __forceinline__ float upper(uint32_t bits) { return weight_at(make_uint4(bits, 0, 0, 0), 1, (const Real*)nullptr); }

// The stopwatch's cells.
enum Account { ATTENTION, MLP, HEAD, COPYING, ACCOUNTS };
enum Spent { PARTS_L2, IN_CLUSTER, NORM, WEIGHTS, PRODUCTS, KEYS, FREE_BUFFER, COSTS };
using Watch = Stopwatch<ACCOUNTS, COSTS>;

struct ClusterStep
{
    const Model& m;
    ExchangeBuffers& s;
    Address weights;  // in shared memory, indexed by Buffer
    const int rank, cluster, hidden_begin, hidden;
    const RowPartition<1> vocabulary;
    Watch watch;
    int length = 0;

    __device__ __forceinline__ ClusterStep(const Model& model, ExchangeBuffers& shared, const void* storage,
                                           const Watch& stopwatch)
        : m(model), s(shared), weights(smem_address(storage)), rank(cluster_rank()), cluster(blockIdx.x / CLUSTER),
          hidden_begin(UNIT_WIDTH * (cluster * LEAST_UNITS + min(cluster, LONGER))),
          hidden(UNIT_WIDTH * (LEAST_UNITS + (cluster < LONGER))), vocabulary(V), watch(stopwatch)
    {
    }
    __device__ __forceinline__ void wait_for_input()
    {
        pdl_wait();
        length = load_fresh(m.lengths);
    }
    // The block's share of a head's cached keys.
    __device__ __forceinline__ int keys_first() const { return min(length, rank * ceil_div(length, CLUSTER)); }
    __device__ __forceinline__ int keys() const { return min(length, (rank + 1) * ceil_div(length, CLUSTER)) - keys_first(); }
};

// The producer thread: independently of the others, it fills each buffer as soon as it is free.
struct Filler
{
    ClusterStep& step;
    unsigned uses[BUFFERS] = {};
    int tiles_early = 0;  // tiles of the head that have been requested before their turn

    __device__ __forceinline__ void begin(int buffer, unsigned bytes)
    {
        const unsigned before = uses[buffer]++;
        if (before > 0) {
            step.watch.start(COPYING, FREE_BUFFER);
            byte_barrier_wait(step.s.empty + buffer, (before - 1) % 2);
            step.watch.start(COPYING, WEIGHTS);
        }
        byte_barrier_expect(step.s.full + buffer, bytes);
    }

    __device__ __forceinline__ void rows(Address to, int stride, const Weight* from, int count, int from_stride, unsigned bytes,
                                         const uint64_t* barrier)
    {
        const Address there = shared_address(barrier);
#pragma unroll 4
        for (int r = 0; r < count; r++, to += stride, from += from_stride) bulk_copy(to, from, bytes, there);
    }

    __device__ __forceinline__ void qkv(int layer, int head)
    {
        begin(AT_QKV, 3 * HEAD_ROWS * C * SIZE);
#pragma unroll 1
        for (int which = 0; which < 3; which++)
            rows(step.weights + BEGIN[AT_QKV] + which * HEAD_ROWS * ROW, ROW,
                 step.m.qkv_w + (size_t(layer) * 3 * C + which * C + head * HS + step.rank * HEAD_ROWS) * C, HEAD_ROWS, C,
                 C * SIZE, step.s.full + AT_QKV);
    }
    __device__ __forceinline__ void keys(int layer, int head)
    {
        const int count = step.keys();
        if (count == 0) return;
        begin(AT_KEYS, 2 * count * KEY_BYTES);
        const size_t from = cached(layer, 0, head, step.keys_first());
        const Address to = step.weights + BEGIN[AT_KEYS], there = shared_address(step.s.full + AT_KEYS);
        bulk_copy(to, step.m.k_cache + from, count * KEY_BYTES, there);
        bulk_copy(to + MOST_KEYS * KEY_BYTES, step.m.v_cache + from, count * KEY_BYTES, there);
    }
    __device__ __forceinline__ void projection(int layer, int head)
    {
        begin(AT_PROJ, OUTPUTS * HS * SIZE);
        rows(step.weights + BEGIN[AT_PROJ], PROJ_ROW, step.m.proj_w + (size_t(layer) * C + step.rank * OUTPUTS) * C + head * HS,
             OUTPUTS, C, HS * SIZE, step.s.full + AT_PROJ);
    }
    __device__ __forceinline__ void mlp(int layer)
    {
        const int own = step.hidden / CLUSTER;
        begin(AT_FC, own * C * SIZE);
        rows(step.weights + BEGIN[AT_FC], ROW, step.m.fc_w + (size_t(layer) * F + step.hidden_begin + step.rank * own) * C, own,
             C, C * SIZE, step.s.full + AT_FC);
        begin(AT_FC2, OUTPUTS * step.hidden * SIZE);
        rows(step.weights + BEGIN[AT_FC2], FC2_ROW,
             step.m.fc2_w + (size_t(layer) * C + step.rank * OUTPUTS) * F + step.hidden_begin, OUTPUTS, F, step.hidden * SIZE,
             step.s.full + AT_FC2);
    }

    // One tile for each warp, then the next for each; the first ones go where the last layer's weights were.
    __device__ __forceinline__ void head()
    {
        const int own = step.vocabulary.count(blockIdx.x), tiles = ceil_div(own, 8);
        const Weight* from = step.m.head_w + size_t(step.vocabulary.begin(blockIdx.x)) * C;
        int free = 0;  // buffers that are no longer needed
#pragma unroll 1
        // perhaps never skipped: only int8 fetches all its tiles early
        for (int tile = SCALED ? tiles_early : 0; tile < tiles; tile++) {
            const int slot = tile % SLOTS, count = min(8, own - tile * 8);
            step.watch.start(COPYING, FREE_BUFFER);
            // perhaps never true: few tokens have no more tiles than slots
            if (tile >= SLOTS) byte_barrier_wait(step.s.tile_empty + slot, (tile / SLOTS - 1) % 2);
#pragma unroll
            for (int buffer = 0; buffer < AT_KEYS; buffer++)
                if (free == buffer && BEGIN[buffer] < (slot + 1) * 8 * HEAD_ROW) {
                    if (uses[buffer] > 0) byte_barrier_wait(step.s.empty + buffer, (uses[buffer] - 1) % 2);
                    free++;
                }
            step.watch.start(COPYING, WEIGHTS);
            fetch(from + size_t(tile) * 8 * C, slot, count);
        }
    }
    __device__ __forceinline__ void fetch(const Weight* from, int slot, int count)
    {
        byte_barrier_expect(step.s.tile_full + slot, count * C * SIZE);
        if (HEAD_ROW == C * SIZE)
            bulk_copy(step.weights + slot * 8 * HEAD_ROW, from, count * C * SIZE, shared_address(step.s.tile_full + slot));
        else
            rows(step.weights + slot * 8 * HEAD_ROW, ROW, from, count, C, C * SIZE, step.s.tile_full + slot);
    }

    // Tiles that fit next to a layer's weights, some with each layer except the first.
    __device__ __forceinline__ void tiles_of_the_head(int layer)
    {
        if (layer == 0) return;
        const int own = step.vocabulary.count(blockIdx.x), each = ceil_div(int(EARLY_TILES), L - 1);
        const int last = min(min(tiles_early + each, int(EARLY_TILES)), ceil_div(own, 8));
        const Weight* from = step.m.head_w + size_t(step.vocabulary.begin(blockIdx.x)) * C;
#pragma unroll 1
        for (; tiles_early < last; tiles_early++)
            fetch(from + size_t(tiles_early) * 8 * C, tiles_early, min(8, own - tiles_early * 8));
    }

    __device__ __forceinline__ void run()
    {
#pragma unroll 1
        for (int layer = 0; layer < L; layer++) {
            const bool waits = ONE_HEAD && layer == 0;  // no kernel writes weights; the previous step writes keys
            if (!ONE_HEAD && layer == 0) step.wait_for_input();
#pragma unroll 1
            for (int head = step.cluster; head < NH; head += CLUSTERS) {
                qkv(layer, head);
                if (!waits) keys(layer, head);
                projection(layer, head);
            }
            mlp(layer);
            if (waits) {
                step.wait_for_input();
                if (step.cluster < NH) keys(layer, step.cluster);
            }
            if constexpr (EARLY_TILES > 0 && L > 1) tiles_of_the_head(layer);
            prefetch_head(layer);
        }
        head();
    }

    // Prefetches into L2, while memory is idle: rows of the head beyond those that fit into shared memory. Layers of eight bits
    // leave memory idle long enough for the last half of them to do so; earlier prefetches would be evicted again.
    __device__ __forceinline__ void prefetch_head(int layer)
    {
        constexpr int FIRST = SCALED ? L / 2 : 0;
        // perhaps never true: layers of 16 bits all do so
        if (HEAD_AHEAD == 0 || layer < FIRST) return;
        const int own = step.vocabulary.count(blockIdx.x);
        const int each = HEAD_AHEAD * 1024 / (SIZE * C), first = SLOTS * 8 + (layer - FIRST) * each,
                  count = min(each, own - first);
        // perhaps never true: few tokens fit into shared memory
        if (count > 0)
            asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(
                             step.m.head_w + size_t(step.vocabulary.begin(blockIdx.x) + first) * C),
                         "r"(count * C * SIZE)
                         : "memory");
    }
};

struct Computing
{
    static constexpr int PAIRS = ceil_div(C / 2, THREADS);  // of channels per thread in the norm
    static constexpr int COLUMNS = OUTPUTS / 4, PASSES = ceil_div(COLUMNS, 2 * STEP_WARPS);

    ClusterStep& step;
    const PartSums<NH> after_attention;
    const PartSums<CLUSTERS> after_mlp;
    Parcel* const best_mail;
    uint32_t epoch;  // of the layer
    float residual[PASSES] = {}, mean_before = 0.0f;
    uint32_t bias[PASSES], gain[PAIRS], shift[PAIRS];  // of the next norm, loaded one phase ahead
    uint32_t row_bias, next_row_bias;                  // of the product's rows that the thread sends, and of the next phase's
    float output_scale[PASSES], row_scale[2];          // of the same rows, if they have scales
    unsigned used[BUFFERS] = {};

    __device__ __forceinline__ int column(int pass) const { return (pass * STEP_WARPS + warp_id()) * 2 + lane_id() / 16; }
    __device__ __forceinline__ int output(int pass) const { return step.rank * OUTPUTS + column(pass) * 4 + lane_id() % 16 / 4; }

    // For phase `phase`: loads gain and shift of its norm, and the biases of its product's rows.
    __device__ __forceinline__ void preload_vectors(int phase)
    {
        const Model& m = step.m;
        const int layer = phase / 2;
        const Real* g = phase == 2 * L ? +m.lnf_w : (phase % 2 ? +m.ln2_w : +m.ln1_w) + size_t(layer) * C;
        const Real* b = phase == 2 * L ? +m.lnf_b : (phase % 2 ? +m.ln2_b : +m.ln1_b) + size_t(layer) * C;
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            const int pair = min(int(threadIdx.x) + i * THREADS, C / 2 - 1);
            gain[i] = load_pair_now(g + 2 * pair), shift[i] = load_pair_now(b + 2 * pair);
        }
        if (phase > 0) {
            const Real* added = phase % 2 ? m.proj_b + size_t(layer) * C : m.fc2_b + size_t(layer - 1) * C;
#pragma unroll
            for (int i = 0; i < PASSES; i++) bias[i] = load_now(added + min(output(i), C - 1));
            if (SCALED) {
                const float* scales = phase % 2 ? m.proj_s + size_t(layer) * C : m.fc2_s + size_t(layer - 1) * C;
#pragma unroll
                for (int i = 0; i < PASSES; i++) output_scale[i] = ask_scale(scales + min(output(i), C - 1));
            }
        }
    }
    // Biases of the rows that the thread sends in phase `phase`: one of a head's product, two of the MLP's.
    __device__ __forceinline__ void preload_row_biases(int phase, int head)
    {
        const Model& m = step.m;
        const int item = threadIdx.x / CLUSTER, layer = phase / 2, own = step.hidden / CLUSTER;
        if (phase % 2) {
            next_row_bias =
                load_pair_now(m.fc_b + size_t(layer) * F + step.hidden_begin + step.rank * own + min(2 * item, own - 2));
        } else if (phase < 2 * L) {
            const int row = min(item, 3 * HEAD_ROWS - 1), at = step.rank * HEAD_ROWS + row % HEAD_ROWS;
            next_row_bias = load_now(m.qkv_b + size_t(layer) * 3 * C + row / HEAD_ROWS * C + min(head, NH - 1) * HS + at);
        }
    }
    // The same rows' scales, loaded in the phase itself before its input vector, since registers are scarce.
    __device__ __forceinline__ void ask_for_row_scales(int phase, int head)
    {
        const Model& m = step.m;
        const int item = threadIdx.x / CLUSTER, layer = phase / 2, own = step.hidden / CLUSTER;
        if (phase % 2) {
            const float* from = m.fc_s + size_t(layer) * F + step.hidden_begin + step.rank * own + min(2 * item, own - 2);
            row_scale[0] = ask_scale(from), row_scale[1] = ask_scale(from + 1);
        } else if (phase < 2 * L) {
            const int row = min(item, 3 * HEAD_ROWS - 1), at = step.rank * HEAD_ROWS + row % HEAD_ROWS;
            row_scale[0] = ask_scale(m.qkv_s + size_t(layer) * 3 * C + row / HEAD_ROWS * C + min(head, NH - 1) * HS + at);
        } else {
            const int token = step.vocabulary.begin(blockIdx.x) + warp_id() * 8 + lane_id() / 4;
            row_scale[0] = ask_scale(m.head_s + min(token, V - 1));
        }
    }

    __device__ __forceinline__ void await(int buffer)
    {
        step.watch.start(WEIGHTS);
        byte_barrier_wait(step.s.full + buffer, used[buffer]++ % 2);
        step.watch.start(PRODUCTS);
    }
    __device__ __forceinline__ void release(uint64_t* barrier)
    {
        __syncwarp();
        if (lane_id() < ARRIVING) byte_barrier_arrive(barrier);
    }

    // The same, for a buffer whose results are in flight through L2: the next weights would delay other blocks' data.
    __device__ __forceinline__ void release_late(int buffer)
    {
        if (ONE_HEAD && LATE_REFILL > 0) release(step.s.empty + buffer);
    }

    // The residual stream: a block adds up its own outputs and sends them to its cluster, with their moments; then the norm.
    __device__ __forceinline__ void receive(int phase)
    {
        ExchangeBuffers& s = step.s;
        const int lane = lane_id(), k = phase & 1;
        const int account = phase == 2 * L ? HEAD : k ? MLP : ATTENTION;
        step.watch.start(account, PARTS_L2);
        if (phase > 0) byte_barrier_wait(&s.x_read, (phase - 1) % 2);
        if (phase > 0) delay_polling(k && step.cluster >= NH ? POLL_DELAY_IDLE_CYCLES : POLL_DELAY_CYCLES);
#pragma unroll
        for (int i = 0; i < PASSES; i++) {
            if (column(i) - lane / 16 >= COLUMNS) break;
            const int own = step.rank * COLUMNS + column(i);
            if (phase > 0)
                residual[i] +=
                    scaled(k ? add_parts(after_attention, epoch, own) : add_parts(after_mlp, epoch - 1, own), output_scale[i]) +
                    lower(bias[i]);
            float v[4], sum = 0.0f, square = 0.0f;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                v[j] = __shfl_sync(ALL_LANES, residual[i], (lane & 16) + 4 * j);
                sum += v[j] - mean_before, square += (v[j] - mean_before) * (v[j] - mean_before);
            }
            if (lane % 16 < CLUSTER) st_async4(s.x[k] + own * 4, s.x_full + k, lane % 16, make_float4(v[0], v[1], v[2], v[3]));
            sum += __shfl_xor_sync(ALL_LANES, sum, 16), square += __shfl_xor_sync(ALL_LANES, square, 16);
            if (lane >= 8 && lane < 8 + CLUSTER)
                st_async2(s.moments[k] + own / 2, s.x_full + k, lane - 8, make_float2(sum, square));
        }
        step.watch.start(IN_CLUSTER);
        await_cluster(s.x_full + k, phase / 2 % 2, X_BYTES);
        step.watch.start(NORM);
        if (phase > 0) {
            if (k ? step.cluster < NH : true) release_late(k ? AT_PROJ : AT_FC2);
            // perhaps never true: LATE_REFILL is less
            if (k == 0 && phase < 2 * L && LATE_REFILL > 1) release_late(AT_FC);
        }
        float sum = 0.0f, square = 0.0f;
#pragma unroll
        for (int i = 0; i < ceil_div(C / 8, WARP_SIZE); i++)
            if (lane + i * WARP_SIZE < C / 8) {
                const float2 moments = s.moments[k][lane + i * WARP_SIZE];
                sum += moments.x, square += moments.y;
            }
#pragma unroll
        for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2) {  // both sums at once
            const float other = __shfl_xor_sync(ALL_LANES, sum, offset);
            square += __shfl_xor_sync(ALL_LANES, square, offset), sum += other;
        }
        const float shifted = sum * (1.0f / C), mean = mean_before + shifted;
        const float rstd = rsqrtf(fmaxf(square * (1.0f / C) - shifted * shifted, 0.0f) + step.m.eps);
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            const int pair = threadIdx.x + i * THREADS;
            if (pair >= C / 2) break;
            const float2 x = *reinterpret_cast<const float2*>(s.x[k] + 2 * pair);
            const float a = (x.x - mean) * rstd * lower(gain[i]) + lower(shift[i]);
            const float b = (x.y - mean) * rstd * upper(gain[i]) + upper(shift[i]);
            set_pair(s.vector, ROW_COLUMNS, pair, a, b);
        }
        mean_before = mean;
        sync_computing();
        if (phase < 2 * L && threadIdx.x < CLUSTER) byte_barrier_arrive_at(&s.x_read, threadIdx.x);
    }
    static __device__ __forceinline__ void set_pair(Factor* vector, int errors_at, int pair, float a, float b)
    {
        a = within_range(a), b = within_range(b);
        const uint32_t near = pack2<Factor>(a, b);
        const auto rest = [&](float v, int i) { return v - weight_at(make_uint4(near, 0, 0, 0), i, (const Factor*)nullptr); };
        reinterpret_cast<uint32_t*>(vector)[pair] = near;
        reinterpret_cast<uint32_t*>(vector + errors_at)[pair] = pack2<Factor>(rest(a, 0), rest(b, 1));
    }

    // Rows of C columns times the vector; a row's parts lie Split::WARPS apart.
    template <class S>
    __device__ __forceinline__ void multiply_rows(int buffer, int rows, bool late)
    {
        const int part = warp_id() % S::WARPS;
        const Product<S::CHUNKS, true> x = {step.s.vector, ROW_COLUMNS, part};
        await(buffer);
        // perhaps never false: most shapes have work for every warp
        if (warp_id() < S::WARPS * S::GROUPS)
#pragma unroll
            for (int tile = 0; tile < S::TILES; tile += S::GROUPS) {
                const int own = tile + warp_id() / S::WARPS;
                if (own >= S::TILES) break;
                const float sum = x.sum(step.weights + BEGIN[buffer] + part * S::CHUNKS * 64, ROW, own * 8, rows - 1);
                if (lane_id() % 4 == 0) step.s.partial[(own * 8 + lane_id() / 4) * S::WARPS + part] = sum;
            }
        if (!late) release(step.s.empty + buffer);
        sync_computing();
    }
    template <class S>
    __device__ __forceinline__ float row_sum(int row) const
    {
        float sum = step.s.partial[row * S::WARPS];
#pragma unroll
        for (int i = 1; i < S::WARPS; i++) sum += step.s.partial[row * S::WARPS + i];
        return sum;
    }

    // Each warp computes tiles of the block's outputs over the columns whose inputs the cluster holds: partial sums for all
    // clusters.
    template <int N, bool WITH_ERRORS, int PARTS_>
    __device__ __forceinline__ void multiply_outputs(int buffer, int stride, const Factor* vector, int errors_at,
                                                     const PartSums<PARTS_>& to, int part)
    {
        const Product<N, WITH_ERRORS> x = {vector, errors_at, 0};
        await(buffer);
#pragma unroll
        for (int tile = 0; tile < OUTPUTS / 8; tile += STEP_WARPS) {
            const int own = tile + warp_id();
            if (own >= OUTPUTS / 8) break;
            const float sum = x.sum(step.weights + BEGIN[buffer], stride, own * 8, OUTPUTS - 1);
            send_sums(to, epoch, step.rank * COLUMNS + own * 2, part, sum);
        }
        if (!ONE_HEAD || LATE_REFILL == 0) release(step.s.empty + buffer);
    }

    __device__ __forceinline__ void attention(int layer)
    {
        const Model& m = step.m;
        ExchangeBuffers& s = step.s;
        const float scale = (BY_LAYER ? m.scale / (layer + 1) : m.scale) * 1.44269504f;  // for exp2
#pragma unroll 1
        // never skipped: a cluster without a head does not get here
        for (int head = step.cluster; head < NH; head += CLUSTERS) {
            const unsigned phase = used[AT_QKV];
            const int k = phase % 2;
            const unsigned parity = phase / 2 % 2;
            if (head != step.cluster) {  // not prefetched
                const uint32_t kept = next_row_bias;
                preload_row_biases(2 * layer, head), row_bias = next_row_bias, next_row_bias = kept;
                if (SCALED) ask_for_row_scales(2 * layer, head);
            }
            multiply_rows<QkvSplit>(AT_QKV, 3 * HEAD_ROWS, false);
            const int item = threadIdx.x, row = item / CLUSTER, which = row / HEAD_ROWS;
            if (item < 3 * HS) {  // each of a row's threads sends the sum to one block
                const float x = scaled(row_sum<QkvSplit>(row), row_scale[0]) + lower(row_bias);
                const int at = step.rank * HEAD_ROWS + row % HEAD_ROWS;
                st_async1(s.qkv[k] + which * HS + at, s.qkv_full + k, item % CLUSTER, __float_as_uint(x));
                if (item % CLUSTER == 0 && which > 0)
                    (which == 1 ? +m.k_cache : +m.v_cache)[cached(layer, 0, head, step.length) + at] = from_float<Real>(x);
            }
            step.watch.start(IN_CLUSTER);
            await_cluster(s.qkv_full + k, parity, QKV_BYTES);
            step.watch.start(KEYS);
            attend(s.qkv[k], scale);
            sync_computing();
            send_outputs_to_cluster(k);
            step.watch.start(IN_CLUSTER);
            await_cluster(s.heads_full + k, parity, HEADS_BYTES);
            step.watch.start(KEYS);
            merge_heads(k);
            sync_computing();
            multiply_outputs<PROJ_COLUMNS / CHUNK, true>(AT_PROJ, PROJ_ROW, s.head_vector, PROJ_COLUMNS, after_attention, head);
        }
    }

    // The warp's share of the block's keys.
    __device__ __forceinline__ void attend(const float* qkv, float scale)
    {
        constexpr int LANES = HS / VEC, AT_ONCE = WARP_SIZE / LANES;  // lanes per key, keys per access
        ExchangeBuffers& s = step.s;
        const int lane = lane_id(), warp = warp_id(), own = lane / LANES, piece = lane % LANES, count = step.keys();
        float q[VEC], sum[VEC] = {}, top = -INFINITY, l = 0.0f;
        const auto over_key = [](float x) {
#pragma unroll
            for (int offset = LANES / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(ALL_LANES, x, offset);
            return x;
        };
#pragma unroll
        for (int j = 0; j < VEC; j++) q[j] = qkv[piece * VEC + j] * scale;
        if (warp == STEP_WARPS - 1 && step.rank == CLUSTER - 1) {  // the new key and value, as cached
            float dot = 0.0f;
#pragma unroll
            for (int j = 0; j < VEC; j++) dot += to_float(from_float<Real>(qkv[HS + piece * VEC + j])) * q[j];
            top = over_key(dot);
            if (own == 0) {
                l = 1.0f;
#pragma unroll
                for (int j = 0; j < VEC; j++) sum[j] = to_float(from_float<Real>(qkv[2 * HS + piece * VEC + j]));
            }
        }
        if (count > 0) {
            await(AT_KEYS);
            step.watch.start(KEYS);
            const Address keys = step.weights + BEGIN[AT_KEYS] + piece * 16, values = keys + MOST_KEYS * KEY_BYTES;
#pragma unroll 1
            for (int begin = warp * AT_ONCE; begin < count; begin += STEP_WARPS * AT_ONCE * KEY_LOADS) {
                float score[KEY_LOADS], most = top;
#pragma unroll
                for (int i = 0; i < KEY_LOADS; i++) {
                    const int key = begin + own + i * (STEP_WARPS * AT_ONCE);
                    const uint4 bits = at<uint4>(keys + min(key, count - 1) * KEY_BYTES);
                    float dot = 0.0f;
#pragma unroll
                    for (int j = 0; j < VEC; j++) dot += weight_at(bits, j, (const Real*)nullptr) * q[j];
                    dot = over_key(dot);
                    score[i] = key < count ? dot : -INFINITY;
                    most = fmaxf(most, score[i]);
                }
#pragma unroll
                for (int offset = WARP_SIZE / 2; offset >= LANES; offset /= 2)
                    most = fmaxf(most, __shfl_xor_sync(ALL_LANES, most, offset));
                const float shrink = exp2f(top - most);
                top = most, l *= shrink;
#pragma unroll
                for (int j = 0; j < VEC; j++) sum[j] *= shrink;
#pragma unroll
                for (int i = 0; i < KEY_LOADS; i++) {
                    const int key = min(begin + own + i * (STEP_WARPS * AT_ONCE), count - 1);
                    const uint4 bits = at<uint4>(values + key * KEY_BYTES);
                    const float p = exp2f(score[i] - top);
                    l += p;
#pragma unroll
                    for (int j = 0; j < VEC; j++) sum[j] += p * weight_at(bits, j, (const Real*)nullptr);
                }
            }
            release(s.empty + AT_KEYS);
        }
#pragma unroll
        for (int offset = WARP_SIZE / 2; offset >= LANES; offset /= 2) {
            l += __shfl_xor_sync(ALL_LANES, l, offset);
#pragma unroll
            for (int j = 0; j < VEC; j++) sum[j] += __shfl_xor_sync(ALL_LANES, sum[j], offset);
        }
        if (lane == 0) s.tops[warp] = top, s.sums[warp] = l;
        if (own == 0)
#pragma unroll
            for (int j = 0; j < VEC; j++) s.outputs[warp][piece * VEC + j] = sum[j];
    }

    // Sends the block's part of a head's outputs to all blocks of the cluster: four elements per thread, or the part's weight.
    __device__ __forceinline__ void send_outputs_to_cluster(int k)
    {
        constexpr int EACH = HS / 4 + 1;
        static_assert(EACH * CLUSTER <= THREADS, "one access a thread");
        ExchangeBuffers& s = step.s;
        const int peer = threadIdx.x / EACH, j = threadIdx.x % EACH;
        if (peer >= CLUSTER) return;
        float most = s.tops[0];
#pragma unroll
        for (int w = 1; w < STEP_WARPS; w++) most = fmaxf(most, s.tops[w]);
        float4 y = {};
        float l = 0.0f;
#pragma unroll
        for (int w = 0; w < STEP_WARPS; w++) {
            const float weight = s.tops[w] == -INFINITY ? 0.0f : exp2f(s.tops[w] - most);
            if (j < HS / 4) {
                const float4 own = *reinterpret_cast<const float4*>(s.outputs[w] + j * 4);
                y.x += weight * own.x, y.y += weight * own.y, y.z += weight * own.z, y.w += weight * own.w;
            } else {
                l += weight * s.sums[w];
            }
        }
        st_async4(s.heads[k][step.rank] + j * 4, s.heads_full + k, peer, j < HS / 4 ? y : make_float4(most, l, 0.0f, 0.0f));
    }

    __device__ __forceinline__ void merge_heads(int k)
    {
        ExchangeBuffers& s = step.s;
        if (int(threadIdx.x) >= HS / 2) return;
        float most = -INFINITY, all = 0.0f;
        float2 y = {};
#pragma unroll
        for (int b = 0; b < CLUSTER; b++) most = fmaxf(most, s.heads[k][b][HS]);
#pragma unroll
        for (int b = 0; b < CLUSTER; b++) {
            const float weight = exp2f(s.heads[k][b][HS] - most);  // 0 for a block without keys
            const float2 own = *reinterpret_cast<const float2*>(s.heads[k][b] + 2 * threadIdx.x);
            all += weight * s.heads[k][b][HS + 1], y.x += weight * own.x, y.y += weight * own.y;
        }
        const float share = __fdividef(1.0f, all);
        set_pair(s.head_vector, PROJ_COLUMNS, threadIdx.x, y.x * share, y.y * share);
    }

    __device__ __forceinline__ void mlp(int layer)
    {
        ExchangeBuffers& s = step.s;
        const int own = step.hidden / CLUSTER, k = layer % 2;
        multiply_rows<FcSplit>(AT_FC, own, ONE_HEAD && LATE_REFILL > 1 && layer < L - 1);
#pragma unroll
        for (int first = 0; first < MOST_HIDDEN / 2; first += THREADS) {
            const int item = first + threadIdx.x, row = item / CLUSTER * 2;
            if (row >= own) break;
            // perhaps never true: only an MLP of gpt2's width has more pairs than threads
            if (first > 0) {
                const size_t at = size_t(layer) * F + step.hidden_begin + step.rank * own + row;
                row_bias = load_pair_now(step.m.fc_b + at);
                if (SCALED) row_scale[0] = ask_scale(step.m.fc_s + at), row_scale[1] = ask_scale(step.m.fc_s + at + 1);
            }
            const float a = activated(scaled(row_sum<FcSplit>(row), row_scale[0]) + lower(row_bias));
            const float b = activated(scaled(row_sum<FcSplit>(row + 1), row_scale[1]) + upper(row_bias));
            st_async1(s.hidden[k] + step.rank * own + row, s.hidden_full + k, item % CLUSTER,
                      pack2<Factor>(in_half(a), in_half(b)));
        }
        step.watch.start(IN_CLUSTER);
        await_cluster(s.hidden_full + k, layer / 2 % 2, step.hidden * 2);
        multiply_outputs<ceil_div(MOST_HIDDEN, CHUNK), false>(AT_FC2, FC2_ROW, s.hidden[k], 0, after_mlp, step.cluster);
    }

    // One tile at a time, each warp independently.
    __device__ __forceinline__ Best head()
    {
        const int begin = step.vocabulary.begin(blockIdx.x), own = step.vocabulary.count(blockIdx.x), warp = warp_id();
        Best best = {-INFINITY, INT_MAX};
        int round = 0;
        using Rows = Product<CHUNKS_OF_ROW, true, SCALED && C % 128 == 0>;
        const Rows kept = {step.s.vector, ROW_COLUMNS, 0};
#pragma unroll 1
        for (int tile = warp; tile * 8 < own; tile += STEP_WARPS, round++) {
            const int count = min(8, own - tile * 8), row = lane_id() / 4, token = begin + tile * 8 + row;
            const int slot = SCALED ? tile % SLOTS : warp, phase = SCALED ? tile / SLOTS : round;
            const float own_scale = row_scale[0];
            const Rows x = SCALED ? kept : Rows{step.s.vector, ROW_COLUMNS, 0};
            if (SCALED) row_scale[0] = ask_scale(step.m.head_s + min(token + STEP_WARPS * 8, V - 1));
            step.watch.start(WEIGHTS);
            byte_barrier_wait(step.s.tile_full + slot, phase % 2);
            step.watch.start(PRODUCTS);
            const float logit = scaled(x.sum(step.weights + slot * 8 * HEAD_ROW, HEAD_ROW, 0, count - 1), own_scale);
            release(step.s.tile_empty + slot);
            if (lane_id() % 4 == x.writer(row) && row < count) step.m.logits[token] = logit, best = better(best, {logit, token});
        }
        return warp_best(best);
    }

    // Each block sends its largest logit to the first block, which picks the token.
    __device__ __forceinline__ void pick(Best best)
    {
        ExchangeBuffers& s = step.s;
        if (lane_id() == 0) s.winners[warp_id()] = best;
        sync_computing();
        if (threadIdx.x == 0) {
            for (int w = 1; w < STEP_WARPS; w++) best = better(best, s.winners[w]);
            send(best_mail + blockIdx.x, __float_as_uint(best.value), uint32_t(best.index), 0, epoch);
        }
        if (blockIdx.x > 0 || warp_id() > 0) return;
        for (int i = lane_id(); i < BLOCKS; i += WARP_SIZE) {
            Parcel got[1];
            decode::receive(got, epoch, [&](int) { return best_mail + i; });
            best = better(best, {__uint_as_float(got[0].word[0]), int(got[0].word[1])});
        }
        best = warp_best(best);
        if (lane_id() == 0) *step.m.next = best.index;
    }

    __device__ __forceinline__ void run(int* clock)
    {
        const Model& m = step.m;
        preload_vectors(0), preload_row_biases(0, step.cluster);
        step.wait_for_input();
        epoch = uint32_t(load_fresh(clock + blockIdx.x)) + 1;
        const Real *token = m.wte + size_t(load_fresh(m.tokens)) * C, *position = m.wpe + size_t(step.length) * C;
#pragma unroll
        for (int i = 0; i < PASSES; i++) {
            const int channel = min(output(i), C - 1);
            residual[i] = to_float(token[channel]) + to_float(position[channel]);
        }
#pragma unroll 1
        for (int phase = 0; phase <= 2 * L; phase++) {
            if (SCALED) ask_for_row_scales(phase, step.cluster);
            receive(phase);
            if (phase == 2 * L) break;
            row_bias = next_row_bias;
            preload_vectors(phase + 1), preload_row_biases(phase + 1, step.cluster);
            if (phase % 2)
                mlp(phase / 2), epoch++;
            else if (step.cluster < NH)
                attention(phase / 2);
        }
        pick(head());
        if (threadIdx.x == 0) clock[blockIdx.x] = int(epoch);
    }
};

// Zeros where rows of C, or a head, end with half a chunk.
__device__ __forceinline__ void clear_half_chunks(ExchangeBuffers& s, uint4* storage)
{
    constexpr int WORDS = CHUNK / 4;
    uint32_t* const rows = reinterpret_cast<uint32_t*>(storage);
    // perhaps never several turns: half a chunk has few words; perhaps never one turn: in 16 bits all chunks are whole
    for (int i = threadIdx.x; PROJ_COLUMNS > HS && i < 2 * WORDS; i += THREADS + WARP_SIZE)
        reinterpret_cast<uint32_t*>(s.head_vector + i / WORDS * PROJ_COLUMNS)[HS / 2 + i % WORDS] = 0;
    // perhaps never several turns: half a chunk has few words; perhaps never one turn: in 16 bits all chunks are whole
    for (int i = threadIdx.x; ROW_COLUMNS > C && i < 2 * WORDS; i += THREADS + WARP_SIZE)
        reinterpret_cast<uint32_t*>(s.vector + i / WORDS * ROW_COLUMNS)[C / 2 + i % WORDS] = 0;
    // perhaps never skipped: whole chunks; perhaps never one turn: many words; perhaps never several turns: 16 bits
    for (int i = threadIdx.x; (PROJ_COLUMNS > HS || ROW_COLUMNS > C) && i < BEGIN[AT_FC2] / 4; i += THREADS + WARP_SIZE)
        rows[i] = 0;
    if (PROJ_COLUMNS > HS || ROW_COLUMNS > C) fence_async_proxy();  // copies write to the same memory
}

__device__ __forceinline__ void step_in_clusters(const Model& m, Parcel* mail, int* clock, int* spent)
{
    extern __shared__ uint4 storage[];
    __shared__ ExchangeBuffers s;
    pdl_launch_dependents();
    const bool copying = warp_id() == STEP_WARPS;
    const int first = copying ? int(COPYING) : int(ATTENTION), last = copying ? int(COPYING) : int(HEAD);
    ClusterStep step(m, s, storage, Watch(copying || threadIdx.x == 0, first, last, WEIGHTS));
    if (threadIdx.x == 0) {
        byte_barrier_init(&s.x_read, CLUSTER);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            byte_barrier_init(s.x_full + k), byte_barrier_expect(s.x_full + k, X_BYTES);
            byte_barrier_init(s.qkv_full + k), byte_barrier_expect(s.qkv_full + k, QKV_BYTES);
            byte_barrier_init(s.heads_full + k), byte_barrier_expect(s.heads_full + k, HEADS_BYTES);
            byte_barrier_init(s.hidden_full + k), byte_barrier_expect(s.hidden_full + k, step.hidden * 2);
        }
    }
    // never several turns: there are fewer buffers than lanes
    for (int i = lane_id(); copying && i < BUFFERS; i += WARP_SIZE)
        byte_barrier_init(s.full + i), byte_barrier_init(s.empty + i, STEP_WARPS * ARRIVING);
    // never several turns: there are no more slots than lanes
    for (int i = lane_id(); copying && i < SLOTS; i += WARP_SIZE)
        byte_barrier_init(s.tile_full + i), byte_barrier_init(s.tile_empty + i, ARRIVING);
    // Zeros in rows and vector for columns of the second product that the cluster does not have.
    const int width = step.hidden / (4 / SIZE), none = FC2_ROW / 4 - width;
    uint32_t* const rows = reinterpret_cast<uint32_t*>(storage) + BEGIN[AT_FC2] / 4;
    for (int i = threadIdx.x; i < OUTPUTS * none; i += THREADS + WARP_SIZE) rows[i / none * (FC2_ROW / 4) + width + i % none] = 0;
    const int missing = FC2_COLUMNS / 2 - step.hidden / 2;
    // perhaps never several turns: few columns are missing
    for (int i = threadIdx.x; i < 2 * missing; i += THREADS + WARP_SIZE)
        reinterpret_cast<uint32_t*>(s.hidden[i / missing])[step.hidden / 2 + i % missing] = 0;
    clear_half_chunks(s, storage);
    __syncthreads();
    cluster_sync();
    if (copying) {
        if (elect_one()) {
            Filler filler = {step};
            filler.run();
            step.watch.stop(spent, first, last);
        }
        return;
    }
    PartSums<NH> after_attention = {mail};
    PartSums<CLUSTERS> after_mlp = {mail + PartSums<NH>::SIZE};
    Computing computing = {step, after_attention, after_mlp, mail + PartSums<NH>::SIZE + PartSums<CLUSTERS>::SIZE};
    computing.run(clock);
    step.watch.stop(spent, first, last);
}

}  // namespace decode::clusters
