// The functions of ptx.cuh that hot loops call, in plain C++: interpreting their PTX would be slow.
#pragma once

inline uint4 load_no_allocate(const uint4* address) { return *address; }

// ---- asynchronous copies: complete at the wait; until then the target holds NaNs ------------------------------------

namespace rung_emulator {
inline void copy_async(void* smem, const void* gmem, int bytes, bool valid, Site site)
{
    if (valid) {  // read here so that a fault names this line
        static_cast<void>(*static_cast<const volatile char*>(gmem));
        static_cast<void>(static_cast<const volatile char*>(gmem)[bytes - 1]);
    }
    rung_copy_async(smem, gmem, bytes, valid, site);
}
}  // namespace rung_emulator

inline void cp_async_16(void* smem, const void* gmem, bool valid = true, rung_emulator::Site site = rung_emulator::here())
{
    rung_emulator::copy_async(smem, gmem, 16, valid, site);
}
inline void cp_async_4(void* smem, const void* gmem, bool valid = true, rung_emulator::Site site = rung_emulator::here())
{
    rung_emulator::copy_async(smem, gmem, 4, valid, site);
}
inline void cp_async_commit() { rung_copy_commit(); }
template <int N>
inline void cp_async_wait() { rung_copy_wait(N); }

// ---- ldmatrix ---------------------------------------------------------------------------------------------------

namespace rung_emulator {

struct MatrixLoad
{
    const void* row;
    uint32_t* registers;
};

template <int MATRICES, bool TRANS>
inline void load_matrices(void* const* data, unsigned lanes)
{
    for (int m = 0; m < MATRICES; m++) {
        unsigned short matrix[8][8];
        for (int row = 0; row < 8; row++)
            if (lanes >> (8 * m + row) & 1) memcpy(matrix[row], static_cast<MatrixLoad*>(data[8 * m + row])->row, 16);
        for (int lane = 0; lane < 32; lane++) {
            if (!(lanes >> lane & 1)) continue;
            const int i = lane / 4, j = lane % 4 * 2;
            const uint32_t lo = TRANS ? matrix[j][i] : matrix[i][j], hi = TRANS ? matrix[j + 1][i] : matrix[i][j + 1];
            static_cast<MatrixLoad*>(data[lane])->registers[m] = lo | hi << 16;
        }
    }
}

template <int MATRICES, bool TRANS>
inline void ldmatrix(uint32_t* registers, const void* row, const char* what, Site site)
{
    if (rung_lane() < 8 * MATRICES) {
        if (reinterpret_cast<size_t>(row) % 16)
            rung_fault(FaultKind::Bounds, site, "ldmatrix takes rows at multiples of 16 bytes");
        static_cast<void>(static_cast<const volatile uint64_t*>(row)[0]);
        static_cast<void>(static_cast<const volatile uint64_t*>(row)[1]);
    }
    MatrixLoad load{row, registers};
    rung_meet_lanes(0xffffffffu, load_matrices<MATRICES, TRANS>, &load, what, site);
}

}  // namespace rung_emulator

inline void ldmatrix_x4(uint32_t (&r)[4], const void* smem, rung_emulator::Site site = rung_emulator::here())
{
    rung_emulator::ldmatrix<4, false>(r, smem, "ldmatrix_x4", site);
}
inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void* smem, rung_emulator::Site site = rung_emulator::here())
{
    rung_emulator::ldmatrix<4, true>(r, smem, "ldmatrix_x4_trans", site);
}
inline void ldmatrix_x2(uint32_t (&r)[2], const void* smem, rung_emulator::Site site = rung_emulator::here())
{
    rung_emulator::ldmatrix<2, false>(r, smem, "ldmatrix_x2", site);
}
inline void ldmatrix_x2_trans(uint32_t (&r)[2], const void* smem, rung_emulator::Site site = rung_emulator::here())
{
    rung_emulator::ldmatrix<2, true>(r, smem, "ldmatrix_x2_trans", site);
}

// ---- mma.sync ---------------------------------------------------------------------------------------------------

namespace rung_emulator {

struct Tile
{
    float* d;
    const uint32_t *a, *b;
};

inline float half_in(uint32_t word, int high, __half) { return half_value((unsigned short)(word >> 16 * high)); }
inline float half_in(uint32_t word, int high, __nv_bfloat16) { return bfloat16_value((unsigned short)(word >> 16 * high)); }
// Tensor cores read the upper 19 bits of a tf32 operand.
inline float tf32_in(uint32_t word) { return bits_as<float>(word & 0xffffe000u); }

template <int K>
inline void multiply_tiles(void* const* data, const float (&a)[16][K], const float (&b)[K][8])
{
    for (int lane = 0; lane < 32; lane++) {
        float* d = static_cast<Tile*>(data[lane])->d;
        const int row = lane / 4, column = lane % 4 * 2;
        for (int i = 0; i < 4; i++) {
            float sum = 0;
            for (int k = 0; k < K; k++) sum += a[row + i / 2 * 8][k] * b[k][column + i % 2];
            d[i] += sum;
        }
    }
}

template <class T>
inline void mma_16bit(void* const* data, unsigned lanes)
{
    if (lanes != 0xffffffffu) rung_fault(FaultKind::Barrier, here(), "mma wants all 32 lanes of the warp");
    float a[16][16], b[16][8];
    for (int lane = 0; lane < 32; lane++) {
        const Tile& tile = *static_cast<Tile*>(data[lane]);
        const int g = lane / 4, t = lane % 4;
        for (int r = 0; r < 4; r++)
            for (int high = 0; high < 2; high++)
                a[g + r % 2 * 8][2 * t + high + r / 2 * 8] = half_in(tile.a[r], high, T());
        for (int r = 0; r < 2; r++)
            for (int high = 0; high < 2; high++) b[2 * t + high + r * 8][g] = half_in(tile.b[r], high, T());
    }
    multiply_tiles(data, a, b);
}

inline void mma_tf32(void* const* data, unsigned lanes)
{
    if (lanes != 0xffffffffu) rung_fault(FaultKind::Barrier, here(), "mma wants all 32 lanes of the warp");
    float a[16][8], b[8][8];
    for (int lane = 0; lane < 32; lane++) {
        const Tile& tile = *static_cast<Tile*>(data[lane]);
        const int g = lane / 4, t = lane % 4;
        for (int r = 0; r < 4; r++) a[g + r % 2 * 8][t + r / 2 * 4] = tf32_in(tile.a[r]);
        for (int r = 0; r < 2; r++) b[t + r * 4][g] = tf32_in(tile.b[r]);
    }
    multiply_tiles(data, a, b);
}

}  // namespace rung_emulator

template <class T>
inline void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                         rung_emulator::Site site = rung_emulator::here())
{
    static_assert(sizeof(T) == 2, "mma_m16n8k16 multiplies __half or __nv_bfloat16");
    rung_emulator::Tile tile{d, a, b};
    rung_meet_lanes(0xffffffffu, rung_emulator::mma_16bit<T>, &tile, "mma_m16n8k16", site);
}

inline void mma_m16n8k8_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                             rung_emulator::Site site = rung_emulator::here())
{
    rung_emulator::Tile tile{d, a, b};
    rung_meet_lanes(0xffffffffu, rung_emulator::mma_tf32, &tile, "mma_m16n8k8_tf32", site);
}

inline uint32_t to_tf32(float x)
{
    const uint32_t bits = __float_as_uint(x);
    return (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + 0x1000u) & 0xffffe000u;
}

inline uint4 renewed(uint4 words) { return words; }

inline float tanh_approx(float x) { return __tanhf(x); }
