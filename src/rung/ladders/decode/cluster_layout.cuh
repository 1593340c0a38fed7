// How clusters of blocks divide the model, and what a block has in shared memory: a buffer for each kind of weights, and the data
// that its cluster exchanges.
#pragma once
#include "block_cluster.cuh"
#include "mailboxes.cuh"
#include "phases.cuh"
#include "step_vector.cuh"

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
enum : int { HEAD_ROW = SCALED && C % CHUNK == 0 ? SIZE * C : ROW };

// Each phase with a matrix has its own buffer, refilled for the next layer as soon as all warps have read it; one more is for keys.
// Tiles of the head reuse these buffers; the space before them is for tiles only, if a layer's weights leave any.
enum Buffer { AT_KEYS = PHASES, BUFFERS };
enum : int {
    BYTES_BEFORE = SCALED ? WEIGHT_BYTES - (3 * HEAD_ROWS + MOST_HIDDEN / CLUSTER) * ROW - OUTPUTS * (PROJ_ROW + FC2_ROW) : 0
};
constexpr int BEGIN[] = {BYTES_BEFORE, BYTES_BEFORE + 3 * HEAD_ROWS * ROW,
                         BYTES_BEFORE + 3 * HEAD_ROWS * ROW + OUTPUTS * PROJ_ROW,
                         BYTES_BEFORE + 3 * HEAD_ROWS * ROW + OUTPUTS * PROJ_ROW + MOST_HIDDEN / CLUSTER * ROW, WEIGHT_BYTES};
static_assert(BEGIN[FC2] + OUTPUTS * FC2_ROW <= WEIGHT_BYTES && SLOTS * 8 * HEAD_ROW <= WEIGHT_BYTES, "as the header has it");
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

// The stopwatch's cells.
enum StopwatchRow { IN_ATTENTION, IN_MLP, IN_HEAD, IN_COPIES, STOPWATCH_ROWS };
enum StopwatchColumn { PARTS_L2, IN_CLUSTER, NORM, WEIGHTS, PRODUCTS, KEYS, FREE_BUFFER, STOPWATCH_COLUMNS };
using Watch = Stopwatch<STOPWATCH_ROWS, STOPWATCH_COLUMNS>;

struct ClusterStep
{
    const Model& m;
    ExchangeBuffers& s;
    Address weights;  // in shared memory; a phase's buffer begins at BEGIN[phase]
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
    for (int i = threadIdx.x; (PROJ_COLUMNS > HS || ROW_COLUMNS > C) && i < BEGIN[FC2] / 4; i += THREADS + WARP_SIZE) rows[i] = 0;
    if (PROJ_COLUMNS > HS || ROW_COLUMNS > C) fence_async_proxy();  // copies write to the same memory
}

}  // namespace decode::clusters
