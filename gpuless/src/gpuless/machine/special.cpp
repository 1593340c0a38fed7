// The special functions of an H100 that its code relies on most: 1/x, 1/sqrt(x) and 2^x. special.xz has by how much
// each result differs from the rounded one, as a GPU gave it (benchmarks/special_functions.py); machine.py unpacks it
// for the assembler.
#include "machine.h"

#include <math.h>

__asm__(".section .rodata.rung_special,\"a\"\n"
        ".balign 64\n"
        ".globl rung_special\n"
        ".hidden rung_special\n"
        "rung_special:\n"
        ".incbin \"special.bin\"\n"
        ".previous\n");
extern "C" __attribute__((visibility("hidden"))) const uint8_t rung_special[4][1 << 21];

namespace rung_machine {
namespace {

enum { RECIPROCAL, ROOT_ODD, ROOT_EVEN, POWER };

// The bits of the unit's result, where the rounded one is known.
uint32_t as_the_unit(unsigned table, uint32_t at, float rounded)
{ return as_bits(rounded) + (rung_special[table][at >> 2] >> 2 * (at & 3) & 3) - 2; }

}  // namespace

float special_reciprocal(float x)
{
    const uint32_t bits = as_bits(x), exponent = bits >> 23 & 255, fraction = bits & 0x7fffff;
    if (exponent == 0 || exponent == 255) return 1.0f / as_float(bits & (exponent ? ALL : 0x80000000));
    if (exponent >= 253) return as_float(bits & 0x80000000);  // what would be subnormal
    const uint32_t made = as_the_unit(RECIPROCAL, fraction, float(1.0 / double(as_float(0x3f800000 | fraction))));
    return as_float((made + (127 - exponent) * 0x800000) | (bits & 0x80000000));
}

float special_root(float x)  // 1 / sqrt(x)
{
    const uint32_t bits = as_bits(x), exponent = bits >> 23 & 255, fraction = bits & 0x7fffff;
    if (exponent == 0) return as_float(0x7f800000 | (bits & 0x80000000));
    if (exponent == 255 || bits >> 31) return bits == 0x7f800000 ? 0.0f : NAN;
    const bool even = exponent % 2 == 0;
    const double within = double(as_float((even ? 0x40000000 : 0x3f800000) | fraction));
    const uint32_t made = as_the_unit(even ? ROOT_EVEN : ROOT_ODD, fraction, float(1.0 / sqrt(within)));
    return as_float(made - (int32_t(exponent) - 127 - even) / 2 * 0x800000);
}

// The bits below 2^-23 are cut off; of a negative number the complement is taken.
float special_power(float x)
{
    const uint32_t bits = as_bits(x);
    if (x != x) return NAN;
    if (!(fabsf(x) < 160)) return bits >> 31 ? 0.0f : INFINITY;
    const int64_t fixed = int64_t(ldexpf(fabsf(x), 23));
    const bool negative = bits >> 31 && (fixed & 0x7fffff);
    const uint32_t at = uint32_t(negative ? ~fixed : fixed) & 0x7fffff;
    const int64_t whole = bits >> 31 ? -(fixed >> 23) - negative : fixed >> 23;
    const uint32_t made = as_the_unit(POWER, at, float(exp2(double(at) * 0x1p-23)));
    const int64_t exponent = (made >> 23) + whole;
    if (exponent <= 0) return 0.0f;
    return exponent >= 255 ? INFINITY : as_float(uint32_t(exponent) << 23 | (made & 0x7fffff));
}

}  // namespace rung_machine
