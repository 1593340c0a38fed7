/*---
idea   = "One cooperative kernel for a whole step: persistent blocks divide the rows of each matrix, exchange vectors as words with an epoch, and a warp has the copy engine load all weights through a ring, whatever the blocks wait for."
expect = "Five launches per layer are 1.5 to 2 us each, in which memory idles. An exchange takes 1 us, and 170 KB of weights per multiprocessor arrive meanwhile: 30 layers of SmolLM2-135M in 240 us instead of 436, Qwen3-0.6B in 350 instead of 725, Llama-3.2-1B near memory's 575."
found  = "On an H200 a step of SmolLM2-135M, Qwen3-0.6B, Llama-3.2-1B in bf16 takes 407, 688, 814 us, and as launches 405, 678, 823: five exchanges per layer take as long as five launches."
dtypes = ["f32", "f16", "bf16"]
needs  = [
  "sm >= 90",
  "B == 1 and C >= sms and sms >= LEAST_BLOCKS",
  "C * sizeof_real % 16 == 0 and NH * HS * sizeof_real % 16 == 0 and F * sizeof_real % 16 == 0",
  "HS * sizeof_real % 16 == 0 and 32 % (HS * sizeof_real // 16) == 0",
  "NH // NKV <= 8",
  "FLIGHT <= SLOTS",
]
[tune]
WARPS = [12, 16, 8]
RING = [200, 120, 64]  # KB
FLIGHT = [8, 4, 16, 32]
KEY_LOADS = [1, 2, 4]
DELAY = [0, 300, 600, 900]  # cycles before a block asks for a vector that others compute
[let]
SLOT_BYTES = "8192 if C * sizeof_real > 2048 else 4096"
ATTENTION = "(NH // NKV + 5) * HS + WARPS * (NH // NKV) * (HS + 2)"
FLOATS = "max(C, NH * HS, F, ATTENTION)"
LEAST_BLOCKS = 4
OTHER_BYTES = "4 * FLOATS + 4 * 2048 + 8 * ceil_div(C, LEAST_BLOCKS)"
SLOTS = "min(RING * 1024, 222000 - OTHER_BYTES) // SLOT_BYTES"
PACK = "4 // sizeof_real"
PARTS = "max(1, sms // NKV)"
[define]
C = "C"
NH = "NH"
NKV = "NKV"
HS = "HS"
F = "F"
V = "V"
LEAST_BLOCKS = "LEAST_BLOCKS"
SLOT_BYTES = "SLOT_BYTES"
SLOTS = "SLOTS"
FLOATS = "FLOATS"
[buffers.mail]
shape = ["2 * (PARTS * NH * HS // PACK + (NH + 2 * NKV) * HS + 2 * C + F // PACK + 2 * sms) + 16"]
dtype = "i32"
zero = "once"
[buffers.clock]
shape = ["sms"]
dtype = "i32"
zero = "once"
[[launch]]
kernel = "llama_decode"
grid   = "sms"
block  = "32 * WARPS + 32"
shared = "SLOTS * SLOT_BYTES + OTHER_BYTES"
cooperative = true
pdl = true
---*/
#include "attention.cuh"

using namespace llama;

namespace llama {

// Where blocks put their results for the others: words with an epoch, but for attention's outputs. An epoch is a layer of a step:
// between two uses of a mailbox every block has waited for all.
struct Mailboxes
{
    uint2 *qkv, *attended, *after, *hidden;  // (NH + 2 NKV) * HS, C, C, F / PACK
    uint2* best;                             // (blocks, 2)
    Packet* outputs;                         // (parts, NH * HS / OF_PACKET)

    __device__ __forceinline__ explicit Mailboxes(int* mail)
    {
        qkv = reinterpret_cast<uint2*>(mail);
        attended = qkv + QKV_ROWS, after = attended + C, hidden = after + C, best = hidden + F / PACK;
        outputs = reinterpret_cast<Packet*>(best + 2 * gridDim.x);
    }
};

struct Best
{
    float value;
    int token;
};
// The larger of two logits; of equal ones the token that comes first.
__device__ __forceinline__ Best better(Best a, Best b)
{
    return b.value > a.value || (b.value == a.value && b.token < a.token) ? b : a;
}
__device__ __forceinline__ Best warp_best(Best own)
{
#pragma unroll
    for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2)
        own = better(own, {__shfl_xor_sync(ALL_LANES, own.value, offset), __shfl_xor_sync(ALL_LANES, own.token, offset)});
    return own;
}

// The block's own channels of the residual stream, before and after attention.
constexpr int OWN = ceil_div(C, LEAST_BLOCKS), HELD = ceil_div(C / 2, THREADS);

struct Block
{
    Vector x;
    float *partial, *stream;  // (2, PARTIAL), (2, OWN)
    int2 channels;            // the block's: the first, and how many

    // RMSNorm's input, pairs of channels by thread: the vector times the norm's weight, and the squares' sums of the warps.
    template <class Load>
    __device__ __forceinline__ void norm(const Real* weight, int which, float* squares, Load load) const
    {
        float2 gain[HELD], pair[HELD];
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            const int c = min(2 * (int(threadIdx.x) + i * THREADS), C - 2);
            gain[i] = make_float2(to_float(weight[c]), to_float(weight[c + 1]));
        }
        load(pair);
        float square = 0.0f;
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            const int c = 2 * (int(threadIdx.x) + i * THREADS), own = c - channels.x;
            if (c >= C) continue;
            const float2 v = pair[i];
            square += v.x * v.x + v.y * v.y;
            x.set2(c, C / VEC, v.x * gain[i].x, v.y * gain[i].y);
            if (own >= 0 && own < channels.y) stream[which * OWN + own] = v.x;
            if (own >= -1 && own + 1 < channels.y) stream[which * OWN + own + 1] = v.y;
        }
        square = warp_sum(square);
        if (lane_id() == 0) squares[warp_id()] = square;
    }
};

// The words of a vector that all blocks compute: pairs of channels.
__device__ __forceinline__ void receive_pairs(float2 (&pair)[HELD], const uint2* mail, int delay, uint32_t epoch)
{
    Two got[HELD];
    delay_polling(delay);
    receive(got, epoch, [&](int i) { return mail + min(2 * (int(threadIdx.x) + i * THREADS), C - 2); });
#pragma unroll
    for (int i = 0; i < HELD; i++) pair[i] = make_float2(__uint_as_float(got[i].word[0]), __uint_as_float(got[i].word[1]));
}

// The hidden units: two words in a packet.
__device__ __forceinline__ void receive_hidden(const uint2* mail, const Vector& to, uint32_t epoch)
{
    constexpr int EACH = 2 * PACK, TOGETHER = ceil_div(F / EACH, THREADS);
    Two got[TOGETHER];
    receive(got, epoch, [&](int i) { return mail + 2 * min(int(threadIdx.x) + i * THREADS, F / EACH - 1); });
#pragma unroll
    for (int i = 0; i < TOGETHER; i++) {
        const int at = (int(threadIdx.x) + i * THREADS) * EACH;
        if (at >= F) continue;
#pragma unroll
        for (int j = 0; j < EACH; j += 2) to.set2(at + j, F / VEC, number_in(got[i].word, j), number_in(got[i].word, j + 1));
    }
}

}  // namespace llama

extern "C" __global__ void __launch_bounds__(THREADS + 32, 1)
    llama_decode(const int* tokens, const int* lengths, const Real* wte, const Real* ln_1_w, const Real* qkv_w, const Real* qkv_b,
                 const Real* q_norm_w, const Real* k_norm_w, const Real* attn_proj_w, const Real* attn_proj_b, const Real* ln_2_w,
                 const Real* fc_w, const Real* fc_b, const Real* mlp_proj_w, const Real* mlp_proj_b, const Real* ln_f_w,
                 const Real* head_w, const float* cosines, const float* sines, Real* k_cache, Real* v_cache, float* logits,
                 int* next, int* mail, int* clock, int L, int S, int window, float eps, float scale)
{
    extern __shared__ uint4 shared[];
    __shared__ float squares[WARPS];
    float* floats = reinterpret_cast<float*>(shared + SLOTS * SLOT_VECTORS);  // of the vector, or of attention
    __shared__ int2 all[PHASES + 1];                                          // the rows of each phase
    Ring ring(shared);
    pdl_launch_dependents();
    ring.set_up();
    if (threadIdx.x <= PHASES) all[threadIdx.x] = Share::rows_of(threadIdx.x);
    __syncthreads();
    if (warp_id() == WARPS) {
        if (lane_id() > 0) return;
        for (int layer = 0; layer < L; layer++) {
            ring.copy(Share(QKV, all), qkv_w + size_t(layer) * QKV_ROWS * C);
            ring.copy(Share(OUT, all), attn_proj_w + size_t(layer) * C * NH * HS);
            ring.copy(Share(FC, all), fc_w + size_t(layer) * 2 * F * C);
            ring.copy(Share(DOWN, all), mlp_proj_w + size_t(layer) * C * F);
        }
        ring.copy(Share(HEAD, all), head_w);
        return;
    }

    pdl_wait();
    const Block block = {{reinterpret_cast<float4*>(floats)}, floats + FLOATS, floats + FLOATS + 2 * PARTIAL, all[OUT]};
    const Mailboxes boxes(mail);
    const Text text(__ldcg(lengths), window);
    const Real* token = wte + size_t(__ldcg(tokens)) * C;
    uint32_t epoch = uint32_t(__ldcg(clock + blockIdx.x)) + 1;
    Best best = {-INFINITY, INT_MAX};
    int parity = 0;
#pragma unroll 1
    for (int index = 0; index <= PHASES * L; index++) {  // all phases run the same code
        const int layer = index / PHASES, phase = index == PHASES * L ? int(HEAD) : index % PHASES;
        const Share share(phase, all);
        const bool normed = phase == QKV || phase == FC || phase == HEAD;
        if (normed) {
            const Real* weight = phase == HEAD ? ln_f_w : (phase == QKV ? ln_1_w : ln_2_w) + size_t(layer) * C;
            block.norm(weight, phase == FC, squares, [&](float2(&pair)[HELD]) {
                if (index > 0)
                    return receive_pairs(pair, phase == FC ? boxes.attended : boxes.after, DELAY,
                                         phase == FC ? epoch : epoch - 1);
#pragma unroll
                for (int i = 0; i < HELD; i++) {
                    const int c = min(2 * (int(threadIdx.x) + i * THREADS), C - 2);
                    pair[i] = make_float2(to_float(token[c]), to_float(token[c + 1]));
                }
            });
        } else if (phase == OUT) {
            delay_polling(DELAY);
            receive_outputs(boxes.outputs, text.parts, block.x, epoch);
        } else {
            delay_polling(DELAY);
            receive_hidden(boxes.hidden, block.x, epoch);
        }
        sync_computing();

        const int batch = PARTIAL / share.parts / (2 * PACK) * (2 * PACK);  // rows of whole units and whole words
        for (int first = 0; first < share.rows; first += batch, parity ^= 1) {
            const int count = min(batch, share.rows - first);
            float* sums = block.partial + parity * PARTIAL;
            multiply_rows(ring, share, first, count, block.x, sums);
            sync_computing();
            float factor = 1.0f;
            if (normed) {
                float square = 0.0f;
#pragma unroll
                for (int w = 0; w < WARPS; w++) square += squares[w];
                factor = rsqrtf(square / C + eps);
            }
            const Real* bias = of_phase(phase, qkv_b, attn_proj_b, fc_b, mlp_proj_b, static_cast<const Real*>(nullptr));
            if (bias != nullptr) bias += size_t(layer) * of_phase(phase, QKV_ROWS, C, 2 * F, C, 0) + share.begin + first;
            const auto value = [&](int row) {
                float sum = 0.0f;
                for (int part = 0; part < share.parts; part++) sum += sums[row * share.parts + part];
                return sum * factor + (bias != nullptr ? to_float(bias[row]) : 0.0f);
            };
            const int each = phase == FC ? 2 * PACK : 1;
            for (int row = threadIdx.x * each; row < count; row += THREADS * each) {
                const int at = share.begin + first + row, which = phase == DOWN;
                if (phase == HEAD) {
                    const float logit = value(row);
                    logits[at] = logit;
                    best = better(best, {logit, at});
                } else if (phase == FC) {
                    float units[2] = {};
#pragma unroll
                    for (int i = 0; i < PACK; i++) {
                        const float gate = value(row + 2 * i);
                        units[i] = __fdividef(gate, 1.0f + __expf(-gate)) * value(row + 2 * i + 1);
                    }
                    send(boxes.hidden + at / each, word_of(units[0], units[1]), epoch);
                } else if (phase == QKV) {
                    send(boxes.qkv + at, __float_as_uint(value(row)), epoch);
                } else {
                    const float sum = block.stream[which * OWN + first + row] + value(row);
                    send((which ? boxes.after : boxes.attended) + at, __float_as_uint(sum), epoch);
                }
            }
        }
        ring.unit += share.units();
        if (phase == QKV) {
            const int half = text.position * HALF;
            const Real *q_weight = q_norm_w ? q_norm_w + size_t(layer) * HS : nullptr,
                       *k_weight = k_norm_w ? k_norm_w + size_t(layer) * HS : nullptr;
            const Head head = {q_weight, k_weight, cosines + half, sines + half, eps, scale};
            // perhaps never several turns: blocks mostly have one part, or none
            for (int item = blockIdx.x; item < NKV * text.parts; item += int(gridDim.x)) {
                const size_t of_head = (size_t(layer) * NKV + item % NKV) * S * HS;
                attend(text, head, k_cache + of_head, v_cache + of_head, boxes.qkv, boxes.outputs, item % NKV, item / NKV,
                       Scratch(floats), DELAY, epoch);
            }
        }
        if (phase == DOWN) epoch++;
    }

    // Each block sends its largest logit to the first block, which picks the token.
    __shared__ Best winners[WARPS];
    best = warp_best(best);
    if (lane_id() == 0) winners[warp_id()] = best;
    sync_computing();
    if (threadIdx.x == 0) {
        for (int w = 1; w < WARPS; w++) best = better(best, winners[w]);
        send(boxes.best + 2 * blockIdx.x, __float_as_uint(best.value), epoch);
        send(boxes.best + 2 * blockIdx.x + 1, uint32_t(best.token), epoch);
        clock[blockIdx.x] = int(epoch);  // each block has its own: nothing orders one block's read before another's write
    }
    if (blockIdx.x > 0 || warp_id() > 0) return;
    best = {-INFINITY, INT_MAX};
    // perhaps never several turns: the check's grids have few blocks
    for (int i = lane_id(); i < int(gridDim.x); i += WARP_SIZE) {
        Two got[1];
        receive(got, epoch, [&](int) { return boxes.best + 2 * i; });
        best = better(best, {__uint_as_float(got[0].word[0]), int(got[0].word[1])});
    }
    best = warp_best(best);
    if (lane_id() == 0) *next = best.token;
}
