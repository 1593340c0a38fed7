// Texts into rows of a session, from where their prompts were read or from another session: in the order of the stream,
// so that steps which were launched before still see what was in the rows.
#include "rung.cuh"

// A record is what the host knows of a text: see seating.py.
enum { OF, TO, LENGTH, LIMIT, STOPS, MARKED, SETTINGS, SEEDS = SETTINGS + 8, STOP_TOKENS = SEEDS + 4 };

template <int N>
__device__ __forceinline__ void copy(const Real* from, Real* to, int numbers)
{
    for (int i = threadIdx.x * N; i < numbers; i += blockDim.x * N) {
        if (N == 1) to[i] = from[i];
        else store_vec(to + i, load_vec(from + i));
    }
}

// Block (i, j) has record j; its blocks divide the text's keys and values, (layers, rows, NH, MAXT, HS) on both sides.
extern "C" __global__ void seat(const int* records, int RECORD, int MOST_STOPS, const int* next, const int* from_done,
                                const int* from_history, const int* from_marks, const Real* from_k, const Real* from_v,
                                int* tokens, int* done, int* history, int* marks, Real* k, Real* v, int* lengths,
                                int* limits, int* stops, int* stop_tokens, int* settings, int* seeds, int layers,
                                int FROM_B, int FROM_MAXT, int B, int MAXT, int NH, int HS, int V)
{
    const int* record = records + blockIdx.y * RECORD;
    const int of = record[OF], to = record[TO], length = record[LENGTH];
    if (to < 0) return;
    if (blockIdx.x == 0 && threadIdx.x == 0) lengths[to] = length;
    if (of < 0) {  // the row is left
        if (blockIdx.x == 0 && threadIdx.x == 0) done[to] = 1;
        return;
    }
    if (blockIdx.x == 0) {
        if (threadIdx.x == 0) {
            bool stop = from_done[of];
            for (int i = 0; i < record[STOPS]; i++) stop = stop || record[STOP_TOKENS + i] == next[of];
            tokens[to] = next[of];
            done[to] = stop;
            limits[to] = record[LIMIT];
            stops[to] = record[STOPS];
        }
        for (int i = threadIdx.x; i < 8; i += blockDim.x) settings[to * 8 + i] = record[SETTINGS + i];
        for (int i = threadIdx.x; i < 4; i += blockDim.x) seeds[to * 4 + i] = record[SEEDS + i];
        for (int i = threadIdx.x; i < record[STOPS]; i += blockDim.x)
            stop_tokens[to * MOST_STOPS + i] = record[STOP_TOKENS + i];
        for (int i = threadIdx.x; i < length; i += blockDim.x)
            history[size_t(to) * MAXT + i] = from_history[size_t(of) * FROM_MAXT + i];
    }
    if (record[MARKED])
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < V; i += gridDim.x * blockDim.x)
            marks[size_t(to) * V + i] = from_marks[size_t(of) * V + i];
    for (int i = blockIdx.x; i < 2 * layers * NH; i += gridDim.x) {
        const int layer = i / 2 / NH, head = i / 2 % NH;
        const size_t at = (size_t(layer) * FROM_B + of) * NH + head, goal = (size_t(layer) * B + to) * NH + head;
        const Real* source = (i % 2 ? from_v : from_k) + at * FROM_MAXT * HS;
        Real* target = (i % 2 ? v : k) + goal * MAXT * HS;
        if (HS % VEC == 0) copy<VEC>(source, target, length * HS);
        else copy<1>(source, target, length * HS);
    }
}
