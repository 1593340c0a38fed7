// Texts into rows of a session, from where their prompts were read or from another session: in the order of the stream,
// so that steps which were launched before still see what was in the rows.
#include "quantised.cuh"
#include "rung.cuh"

// A record is what the host knows of a text: see row_transfer.py.
enum { OF, DRAWN, TO, LENGTH, LIMIT, OFFSET, STOPS, MARKED, STOP_TOKENS };

const int SETTINGS = 8, SEEDS = 4;  // numbers of a draw; its offset is the last of the seeds

// Numbers of the caches on both sides: those in eight bits have a scale per key and per value.
#if FROM_EIGHT
typedef int8_t From;
#else
typedef Real From;
#endif
#if TO_EIGHT
typedef int8_t To;
#else
typedef Real To;
#endif

template <int N>
__device__ __forceinline__ void copy(const Real* from, Real* to, int numbers)
{
    for (int i = threadIdx.x * N; i < numbers; i += blockDim.x * N) {
        if (N == 1) to[i] = from[i];
        else store_vec(to + i, load_vec(from + i));
    }
}

// A head's keys, or its values, from one cache to the other.
__device__ __forceinline__ void carry(const Real* from, const float*, Real* to, float*, int length, int HS)
{
    if (HS % VEC == 0) copy<VEC>(from, to, length * HS);
    else copy<1>(from, to, length * HS);
}

__device__ __forceinline__ void carry(const int8_t* from, const float* from_scales, int8_t* to, float* scales, int length, int HS)
{
    for (int i = threadIdx.x; i < length * HS / QUANTISED_EACH; i += blockDim.x)
        reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
    for (int i = threadIdx.x; i < length; i += blockDim.x) scales[i] = from_scales[i];
}

__device__ __forceinline__ void carry(const Real* from, const float*, int8_t* to, float* scales, int length, int HS)
{
    const int lanes = HS / QUANTISED_EACH, lane = threadIdx.x % lanes, each = blockDim.x / lanes;
    for (int first = 0; first < length; first += each) {  // all lanes take part
        const int own = first + threadIdx.x / lanes, t = min(own, length - 1);
        const Quantised found = quantised_from(lanes, from + t * HS + lane * QUANTISED_EACH);
        if (own >= length) continue;
        reinterpret_cast<uint4*>(to + t * HS)[lane] = found.bits;
        if (lane == 0) scales[t] = found.scale;
    }
}

__device__ __forceinline__ void carry(const int8_t* from, const float* from_scales, Real* to, float*, int length, int HS)
{
    for (int i = threadIdx.x; i < length * HS; i += blockDim.x) to[i] = from_float<Real>(float(from[i]) * from_scales[i / HS]);
}

// Block (i, j) has record j; its blocks divide the text's keys and values, (layers, rows, NH, MAXT, HS) on both sides.
extern "C" __global__ void copy_rows(const int* records, int RECORD, int MOST_STOPS, const int* next, const int* from_done,
                                const int* from_history, const int* from_marks, const int* from_settings,
                                const int* from_seeds, const From* from_k, const From* from_v,
                                const float* from_k_scales, const float* from_v_scales, int* tokens, int* done,
                                int* history, int* marks, int* settings, int* seeds, To* k, To* v, float* k_scales,
                                float* v_scales, int* lengths, int* limits, int* stops, int* stop_tokens, int layers,
                                int FROM_B, int FROM_MAXT, int B, int MAXT, int NH, int HS, int V)
{
    const int* record = records + blockIdx.y * RECORD;
    const int of = record[OF], drawn = record[DRAWN], to = record[TO], length = record[LENGTH];
    if (to < 0) return;
    if (blockIdx.x == 0 && threadIdx.x == 0) lengths[to] = length;
    if (of < 0) {  // the row's text has ended
        if (blockIdx.x == 0 && threadIdx.x == 0) done[to] = 1;
        return;
    }
    if (blockIdx.x == 0) {
        if (threadIdx.x == 0) {
            bool stop = from_done[drawn];
            for (int i = 0; i < record[STOPS]; i++) stop = stop || record[STOP_TOKENS + i] == next[drawn];
            tokens[to] = next[drawn];
            done[to] = stop;
            limits[to] = record[LIMIT];
            stops[to] = record[STOPS];
        }
        for (int i = threadIdx.x; i < SETTINGS; i += blockDim.x)
            settings[to * SETTINGS + i] = from_settings[drawn * SETTINGS + i];
        for (int i = threadIdx.x; i < SEEDS; i += blockDim.x)
            seeds[to * SEEDS + i] = i == SEEDS - 1 ? record[OFFSET] : from_seeds[drawn * SEEDS + i];
        for (int i = threadIdx.x; i < record[STOPS]; i += blockDim.x)
            stop_tokens[to * MOST_STOPS + i] = record[STOP_TOKENS + i];
        for (int i = threadIdx.x; i < length; i += blockDim.x)
            history[size_t(to) * MAXT + i] = from_history[size_t(of) * FROM_MAXT + i];
    }
    if (record[MARKED])
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < V; i += gridDim.x * blockDim.x)
            marks[size_t(to) * V + i] = from_marks[size_t(drawn) * V + i];
    for (int i = blockIdx.x; i < 2 * layers * NH; i += gridDim.x) {
        const int layer = i / 2 / NH, head = i / 2 % NH;
        const size_t at = (size_t(layer) * FROM_B + of) * NH + head, goal = (size_t(layer) * B + to) * NH + head;
        carry((i % 2 ? from_v : from_k) + at * FROM_MAXT * HS, (i % 2 ? from_v_scales : from_k_scales) + at * FROM_MAXT,
              (i % 2 ? v : k) + goal * MAXT * HS, (i % 2 ? v_scales : k_scales) + goal * MAXT, length, HS);
    }
}
