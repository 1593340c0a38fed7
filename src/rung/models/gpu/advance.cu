// Between two steps: each sequence takes its new token, ends or goes on, and the host is told.
#include "rung.cuh"

// `grown` is 0 for the first token, which follows the prompt: nothing was cached for it yet. A sequence ends with a
// stop token, with its last allowed token, or when the cache has no place left for the token. The ring and the counter lie in the
// host's memory; the counter is written last.
extern "C" __global__ void advance(const int* next, int* tokens, int* lengths, int* history, int* done, int* steps,
                                   const int* limits, const int* stop_tokens, const int* stops, uint64_t ring,
                                   uint64_t published, int B, int MAXT, int V, int RING, int MOST_STOPS,
                                   int grown)
{
    pdl_launch_dependents();  // whatever comes next waits for this kernel, which waits for the step
    pdl_wait();
    const int step = __ldcg(steps);
    volatile int* out = reinterpret_cast<volatile int*>(ring) + size_t(step % RING) * B;
    for (int b = threadIdx.x; b < B; b += blockDim.x) {
        const bool over = done[b];
        // Of logits that are no numbers none is the largest, and what was picked may be no token.
        const int token = min(max(__ldcg(next + b), 0), V - 1);
        if (!over) {
            const int length = lengths[b] + grown;
            if (grown && length - 1 < MAXT) history[size_t(b) * MAXT + length - 1] = tokens[b];
            bool stop = length >= MAXT || step + 1 >= limits[b];
            for (int i = 0; i < stops[b]; i++) stop = stop || token == stop_tokens[b * MOST_STOPS + i];
            // The steps that an ended sequence still takes part in are to cost little, and to remain in bounds.
            tokens[b] = token;
            lengths[b] = stop ? 0 : length;
            done[b] = stop;
        }
        out[b] = over ? -1 : token;
    }
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) {
        *steps = step + 1;
        *reinterpret_cast<volatile int*>(published) = step + 1;
    }
}
