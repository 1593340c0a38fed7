// Floating-point numbers: float32, float64, pairs of 16-bit ones, conversions and special functions.
#include "machine.h"

#include <fenv.h>
#include <math.h>

#include <algorithm>

namespace rung_machine {

float half_to_float(uint16_t bits)
{
    const uint32_t sign = uint32_t(bits >> 15) << 31, exponent = bits >> 10 & 31, fraction = bits & 1023;
    if (exponent == 31) return as_float(sign | 0x7f800000 | fraction << 13);
    if (exponent) return as_float(sign | (exponent + 112) << 23 | fraction << 13);
    const float small = float(fraction) * 0x1p-24f;
    return sign ? -small : small;
}

uint16_t float_to_half(float value)
{
    const uint32_t bits = as_bits(value), sign = bits >> 16 & 0x8000;
    const float size = fabsf(value);
    if (size != size) return 0x7fff;
    if (size >= 65520.0f) return uint16_t(sign | 0x7c00);
    if (size < 0x1p-14f) return uint16_t(sign | uint32_t(nearbyintf(size * 0x1p24f)));
    const uint32_t rounded = as_bits(size) + 0xfff + (as_bits(size) >> 13 & 1);
    return uint16_t(sign | ((rounded >> 13) - (112 << 10)));
}

float bf16_to_float(uint16_t bits) { return as_float(uint32_t(bits) << 16); }

uint16_t float_to_bf16(float value)
{
    const uint32_t bits = as_bits(value);
    if (value != value) return 0x7fff;
    return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

namespace {

enum : uint32_t { FLUSHES = 1, SATURATES = 2, DOWN = 4, UP = 8, TO_ZERO = 16, SIMPLE = 32, NAN_WINS = 64, SIGNS = 128 };

inline float flushed(float x) { return as_bits(x) & 0x7f800000 ? x : as_float(as_bits(x) & 0x80000000); }
inline uint32_t canonical(float x) { return x != x ? 0x7fffffff : as_bits(x); }  // there is one NaN
inline float positive(float x) { return x <= 0 ? 0.0f : x; }                     // also of a negative zero
inline float saturated(float x) { return x > 0 ? (x < 1 ? x : 1.0f) : 0.0f; }

struct Source
{
    Row scratch;
    const uint32_t* at;
    uint32_t keep, flip;
    Source(const Warp& w, const Operand& o)
        : at(w.row(o, scratch)), keep(o.absolute ? 0x7fffffffu : ALL), flip(o.negative ? 0x80000000u : 0)
    {
    }
    float operator()(unsigned l) const { return as_float((at[l] & keep) ^ flip); }
    uint32_t bits(unsigned l) const { return (at[l] & keep) ^ flip; }
};

// Without branches, so that the compiler makes vectors of them: 16 bits to a float, and a float to the nearest of 16
// bits.
template <bool BF16>
inline float widened(uint32_t bits)
{
    if (BF16) return as_float(bits << 16);
    const uint32_t size = (bits & 0x7fff) << 13, scaled = as_bits(as_float(size) * 0x1p112f);
    return as_float((size >= 0x0f800000 ? size | 0x7f800000 : scaled) | (bits & 0x8000) << 16);
}

template <bool BF16>
inline uint32_t narrowed(float f)
{
    const uint32_t bits = as_bits(f), size = bits & 0x7fffffff, sign = bits >> 16 & 0x8000;
    if (BF16) return size > 0x7f800000 ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    const uint32_t normal = ((size + 0xfff + (size >> 13 & 1)) >> 13) - (112 << 10),
                   small = as_bits(as_float(size) + 0.5f) - as_bits(0.5f);
    const uint32_t made = size >= 0x477ff000 ? 0x7c00 : size < 0x38800000 ? small : normal;
    return size > 0x7f800000 ? 0x7fff : made | sign;
}

// A float that rounds to 16 bits as v does: what it lacks of v stands in its last bit.
template <class T>
float odd_float(T v)
{
    float f = float(v);
    if (T(f) == v || v != v) return f;
    if (fabsf(f) > (v < 0 ? -v : v)) f = as_float(as_bits(f) - 1);
    return as_float(as_bits(f) | 1);
}

// The same of a sum that a double cannot hold.
double odd_sum(double a, double b)
{
    double sum = a + b;
    const double of_b = sum - a, lacks = (a - (sum - of_b)) + (b - of_b);
    if (lacks == 0 || !(fabs(lacks) <= fabs(sum))) return sum;
    uint64_t bits;
    memcpy(&bits, &sum, 8);
    bits = (bits - ((lacks < 0) != (sum < 0))) | 1;
    memcpy(&sum, &bits, 8);
    return sum;
}

// `f` in 16 bits, rounded as the flags say.
uint16_t to_16_bits(float f, bool bf16, uint32_t how)
{
    if (!(how & (DOWN | UP | TO_ZERO)) || f != f || isinf(f)) return bf16 ? float_to_bf16(f) : float_to_half(f);
    const bool negative = as_bits(f) >> 31;
    const float size = fabsf(f);
    uint32_t made = as_bits(size) >> 16;
    bool rest = as_bits(size) & 0xffff;
    if (!bf16) {
        const float units = size * 0x1p24f;
        if (size >= 65536.0f)
            made = 0x7bff, rest = true;
        else if (size < 0x1p-14f)
            made = uint32_t(units), rest = float(made) != units;
        else
            made = (as_bits(size) >> 13) - (112 << 10), rest = as_bits(size) & 0x1fff;
    }
    if (rest && how & (negative ? DOWN : UP)) made++;
    return uint16_t(made | uint32_t(negative) << 15);
}

struct Rounding
{
    explicit Rounding(uint32_t flags) : changed(flags & (DOWN | UP | TO_ZERO))
    {
        if (changed) fesetround(flags & DOWN ? FE_DOWNWARD : flags & UP ? FE_UPWARD : FE_TOWARDZERO);
    }
    ~Rounding()
    {
        if (changed) fesetround(FE_TONEAREST);
    }
    bool changed;
};

template <class F>
void arithmetic(Warp& w, const Op& op, uint32_t lanes, F f)
{
    uint32_t* const d = w.target(op.out);
    if (op.flags & SIMPLE) return map(d, lanes, [&](unsigned l) { return canonical(f(l)); });
    const Rounding rounding(op.flags);
    Row made;
    for (unsigned l = 0; l < WARP; l++) {
        float v = f(l);
        if (op.flags & FLUSHES) v = flushed(v);
        if (op.flags & SATURATES) v = saturated(v);
        made[l] = canonical(v);
    }
    map(d, lanes, [&](unsigned l) { return made[l]; });
}

const float* floats_of(const Warp& w, const Operand& o)  // of a plain instruction
{ return reinterpret_cast<const float*>(o.kind == Kind::Register ? w.r[o.index] : o.lanes); }

void ffma(Warp& w, const Op& op, uint32_t lanes)
{
    if (op.plain && op.flags & SIMPLE && lanes == ALL) {
        const float *const a = floats_of(w, op.s[0]), *const b = floats_of(w, op.s[1]),
                           *const c = floats_of(w, op.s[2]);
        uint32_t* const d = w.target(op.out);
#pragma GCC ivdep
        for (unsigned l = 0; l < WARP; l++) d[l] = canonical(__builtin_fmaf(a[l], b[l], c[l]));
        return;
    }
    const Source a(w, op.s[0]), b(w, op.s[1]), c(w, op.s[2]);
    if (op.flags & FLUSHES)
        arithmetic(w, op, lanes,
                   [&](unsigned l) { return __builtin_fmaf(flushed(a(l)), flushed(b(l)), flushed(c(l))); });
    else
        arithmetic(w, op, lanes, [&](unsigned l) { return __builtin_fmaf(a(l), b(l), c(l)); });
}

void fmul(Warp& w, const Op& op, uint32_t lanes)
{
    const Source a(w, op.s[0]), b(w, op.s[1]);
    const double times = op.s[2].exact;  // the product's factor, before it is rounded
    if (op.flags & FLUSHES)
        arithmetic(w, op, lanes,
                   [&](unsigned l) { return float(double(flushed(a(l))) * double(flushed(b(l))) * times); });
    else if (times != 1)
        arithmetic(w, op, lanes, [&](unsigned l) { return float(double(a(l)) * double(b(l)) * times); });
    else
        arithmetic(w, op, lanes, [&](unsigned l) { return a(l) * b(l); });
}

void fadd(Warp& w, const Op& op, uint32_t lanes)
{
    const Source a(w, op.s[0]), b(w, op.s[1]);
    if (op.flags & FLUSHES)
        arithmetic(w, op, lanes, [&](unsigned l) { return flushed(a(l)) + flushed(b(l)); });
    else
        arithmetic(w, op, lanes, [&](unsigned l) { return a(l) + b(l); });
}

bool prepare_arithmetic(Op& op)
{
    op.flags = (op.has("FTZ") ? FLUSHES : 0) | (op.has("SAT") ? SATURATES : 0) | (op.has("RM") ? DOWN : 0) |
               (op.has("RP") ? UP : 0) | (op.has("RZ") ? TO_ZERO : 0);
    if (!op.flags) op.flags = SIMPLE;
    return true;
}

bool prepare_fmul(Op& op)
{
    op.s[2].exact = 1;
    for (const std::string& m : op.modifiers)
        if ((m[0] == 'D' || m[0] == 'M') && m.size() == 2)
            op.s[2].exact = m[0] == 'D' ? 1.0 / (m[1] - '0') : m[1] - '0';
    return prepare_arithmetic(op);
}

void fmnmx(Warp& w, const Op& op, uint32_t lanes)
{
    const Source a(w, op.s[0]), b(w, op.s[1]);
    const uint32_t least = w.predicate(op.in[0]);
    map(w.target(op.out), lanes, [&](unsigned l) {
        float x = a(l), y = b(l);
        if (op.flags & FLUSHES) x = flushed(x), y = flushed(y);
        if ((x != x || y != y) && (op.flags & NAN_WINS || (x != x && y != y))) return 0x7fffffffu;
        const bool less = x < y || (x == y && as_bits(x) >> 31 && !(as_bits(y) >> 31));
        const uint32_t made = as_bits(x != x ? y : y != y || less == bool(least >> l & 1) ? x : y);
        return op.flags & SIGNS ? made | ((a.at[l] ^ b.at[l]) & 0x80000000) : made;
    });
}

void fmnmx3(Warp& w, const Op& op, uint32_t lanes)
{
    const Source a(w, op.s[0]), b(w, op.s[1]), c(w, op.s[2]);
    const uint32_t least = w.predicate(op.in[0]);
    const auto better = [&](float x, float y, bool is_least) {
        if (x != x || y != y) return op.flags & NAN_WINS ? NAN : x != x ? y : x;
        const bool less = x < y || (x == y && as_bits(x) >> 31 && !(as_bits(y) >> 31));
        return less == is_least ? x : y;
    };
    map(w.target(op.out), lanes, [&](unsigned l) {
        const auto at = [&](const Source& s) { return op.flags & FLUSHES ? flushed(s(l)) : s(l); };
        const bool is_least = least >> l & 1;
        return canonical(better(better(at(a), at(b), is_least), at(c), is_least));
    });
}

bool prepare_fmnmx(Op& op)
{
    op.flags = (op.has("FTZ") ? FLUSHES : 0) | (op.has("NAN") ? NAN_WINS : 0) | (op.has("XORSIGN") ? SIGNS : 0);
    return op.ins;
}

void fsel(Warp& w, const Op& op, uint32_t lanes)
{
    const Source a(w, op.s[0]), b(w, op.s[1]);
    const uint32_t first = w.predicate(op.in[0]);
    map(w.target(op.out), lanes, [&](unsigned l) { return first >> l & 1 ? a.bits(l) : b.bits(l); });
}

// ---- comparisons: the low bits of `flags` are a relation, then how it is combined, then FTZ and BF
// ---------------------

enum : uint32_t { LESS = 1, EQUAL = 2, GREATER = 4, UNORDERED = 8, OR = 16, XOR = 32, FLUSHED = 64, AS_FLOAT = 128 };

const char* const RELATIONS[] = {"F",   "LT",  "EQ",  "LE",  "GT",  "NE",  "GE",  "NUM",
                                 "NAN", "LTU", "EQU", "LEU", "GTU", "NEU", "GEU", "T"};

bool prepare_comparison(Op& op)
{
    int relation = -1;
    for (int i = 0; i < 16; i++)
        if (op.has(RELATIONS[i])) relation = i;
    op.flags = uint32_t(relation) | (op.has("OR") ? OR : 0) | (op.has("XOR") ? XOR : 0) |
               (op.has("FTZ") ? FLUSHED : 0) | (op.has("BF") ? AS_FLOAT : 0);
    return relation >= 0;
}

template <class T>
bool related(uint32_t flags, T x, T y)
{
    const auto holds = [&](uint32_t flag, bool one) {
        return bool(flags & flag) & one;
    };  // without branches, for vectors
    return holds(LESS, x < y) | holds(GREATER, x > y) | holds(EQUAL, x == y) | holds(UNORDERED, (x != x) | (y != y));
}

uint32_t combined(uint32_t flags, uint32_t a, uint32_t b) { return flags & OR ? a | b : flags & XOR ? a ^ b : a & b; }

uint32_t relation_of(Warp& w, const Op& op)
{
    const Source a(w, op.s[0]), b(w, op.s[1]);
    if (op.flags & FLUSHED) return where([&](unsigned l) { return related(op.flags, flushed(a(l)), flushed(b(l))); });
    return where([&](unsigned l) { return related(op.flags, a(l), b(l)); });
}

void set_both(Warp& w, const Op& op, uint32_t holds, uint32_t lanes)
{
    const uint32_t other = op.ins ? w.predicate(op.in[0]) : ALL;
    w.set(op.p[0], combined(op.flags, holds, other), lanes);
    if (op.outs > 1) w.set(op.p[1], combined(op.flags, ~holds, other), lanes);
}

void fsetp(Warp& w, const Op& op, uint32_t lanes) { set_both(w, op, relation_of(w, op), lanes); }

void fset(Warp& w, const Op& op, uint32_t lanes)
{
    const uint32_t holds = combined(op.flags, relation_of(w, op), op.ins ? w.predicate(op.in[0]) : ALL);
    const uint32_t yes = op.flags & AS_FLOAT ? as_bits(1.0f) : ALL;
    map(w.target(op.out), lanes, [&](unsigned l) { return holds >> l & 1 ? yes : 0; });
}

// Whether a quotient needs the slow division: the quick sequence would leave the normal numbers.
void fchk(Warp& w, const Op& op, uint32_t lanes)
{
    const Source a(w, op.s[0]), b(w, op.s[1]);
    w.set(op.p[0], where([&](unsigned l) {
              const int above = int(a.bits(l) >> 23 & 255), below = int(b.bits(l) >> 23 & 255), apart = above - below;
              return above == 255 || below == 255 || below == 0 || below >= 253 || above <= 23 || apart >= 126 ||
                     apart <= -125;
          }),
          lanes);
}

// ---- special functions
// -----------------------------------------------------------------------------------------------

// The upper half of a double's reciprocal (function 8) or of its root's (9); what is subnormal counts as zero.
uint32_t special_of_double(uint32_t function, uint32_t upper)
{
    const uint32_t sign = upper & 0x80000000, exponent = upper >> 20 & 0x7ff, infinity = 0x7ff00000;
    const bool root = function == 9, nan = (upper & 0x7fffffff) > infinity;
    if (nan || (root && sign && exponent)) return 0x7fffffff;
    if (exponent == 0) return sign | infinity;
    if (exponent == 0x7ff) return sign;
    const uint32_t scale = root ? exponent & 1 ? 127 : 128 : 127;  // of a number from 1 to 4 that stands for it
    const float x = as_float(scale << 23 | (upper & 0xfffff) << 3);
    const uint32_t made = as_bits(root ? special_root(x) : special_reciprocal(x));
    const int32_t by = int32_t(exponent) - 1023 - int32_t(scale - 127);
    const int32_t raised = int32_t(made >> 23) - 127 + 1023 - (root ? by / 2 : by);
    return sign | (raised <= 0 ? 0 : uint32_t(raised) << 20 | (made >> 3 & 0xfffff));
}

float special(uint32_t function, float x)
{
    switch (function) {
    case 0: return special_reciprocal(x);
    case 1: return special_root(x);
    case 2: return special_power(x);
    case 3: return special_logarithm(x);
    case 4: return special_square_root(x);
    case 5: return special_sine(x);
    case 6: return special_cosine(x);
    }
    return special_tanh(x);
}

void mufu(Warp& w, const Op& op, uint32_t lanes)
{
    const Source a(w, op.s[0]);
    if (op.flags >= 8) {  // of the upper half of a double
        map(w.target(op.out), lanes, [&](unsigned l) {
            uint64_t bits = uint64_t(a.bits(l)) << 32;
            if (op.s[0].real) memcpy(&bits, &op.s[0].exact, 8);  // a number is a double here
            return special_of_double(op.flags, uint32_t(bits >> 32));
        });
        return;
    }
    uint32_t* const d = w.target(op.out);
    uint32_t before = ~as_bits(a(unsigned(__builtin_ctz(lanes)))), made = 0;
    each(lanes, [&](unsigned l) {  // lanes often have one number: a division by what they share
        const float x = a(l);
        if (as_bits(x) != before) before = as_bits(x), made = canonical(special(op.flags, x));
        d[l] = made;
    });
}

void mufu_of_16_bits(Warp& w, const Op& op, uint32_t lanes)
{
    Row scratch;
    const uint32_t* const a = w.row(op.s[0], scratch);
    const bool bf16 = op.has("BF16");
    const unsigned by = op.s[0].parts.find("H1") == 0 ? 16 : 0;
    uint32_t* const d = w.target(op.out);
    each(lanes, [&](unsigned l) {
        const uint16_t bits =
            uint16_t((a[l] >> by & (op.s[0].absolute ? 0x7fff : 0xffff)) ^ (op.s[0].negative ? 0x8000 : 0));
        const float x = op.s[0].real ? float(op.s[0].exact) : bf16 ? bf16_to_float(bits) : half_to_float(bits);
        const float made = special(op.flags, x);
        d[l] = !bf16 && made >= 65536.0f ? 0x7c00 : to_16_bits(made, bf16, TO_ZERO);
    });
}

bool prepare_mufu(Op& op)
{
    static const char* const names[] = {"RCP", "RSQ", "EX2", "LG2", "SQRT", "SIN", "COS", "TANH", "RCP64H", "RSQ64H"};
    for (uint32_t i = 0; i < 10; i++)
        if (op.has(names[i])) {
            op.flags = i;
            if (op.has("F16") || op.has("BF16")) op.run = mufu_of_16_bits;
            op.fidelity = Fidelity::TABLE;
            return true;
        }
    return false;
}

// ---- conversions
// -------------------------------------------------------------------------------------------------------

double double_at(const uint32_t* low, unsigned l)
{
    const uint64_t bits = low[l] | uint64_t(low[WARP + l]) << 32;
    double x;
    memcpy(&x, &bits, 8);
    return x;
}

struct Double
{
    Row pair[2];
    const uint32_t* at;
    bool negative, absolute;
    Double(const Warp& w, const Operand& o) : at(pair[0]), negative(o.negative), absolute(o.absolute)
    {
        if (o.kind == Kind::Register && o.index != ZERO)
            at = w.r[o.index];
        else if (o.kind == Kind::Constant) {
            for (int32_t i = 0; i < 2; i++) indexed_constant(w, o, pair[i], 4 * i);
        } else {
            uint64_t bits = 0;
            const double x = o.kind == Kind::Number ? o.exact : 0;
            memcpy(&bits, &x, 8);
            std::fill(pair[0], pair[0] + WARP, uint32_t(bits)),
                std::fill(pair[1], pair[1] + WARP, uint32_t(bits >> 32));
        }
    }
    double operator()(unsigned l) const
    {
        double x = double_at(at, l);
        if (absolute) x = fabs(x);
        return negative ? -x : x;
    }
};

void put(uint32_t* d, unsigned l, uint64_t bits) { d[l] = uint32_t(bits), d[WARP + l] = uint32_t(bits >> 32); }
void put(uint32_t* d, unsigned l, double x)
{
    uint64_t bits;
    memcpy(&bits, &x, 8);
    put(d, l, bits);
}

template <class F>
void doubles(Warp& w, const Op& op, uint32_t lanes, F f)
{
    const Rounding rounding(op.flags);
    uint32_t* const d = w.target(op.out);
    double made[WARP];
    each(lanes, [&](unsigned l) { made[l] = f(l); });
    if (d != w.r[SINK]) each(lanes, [&](unsigned l) { put(d, l, made[l]); });
}

void dadd(Warp& w, const Op& op, uint32_t lanes)
{
    const Double a(w, op.s[0]), b(w, op.s[1]);
    doubles(w, op, lanes, [&](unsigned l) { return a(l) + b(l); });
}
void dmul(Warp& w, const Op& op, uint32_t lanes)
{
    const Double a(w, op.s[0]), b(w, op.s[1]);
    doubles(w, op, lanes, [&](unsigned l) { return a(l) * b(l); });
}
void dfma(Warp& w, const Op& op, uint32_t lanes)
{
    const Double a(w, op.s[0]), b(w, op.s[1]), c(w, op.s[2]);
    doubles(w, op, lanes, [&](unsigned l) { return fma(a(l), b(l), c(l)); });
}
void dsetp(Warp& w, const Op& op, uint32_t lanes)
{
    const Double a(w, op.s[0]), b(w, op.s[1]);
    uint32_t holds = 0;
    each(lanes, [&](unsigned l) { holds |= uint32_t(related(op.flags, a(l), b(l))) << l; });
    set_both(w, op, holds, lanes);
}

// Whether the first number is the least or the greatest one, and whether there is none.
void dsetp_of_minimum(Warp& w, const Op& op, uint32_t lanes)
{
    const Double a(w, op.s[0]), b(w, op.s[1]);
    const bool least = op.has("MIN");
    uint32_t first = 0, neither = 0;
    each(lanes, [&](unsigned l) {
        const double x = least ? a(l) : -a(l), y = least ? b(l) : -b(l);
        first |= uint32_t(x == x && (y != y || x < y || (x == y && (signbit(x) || !signbit(y))))) << l;
        neither |= uint32_t(x != x && y != y) << l;
    });
    w.set(op.p[0], first, lanes);
    if (op.outs > 1) w.set(op.p[1], neither, lanes);
}

bool prepare_dsetp(Op& op)
{
    if (!op.has("MIN") && !op.has("MAX")) return prepare_comparison(op);
    op.run = dsetp_of_minimum;
    return op.ins && op.in[0].index == TRUE && !op.in[0].inverted;
}

enum : uint32_t {
    OF_DOUBLE = 1 << 8,
    OF_HALF = 1 << 9,
    OF_BF16 = 1 << 10,
    TO_DOUBLE = 1 << 11,
    TO_HALF = 1 << 12,
    TO_BF16 = 1 << 13,
    TO_WHOLE = 1 << 14,
    NATURAL = 1 << 15,
    ZERO_OF_NAN = 1 << 16
};
double rounded(double x, uint32_t how)
{ return how & TO_ZERO ? trunc(x) : how & DOWN ? floor(x) : how & UP ? ceil(x) : nearbyint(x); }

// A source of the type that the flags name, as a double.
struct Real
{
    const Operand& o;
    const uint32_t flags;
    const Source single;
    const Double wide;
    const unsigned by;
    Real(const Warp& w, const Op& op)
        : o(op.s[0]), flags(op.flags), single(w, o), wide(w, o), by(!o.parts.compare(0, 2, "H1") ? 16 : 0)
    {
    }
    double operator()(unsigned l) const
    {
        if (flags & OF_DOUBLE) return wide(l);
        if (o.real && flags & (OF_HALF | OF_BF16)) return o.exact;
        if (!(flags & (OF_HALF | OF_BF16))) return flags & FLUSHES ? flushed(single(l)) : single(l);
        const uint16_t bits =
            uint16_t((single.at[l] >> by & (o.absolute ? 0x7fff : 0xffff)) ^ (o.negative ? 0x8000 : 0));
        return flags & OF_HALF ? half_to_float(bits) : bf16_to_float(bits);
    }
};

// The modifiers name the result, then the source; what is not named is a float32.
bool prepare_conversion(Op& op)
{
    std::vector<std::string> types;
    for (const std::string& m : op.modifiers)
        if (m == "F16" || m == "F32" || m == "F64" || m == "BF16") types.push_back(m);
    const bool one = op.name == "F2I" || op.name == "FRND", from_integer = op.name == "I2F" || op.name == "I2FP";
    const std::string to = types.empty() || op.name == "F2I" ? "F32" : types[0];
    const std::string from = from_integer            ? "F32"
                             : types.size() > 1      ? types[1]
                             : one && !types.empty() ? types[0]
                                                     : "F32";
    op.flags =
        (op.has("TRUNC") || op.has("RZ") ? TO_ZERO : 0) | (op.has("FLOOR") || op.has("RM") ? DOWN : 0) |
        (op.has("CEIL") || op.has("RP") ? UP : 0) | (op.has("FTZ") ? FLUSHES : 0) | (op.has("SAT") ? SATURATES : 0) |
        (from == "F64" ? OF_DOUBLE : 0) | (from == "F16" ? OF_HALF : 0) | (from == "BF16" ? OF_BF16 : 0) |
        (to == "F64" ? TO_DOUBLE : 0) | (to == "F16" ? TO_HALF : 0) | (to == "BF16" ? TO_BF16 : 0) |
        (op.has("TRUNC") || op.has("FLOOR") || op.has("CEIL") || op.has("RNI") || op.name == "FRND" || op.name == "F2I"
             ? TO_WHOLE
             : 0) |
        (op.has("U64") || op.has("U32") || op.has("U16") || op.has("U8") ? +NATURAL : 0) |
        (op.has("NTZ") ? +ZERO_OF_NAN : 0);
    op.bytes = op.has("U64") || op.has("S64")   ? 8
               : op.has("U16") || op.has("S16") ? 2
               : op.has("U8") || op.has("S8")   ? 1
                                                : 4;
    return true;
}

// A number in the type of the result.
template <class T>
void put_result(const Op& op, uint32_t* d, unsigned l, T v)
{
    if (op.flags & TO_DOUBLE)
        put(d, l, double(v));
    else if (op.flags & (TO_HALF | TO_BF16))
        d[l] = to_16_bits(odd_float(v), op.flags & TO_BF16, op.flags & TO_WHOLE ? 0 : op.flags);
    else
        d[l] = as_bits(op.flags & SATURATES ? saturated(float(v)) : float(v));
}

void f2i(Warp& w, const Op& op, uint32_t lanes)
{
    const bool wide = op.bytes == 8, natural = op.flags & NATURAL;
    const unsigned bits = op.bytes * 8;
    uint32_t* const d = w.target(op.out);
    const Real source(w, op);
    const double most = ldexp(1.0, int(bits - !natural)), least = natural ? 0 : -most;
    const uint64_t of_nan = op.flags & ZERO_OF_NAN ? 0 : 1ull << (bits - 1);
    if (bits == 32 && !(op.flags & (OF_DOUBLE | OF_HALF | OF_BF16))) {  // what is flushed becomes 0 either way
        const float beyond = float(most), lowest = float(least);
        const auto by = [&](auto whole) {
            map(d, lanes, [&](unsigned l) {
                const float x = whole(source.single(l));
                const bool upper = x >= 0x1p31f;
                const float inside = x >= lowest && x < beyond ? upper ? x - 0x1p31f : x : 0;
                const uint32_t in_range = uint32_t(int32_t(inside)) | uint32_t(upper) << 31;
                return x != x        ? uint32_t(of_nan)
                       : x >= beyond ? ~(natural ? 0 : 0x80000000u)
                       : x < lowest  ? (natural ? 0 : 0x80000000u)
                                     : in_range;
            });
        };
        if (op.flags & TO_ZERO) return by(truncf);
        if (!(op.flags & (DOWN | UP))) return by(nearbyintf);
    }
    uint64_t made[WARP] = {};
    each(lanes, [&](unsigned l) {
        const double x = rounded(source(l), op.flags);
        if (x != x)
            made[l] = of_nan;
        else if (x >= most)
            made[l] = natural ? ~0ull >> (64 - bits) : (1ull << (bits - 1)) - 1;
        else if (x <= least)
            made[l] = natural ? 0 : uint64_t(-(1ll << (bits - 1)));
        else
            made[l] = natural ? uint64_t(x) : uint64_t(int64_t(x));
    });
    each(lanes, [&](unsigned l) {
        d[l] = uint32_t(made[l]);
        if (wide && d != w.r[SINK]) d[WARP + l] = uint32_t(made[l] >> 32);
    });
}

// Numbers of 8 or 16 bits out of larger ones: of one, or of two that are put below a third.
int64_t clamped(const Op& op, double x)
{
    const bool natural = op.has("U8") || op.has("U16");
    const double most = op.has("U8")    ? 255
                        : op.has("S8")  ? 127
                        : op.has("U16") ? 65535
                                        : 32767,
                 least = natural ? 0 : -most - 1;
    return x != x ? 0 : int64_t(std::min(std::max(x, least), most));
}

void narrow(Warp& w, const Op& op, uint32_t lanes)
{
    const bool packs = op.name == "I2IP" || op.name == "F2IP";
    const unsigned bits = op.has("U8") || op.has("S8") ? 8 : 16;
    const uint32_t mask = (1u << bits) - 1;
    Row first, second, third;
    const uint32_t *const a = w.row(op.s[0], first), *const b = packs ? w.row(op.s[1], second) : a,
                          *const c = packs ? w.row(op.s[2], third) : a;
    uint32_t made[WARP];
    const auto number = [&](const uint32_t* from, unsigned l) {
        return op.name == "F2IP" ? rounded(as_float(from[l]), op.flags) : double(int32_t(from[l]));
    };
    each(lanes, [&](unsigned l) {
        const int64_t low = clamped(op, number(packs ? b : a, l));
        if (!packs)
            made[l] = uint32_t(low);
        else
            made[l] = (uint32_t(low) & mask) | (uint32_t(clamped(op, number(a, l))) & mask) << bits |
                      (bits == 8 ? c[l] << 16 : 0);
    });
    uint32_t* const d = w.target(op.out);
    each(lanes, [&](unsigned l) { d[l] = made[l]; });
}

void i2f(Warp& w, const Op& op, uint32_t lanes)
{
    const Operand& o = op.s[0];
    const bool wide = op.bytes == 8, natural = op.flags & NATURAL;
    const unsigned bits = op.bytes * 8;
    Row scratch;
    const uint32_t* a = w.row(o, scratch);
    const unsigned by = o.parts == "H1" || o.parts == "B2" ? 16 : o.parts == "B1" ? 8 : o.parts == "B3" ? 24 : 0;
    uint32_t* const d = w.target(op.out);
    const Rounding rounding(op.flags & (TO_HALF | TO_BF16) ? 0 : op.flags);
    if (bits == 32 && !by && !o.negative && !(op.flags & (TO_HALF | TO_BF16 | TO_DOUBLE | SATURATES)))
        return map(d, lanes, [&](unsigned l) {  // halves are exact: their sum is rounded once
            const float high = float(int32_t(a[l] >> 16)), low = float(int32_t(a[l] & 0xffff));
            return as_bits(natural ? high * 65536.0f + low : float(int32_t(a[l])));
        });
    uint64_t source[WARP] = {};
    each(lanes, [&](unsigned l) {
        uint64_t v = wide ? a[l] | uint64_t(a == w.r[ZERO] ? 0 : a[WARP + l]) << 32 : a[l] >> by;
        if (bits < 64) v = natural ? v & ~(~0ull << bits) : uint64_t(int64_t(v << (64 - bits)) >> (64 - bits));
        source[l] = o.negative ? -v : v;
    });
    each(lanes, [&](unsigned l) {
        const uint64_t v = source[l];
        if (op.flags & (TO_HALF | TO_BF16))
            put_result(op, d, l, natural ? (long double)(v) : (long double)(int64_t(v)));
        else
            natural ? put_result(op, d, l, v) : put_result(op, d, l, int64_t(v));
    });
}

void f2f(Warp& w, const Op& op, uint32_t lanes)
{
    uint32_t* const d = w.target(op.out);
    const Real source(w, op);
    double made[WARP] = {};
    each(lanes, [&](unsigned l) {
        made[l] = source(l);
        if (op.flags & TO_WHOLE) made[l] = rounded(made[l], op.flags);
    });
    const Rounding rounding(op.flags & (TO_HALF | TO_BF16) ? 0 : op.flags);
    each(lanes, [&](unsigned l) { put_result(op, d, l, made[l]); });
}

float eight_bits(uint32_t bits, bool e5m2)
{
    if (e5m2) return half_to_float(uint16_t(bits << 8));
    const uint32_t exponent = bits >> 3 & 15, fraction = bits & 7;
    const float sign = bits & 128 ? -1.0f : 1.0f;
    if (exponent == 15 && fraction == 7) return NAN;
    return sign * (exponent ? ldexpf(1.0f + float(fraction) / 8, int(exponent) - 7) : ldexpf(float(fraction), -9));
}

uint32_t to_eight_bits(float x, bool e5m2)
{
    const uint32_t sign = as_bits(x) >> 31 << 7;
    if (x != x) return 0x7f;
    float size = fabsf(x);
    const int least = e5m2 ? -14 : -6, digits = e5m2 ? 2 : 3;
    const float most = e5m2 ? 57344.0f : 448.0f;
    if (size > most) size = most;
    int exponent = size > 0 ? std::max(ilogbf(size), least) : least;
    const float unit = ldexpf(1.0f, exponent - digits);
    size = std::min(nearbyintf(size / unit) * unit, most);
    if (size == 0) return sign;
    exponent = std::max(ilogbf(size), least);
    const uint32_t fraction =
        uint32_t(size / ldexpf(1.0f, exponent - digits));  // with the leading 1 of a normal number
    const uint32_t lead = 1u << digits;
    return sign | (fraction < lead ? fraction : uint32_t(exponent - least + 1) << digits | (fraction - lead));
}

void f2fp(Warp& w, const Op& op, uint32_t lanes)
{
    uint32_t* const d = w.target(op.out);
    const bool e5m2 = op.has("E5M2"), relu = op.has("RELU");
    if (op.has("UNPACK_B")) {
        Row scratch, made;
        const uint32_t* a = w.row(op.s[0], scratch);
        const unsigned by = op.s[0].parts.find("H1") == 0 ? 16 : 0;
        const auto half = [&](uint32_t bits) {
            const float x = eight_bits(bits & 255, e5m2);
            return uint32_t(float_to_half(relu ? positive(x) : x));
        };
        each(lanes, [&](unsigned l) { made[l] = half(a[l] >> by) | half(a[l] >> (by + 8)) << 16; });
        return each(lanes, [&](unsigned l) { d[l] = made[l]; });
    }
    if (op.has("UNPACK_B_MERGE_C")) {  // two halves to eight bits each
        Row first, second;
        const uint32_t *const a = w.row(op.s[0], first), *const c = w.row(op.s[1], second);
        const auto eight = [&](uint32_t bits) {
            const float x = half_to_float(uint16_t(bits));
            return to_eight_bits(relu ? positive(x) : x, e5m2);
        };
        return map(d, lanes, [&](unsigned l) { return c[l] << 16 | eight(a[l] >> 16) << 8 | eight(a[l]); });
    }
    const Source a(w, op.s[0]), b(w, op.s[1]);
    const bool bf16 = op.has("BF16"), eight = e5m2 || op.has("E4M3");
    Row scratch, zero = {};
    const uint32_t* c = op.sources > 2 ? w.row(op.s[2], scratch) : zero;
    const uint32_t truncated = op.has("RZ") ? TO_ZERO : 0;
    if (!relu && !eight && !truncated) {
        if (bf16) return map(d, lanes, [&](unsigned l) { return narrowed<true>(a(l)) << 16 | narrowed<true>(b(l)); });
        return map(d, lanes, [&](unsigned l) { return narrowed<false>(a(l)) << 16 | narrowed<false>(b(l)); });
    }
    map(d, lanes, [&](unsigned l) {
        float x = a(l), y = b(l);
        if (relu) x = positive(x), y = positive(y);
        if (eight) return c[l] << 16 | to_eight_bits(x, e5m2) << 8 | to_eight_bits(y, e5m2);
        return uint32_t(to_16_bits(x, bf16, truncated)) << 16 | to_16_bits(y, bf16, truncated);
    });
}

// ---- pairs of 16-bit numbers
// ---------------------------------------------------------------------------------------------

// Sources of an instruction on pairs; two numbers in the text are the halves of one source, the upper one first.
struct Halves
{
    Row scratch;
    const uint32_t* at = nullptr;
    uint32_t keep = ALL, flip = 0;
    unsigned low = 0, high = 16;  // where the two halves are taken from

    Halves(const Warp& w, const Op& op, unsigned& next, bool bf16)
    {
        const Operand& o = op.s[next++];
        if (o.kind == Kind::Number) {
            const auto bits = [&](const Operand& n) {
                return uint32_t(bf16 ? float_to_bf16(float(n.exact)) : float_to_half(float(n.exact)));
            };
            uint32_t both = o.real ? bits(o) << 16 : o.value;
            if (o.real && next < op.sources && op.s[next].kind == Kind::Number)
                both |= bits(op.s[next++]);
            else if (o.real)
                both |= both >> 16;
            std::fill(scratch, scratch + WARP, both);
            at = scratch;
            return;
        }
        at = w.row(o, scratch);
        if (o.absolute) keep = 0x7fff7fff;
        if (o.negative) flip = 0x80008000;
        if (o.parts == "H0_NH1") flip ^= 0x80000000, low = 16, high = 0;  // the upper one is named first
        if (o.parts == "H0_H0" || o.parts == "H0") high = 0;
        if (o.parts == "H1_H1" || o.parts == "H1") low = 16;
    }
    template <bool BF16>
    void get(float* made, unsigned upper, bool signs = true) const
    {
        const uint32_t kept = signs ? keep : ALL, flipped = signs ? flip : 0;
        const unsigned by = upper ? high : low;
        for (unsigned l = 0; l < WARP; l++) made[l] = widened<BF16>(((at[l] & kept) ^ flipped) >> by & 0xffff);
    }
};

// A sum that rounds to 16 bits as the exact one does.
template <bool BF16>
inline float sum_of(float a, float b, float c)  // a * b + c
{
    if (BF16) return odd_float(odd_sum(double(a) * b, c));
    const float product = a * b, sum = product + c, of_c = sum - product, lacks = (product - (sum - of_c)) + (c - of_c);
    const uint32_t bits = as_bits(sum), odd = (bits - ((as_bits(lacks) ^ bits) >> 31)) | 1;
    return as_float((lacks != 0) & ((bits & 0x7f800000) != 0x7f800000) ? odd : bits);
}

enum : uint32_t {
    PLUS,
    TIMES,
    FUSED,
    LEAST,
    KIND = 3,
    WHOLE = 8,
    RELU = 16,
    SAT = 32,
    NAN_FIRST = 64,
    XORS = 128,
    LOWER = 256,
    UPPER = 512,
    NO_SUBNORMALS = 1024
};

template <bool BF16>
void pairs_of(Warp& w, const Op& op, uint32_t lanes)
{
    const uint32_t kind = op.flags & KIND;
    unsigned next = 0;
    const Halves a(w, op, next, BF16), b(w, op, next, BF16);
    const Halves c(w, op, kind == FUSED ? next : (next = 0, next), BF16);
    const uint32_t least = kind == LEAST ? w.predicate(op.in[0]) : 0;
    Row made = {};
    for (unsigned upper = 0; upper < (op.flags & WHOLE ? 1u : 2u); upper++) {
        alignas(64) float x[WARP], y[WARP], z[WARP], v[WARP];
        a.get<BF16>(x, upper), b.get<BF16>(y, upper);
        if (kind == FUSED) c.get<BF16>(z, upper);
        const auto flush = [&](float* row) {
            for (unsigned l = 0; l < WARP; l++) row[l] = fabsf(row[l]) < 0x1p-14f ? copysignf(0, row[l]) : row[l];
        };
        if (op.flags & NO_SUBNORMALS) flush(x), flush(y), kind == FUSED ? flush(z) : void();
        if (op.flags & WHOLE) {
            for (unsigned l = 0; l < WARP; l++)
                v[l] = kind == PLUS ? x[l] + y[l] : kind == TIMES ? x[l] * y[l] : __builtin_fmaf(x[l], y[l], z[l]);
        } else if (kind == PLUS) {
            for (unsigned l = 0; l < WARP; l++) v[l] = sum_of<BF16>(x[l], 1.0f, y[l]);
        } else if (kind == TIMES) {
            for (unsigned l = 0; l < WARP; l++) v[l] = BF16 ? odd_float(double(x[l]) * y[l]) : x[l] * y[l];
        } else if (kind == FUSED) {
            for (unsigned l = 0; l < WARP; l++) v[l] = sum_of<BF16>(x[l], y[l], z[l]);
        } else {
            for (unsigned l = 0; l < WARP; l++) {
                const bool less = (x[l] < y[l]) | ((x[l] == y[l]) & bool(as_bits(x[l]) >> 31)),
                           none = (x[l] != x[l]) | (y[l] != y[l]);
                const float other = op.flags & NAN_FIRST ? NAN : x[l] != x[l] ? y[l] : x[l];
                v[l] = none ? other : less == bool(least >> l & 1) ? x[l] : y[l];
            }
            if (op.flags & XORS) {
                a.get<BF16>(x, upper, false), b.get<BF16>(y, upper, false);
                for (unsigned l = 0; l < WARP; l++)
                    v[l] = as_float(as_bits(v[l]) | ((as_bits(x[l]) ^ as_bits(y[l])) & 0x80000000));
            }
        }
        if (op.flags & NO_SUBNORMALS) flush(v);
        if (op.flags & RELU)
            for (float& n : v) n = positive(n);
        if (op.flags & SAT)
            for (float& n : v) n = saturated(n);
        if (op.flags & WHOLE)
            for (unsigned l = 0; l < WARP; l++) made[l] = canonical(v[l]);
        else
            for (unsigned l = 0; l < WARP; l++) made[l] |= narrowed<BF16>(v[l]) << 16 * upper;
    }
    uint32_t* const d = w.target(op.out);
    const uint32_t kept = op.flags & LOWER ? 0xffff0000 : op.flags & UPPER ? 0xffff : 0;
    map(d, lanes, [&](unsigned l) { return (d[l] & kept) | (made[l] & ~kept); });
}

void two_numbers(Warp& w, const Op& op, uint32_t lanes)  // x * 0 + (a, b): a constant, which needs no further unit
{
    const uint32_t both = op.flags;
    map(w.target(op.out), lanes, [&](unsigned) { return both; });
}

template <uint32_t WHAT>
bool prepare_pairs(Op& op)
{
    const auto zero = [&](unsigned i) { return op.s[i].kind == Kind::Register && op.s[i].index == ZERO; };
    if (WHAT == FUSED && op.sources == 4 && zero(0) && zero(1) && op.s[2].real && op.s[3].real &&
        op.modifiers.size() <= 1 && !op.has("BF16_V2")) {
        op.flags = uint32_t(float_to_half(float(op.s[2].exact))) << 16 | float_to_half(float(op.s[3].exact));
        op.run = two_numbers;
        return true;
    }
    const bool bf16 = op.has("BF16_V2") || op.has("BF16");
    op.flags = WHAT | (op.has("F32") ? +WHOLE : 0) | (op.has("RELU") ? +RELU : 0) | (op.has("SAT") ? +SAT : 0) |
               (op.has("NAN") ? +NAN_FIRST : 0) | (op.has("XORSIGN") ? +XORS : 0) |
               (op.has("FTZ") && !bf16 ? +NO_SUBNORMALS : 0) |
               (op.out.parts == "H0_H0" || op.has("H0_H0") ? +LOWER : 0) |
               (op.out.parts == "H1_H1" || op.has("H1_H1") ? +UPPER : 0);
    op.run = bf16 ? pairs_of<true> : pairs_of<false>;
    return true;
}

void compared_halves(const Warp& w, const Op& op, bool bf16, uint32_t* holds)
{
    unsigned next = 0;
    const Halves a(w, op, next, bf16), b(w, op, next, bf16);
    for (unsigned upper = 0; upper < 2; upper++) {
        float x[WARP], y[WARP];
        if (bf16)
            a.get<true>(x, upper), b.get<true>(y, upper);
        else
            a.get<false>(x, upper), b.get<false>(y, upper);
        holds[upper] = where([&](unsigned l) { return bool(related(op.flags, x[l], y[l])); });
    }
}

void hsetp2(Warp& w, const Op& op, uint32_t lanes)
{
    uint32_t holds[2];
    compared_halves(w, op, op.has("BF16_V2"), holds);
    const uint32_t other = op.ins ? w.predicate(op.in[0]) : ALL;
    if (op.has("H0_AND")) holds[1] = ~holds[0];
    w.set(op.p[0], combined(op.flags, holds[0], other), lanes);
    if (op.outs > 1) w.set(op.p[1], combined(op.flags, holds[1], other), lanes);
}

void hset2(Warp& w, const Op& op, uint32_t lanes)
{
    const bool bf16 = op.has("BF16_V2");
    const uint32_t other = op.ins ? w.predicate(op.in[0]) : ALL, yes = !(op.flags & AS_FLOAT) ? 0xffff
                                                                       : bf16                 ? 0x3f80
                                                                                              : 0x3c00;
    uint32_t holds[2];
    compared_halves(w, op, bf16, holds);
    const uint32_t low = combined(op.flags, holds[0], other), high = combined(op.flags, holds[1], other);
    map(w.target(op.out), lanes, [&](unsigned l) { return (low >> l & 1) * yes | (high >> l & 1) * yes << 16; });
}

bool prepare_narrow(Op& op) { return op.has("U8") || op.has("S8") || op.has("U16") || op.has("S16"); }

#define OF_FLOATS
#include "rows.h"

}  // namespace

void add_floats(Table& table) { add_rows(table); }

}  // namespace rung_machine
