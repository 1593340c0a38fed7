// Pages of kept beginnings to and from the rows in which prompts are read.
#include "rung.cuh"

// Block (i, j) has page j of the list (page, row, place): `PAGE` tokens of keys and values, (pages, layers, NH, PAGE, HS),
// from or to place `place` of a row of the caches (layers, B, NH, MAXT, HS).
extern "C" __global__ void copy_pages(const int* list, Real* k_pages, Real* v_pages, Real* k, Real* v, int layers, int B,
                                      int MAXT, int NH, int HS, int PAGE, int keep)
{
    const int page = list[blockIdx.y * 3], row = list[blockIdx.y * 3 + 1], place = list[blockIdx.y * 3 + 2];
    if (page < 0) return;
    for (int i = blockIdx.x; i < 2 * layers * NH; i += gridDim.x) {
        const int layer = i / 2 / NH, head = i / 2 % NH;
        Real* kept = (i % 2 ? v_pages : k_pages) + ((size_t(page) * layers + layer) * NH + head) * PAGE * HS;
        Real* read = (i % 2 ? v : k) + (((size_t(layer) * B + row) * NH + head) * MAXT + place * PAGE) * HS;
        const Real* from = keep ? read : kept;
        Real* to = keep ? kept : read;
        const int step = HS % VEC == 0 ? VEC : 1;
        for (int at = threadIdx.x * step; at < PAGE * HS; at += blockDim.x * step) {
            if (step == 1) to[at] = from[at];
            else store_vec(to + at, load_vec(from + at));
        }
    }
}
