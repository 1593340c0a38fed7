// Tensor cores: products of a warp (HMMA, IMMA, BMMA, DMMA) and of a warp group (HGMMA, QGMMA, IGMMA, BGMMA), of which
// each warp has 16 of the 64 rows; and the instructions that bring matrices into their layout. All of these are made of
// blocks of 8 rows of 16 bytes: one register of a warp holds such a block, its lanes in the order of the rows.
#include "machine.h"

#include <math.h>
#include <stdio.h>

#include <algorithm>

namespace rung_machine {
namespace {

typedef float Eight __attribute__((vector_size(32), aligned(4), may_alias));
typedef int EightInts __attribute__((vector_size(32)));
typedef unsigned EightWords __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint16_t HalfWord __attribute__((may_alias));

// ---- numbers ----------------------------------------------------------------------------------------------------

enum class Number : uint8_t { Half, Bfloat, Tf32, E4m3, E5m2, S8, U8, B1 };

constexpr unsigned bits_of(Number n)
{ return n == Number::Tf32 ? 32 : n <= Number::Bfloat ? 16 : n == Number::B1 ? 1 : 8; }
constexpr unsigned each_of(Number n) { return 128 / bits_of(n); }  // of a row of 16 bytes

struct Small  // the 256 values of a format of 8 bits
{
    float value[256];
    Small(unsigned mantissas, bool infinities)
    {
        const int exponents = 7 - int(mantissas), bias = (1 << (exponents - 1)) - 1;
        for (int bits = 0; bits < 256; bits++) {
            const int exponent = bits >> mantissas & ((1 << exponents) - 1), mantissa = bits & ((1 << mantissas) - 1);
            const int whole = exponent ? mantissa + (1 << mantissas) : mantissa;
            float v = ldexpf(float(whole), (exponent ? exponent : 1) - bias - int(mantissas));
            if (infinities && exponent == (1 << exponents) - 1) v = mantissa ? NAN : INFINITY;
            if (!infinities && (bits & 127) == 127) v = NAN;
            value[bits] = bits & 128 ? -v : v;
        }
    }
};
const Small e4m3(3, false), e5m2(2, true);

typedef uint16_t EightHalfWords __attribute__((vector_size(16)));

template <class V>
inline V loaded(const uint8_t* from)
{
    V v;
    memcpy(&v, from, sizeof v);
    return v;
}

// Eight numbers that lie beside each other; of tf32, four, twice.
template <Number n>
inline Eight eight(const uint8_t* from)
{
    if constexpr (n == Number::Half) {
        typedef short Shorts __attribute__((vector_size(16)));
#ifdef __F16C__
        return (Eight)__builtin_ia32_vcvtph2ps256(loaded<Shorts>(from));
#else
        Eight made;
        for (unsigned i = 0; i < 8; i++) made[i] = half_to_float(uint16_t(loaded<Shorts>(from)[i]));
        return made;
#endif
    } else if constexpr (n == Number::Bfloat) {
        return (Eight)(__builtin_convertvector(loaded<EightHalfWords>(from), EightWords) << 16);
    } else if constexpr (n == Number::Tf32) {
        uint32_t w[4];
        memcpy(w, from, sizeof w);
        return (Eight)(EightWords{w[0], w[1], w[2], w[3], w[0], w[1], w[2], w[3]} &
                       0xffffe000u);  // the upper 19 bits are read
    } else if constexpr (n == Number::S8 || n == Number::U8) {
        uint32_t w[2];
        memcpy(w, from, sizeof w);
        const EightWords words = {w[0], w[0], w[0], w[0], w[1], w[1], w[1], w[1]};
        const EightWords upwards = words << EightWords{24, 16, 8, 0, 24, 16, 8, 0};
        return __builtin_convertvector(n == Number::S8 ? (EightInts)upwards >> 24 : (EightInts)(upwards >> 24), Eight);
    } else if constexpr (n == Number::B1) {
        const unsigned bits = *from;
        Eight made;
        for (unsigned i = 0; i < 8; i++) made[i] = float(bits >> i & 1);
        return made;
    } else {
        const float* const of = n == Number::E4m3 ? e4m3.value : e5m2.value;
        return Eight{of[from[0]], of[from[1]], of[from[2]], of[from[3]],
                     of[from[4]], of[from[5]], of[from[6]], of[from[7]]};
    }
}

// One of three steps that transpose eight rows: rows `step` apart become those with the lower and the upper halves of
// their elements, taken in turn, in pairs, in fours.
template <int step>
inline void interleave(Eight* rows)
{
    constexpr auto from = [](int place, int upper) {  // the element of both rows, the second's from 8 on
        const int group = place / step;
        if (step == 4) return group * 8 + place % 4 + upper * 4;
        return group % 2 * 8 + place / 4 * 4 + place % 4 / 2 % 2 * (step == 1) + place % step + upper * 2;
    };
    const EightInts lower = {from(0, 0), from(1, 0), from(2, 0), from(3, 0),
                             from(4, 0), from(5, 0), from(6, 0), from(7, 0)};
    const EightInts upper = {from(0, 1), from(1, 1), from(2, 1), from(3, 1),
                             from(4, 1), from(5, 1), from(6, 1), from(7, 1)};
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        if (!(i & step)) {
            const Eight a = rows[i], b = rows[i + step];
            rows[i] = __builtin_shuffle(a, b, lower), rows[i + step] = __builtin_shuffle(a, b, upper);
        }
}

// A block as floats: [row][element], or [element][row] if `across`; `step` is what lies between the first ones.
template <Number n>
void read_block(const uint8_t* const* rows, float* to, unsigned step, bool across)
{
    constexpr unsigned count = each_of(n);
    constexpr unsigned size = count < 8 ? count * 4 : 32;
    for (unsigned first = 0; first < count; first += 8) {
        Eight values[8];
#pragma GCC unroll 8
        for (unsigned row = 0; row < 8; row++) values[row] = eight<n>(rows[row] + first * bits_of(n) / 8);
        if (!across) {
#pragma GCC unroll 8
            for (unsigned row = 0; row < 8; row++) memcpy(to + row * step + first, &values[row], size);
            continue;
        }
        interleave<1>(values), interleave<2>(values), interleave<4>(values);
#pragma GCC unroll 8
        for (unsigned i = 0; i < 8; i++)
            if (i < count)
                *reinterpret_cast<Eight*>(to + (first + i) * step) = values[(i & 4) | (i & 1) << 1 | (i >> 1 & 1)];
    }
}

using BlockReader = void (*)(const uint8_t* const* rows, float* to, unsigned step, bool across);
BlockReader reader_of(Number n)
{
    static const BlockReader READERS[] = {
        read_block<Number::Half>, read_block<Number::Bfloat>, read_block<Number::Tf32>, read_block<Number::E4m3>,
        read_block<Number::E5m2>, read_block<Number::S8>,     read_block<Number::U8>,   read_block<Number::B1>};
    return READERS[unsigned(n)];
}

// ---- products -----------------------------------------------------------------------------------------------------

enum class Sums : uint8_t { Float, Half, Int, Saturated };

// What an instruction multiplies, packed into Op::flags.
struct Shape
{
    unsigned rows, columns, depth;  // `rows` of a warp
    Number a, b;
    Sums sums;
    bool sparse;

    static Shape of(const Op& op)
    {
        const uint32_t f = op.flags;
        return {f & 1 ? 16u : 8u,     (f >> 1 & 63) * 8, (f >> 7 & 127) * 4, Number(f >> 14 & 15),
                Number(f >> 18 & 15), Sums(f >> 22 & 3), bool(f >> 24 & 1)};
    }
    uint32_t packed() const
    {
        return uint32_t(rows == 16) | columns / 8 << 1 | depth / 4 << 7 | unsigned(a) << 14 | unsigned(b) << 18 |
               unsigned(sums) << 22 | unsigned(sparse) << 24;
    }
};

alignas(64) float left[16 * 256], right[256 * 256], products[16 * 256];

// Products of these numbers are exact, so that it makes no difference whether they are rounded.
inline Eight added_product(float a, const Eight& b, const Eight& sum)
{
#ifdef __FMA__
    return (Eight)__builtin_ia32_vfmaddps256(Eight{a, a, a, a, a, a, a, a}, b, sum);
#else
    return sum + a * b;
#endif
}

// Products of `left`, [row][k], and `right`, for every eight columns [k][column]; they are [row][column] of every
// eight.
template <unsigned R, unsigned C>
void multiply_tile(unsigned row, unsigned column, unsigned rows, unsigned depth)
{
    Eight sum[R][C] = {};
    const float* const from = right + column * depth;
    for (unsigned k = 0; k < depth; k++)
        for (unsigned c = 0; c < C; c++) {
            const Eight b = *reinterpret_cast<const Eight*>(from + (c * depth + k) * 8);
            for (unsigned r = 0; r < R; r++) sum[r][c] = added_product(left[(row + r) * depth + k], b, sum[r][c]);
        }
    for (unsigned r = 0; r < R; r++)
        for (unsigned c = 0; c < C; c++)
            *reinterpret_cast<Eight*>(products + (column + c * 8) * rows + (row + r) * 8) = sum[r][c];
}

void multiply(unsigned rows, unsigned columns, unsigned depth)
{
    unsigned c = 0;
    for (; c + 16 <= columns; c += 16)
        for (unsigned r = 0; r < rows; r += 4) multiply_tile<4, 2>(r, c, rows, depth);
    for (; c < columns; c += 8)
        for (unsigned r = 0; r < rows; r += 8) multiply_tile<8, 1>(r, c, rows, depth);
}

// ---- sums of floats, as the hardware adds them
// -------------------------------------------------------------------------- The products of an instruction and the sum
// before are aligned to the greatest exponent among them, as the operands' exponents add up, and cut off below 25 bits
// behind its point; the sum is exact then, and is cut to a float, or rounded to a half. Of numbers of 8 bits 13 bits
// are kept, of the products as of the sum.

typedef long EightLongs __attribute__((vector_size(64)));
typedef double EightDoubles __attribute__((vector_size(64)));
constexpr int ABSENT = -4096, LEAST_SCALED = -100, MOST_SCALED = 120;
alignas(64) int left_exponents[16 * 256], right_exponents[256 * 256];

constexpr int least_exponent(Number n)
{ return n == Number::Half || n == Number::E5m2 ? -14 : n == Number::E4m3 ? -6 : -126; }
constexpr int kept_bits(Number n) { return n == Number::E4m3 || n == Number::E5m2 ? 13 : 25; }

void take_exponents(const float* from, int* to, unsigned count, int least)
{
    for (unsigned i = 0; i < count; i++) {
        const uint32_t bits = as_bits(from[i]);
        const int exponent = std::max(int(bits >> 23 & 255) - 127, least);
        to[i] = bits & 0x7fffffff ? exponent : ABSENT;
    }
}

// Sums of whole units of 2^exponent, below 2^51, as floats of so many digits, or as what rounds to their halves.
Eight cut(EightLongs sum, EightInts exponent, bool half, int digits)
{
    const long shift = 0x4338000000000000;  // 1.5 * 2^52
    EightLongs bits = (EightLongs)((EightDoubles)(sum + shift) - 6755399441055744.0);
    const long below = (1l << (53 - digits)) - 1;
    const EightLongs odd =
        half ? ((bits & below) != 0) & (below + 1) : EightLongs{};  // an odd number rounds to a half as the sum does
    bits = (bits & ~below) | odd;
    const EightLongs scale = __builtin_convertvector(exponent + 1023, EightLongs) << 52;
    return __builtin_convertvector((EightDoubles)bits * (EightDoubles)scale, Eight);
}

// One element outside of the usual range.
float summed(const float* a, const float* b, const int* ea, const int* eb, unsigned depth, float before, int kept,
             bool half)
{
    double plain = before;
    int e = before != 0 ? std::max(ilogbf(before), -126) : ABSENT;
    for (unsigned k = 0; k < depth; k++) plain += double(a[k]) * b[k * 8], e = std::max(e, ea[k] + eb[k * 8]);
    if (plain != plain) return as_float(0x7fffffff);
    if (std::isinf(plain)) return float(plain);
    int64_t sum = int64_t(ldexp(double(before), kept - e));
    for (unsigned k = 0; k < depth; k++) sum += int64_t(ldexp(double(a[k]) * b[k * 8], kept - e));
    if (e <= ABSENT / 2) return 0;
    const EightLongs one = {sum};
    return cut(one, EightInts{e - kept}, half, std::min(kept + 1, 24))[0];
}

inline bool any(EightInts lanes)
{
    bool found = false;
    for (unsigned c = 0; c < 8; c++) found |= lanes[c] != 0;
    return found;
}

// `products` are the sums before, and become those behind.
void multiply_floats(unsigned rows, unsigned columns, unsigned depth, Number a, Number b, bool half)
{
    const int kept = kept_bits(a), digits = std::min(kept + 1, 24);
    take_exponents(left, left_exponents, rows * depth, least_exponent(a));
    take_exponents(right, right_exponents, columns * depth, least_exponent(b));
    bool absent[16];  // rows without a number
    for (unsigned row = 0; row < rows; row++)
        absent[row] = *std::max_element(left_exponents + row * depth, left_exponents + (row + 1) * depth) == ABSENT;
    for (unsigned column = 0; column < columns; column += 8) {
        const float* const y = right + column * depth;
        const int* const ey = right_exponents + column * depth;
        const bool finite = *std::max_element(ey, ey + depth * 8) < 128;
        for (unsigned row = 0; row < rows; row++) {
            const float* const x = left + row * depth;
            const int* const ex = left_exponents + row * depth;
            Eight& at = *reinterpret_cast<Eight*>(products + column * rows + row * 8);
            EightInts e;
            take_exponents(reinterpret_cast<const float*>(&at), reinterpret_cast<int*>(&e), 8, -126);
            if (absent[row] && finite && !any(e > 127)) {  // nothing is added
                at += 0.0f;
                continue;
            }
            for (unsigned k = 0; k < depth; k++) {
                const EightInts sum = *reinterpret_cast<const EightInts*>(ey + k * 8) + ex[k];
                e = sum > e ? sum : e;
            }
            if (any((e < LEAST_SCALED) | (e > MOST_SCALED))) {
                for (unsigned c = 0; c < 8; c++) at[c] = summed(x, y + c, ex, ey + c, depth, at[c], kept, half);
                continue;
            }
            const Eight scale = (Eight)((127 + kept - e) << 23);
            EightLongs sum = __builtin_convertvector(__builtin_convertvector(at * scale, EightInts), EightLongs);
            for (unsigned first = 0; first < depth; first += 8) {
                EightInts few = {};  // each is below 2^27
                const unsigned end = std::min(depth, first + 8);
                for (unsigned k = first; k < end; k++)
                    few +=
                        __builtin_convertvector(*reinterpret_cast<const Eight*>(y + k * 8) * x[k] * scale, EightInts);
                sum += __builtin_convertvector(few, EightLongs);
            }
            at = cut(sum, e - kept, half, digits);
        }
    }
}

const uint32_t* words(const Warp& warp, const Operand& o, unsigned k)
{ return warp.r[o.index == ZERO ? ZERO : o.index + k]; }

// Registers of `rows` by `depth` numbers: the upper eight rows, the lower ones, then the next columns.
void read_registers(const Warp& warp, const Operand& o, Number n, unsigned rows, unsigned depth, float* to, bool across)
{
    const BlockReader read = reader_of(n);
    const unsigned each = each_of(n), step = across ? rows : depth;
    for (unsigned k = 0; k * each < depth; k++)
        for (unsigned half = 0; half < rows / 8; half++) {
            const uint8_t* const bytes = reinterpret_cast<const uint8_t*>(words(warp, o, k * (rows / 8) + half));
            const uint8_t* from[8];
            for (unsigned row = 0; row < 8; row++) from[row] = bytes + row * 16;
            read(from, across ? to + k * each * step + half * 8 : to + half * 8 * step + k * each, step, across);
        }
}

// The sums before to `products`.
void read_sums(const Warp& warp, const Shape& shape, const Operand& old, bool add)
{
    const unsigned halves = shape.rows / 8, registers = shape.sums == Sums::Half ? 1 : 2;
    if (!add) return std::fill(products, products + shape.rows * shape.columns, 0.0f);
    for (unsigned column = 0; column < shape.columns; column += 8)
        for (unsigned half = 0; half < halves; half++)
            for (unsigned i = 0; i < registers; i++) {
                const uint32_t* const from = words(warp, old, (column / 8 * halves + half) * registers + i);
                float* const to = products + column * shape.rows + half * 64 + i;
                for (unsigned l = 0; l < WARP; l++) {
                    if (registers == 2)
                        to[l * 2] = as_float(from[l]);
                    else
                        to[l * 2] = half_to_float(uint16_t(from[l])),
                               to[l * 2 + 1] = half_to_float(uint16_t(from[l] >> 16));
                }
            }
}

void multiply_and_add(Warp& warp, uint32_t lanes, const Shape& shape, const Operand& out, const Operand& old, bool add,
                      bool negative);

// Adds `products` to the sums in registers: two for eight rows by eight columns, or one of halves.
void add_products(Warp& warp, uint32_t lanes, const Shape& shape, const Operand& out, const Operand& old, bool add,
                  float sign)
{
    const EightInts even = {0, 2, 4, 6, 8, 10, 12, 14}, odd = {1, 3, 5, 7, 9, 11, 13, 15};
    const unsigned halves = shape.rows / 8, registers = shape.sums == Sums::Half ? 1 : 2;
    for (unsigned column = 0; column < shape.columns; column += 8)
        for (unsigned half = 0; half < halves; half++) {
            const unsigned number = (column / 8 * halves + half) * registers;
            alignas(32) Row made[2];
            uint32_t* to[2] = {made[0], made[1]};
            const uint32_t* before[2];
            const bool direct = lanes == ALL && out.index != ZERO;
            for (unsigned i = 0; i < registers; i++) {
                before[i] = words(warp, old, number + i);
                if (direct) to[i] = warp.r[out.index + number + i];
            }
            for (unsigned row = 0; row < 8; row += 2) {
                const float* const at = products + column * shape.rows + (half * 8 + row) * 8;
                const Eight a = *reinterpret_cast<const Eight*>(at), b = *reinterpret_cast<const Eight*>(at + 8);
                const Eight sums[2] = {__builtin_shuffle(a, b, even) * sign, __builtin_shuffle(a, b, odd) * sign};
                if (shape.sums == Sums::Half) {
                    for (unsigned l = 0; l < 8; l++) {
                        const uint32_t was = add ? before[0][row * 4 + l] : 0;
                        to[0][row * 4 + l] = float_to_half(half_to_float(uint16_t(was)) + sums[0][l]) |
                                             uint32_t(float_to_half(half_to_float(uint16_t(was >> 16)) + sums[1][l]))
                                                 << 16;
                    }
                    continue;
                }
                for (unsigned i = 0; i < 2; i++) {
                    EightWords& made_here = *reinterpret_cast<EightWords*>(to[i] + row * 4);
                    const uint32_t* const was = before[i] + row * 4;
                    if (shape.sums == Sums::Float) {
                        made_here = (EightWords)(add ? *reinterpret_cast<const Eight*>(was) + sums[i] : sums[i]);
                    } else if (shape.sums == Sums::Int) {
                        const EightWords whole = (EightWords) __builtin_convertvector(sums[i], EightInts);
                        made_here = add ? *reinterpret_cast<const EightWords*>(was) + whole : whole;
                    } else
                        for (unsigned l = 0; l < 8; l++) {
                            const int64_t sum = (add ? int64_t(int32_t(was[l])) : 0) + int64_t(sums[i][l]);
                            made_here[l] = uint32_t(std::clamp<int64_t>(sum, INT32_MIN, INT32_MAX));
                        }
                }
            }
            if (direct || out.index == ZERO) continue;
            for (unsigned i = 0; i < registers; i++)
                map(warp.r[out.index + number + i], lanes, [&](unsigned l) { return made[i][l]; });
        }
}

// Of sparse numbers `left` holds two of every four (of tf32, one of every two); the lanes of a row hold their places.
void spread(const Warp& warp, const Op& op, const Shape& shape, const Operand& places, unsigned selector)
{
    static float whole[16 * 64];
    const unsigned held = shape.depth / 2, per = shape.a == Number::Tf32 ? 1 : 2, lanes_of_row = held / per > 4 ? 2 : 1;
    memset(whole, 0, sizeof whole);
    for (unsigned row = 0; row < 16; row++)
        for (unsigned k = 0; k < held; k++) {
            const unsigned group = k / per, lane = row % 8 * 4 + lanes_of_row * selector + group / 4;
            const unsigned pair = warp.r[places.index][lane & 31] >> (row / 8 * 16 + group % 4 * 4) & 15;
            const unsigned lower = pair & 3, upper = pair >> 2;
            if (lower >= upper) fail(warp, RUNG_UNSUPPORTED, "%s has places out of order", op.text.c_str());
            const unsigned at = per == 1 ? group * 2 + lower / 2 : group * 4 + (k % 2 ? upper : lower);
            whole[row * shape.depth + at] = left[row * held + k];
        }
    memcpy(left, whole, 16 * shape.depth * sizeof(float));
}

void multiply_warp(Warp& warp, const Op& op, uint32_t lanes)
{
    const Shape shape = Shape::of(op);
    const Operand &a = op.s[0], &b = op.s[1], &old = op.s[2];
    read_registers(warp, a, shape.a, shape.rows, shape.sparse ? shape.depth / 2 : shape.depth, left, false);
    read_registers(warp, b, shape.b, 8, shape.depth, right, true);
    if (shape.sparse) spread(warp, op, shape, op.s[3], op.s[4].value);
    if (lanes != ALL)
        fail(warp, RUNG_BARRIER, "a product by a part of the warp (lanes %08x): all its lanes must make it together",
             lanes);
    note(Event::Product, warp, 1);
    multiply_and_add(warp, lanes, shape, op.out, old, old.index != ZERO, a.negative != b.negative);
}

void multiply_and_add(Warp& warp, uint32_t lanes, const Shape& shape, const Operand& out, const Operand& old, bool add,
                      bool negative)
{
    if (shape.sums != Sums::Float && shape.sums != Sums::Half) {
        multiply(shape.rows, shape.columns, shape.depth);
        return add_products(warp, lanes, shape, out, old, add, negative ? -1.0f : 1.0f);
    }
    if (negative)
        for (unsigned i = 0; i < shape.rows * shape.depth; i++) left[i] = -left[i];
    read_sums(warp, shape, old, add);
    multiply_floats(shape.rows, shape.columns, shape.depth, shape.a, shape.b, shape.sums == Sums::Half);
    add_products(warp, lanes, shape, out, old, false, 1.0f);
}

// ---- products of a warp group ---------------------------------------------------------------------------------------

// An operand in shared memory: where its blocks of 8 rows of 16 bytes lie.
struct Matrix
{
    Warp& warp;
    const Op& op;
    const uint8_t* memory;
    unsigned start, leading, stride, chunks;  // chunks of 16 bytes in a row of the swizzle's pattern; 1: none
    bool across;                              // "transposed": rows of 16 bytes run along the other dimension

    Matrix(Warp& warp, const Op& op, uint64_t bits, bool across)
        : warp(warp), op(op), memory(warp.block->shared.data()), across(across)
    {
        static const unsigned CHUNKS[] = {1, 8, 4, 2};
        start = unsigned(bits & 0x3fff) << 4, leading = unsigned(bits >> 16 & 0x3fff) << 4,
        stride = unsigned(bits >> 32 & 0x3fff) << 4;
        chunks = CHUNKS[bits >> 62];
        if (bits >> 49 & 7) fail(warp, RUNG_UNSUPPORTED, "a descriptor with a base offset is not executed");
    }

    // The block from this row of the operand on, and from this chunk of 16 bytes on; or from this row of 16 bytes,
    // across.
    void block(unsigned row, unsigned chunk, const uint8_t** rows) const
    {
        const unsigned step = chunks * 16, size = unsigned(warp.block->shared.size());
        unsigned at = start;
        if (!across)
            at += row / 8 * stride + (chunks == 1 ? chunk * leading : chunk * 16);
        else if (chunks == 1)
            at += chunk * stride + row / 8 * leading;
        else
            at += chunk % chunks * 16 + chunk / chunks * leading + row / 8 * stride;
        for (unsigned r = 0; r < 8; r++, at += step) {
            const unsigned swizzled = at ^ (at >> 7 & (chunks - 1)) << 4;
            if (swizzled + 16 > size)
                fail(warp, RUNG_BOUNDS, "byte %u is beyond the block's shared memory: a descriptor is wrong",
                     swizzled - launch.reserved_shared);
            look_as(warp, op, Agent::Product, swizzled, 16, warp.block, false);
            rows[r] = memory + swizzled;
        }
    }

    // [row][k] to `left`, or for every eight rows [k][row] to `right`.
    void read(Number n, unsigned first, unsigned rows, unsigned depth, float* to, bool by_depth) const
    {
        const BlockReader reader = reader_of(n);
        const unsigned per = each_of(n), step = by_depth ? 8 : depth;
        const uint8_t* from[8];
        for (unsigned row = 0; row < rows; row += across ? per : 8)
            for (unsigned k = 0; k < depth; k += across ? 8 : per) {
                if (across)
                    block(k, (first + row) / per, from);
                else
                    block(first + row, k / per, from);
                reader(from, to + row * depth + k * (by_depth ? 8 : 1), step, across != by_depth);
            }
    }
};

void multiply_group(Warp& warp, const Op& op, uint32_t lanes)
{
    const Shape shape = Shape::of(op);
    const bool registers = op.s[0].kind == Kind::Register;
    const Operand &matrices = op.s[registers], &old = op.s[1 + registers];
    const auto has = [&](const char* part) { return matrices.parts.find(part) != std::string::npos; };
    const auto matrix = [&](unsigned row, bool across) {
        return Matrix(warp, op, warp.r[row][0] | uint64_t(warp.r[row + 1][0]) << 32, across);
    };
    const bool add = op.ins ? warp.predicate(op.in[0]) & lanes : old.index != ZERO;
    const unsigned held = shape.sparse ? shape.depth / 2 : shape.depth;
    if (registers)
        read_registers(warp, op.s[0], shape.a, 16, held, left, false);
    else
        matrix(matrices.descriptor, has("tnspA")).read(shape.a, warp.rank % 4 * 16, 16, held, left, false);
    matrix(matrices.descriptor + 2u, has("tnspB")).read(shape.b, 0, shape.columns, shape.depth, right, true);
    if (shape.sparse) spread(warp, op, shape, op.s[2 + registers], op.s[3 + registers].value);
    note(Event::Product, warp, 1);
    if (op.text.find("gsb0") != std::string::npos) {
        close_group_of(warp, Agent::Product, ALL);
        if (warp.recorded) record_group(warp, false, Agent::Product);
    }
    const bool negative = (registers ? op.s[0].negative : has("negA")) != has("negB");
    multiply_and_add(warp, lanes, shape, op.out, old, add, negative);
}

// ---- doubles
// ----------------------------------------------------------------------------------------------------------

void multiply_doubles(Warp& warp, const Op& op, uint32_t lanes)
{
    const unsigned rows = op.flags & 31, depth = op.flags >> 5;
    const auto value = [&](const Operand& o, unsigned number, unsigned lane) {
        const uint64_t bits = words(warp, o, number * 2)[lane] | uint64_t(words(warp, o, number * 2 + 1)[lane]) << 32;
        double v;
        memcpy(&v, &bits, 8);
        return o.negative ? -v : v;
    };
    double sums[4][WARP];
    for (unsigned i = 0; i < rows / 4; i++)
        for (unsigned l = 0; l < WARP; l++) {
            sums[i][l] = value(op.s[2], i, l);
            for (unsigned k = 0; k < depth; k++)
                sums[i][l] = fma(value(op.s[0], k / 4 * (rows / 8) + i / 2, l / 4 * 4 + k % 4),
                                 value(op.s[1], k / 4, (l % 4 * 2 + i % 2) * 4 + k % 4), sums[i][l]);
        }
    note(Event::Product, warp, 1);
    if (op.out.index == ZERO) return;
    for (unsigned i = 0; i < rows / 4; i++)
        for (unsigned word = 0; word < 2; word++)
            map(warp.r[op.out.index + i * 2 + word], lanes, [&](unsigned l) {
                uint64_t bits;
                memcpy(&bits, &sums[i][l], 8);
                return uint32_t(bits >> word * 32);
            });
}

// ---- modifiers
// --------------------------------------------------------------------------------------------------------

bool number_named(const std::string& name, Number& n)
{
    static const struct
    {
        const char* name;
        Number n;
    } NAMES[] = {{"BF16", Number::Bfloat}, {"TF32", Number::Tf32}, {"E4M3", Number::E4m3},
                 {"E5M2", Number::E5m2},   {"S8", Number::S8},     {"U8", Number::U8}};
    for (const auto& entry : NAMES)
        if (name == entry.name) return n = entry.n, true;
    return false;
}

// 16816, 168256, 8816 or 64x128x16: rows, columns and depth.
bool read_shape(const std::string& text, Shape& shape)
{
    unsigned rows = 0;
    if (sscanf(text.c_str(), "%ux%ux%u", &rows, &shape.columns, &shape.depth) == 3)
        shape.rows = rows == 64 ? 16 : rows;
    else if (sscanf(text.c_str(), "168%u", &shape.depth) == 1)
        shape.rows = 16, shape.columns = 8;
    else if (sscanf(text.c_str(), "88%u", &shape.depth) == 1)
        shape.rows = 8, shape.columns = 8;
    else
        return false;
    return true;
}

bool prepare_product(Op& op)
{
    const char kind = op.name[0];  // H, Q, I, B
    Shape shape = {};
    shape.a = shape.b = kind == 'H' ? Number::Half : kind == 'B' ? Number::B1 : Number::S8;
    shape.sums = kind == 'I' || kind == 'B' ? Sums::Int : Sums::Float;
    unsigned numbers = 0;
    for (const std::string& m : op.modifiers) {
        Number n;
        if (m == "SP")
            shape.sparse = true;
        else if (m == "F32")
            shape.sums = Sums::Float;
        else if (m == "F16")
            shape.sums = Sums::Half;
        else if (m == "SAT")
            shape.sums = Sums::Saturated;
        else if (m == "AND" || m == "POPC")
            continue;
        else if (number_named(m, n))
            (numbers++ ? shape.b : shape.a) = n;
        else if (!read_shape(m, shape))
            return false;
    }
    if (numbers == 1) shape.b = shape.a;
    op.flags = shape.packed();
    return shape.depth && shape.columns <= 256 && shape.depth <= 256 && (!shape.sparse || kind == 'H');
}

bool prepare_doubles(Op& op)
{
    unsigned rows = 8, depth = 4;
    if (op.modifiers.size() != 1) return false;
    if (op.modifiers[0] != "884" && sscanf(op.modifiers[0].c_str(), "%ux8x%u", &rows, &depth) != 2) return false;
    op.flags = rows | depth << 5;
    return true;
}

// ---- matrices of 8 by 8 halves
// ------------------------------------------------------------------------------------------

void transpose_halves(const uint32_t* from, uint32_t* to)
{
    const HalfWord* const in = reinterpret_cast<const HalfWord*>(from);
    HalfWord* const out = reinterpret_cast<HalfWord*>(to);
    for (unsigned row = 0; row < 8; row++)
        for (unsigned column = 0; column < 8; column++) out[column * 8 + row] = in[row * 8 + column];
}

enum : uint32_t { COUNT = 7, TRANSPOSED = 8 };

// Of matrix m, row r is where lane 8 m + r says.
void rows_of_matrices(Warp& warp, const Op& op, const Operand& o, uint8_t** where)
{
    const unsigned rows = (op.flags & COUNT) * 8;
    uint64_t at[WARP];
    for (unsigned l = 0; l < rows; l++) {
        const uint32_t offset = uint32_t(address(warp, o, l)) & 0xffffff;
        if (offset % 16) fail(warp, RUNG_BOUNDS, "the address of a row is no multiple of 16");
        where[l] = shared_place(warp, offset | warp.block->in_cluster << 24, 16);
        at[l] = offset;
    }
    for (unsigned l = rows; l < WARP; l++) at[l] = launch.reserved_shared;
    look(warp, op, rows == WARP ? ALL : (1u << rows) - 1, at, 16, warp.block, op.store, 0);
    for (uint64_t& place : at) place -= launch.reserved_shared;
    count_request(warp, op, rows == WARP ? ALL : (1u << rows) - 1, at, 16, true);
}

void load_matrices(Warp& warp, const Op& op, uint32_t lanes)
{
    uint8_t* where[WARP];
    rows_of_matrices(warp, op, op.s[0], where);
    for (unsigned m = 0; m < (op.flags & COUNT); m++) {
        Row made, turned;
        for (unsigned row = 0; row < 8; row++) memcpy(made + row * 4, where[m * 8 + row], 16);
        if (op.flags & TRANSPOSED) transpose_halves(made, turned);
        const uint32_t* const matrix = op.flags & TRANSPOSED ? turned : made;
        if (op.out.index != ZERO) map(warp.r[op.out.index + m], lanes, [&](unsigned l) { return matrix[l]; });
    }
}

void store_matrices(Warp& warp, const Op& op, uint32_t)
{
    uint8_t* where[WARP];
    rows_of_matrices(warp, op, op.s[0], where);
    for (unsigned m = 0; m < (op.flags & COUNT); m++) {
        Row turned;
        const uint32_t* matrix = words(warp, op.s[1], m);
        if (op.flags & TRANSPOSED) transpose_halves(matrix, turned), matrix = turned;
        for (unsigned row = 0; row < 8; row++) memcpy(where[m * 8 + row], matrix + row * 4, 16);
    }
}

void transpose_register(Warp& warp, const Op& op, uint32_t lanes)
{
    Row turned;
    transpose_halves(words(warp, op.s[0], 0), turned);
    map(warp.target(op.out), lanes, [&](unsigned l) { return turned[l]; });
}

bool prepare_matrices(Op& op)
{
    op.flags = op.has("4") ? 4 : op.has("2") ? 2 : 1;
    if (op.has("MT88")) op.flags |= TRANSPOSED;
    op.bytes = 16;
    return true;
}

#define OF_TENSOR
#include "rows.h"

}  // namespace

void add_tensor(Table& table) { add_rows(table); }

}  // namespace rung_machine
