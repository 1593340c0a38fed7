// The special functions of an H100. The unit interpolates: the upper bits of a fraction choose a row of special.def,
// and the lower ones, x, give c0 + c1 x + c2 square(x), in units of 2^-40, which is cut off. The rows were found from
// what a GPU gave for every fraction (benchmarks/special_functions.py).
#include "machine.h"

#include <math.h>

namespace rung_machine {
namespace {

enum {
    RECIPROCAL = 0,
    ROOT_ODD = 128,
    ROOT_EVEN = 192,
    POWER = 256,
    SQUARE_ROOT = 320,
    LOGARITHM = 448,
    SINE = 512,
    TANH = 576
};

struct Parabola
{
    int64_t constant;
    int32_t linear, square;
};
constexpr Parabola PARABOLAS[] = {
#include "special.def"
};

// Of 17 bits, in units of 2^19; products of two bits that are less than that are left out.
int32_t square(uint32_t x)
{
    uint32_t sum = 0;
    for (unsigned i = 10; i < 17; i++)
        sum += (((x & ((1u << i) - 1)) >> (18 - i)) + (1u << (2 * i - 19))) * (x >> i & 1);
    return int32_t(sum);
}

int64_t interpolated(unsigned row, uint32_t x)
{
    const Parabola& p = PARABOLAS[row];
    return p.constant + int64_t(p.linear) * x + int64_t(p.square) * square(x);
}

int64_t interpolated_at(unsigned table, uint32_t fraction)
{ return interpolated(table + (fraction >> 17), fraction & 0x1ffff); }

// Rounded towards zero; the number is below 2^53.
float cut(int64_t number, double unit)
{
    const double exact = double(number);
    uint64_t bits;
    memcpy(&bits, &exact, 8);
    bits &= ~0x1fffffffull;
    double shorter;
    memcpy(&shorter, &bits, 8);
    return float(shorter * unit);
}

uint32_t bits_of(int64_t number) { return as_bits(cut(number, 0x1p-40)); }

// The sine of |x| turns and this number of quarters more.
float turned(float x, uint32_t quarters)
{
    const double turns = fabs(double(x));
    const uint32_t fixed = uint32_t((turns - floor(turns)) * 0x1p25) + (quarters << 23);
    const uint32_t fraction = (fixed >> 23 & 1 ? ~fixed : fixed) & 0x7fffff;
    return as_float(bits_of(interpolated_at(SINE, fraction)) ^ (fixed >> 24 & 1) << 31);
}

}  // namespace

float special_reciprocal(float x)
{
    const uint32_t bits = as_bits(x), exponent = bits >> 23 & 255, fraction = bits & 0x7fffff;
    if (exponent == 0 || exponent == 255) return 1.0f / as_float(bits & (exponent ? ALL : 0x80000000));
    if (exponent >= 253) return as_float(bits & 0x80000000);  // what would be subnormal
    const uint32_t made = bits_of(interpolated(RECIPROCAL + (fraction >> 16), (fraction & 0xffff) << 1));
    return as_float((made + (127 - exponent) * 0x800000) | (bits & 0x80000000));
}

float special_root(float x)  // 1 / sqrt(x)
{
    const uint32_t bits = as_bits(x), exponent = bits >> 23 & 255, fraction = bits & 0x7fffff;
    if (exponent == 0) return as_float(0x7f800000 | (bits & 0x80000000));
    if (exponent == 255 || bits >> 31) return bits == 0x7f800000 ? 0.0f : NAN;
    const bool even = exponent % 2 == 0;
    const bool one = !even && fraction == 0;
    const uint32_t made = one ? 0x3f800000 : bits_of(interpolated_at(even ? ROOT_EVEN : ROOT_ODD, fraction));
    return as_float(made - (int32_t(exponent) - 127 - even) / 2 * 0x800000);
}

// The bits below 2^-23 are cut off; of a negative number the complement is taken.
float special_power(float x)
{
    const uint32_t bits = as_bits(x);
    if (x != x) return NAN;
    if (!(fabsf(x) < 160)) return bits >> 31 ? 0.0f : INFINITY;
    const int64_t fixed = int64_t(fabsf(x) * 0x1p23f);
    const bool negative = bits >> 31 && (fixed & 0x7fffff);
    const int64_t whole = bits >> 31 ? -(fixed >> 23) - negative : fixed >> 23;
    const uint32_t made = bits_of(interpolated_at(POWER, uint32_t(negative ? ~fixed : fixed) & 0x7fffff));
    const int64_t exponent = (made >> 23) + whole;
    if (exponent <= 0) return 0.0f;
    return exponent >= 255 ? INFINITY : as_float(uint32_t(exponent) << 23 | (made & 0x7fffff));
}

// With 36 bits behind the point; of a negative logarithm the complement is taken.
float special_logarithm(float x)
{
    const uint32_t bits = as_bits(x), exponent = bits >> 23 & 255;
    if (exponent == 0) return -INFINITY;
    if (exponent == 255 || bits >> 31) return bits == 0x7f800000 ? INFINITY : NAN;
    if (x == 1) return 0.0f;
    const int64_t whole = int64_t(exponent) - 127;
    return cut((whole << 36) + (interpolated_at(LOGARITHM, bits & 0x7fffff) >> 4) + (whole < 0), 0x1p-36);
}

float special_square_root(float x)
{
    const uint32_t bits = as_bits(x), exponent = bits >> 23 & 255;
    if (exponent == 0) return as_float(bits & 0x80000000);
    if (exponent == 255 || bits >> 31) return bits == 0x7f800000 ? INFINITY : NAN;
    const uint32_t even = exponent % 2 == 0;
    const uint32_t made = bits_of(interpolated_at(SQUARE_ROOT + 64 * even, bits & 0x7fffff));
    return as_float(made + (int32_t(exponent) - 127 - int32_t(even)) / 2 * 0x800000);
}

// Of x turns, of which the bits below 2^-25 are cut off. In the second and fourth quarter the complement is taken.
float special_sine(float x)
{
    if (!(fabsf(x) < INFINITY)) return NAN;
    return turned(x, as_bits(x) >> 31 << 1);
}

float special_cosine(float x)
{
    if (!(fabsf(x) < INFINITY)) return NAN;
    return turned(x, 1);
}

// The larger the number's exponent, the more of its fraction's bits choose the row.
float special_tanh(float x)
{
    static const uint8_t upper[] = {0, 0, 0, 1, 1, 2, 2, 2, 3, 4, 3}, first[] = {0, 1, 2, 3, 5, 7, 11, 15, 19, 27, 43};
    const uint32_t bits = as_bits(x), sign = bits & 0x80000000, fraction = bits & 0x7fffff;
    const int exponent = int(bits >> 23 & 255) - 127;
    if (x != x) return NAN;
    if (exponent < -8) return x;
    if (exponent > 2) return as_float(sign | as_bits(1.0f));
    const unsigned by = upper[exponent + 8], row = TANH + first[exponent + 8] + (fraction >> (23 - by));
    return as_float(sign | bits_of(interpolated(row, fraction >> (6 - by) & 0x1ffff)));
}

}  // namespace rung_machine
