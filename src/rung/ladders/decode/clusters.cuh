// A whole step for one sequence by persistent clusters of blocks. A layer is two phases ("turns"): attention, where a cluster has
// a head, and the MLP, where each cluster has a part of the hidden units. Within a turn data goes through distributed shared
// memory; partial sums for the residual stream are exchanged once per turn through L2.
#pragma once
#include "exchange_epochs.cuh"
#include "step_vector.cuh"
#include "block_cluster.cuh"

namespace decode::clusters {

static_assert(B == 1 && sizeof(Real) == 2, "one sequence, numbers of 16 bits");

// ---- partition of the model -------------------------------------------------------------------------------------

constexpr int BLOCKS = CLUSTERS * CLUSTER;
constexpr int OUTPUTS = C / CLUSTER;                       // of the residual stream per block; each cluster has all of them
constexpr int HEAD_ROWS = HS / CLUSTER;                    // rows of a head's queries, keys and values each that a block computes
constexpr int UNIT_WIDTH = CLUSTER > 4 ? 2 * CLUSTER : 8;  // hidden units by which clusters may differ
constexpr int HIDDEN_UNITS = F / UNIT_WIDTH, LEAST_UNITS = HIDDEN_UNITS / CLUSTERS, LONGER = HIDDEN_UNITS % CLUSTERS;
constexpr int MOST_HIDDEN = UNIT_WIDTH * (LEAST_UNITS + (LONGER > 0));
constexpr int MOST_KEYS = ceil_div(MAXT, CLUSTER);
constexpr bool ONE_TURN = NH <= CLUSTERS;  // no cluster has a second head
static_assert(F % UNIT_WIDTH == 0 && LEAST_UNITS > 0 && HS % 32 == 0 && OUTPUTS % 8 == 0 && HS % CLUSTER == 0, "even shares");

// ---- shared memory ----------------------------------------------------------------------------------------------

// Consecutive rows that eight lanes read at once start 16 banks apart.
__host__ __device__ constexpr int apart(int bytes) { return ceil_div(bytes, 64) * 64 + (ceil_div(bytes, 64) % 2 == 0 ? 64 : 0); }
constexpr int ROW = apart(2 * C), PROJ_ROW = apart(2 * HS), FC2_ROW = apart(2 * MOST_HIDDEN), KEY_BYTES = 2 * HS;

// Each kind of weights has its own buffer, refilled for the next layer as soon as all warps have read it. Tiles of the head reuse
// these buffers.
enum Place { AT_QKV, AT_PROJ, AT_FC, AT_FC2, AT_KEYS, PLACES };
constexpr int BEGIN[] = {0, 3 * HEAD_ROWS * ROW, 3 * HEAD_ROWS * ROW + OUTPUTS * PROJ_ROW,
                         3 * HEAD_ROWS * ROW + OUTPUTS * PROJ_ROW + MOST_HIDDEN / CLUSTER * ROW, WEIGHT_BYTES};
static_assert(BEGIN[AT_FC2] + OUTPUTS * FC2_ROW <= WEIGHT_BYTES && STEP_WARPS * 8 * ROW <= WEIGHT_BYTES, "as the header has it");
constexpr int CHUNKS_OF_ROW = C / 32;

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
struct Shared
{
    alignas(16) float x[2][C];
    float2 moments[2][C / 8];  // of eight neighbouring elements of x: their sum and sum of squares
    alignas(16) float qkv[2][3 * HS];
    alignas(16) float heads[2][CLUSTER][HS + 4];  // a part's outputs, its largest score, its sum
    alignas(16) Factor hidden[2][FC2_ROW / 2];
    alignas(16) Factor vector[2 * C];  // the vector that rows are multiplied by, and its rounding errors
    alignas(16) Factor head_vector[2 * HS];
    alignas(16) float outputs[STEP_WARPS][HS];  // partial outputs over each warp's keys
    alignas(16) float tops[STEP_WARPS], sums[STEP_WARPS];
    float partial[PARTIALS];
    Best winners[STEP_WARPS];
    uint64_t x_there[2], qkv_there[2], heads_there[2], hidden_there[2];
    uint64_t heard;  // barrier: how many of the cluster's blocks have read the turn's x and everything before it
    uint64_t arrived[PLACES], left[PLACES], tile_arrived[STEP_WARPS], tile_left[STEP_WARPS];
};
constexpr unsigned X_BYTES = C * 4 + C / 8 * 8, QKV_BYTES = 3 * HS * 4, HEADS_BYTES = CLUSTER * (HS + 4) * 4;
#ifdef RUNG_SANITIZED
constexpr int ARRIVING = WARP_SIZE;
#else
constexpr int ARRIVING = 1;
#endif

__device__ __forceinline__ void hand4(const void* to, const uint64_t* barrier, int peer, float4 v)
{
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                     cluster_address(to, peer)),
                 "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(cluster_address(barrier, peer))
                 : "memory");
}
__device__ __forceinline__ void hand2(const void* to, const uint64_t* barrier, int peer, float2 v)
{
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(
                     cluster_address(to, peer)),
                 "f"(v.x), "f"(v.y), "r"(cluster_address(barrier, peer))
                 : "memory");
}
__device__ __forceinline__ void hand1(const void* to, const uint64_t* barrier, int peer, uint32_t v)
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
__device__ __forceinline__ uint32_t marked(float x, uint32_t epoch, int i)
{
    return (__float_as_uint(x) & ~3u) | (epoch >> (2 * i) & 3u);
}
__device__ __forceinline__ float unmarked(uint32_t word) { return __uint_as_float(word & ~3u); }
__device__ __forceinline__ uint32_t mark_of(const Parcel& p)
{
    return (p.word[0] & 3u) | (p.word[1] & 3u) << 2 | (p.word[2] & 3u) << 4 | (p.epoch & 3u) << 6;
}

// Indexed by the epoch's parity, then (four outputs, part). Attention's parts are heads, the MLP's are clusters.
template <int PARTS_>
struct PartSums
{
    static constexpr int ROOM = ceil_div(PARTS_, 16) * 16, SIZE = 2 * (C / 4) * ROOM;
    Parcel* mail;

    __device__ __forceinline__ Parcel* at(uint32_t epoch, int column, int part) const
    {
        return mail + (int(epoch & 1) * (C / 4) + column) * ROOM + part;
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
        send(to.at(epoch, column + lane / 16, part), marked(v[0], epoch, 0), marked(v[1], epoch, 1), marked(v[2], epoch, 2),
             marked(v[3], epoch, 3));
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
            while (mark_of(p) != (epoch & 255u)) p = look(at);
            v[0] += unmarked(p.word[0]), v[1] += unmarked(p.word[1]), v[2] += unmarked(p.word[2]), v[3] += unmarked(p.epoch);
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
// `left` bytes further, two more.
template <int N, bool WITH_LEFT>
__device__ __forceinline__ float tile_sum(Address rows, int stride, int first, int last, Address vector, int left)
{
    constexpr int AT_ONCE = N <= 8 ? N : N % 8 == 0 ? 8 : N % 6 == 0 ? 6 : N % 5 == 0 ? 5 : N % 4 == 0 ? 4 : 1;
    const int g = lane_id() / 4, t = lane_id() % 4;
    const bool wanted = g < (WITH_LEFT ? 4 : 2);
    const Address from = rows + min(first + g, last) * stride + t * 16;
    const Address x = vector + t * 16 + g % 2 * 4 + (WITH_LEFT && g / 2 % 2 ? left : 0);
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
    return WITH_LEFT ? sum + __shfl_xor_sync(ALL_LANES, sum, 1) : sum;
}

__device__ __forceinline__ float activated(float x)
{
    if (ACT != 0) return activate<ACT>(x);
    return __fdividef(x, 1.0f + __expf(-1.5957691216f * (x + 0.044715f * x * x * x)));
}

// ---- the step ---------------------------------------------------------------------------------------------------

struct Model
{
    const int *tokens, *lengths;
    const Real *wte, *wpe, *ln1_w, *ln1_b, *qkv_w, *qkv_b, *proj_w, *proj_b, *ln2_w, *ln2_b, *fc_w, *fc_b, *fc2_w, *fc2_b, *lnf_w,
        *lnf_b, *head_w;
    Real *k_cache, *v_cache;
    float* logits;
    int* next;
    float eps, scale;
};

// Loads for the next turn: the compiler would move an ordinary load to where its value is used.
__device__ __forceinline__ uint32_t ask_pair(const Real* from)
{
    uint32_t bits;
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(bits) : "l"(from));
    return bits;
}
__device__ __forceinline__ uint32_t ask(const Real* from)
{
    uint16_t bits;
    asm volatile("ld.global.nc.u16 %0, [%1];" : "=h"(bits) : "l"(from));
    return bits;
}
__device__ __forceinline__ float lower(uint32_t bits) { return weight_at(make_uint4(bits, 0, 0, 0), 0, (const Real*)nullptr); }
__device__ __forceinline__ float upper(uint32_t bits) { return weight_at(make_uint4(bits, 0, 0, 0), 1, (const Real*)nullptr); }

// The stopwatch's cells.
enum Account { ATTENTION, MLP, HEAD, COPYING, ACCOUNTS };
enum Spent { PARTS_L2, HANDED, NORM, WEIGHTS, PRODUCTS, KEYS, FREE_PLACE, COSTS };
using Watch = Stopwatch<ACCOUNTS, COSTS>;

struct ClusterStep
{
    const Model& m;
    Shared& s;
    Address weights;  // in shared memory, indexed by Place
    const int rank, cluster, hidden_begin, hidden;
    const RowPartition<1> vocabulary;
    Watch watch;
    int length = 0;

    __device__ __forceinline__ ClusterStep(const Model& model, Shared& shared, const void* storage, const Watch& stopwatch)
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
    unsigned uses[PLACES] = {};

    __device__ __forceinline__ void begin(int place, unsigned bytes)
    {
        const unsigned before = uses[place]++;
        if (before > 0) {
            step.watch.start(COPYING, FREE_PLACE);
            byte_barrier_wait(step.s.left + place, (before - 1) % 2);
            step.watch.start(COPYING, WEIGHTS);
        }
        byte_barrier_expect(step.s.arrived + place, bytes);
    }

    __device__ __forceinline__ void rows(Address to, int stride, const Real* from, int count, int apart_, unsigned bytes,
                                         const uint64_t* barrier)
    {
        const Address there = shared_address(barrier);
#pragma unroll 4
        for (int r = 0; r < count; r++, to += stride, from += apart_) bulk_copy(to, from, bytes, there);
    }

    __device__ __forceinline__ void qkv(int layer, int head)
    {
        begin(AT_QKV, 3 * HEAD_ROWS * C * 2);
#pragma unroll 1
        for (int which = 0; which < 3; which++)
            rows(step.weights + BEGIN[AT_QKV] + which * HEAD_ROWS * ROW, ROW,
                 step.m.qkv_w + (size_t(layer) * 3 * C + which * C + head * HS + step.rank * HEAD_ROWS) * C, HEAD_ROWS, C, C * 2,
                 step.s.arrived + AT_QKV);
    }
    __device__ __forceinline__ void keys(int layer, int head)
    {
        const int count = step.keys();
        if (count == 0) return;
        begin(AT_KEYS, 2 * count * KEY_BYTES);
        const size_t from = cached(layer, 0, head, step.keys_first());
        const Address to = step.weights + BEGIN[AT_KEYS], there = shared_address(step.s.arrived + AT_KEYS);
        bulk_copy(to, step.m.k_cache + from, count * KEY_BYTES, there);
        bulk_copy(to + MOST_KEYS * KEY_BYTES, step.m.v_cache + from, count * KEY_BYTES, there);
    }
    __device__ __forceinline__ void projection(int layer, int head)
    {
        begin(AT_PROJ, OUTPUTS * HS * 2);
        rows(step.weights + BEGIN[AT_PROJ], PROJ_ROW, step.m.proj_w + (size_t(layer) * C + step.rank * OUTPUTS) * C + head * HS,
             OUTPUTS, C, HS * 2, step.s.arrived + AT_PROJ);
    }
    __device__ __forceinline__ void mlp(int layer)
    {
        const int own = step.hidden / CLUSTER;
        begin(AT_FC, own * C * 2);
        rows(step.weights + BEGIN[AT_FC], ROW, step.m.fc_w + (size_t(layer) * F + step.hidden_begin + step.rank * own) * C, own,
             C, C * 2, step.s.arrived + AT_FC);
        begin(AT_FC2, OUTPUTS * step.hidden * 2);
        rows(step.weights + BEGIN[AT_FC2], FC2_ROW,
             step.m.fc2_w + (size_t(layer) * C + step.rank * OUTPUTS) * F + step.hidden_begin, OUTPUTS, F, step.hidden * 2,
             step.s.arrived + AT_FC2);
    }

    // One tile for each warp, then the next for each; the first ones go where the last layer's weights were.
    __device__ __forceinline__ void head()
    {
        const int own = step.vocabulary.count(blockIdx.x), tiles = ceil_div(own, 8);
        const Real* from = step.m.head_w + size_t(step.vocabulary.begin(blockIdx.x)) * C;
        int free = 0;  // buffers that are no longer needed
#pragma unroll 1
        for (int tile = 0; tile < tiles; tile++) {
            const int slot = tile % STEP_WARPS, count = min(8, own - tile * 8);
            step.watch.start(COPYING, FREE_PLACE);
            if (tile >= STEP_WARPS) byte_barrier_wait(step.s.tile_left + slot, (tile / STEP_WARPS - 1) % 2);
#pragma unroll
            for (int place = 0; place < AT_KEYS; place++)
                if (free == place && BEGIN[place] < (slot + 1) * 8 * ROW) {
                    if (uses[place] > 0) byte_barrier_wait(step.s.left + place, (uses[place] - 1) % 2);
                    free++;
                }
            step.watch.start(COPYING, WEIGHTS);
            byte_barrier_expect(step.s.tile_arrived + slot, count * C * 2);
            rows(step.weights + slot * 8 * ROW, ROW, from + size_t(tile) * 8 * C, count, C, C * 2, step.s.tile_arrived + slot);
        }
    }

    __device__ __forceinline__ void run()
    {
#pragma unroll 1
        for (int layer = 0; layer < L; layer++) {
            const bool waits = ONE_TURN && layer == 0;  // no kernel writes weights; the previous step writes keys
            if (!ONE_TURN && layer == 0) step.wait_for_input();
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
            ahead_of_the_head(layer);
        }
        head();
    }

    // Prefetches into L2, while memory is idle: rows of the head beyond those that fit into shared memory.
    __device__ __forceinline__ void ahead_of_the_head(int layer)
    {
        if (HEAD_AHEAD == 0) return;
        const int own = step.vocabulary.count(blockIdx.x);
        const int each = HEAD_AHEAD * 1024 / (2 * C), first = STEP_WARPS * 8 + layer * each, count = min(each, own - first);
        if (count > 0)
            asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(
                             step.m.head_w + size_t(step.vocabulary.begin(blockIdx.x) + first) * C),
                         "r"(count * C * 2)
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
    uint32_t bias[PASSES], gain[PAIRS], shift[PAIRS];  // of the next norm, loaded one turn ahead
    uint32_t row_bias, next_row_bias;                  // of the product's rows that the thread sends, and of the next turn's
    unsigned used[PLACES] = {};

    __device__ __forceinline__ int column(int pass) const { return (pass * STEP_WARPS + warp_id()) * 2 + lane_id() / 16; }
    __device__ __forceinline__ int output(int pass) const { return step.rank * OUTPUTS + column(pass) * 4 + lane_id() % 16 / 4; }

    // For turn `turn`: loads gain and shift of its norm, and the biases of its product's rows.
    __device__ __forceinline__ void ask_for_vectors(int turn)
    {
        const Model& m = step.m;
        const int layer = turn / 2;
        const Real* g = turn == 2 * L ? +m.lnf_w : (turn % 2 ? +m.ln2_w : +m.ln1_w) + size_t(layer) * C;
        const Real* b = turn == 2 * L ? +m.lnf_b : (turn % 2 ? +m.ln2_b : +m.ln1_b) + size_t(layer) * C;
#pragma unroll
        for (int i = 0; i < PAIRS; i++) {
            const int pair = min(int(threadIdx.x) + i * THREADS, C / 2 - 1);
            gain[i] = ask_pair(g + 2 * pair), shift[i] = ask_pair(b + 2 * pair);
        }
        if (turn > 0) {
            const Real* added = turn % 2 ? m.proj_b + size_t(layer) * C : m.fc2_b + size_t(layer - 1) * C;
#pragma unroll
            for (int i = 0; i < PASSES; i++) bias[i] = ask(added + min(output(i), C - 1));
        }
    }
    // Biases of the rows that the thread sends in turn `turn`: one of a head's product, two of the MLP's.
    __device__ __forceinline__ void ask_for_row_biases(int turn, int head)
    {
        const Model& m = step.m;
        const int item = threadIdx.x / CLUSTER, layer = turn / 2, own = step.hidden / CLUSTER;
        if (turn % 2) {
            next_row_bias = ask_pair(m.fc_b + size_t(layer) * F + step.hidden_begin + step.rank * own + min(2 * item, own - 2));
        } else if (turn < 2 * L) {
            const int row = min(item, 3 * HEAD_ROWS - 1), at = step.rank * HEAD_ROWS + row % HEAD_ROWS;
            next_row_bias = ask(m.qkv_b + size_t(layer) * 3 * C + row / HEAD_ROWS * C + min(head, NH - 1) * HS + at);
        }
    }

    __device__ __forceinline__ void await(int place)
    {
        step.watch.start(WEIGHTS);
        byte_barrier_wait(step.s.arrived + place, used[place]++ % 2);
        step.watch.start(PRODUCTS);
    }
    __device__ __forceinline__ void release(uint64_t* barrier)
    {
        __syncwarp();
        if (lane_id() < ARRIVING) byte_barrier_arrive(barrier);
    }

    // The same, for a buffer whose results are in flight through L2: the next weights would queue before other blocks' data.
    __device__ __forceinline__ void release_late(int place)
    {
        if (ONE_TURN && LATE_REFILL > 0) release(step.s.left + place);
    }

    // The residual stream: a block adds up its own outputs and sends them to its cluster, with their moments; then the norm.
    __device__ __forceinline__ void receive(int turn)
    {
        Shared& s = step.s;
        const int lane = lane_id(), k = turn & 1;
        const int account = turn == 2 * L ? HEAD : k ? MLP : ATTENTION;
        step.watch.start(account, PARTS_L2);
        if (turn > 0) byte_barrier_wait(&s.heard, (turn - 1) % 2);
        if (turn > 0) delay_polling(k && step.cluster >= NH ? POLL_DELAY_IDLE_CYCLES : POLL_DELAY_CYCLES);
#pragma unroll
        for (int i = 0; i < PASSES; i++) {
            if (column(i) - lane / 16 >= COLUMNS) break;
            const int own = step.rank * COLUMNS + column(i);
            if (turn > 0)
                residual[i] +=
                    (k ? add_parts(after_attention, epoch, own) : add_parts(after_mlp, epoch - 1, own)) + lower(bias[i]);
            float v[4], sum = 0.0f, square = 0.0f;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                v[j] = __shfl_sync(ALL_LANES, residual[i], (lane & 16) + 4 * j);
                sum += v[j] - mean_before, square += (v[j] - mean_before) * (v[j] - mean_before);
            }
            if (lane % 16 < CLUSTER) hand4(s.x[k] + own * 4, s.x_there + k, lane % 16, make_float4(v[0], v[1], v[2], v[3]));
            sum += __shfl_xor_sync(ALL_LANES, sum, 16), square += __shfl_xor_sync(ALL_LANES, square, 16);
            if (lane >= 8 && lane < 8 + CLUSTER) hand2(s.moments[k] + own / 2, s.x_there + k, lane - 8, make_float2(sum, square));
        }
        step.watch.start(HANDED);
        await_cluster(s.x_there + k, turn / 2 % 2, X_BYTES);
        step.watch.start(NORM);
        if (turn > 0) {
            if (k ? step.cluster < NH : true) release_late(k ? AT_PROJ : AT_FC2);
            if (k == 0 && turn < 2 * L && LATE_REFILL > 1) release_late(AT_FC);
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
            set_pair(s.vector, C, pair, a, b);
        }
        mean_before = mean;
        sync_computing();
        if (turn < 2 * L && threadIdx.x < CLUSTER) byte_barrier_arrive_at(&s.heard, threadIdx.x);
    }
    static __device__ __forceinline__ void set_pair(Factor* vector, int left, int pair, float a, float b)
    {
        const uint32_t near = pack2<Factor>(a, b);
        reinterpret_cast<uint32_t*>(vector)[pair] = near;
        reinterpret_cast<uint32_t*>(vector + left)[pair] = pack2<Factor>(a - lower(near), b - upper(near));
    }

    // Rows of C columns times the vector; a row's parts lie Split::WARPS apart.
    template <class S>
    __device__ __forceinline__ void multiply_rows(int place, int rows, bool late)
    {
        const int part = warp_id() % S::WARPS;
        await(place);
        // perhaps never false: most shapes have work for every warp
        if (warp_id() < S::WARPS * S::GROUPS)
#pragma unroll
            for (int tile = 0; tile < S::TILES; tile += S::GROUPS) {
                const int own = tile + warp_id() / S::WARPS;
                if (own >= S::TILES) break;
                const float sum =
                    tile_sum<S::CHUNKS, true>(step.weights + BEGIN[place] + part * S::CHUNKS * 64, ROW, own * 8, rows - 1,
                                              shared_address(step.s.vector) + part * S::CHUNKS * 64, C * 2);
                if (lane_id() % 4 == 0) step.s.partial[(own * 8 + lane_id() / 4) * S::WARPS + part] = sum;
            }
        if (!late) release(step.s.left + place);
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
    template <int N, bool WITH_LEFT, int PARTS_>
    __device__ __forceinline__ void multiply_outputs(int place, int stride, const Factor* vector, int left,
                                                     const PartSums<PARTS_>& to, int part)
    {
        await(place);
#pragma unroll
        for (int tile = 0; tile < OUTPUTS / 8; tile += STEP_WARPS) {
            const int own = tile + warp_id();
            if (own >= OUTPUTS / 8) break;
            const float sum =
                tile_sum<N, WITH_LEFT>(step.weights + BEGIN[place], stride, own * 8, OUTPUTS - 1, shared_address(vector), left);
            send_sums(to, epoch, step.rank * COLUMNS + own * 2, part, sum);
        }
        if (!ONE_TURN || LATE_REFILL == 0) release(step.s.left + place);
    }

    __device__ __forceinline__ void attention(int layer)
    {
        const Model& m = step.m;
        Shared& s = step.s;
        const float scale = (BY_LAYER ? m.scale / (layer + 1) : m.scale) * 1.44269504f;  // for exp2
#pragma unroll 1
        // never skipped: a cluster without a head does not come here
        for (int head = step.cluster; head < NH; head += CLUSTERS) {
            const unsigned turn = used[AT_QKV];
            const int k = turn % 2;
            const unsigned parity = turn / 2 % 2;
            if (head != step.cluster) {  // not prefetched
                const uint32_t kept = next_row_bias;
                ask_for_row_biases(2 * layer, head), row_bias = next_row_bias, next_row_bias = kept;
            }
            multiply_rows<QkvSplit>(AT_QKV, 3 * HEAD_ROWS, false);
            const int item = threadIdx.x, row = item / CLUSTER, which = row / HEAD_ROWS;
            if (item < 3 * HS) {  // each of a row's threads sends the sum to one block
                const float x = row_sum<QkvSplit>(row) + lower(row_bias);
                const int at = step.rank * HEAD_ROWS + row % HEAD_ROWS;
                hand1(s.qkv[k] + which * HS + at, s.qkv_there + k, item % CLUSTER, __float_as_uint(x));
                if (item % CLUSTER == 0 && which > 0)
                    (which == 1 ? +m.k_cache : +m.v_cache)[cached(layer, 0, head, step.length) + at] = from_float<Real>(x);
            }
            step.watch.start(HANDED);
            await_cluster(s.qkv_there + k, parity, QKV_BYTES);
            step.watch.start(KEYS);
            attend(s.qkv[k], scale);
            sync_computing();
            hand_outputs(k);
            step.watch.start(HANDED);
            await_cluster(s.heads_there + k, parity, HEADS_BYTES);
            step.watch.start(KEYS);
            merge_heads(k);
            sync_computing();
            multiply_outputs<HS / 32, true>(AT_PROJ, PROJ_ROW, s.head_vector, HS * 2, after_attention, head);
        }
    }

    // The warp's share of the block's keys.
    __device__ __forceinline__ void attend(const float* qkv, float scale)
    {
        constexpr int LANES = HS / VEC, AT_ONCE = WARP_SIZE / LANES;  // lanes per key, keys per access
        Shared& s = step.s;
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
            release(s.left + AT_KEYS);
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
    __device__ __forceinline__ void hand_outputs(int k)
    {
        constexpr int EACH = HS / 4 + 1;
        static_assert(EACH * CLUSTER <= THREADS, "one access a thread");
        Shared& s = step.s;
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
        hand4(s.heads[k][step.rank] + j * 4, s.heads_there + k, peer, j < HS / 4 ? y : make_float4(most, l, 0.0f, 0.0f));
    }

    __device__ __forceinline__ void merge_heads(int k)
    {
        Shared& s = step.s;
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
        set_pair(s.head_vector, HS, threadIdx.x, y.x * share, y.y * share);
    }

    __device__ __forceinline__ void mlp(int layer)
    {
        Shared& s = step.s;
        const int own = step.hidden / CLUSTER, k = layer % 2;
        multiply_rows<FcSplit>(AT_FC, own, ONE_TURN && LATE_REFILL > 1 && layer < L - 1);
#pragma unroll
        for (int first = 0; first < MOST_HIDDEN / 2; first += THREADS) {
            const int item = first + threadIdx.x, row = item / CLUSTER * 2;
            if (row >= own) break;
            // perhaps never true: only an MLP of gpt2's width has more pairs than threads
            if (first > 0) {
                row_bias = ask_pair(step.m.fc_b + size_t(layer) * F + step.hidden_begin + step.rank * own + row);
            }
            const float a = activated(row_sum<FcSplit>(row) + lower(row_bias));
            const float b = activated(row_sum<FcSplit>(row + 1) + upper(row_bias));
            hand1(s.hidden[k] + step.rank * own + row, s.hidden_there + k, item % CLUSTER, pack2<Factor>(in_half(a), in_half(b)));
        }
        step.watch.start(HANDED);
        await_cluster(s.hidden_there + k, layer / 2 % 2, step.hidden * 2);
        multiply_outputs<ceil_div(MOST_HIDDEN, 32), false>(AT_FC2, FC2_ROW, s.hidden[k], 0, after_mlp, step.cluster);
    }

    // One tile at a time, each warp independently.
    __device__ __forceinline__ Best head()
    {
        const int begin = step.vocabulary.begin(blockIdx.x), own = step.vocabulary.count(blockIdx.x), warp = warp_id();
        Best best = {-INFINITY, INT_MAX};
        int round = 0;
#pragma unroll 1
        for (int tile = warp; tile * 8 < own; tile += STEP_WARPS, round++) {
            const int count = min(8, own - tile * 8), row = lane_id() / 4, token = begin + tile * 8 + row;
            step.watch.start(WEIGHTS);
            byte_barrier_wait(step.s.tile_arrived + warp, round % 2);
            step.watch.start(PRODUCTS);
            const float logit = tile_sum<CHUNKS_OF_ROW, true>(step.weights + warp * 8 * ROW, ROW, 0, count - 1,
                                                              shared_address(step.s.vector), C * 2);
            release(step.s.tile_left + warp);
            if (lane_id() % 4 == 0 && row < count) step.m.logits[token] = logit, best = better(best, {logit, token});
        }
        return warp_best(best);
    }

    // Each block sends its largest logit to the first block, which picks the token.
    __device__ __forceinline__ void pick(Best best)
    {
        Shared& s = step.s;
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
        ask_for_vectors(0), ask_for_row_biases(0, step.cluster);
        step.wait_for_input();
        epoch = uint32_t(load_fresh(clock + blockIdx.x)) + 1;
        const Real *token = m.wte + size_t(load_fresh(m.tokens)) * C, *position = m.wpe + size_t(step.length) * C;
#pragma unroll
        for (int i = 0; i < PASSES; i++) {
            const int channel = min(output(i), C - 1);
            residual[i] = to_float(token[channel]) + to_float(position[channel]);
        }
#pragma unroll 1
        for (int turn = 0; turn <= 2 * L; turn++) {
            receive(turn);
            if (turn == 2 * L) break;
            row_bias = next_row_bias;
            ask_for_vectors(turn + 1), ask_for_row_biases(turn + 1, step.cluster);
            if (turn % 2)
                mlp(turn / 2), epoch++;
            else if (step.cluster < NH)
                attention(turn / 2);
        }
        pick(head());
        if (threadIdx.x == 0) clock[blockIdx.x] = int(epoch);
    }
};

__device__ __forceinline__ void step_in_clusters(const Model& m, Parcel* mail, int* clock, int* spent)
{
    extern __shared__ uint4 storage[];
    __shared__ Shared s;
    pdl_launch_dependents();
    const bool copying = warp_id() == STEP_WARPS;
    const int first = copying ? int(COPYING) : int(ATTENTION), last = copying ? int(COPYING) : int(HEAD);
    ClusterStep step(m, s, storage, Watch(copying || threadIdx.x == 0, first, last, WEIGHTS));
    if (threadIdx.x == 0) {
        byte_barrier_init(&s.heard, CLUSTER);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            byte_barrier_init(s.x_there + k), byte_barrier_expect(s.x_there + k, X_BYTES);
            byte_barrier_init(s.qkv_there + k), byte_barrier_expect(s.qkv_there + k, QKV_BYTES);
            byte_barrier_init(s.heads_there + k), byte_barrier_expect(s.heads_there + k, HEADS_BYTES);
            byte_barrier_init(s.hidden_there + k), byte_barrier_expect(s.hidden_there + k, step.hidden * 2);
        }
    }
    // never several turns: there are fewer places than lanes
    for (int i = lane_id(); copying && i < PLACES; i += WARP_SIZE)
        byte_barrier_init(s.arrived + i), byte_barrier_init(s.left + i, STEP_WARPS * ARRIVING);
    // never several turns: there are fewer warps than lanes
    for (int i = lane_id(); copying && i < STEP_WARPS; i += WARP_SIZE)
        byte_barrier_init(s.tile_arrived + i), byte_barrier_init(s.tile_left + i, ARRIVING);
    // Zeros in rows and vector for columns of the second product that the cluster does not have.
    const int none = FC2_ROW / 4 - step.hidden / 2;
    uint32_t* const rows = reinterpret_cast<uint32_t*>(storage) + BEGIN[AT_FC2] / 4;
    for (int i = threadIdx.x; i < OUTPUTS * none; i += THREADS + WARP_SIZE)
        rows[i / none * (FC2_ROW / 4) + step.hidden / 2 + i % none] = 0;
    // perhaps never several turns: few columns are missing
    for (int i = threadIdx.x; i < 2 * none; i += THREADS + WARP_SIZE)
        reinterpret_cast<uint32_t*>(s.hidden[i / none])[step.hidden / 2 + i % none] = 0;
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
