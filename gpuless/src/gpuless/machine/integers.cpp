// Integers, predicates, moves and special registers.
#include "machine.h"

#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <functional>

namespace rung_machine {
namespace {

// A source for lane l, with its sign.
struct Source
{
    Row scratch;
    const uint32_t* at;
    uint32_t flip, add;
    Source(const Warp& w, const Operand& o)
        : at(w.row(o, scratch)), flip(o.negative || o.inverted ? ALL : 0), add(o.negative)
    {
    }
    uint32_t operator()(unsigned l) const { return (at[l] ^ flip) + add; }
    // For sums with a carry: the complement alone; what is added to it stands in `add`.
    uint64_t bits(unsigned l) const { return at[l] ^ flip; }
};

// The upper half of a pair of registers, constants or numbers.
struct Pair
{
    Row low_scratch, high_scratch;
    const uint32_t *low, *high;
    bool negative;
    Pair(const Warp& w, const Operand& o) : low(w.row(o, low_scratch)), high(high_scratch), negative(o.negative)
    {
        if (o.kind == Kind::Register)
            high = w.r[o.index == ZERO ? ZERO : o.index + 1];
        else if (o.kind == Kind::Constant)
            indexed_constant(w, o, high_scratch, 4);
        else
            std::fill(high_scratch, high_scratch + WARP, o.value >> 31 ? ALL : 0);
    }
    uint64_t operator()(unsigned l) const
    {
        const uint64_t v = low[l] | uint64_t(high[l]) << 32;
        return (v ^ -uint64_t(negative)) + negative;
    }
};

enum {
    X = 1,
    UNSIGNED = 2,
    HIGH = 4,
    WIDE = 8,
    SIGN_EXTENDED = 16,
    LEFT = 32,
    SIXTYFOUR = 64,
    WRAPS = 128,
    RELU = 256,
    HALVES = 512,
    THREE = 1024
};

uint32_t carried_in(const Warp& w, const Op& op, unsigned i)
{ return op.flags & X && i < op.ins ? w.predicate(op.in[i]) : 0; }

void put(uint32_t* d, uint32_t lanes, const Row& made)
{
    map(d, lanes, [&](unsigned l) { return made[l]; });
}

void iadd3(Warp& w, const Op& op, uint32_t lanes)
{
    if (op.flags & SIXTYFOUR) {
        const Pair a(w, op.s[0]), b(w, op.s[1]), c(w, op.s[2]);
        uint32_t* low = w.target(op.out);
        Row lows, highs;
        for (unsigned l = 0; l < WARP; l++) {
            const uint64_t v = a(l) + b(l) + c(l);
            lows[l] = uint32_t(v), highs[l] = uint32_t(v >> 32);
        }
        put(low, lanes, lows);
        if (low != w.r[SINK]) put(low + WARP, lanes, highs);
        return;
    }
    const Source a(w, op.s[0]), b(w, op.s[1]), c(w, op.s[2]);
    if (!op.outs && !(op.flags & X))
        return map(w.target(op.out), lanes, [&](unsigned l) { return a(l) + b(l) + c(l); });
    // Without .X a negated source is its complement plus one; with .X the carry is that one.
    const uint32_t first = carried_in(w, op, 0), second = carried_in(w, op, 1),
                   more = op.flags & X ? 0 : a.add + b.add + c.add;
    Row sum, over;
    for (unsigned l = 0; l < WARP; l++) {
        const uint64_t total = a.bits(l) + b.bits(l) + c.bits(l) + more + (first >> l & 1) + (second >> l & 1);
        sum[l] = uint32_t(total), over[l] = uint32_t(total >> 32);
    }
    put(w.target(op.out), lanes, sum);
    for (unsigned i = 0; i < op.outs; i++) w.set(op.p[i], where([&](unsigned l) { return over[l] > i; }), lanes);
}

bool prepare_iadd3(Op& op)
{
    op.flags = (op.has("X") ? X : 0) | (op.has("64") ? SIXTYFOUR : 0);
    return op.sources >= 2;
}

const uint32_t* plain_row(const Warp& w, const Operand& o)  // of a plain instruction
{ return o.kind == Kind::Register ? w.r[o.index] : o.lanes; }

template <bool UNSIGNED_PRODUCT>
void wide_product(Warp& w, const Op& op, uint32_t lanes)
{
    uint32_t* const to = w.target(op.out);
    if (op.plain && lanes == ALL && op.flags == (WIDE | (UNSIGNED_PRODUCT ? UNSIGNED : 0)) && !op.outs && !op.ins &&
        op.s[2].kind == Kind::Register && to != w.r[SINK]) {
        const uint32_t *const a = plain_row(w, op.s[0]), *const b = plain_row(w, op.s[1]),
                              *const low = w.r[op.s[2].index],
                              *const high = w.r[op.s[2].index == ZERO ? ZERO : op.s[2].index + 1];
        uint64_t sum[WARP];
        for (unsigned l = 0; l < WARP; l++)
            sum[l] = (UNSIGNED_PRODUCT ? uint64_t(a[l]) * b[l] : uint64_t(int64_t(int32_t(a[l])) * int32_t(b[l]))) +
                     (low[l] | uint64_t(high[l]) << 32);
        for (unsigned l = 0; l < WARP; l++) to[l] = uint32_t(sum[l]), to[WARP + l] = uint32_t(sum[l] >> 32);
        return;
    }
    const Source a(w, op.s[0]), b(w, op.s[1]);
    const Pair c(w, op.s[2]);
    const uint32_t in = carried_in(w, op, 0);
    const auto product = [&](unsigned l) {
        return UNSIGNED_PRODUCT ? uint64_t(a(l)) * b(l) : uint64_t(int64_t(int32_t(a(l))) * int32_t(b(l)));
    };
    Row low, high, over;
    const auto put_sum = [&](unsigned l, uint64_t sum) { low[l] = uint32_t(sum), high[l] = uint32_t(sum >> 32); };
    if (!in && !op.outs)
        for (unsigned l = 0; l < WARP; l++) put_sum(l, product(l) + c(l));
    else
        for (unsigned l = 0; l < WARP; l++) {
            uint64_t sum;
            over[l] = __builtin_add_overflow(product(l), c(l), &sum) |
                      __builtin_add_overflow(sum, uint64_t(in >> l & 1), &sum);
            put_sum(l, sum);
        }
    uint32_t* d = w.target(op.out);
    if (op.flags & WIDE) {
        put(d, lanes, low);
        d = d == w.r[SINK] ? d : d + WARP;
    }
    put(d, lanes, high);
    if (op.outs) w.set(op.p[0], where([&](unsigned l) { return over[l]; }), lanes);
}

void imad(Warp& w, const Op& op, uint32_t lanes)
{
    if (op.flags & (WIDE | HIGH))
        return op.flags & UNSIGNED ? wide_product<true>(w, op, lanes) : wide_product<false>(w, op, lanes);
    const Source a(w, op.s[0]), b(w, op.s[1]), c(w, op.s[2]);
    if (op.flags & X) {
        const uint32_t in = carried_in(w, op, 0);
        Row low, over;
        for (unsigned l = 0; l < WARP; l++) {
            const uint64_t sum = uint64_t(a(l) * b(l)) + uint32_t(c.bits(l)) + (in >> l & 1);
            low[l] = uint32_t(sum), over[l] = uint32_t(sum >> 32);
        }
        put(w.target(op.out), lanes, low);
        if (op.outs) w.set(op.p[0], where([&](unsigned l) { return over[l]; }), lanes);
        return;
    }
    map(w.target(op.out), lanes, [&](unsigned l) { return a(l) * b(l) + c(l); });
}

bool prepare_imad(Op& op)
{
    op.flags = (op.has("X") ? X : 0) | (op.has("U32") ? UNSIGNED : 0) | (op.has("HI") ? HIGH : 0) |
               (op.has("WIDE") ? WIDE : 0);
    return op.sources == 3;
}

// f of the upper and of the lower halves.
template <class F>
uint32_t halves(uint32_t a, uint32_t b, F f)
{ return uint32_t(f(a >> 16, b >> 16)) << 16 | (uint32_t(f(a & 0xffff, b & 0xffff)) & 0xffff); }

void viadd(Warp& w, const Op& op, uint32_t lanes)
{
    const Source a(w, op.s[0]), b(w, op.s[1]);
    if (!(op.flags & HALVES)) return map(w.target(op.out), lanes, [&](unsigned l) { return a(l) + b(l); });
    const auto half = [](const Source& s, unsigned l) { return s.add ? halves(0, s.at[l], std::minus<>()) : s.at[l]; };
    map(w.target(op.out), lanes, [&](unsigned l) { return halves(half(a, l), half(b, l), std::plus<>()); });
}

// (a << n) + b, or with HI the upper half of (c:a) << n, plus b.
void lea(Warp& w, const Op& op, uint32_t lanes)
{
    const bool high = op.flags & HIGH, with_c = high && !(op.flags & SIGN_EXTENDED);
    const Source a(w, op.s[0]), b(w, op.s[1]), c(w, op.s[with_c ? 2 : 0]);
    const unsigned shift = op.s[with_c ? 3 : 2].value & 31;
    if (!high && !op.outs) return map(w.target(op.out), lanes, [&](unsigned l) { return (a(l) << shift) + b(l); });
    const uint32_t in = carried_in(w, op, 0), more = (op.flags & X ? 0 : b.add) + (high ? 0 : a.add);
    Row made, over;
    for (unsigned l = 0; l < WARP; l++) {
        const uint32_t above = with_c ? c(l) : uint32_t(int32_t(a(l)) >> 31);
        // A negative term is the complement and one more, so that -0 carries.
        const uint32_t shifted = !high ? a.add ? ~(~uint32_t(a.bits(l)) << shift) : a(l) << shift
                                       : uint32_t((uint64_t(above) << 32 | a(l)) << shift >> 32);
        const uint64_t sum = uint64_t(shifted) + uint32_t(b.bits(l)) + more + (in >> l & 1);
        made[l] = uint32_t(sum), over[l] = uint32_t(sum >> 32);
    }
    put(w.target(op.out), lanes, made);
    if (op.outs) w.set(op.p[0], where([&](unsigned l) { return over[l]; }), lanes);
}

bool prepare_lea(Op& op)
{
    op.flags = (op.has("X") ? X : 0) | (op.has("HI") ? HIGH : 0) | (op.has("SX32") ? SIGN_EXTENDED : 0);
    if (op.sources == 2) op.s[2].kind = Kind::Number, op.sources = 3;
    return true;
}

inline uint32_t looked_up(uint32_t a, uint32_t b, uint32_t c, unsigned lut)
{
    uint32_t r = 0;
    if (lut & 1) r |= ~a & ~b & ~c;
    if (lut & 2) r |= ~a & ~b & c;
    if (lut & 4) r |= ~a & b & ~c;
    if (lut & 8) r |= ~a & b & c;
    if (lut & 16) r |= a & ~b & ~c;
    if (lut & 32) r |= a & ~b & c;
    if (lut & 64) r |= a & b & ~c;
    if (lut & 128) r |= a & b & c;
    return r;
}

void lop3(Warp& w, const Op& op, uint32_t lanes)
{
    const Source a(w, op.s[0]), b(w, op.s[1]), c(w, op.s[2]);
    const unsigned lut = op.s[3].value;
    Row made;
    switch (lut) {
    case 0xc0:
        for (unsigned l = 0; l < WARP; l++) made[l] = a(l) & b(l);
        break;
    case 0xfc:
        for (unsigned l = 0; l < WARP; l++) made[l] = a(l) | b(l);
        break;
    case 0x3c:
        for (unsigned l = 0; l < WARP; l++) made[l] = a(l) ^ b(l);
        break;
    default:
        for (unsigned l = 0; l < WARP; l++) made[l] = looked_up(a(l), b(l), c(l), lut);
    }
    if (op.outs)
        w.set(op.p[0], where([&](unsigned l) { return made[l] != 0; }) | (op.ins ? w.predicate(op.in[0]) : 0), lanes);
    map(w.target(op.out), lanes, [&](unsigned l) { return made[l]; });
}

// P0, P1, a, b, c, two tables: all but the tables are predicates, or signs of registers.
void plop3(Warp& w, const Op& op, uint32_t lanes)
{
    const auto source = [&](const Operand& o) {
        if (o.kind != Kind::Register) return w.predicate(o);
        const uint32_t* const row = w.r[o.index];
        return where([&](unsigned l) { return row[l] >> 31; });
    };
    const uint32_t a = source(op.every[2]), b = source(op.every[3]), c = source(op.every[4]);
    const uint32_t first = looked_up(a, b, c, op.every[5].value), second = looked_up(a, b, c, op.every[6].value);
    w.set(op.every[0], first, lanes);
    w.set(op.every[1], second, lanes);
}

void shf(Warp& w, const Op& op, uint32_t lanes)
{
    const Source a(w, op.s[0]), n(w, op.s[1]), c(w, op.s[2]);
    uint32_t* const d = w.target(op.out);
    const unsigned most = op.flags & SIXTYFOUR ? 63 : 31;
    if (op.s[1].kind == Kind::Number && op.s[1].value < 32) {
        const unsigned by = op.s[1].value;
        switch (op.flags) {
        case HIGH: return map(d, lanes, [&](unsigned l) { return uint32_t(int32_t(c(l)) >> by); });
        case HIGH | UNSIGNED: return map(d, lanes, [&](unsigned l) { return c(l) >> by; });
        case LEFT | UNSIGNED: return map(d, lanes, [&](unsigned l) { return a(l) << by; });
        case LEFT | UNSIGNED | SIXTYFOUR | HIGH:
        case LEFT | UNSIGNED | HIGH:
            return map(d, lanes, [&](unsigned l) { return uint32_t((uint64_t(c(l)) << 32 | a(l)) << by >> 32); });
        case UNSIGNED | SIXTYFOUR:
            return map(d, lanes, [&](unsigned l) { return uint32_t((uint64_t(c(l)) << 32 | a(l)) >> by); });
        }
    }
    map(d, lanes, [&](unsigned l) {
        const uint64_t v = uint64_t(c(l)) << 32 | a(l);
        const unsigned by = op.flags & WRAPS ? n(l) & most : std::min(n(l), most + 1);
        uint64_t made;
        if (op.flags & LEFT)
            made = by > 63 ? 0 : v << by;
        else if (op.flags & UNSIGNED)
            made = by > 63 ? 0 : v >> by;
        else
            made = uint64_t(int64_t(v) >> std::min(by, 63u));
        return uint32_t(op.flags & HIGH ? made >> 32 : made);
    });
}

bool prepare_shf(Op& op)
{
    const bool wide = op.has("U64") || op.has("S64");
    op.flags = (op.has("L") ? LEFT : 0) | (op.has("U32") || op.has("U64") ? UNSIGNED : 0) | (op.has("HI") ? HIGH : 0) |
               (op.has("W") ? WRAPS : 0) | (wide ? SIXTYFOUR : 0);
    return true;
}

enum Comparison { LT, LE, GT, GE, EQ, NE, ALWAYS, NEVER };
enum Combination { AND, OR, XOR };

template <class T>
bool compares(unsigned how, T a, T b)
{
    switch (how) {
    case LT: return a < b;
    case LE: return a <= b;
    case GT: return a > b;
    case GE: return a >= b;
    case EQ: return a == b;
    case NE: return a != b;
    }
    return how == ALWAYS;
}

template <class T>
uint32_t compared(unsigned how, const Source& a, const Source& b)
{
    switch (how) {
    case LT: return where([&](unsigned l) { return T(a(l)) < T(b(l)); });
    case LE: return where([&](unsigned l) { return T(a(l)) <= T(b(l)); });
    case GT: return where([&](unsigned l) { return T(a(l)) > T(b(l)); });
    case GE: return where([&](unsigned l) { return T(a(l)) >= T(b(l)); });
    case EQ: return where([&](unsigned l) { return a(l) == b(l); });
    case NE: return where([&](unsigned l) { return a(l) != b(l); });
    }
    return how == ALWAYS ? ALL : 0;
}

uint32_t combined(unsigned how, uint32_t a, uint32_t b) { return how == AND ? a & b : how == OR ? a | b : a ^ b; }

// flags: comparison, combination << 4, then EX and UNSIGNED
enum { EXTENDED = 1 << 8, NATURAL = 1 << 9 };

void isetp(Warp& w, const Op& op, uint32_t lanes)
{
    const Source a(w, op.s[0]), b(w, op.s[1]);
    const unsigned how = op.flags & 15;
    uint32_t holds = op.flags & NATURAL ? compared<uint32_t>(how, a, b) : compared<int32_t>(how, a, b);
    if (op.flags & EXTENDED) {  // the upper halves of 64-bit numbers; the lower ones were compared before
        const uint32_t same = where([&](unsigned l) { return a(l) == b(l); }), low = w.predicate(op.in[1]);
        holds = (same & low) | (~same & holds);
    }
    const uint32_t other = op.ins ? w.predicate(op.in[0]) : ALL;
    w.set(op.p[0], combined(op.flags >> 4 & 3, holds, other), lanes);
    if (op.outs > 1) w.set(op.p[1], combined(op.flags >> 4 & 3, ~holds, other), lanes);
}

void compare_wide(Warp& w, const Op& op, uint32_t lanes);

bool prepare_isetp(Op& op)
{
    static const char* const names[] = {"LT", "LE", "GT", "GE", "EQ", "NE", "T", "F"};
    op.flags = (op.has("OR")    ? OR
                : op.has("XOR") ? XOR
                                : AND)
                   << 4 |
               (op.has("EX") ? EXTENDED : 0) | (op.has("U32") || op.has("U64") ? NATURAL : 0);
    if (op.has("U64") || op.has("S64")) op.run = compare_wide;
    bool known = false;
    for (unsigned i = 0; i < 8; i++)
        if (op.has(names[i])) op.flags |= i, known = true;
    return known;
}

void mov(Warp& w, const Op& op, uint32_t lanes)
{
    const Source a(w, op.s[0]);
    map(w.target(op.out), lanes, [&](unsigned l) { return a(l); });
}

void lepc(Warp& w, const Op& op, uint32_t lanes)  // an address of the code, in a pair of registers
{
    const uint32_t at =
        op.sources ? op.s[0].value : launch.program->addresses[op.number];  // without an operand: its own
    uint32_t* const d = w.target(op.out);
    map(d, lanes, [&](unsigned) { return at; });
    map(d + WARP, lanes, [&](unsigned) { return 0; });
}

void sel(Warp& w, const Op& op, uint32_t lanes)
{
    const Source a(w, op.s[0]), b(w, op.s[1]);
    const uint32_t first = w.predicate(op.in[0]);
    map(w.target(op.out), lanes, [&](unsigned l) { return first >> l & 1 ? a(l) : b(l); });
}

void iabs(Warp& w, const Op& op, uint32_t lanes)
{
    const Source a(w, op.s[0]);
    map(w.target(op.out), lanes, [&](unsigned l) { return int32_t(a(l)) < 0 ? 0u - a(l) : a(l); });
}

// The least or the greatest of two, the first of which may be a sum.
void minimum(Warp& w, const Op& op, uint32_t lanes)
{
    const bool sum = op.sources == 3;
    const Source a(w, op.s[0]), more(w, op.s[1]), b(w, op.s[sum ? 2 : 1]);
    const uint32_t least = w.predicate(op.in[0]);
    map(w.target(op.out), lanes, [&](unsigned l) {
        const uint32_t x = sum ? a(l) + more(l) : a(l), y = b(l);
        const bool less = op.flags & UNSIGNED ? x < y : int32_t(x) < int32_t(y);
        const uint32_t made = less == bool(least >> l & 1) ? x : y;
        return op.flags & RELU && int32_t(made) < 0 ? 0 : made;
    });
}

// The same of three numbers, of pairs of halves, and telling which one it is.
void minimum_of_any(Warp& w, const Op& op, uint32_t lanes)
{
    const Source a(w, op.s[0]), b(w, op.s[1]), c(w, op.s[op.sources == 3 ? 2 : 1]);
    const uint32_t least = w.predicate(op.in[0]), then = op.ins > 1 ? w.predicate(op.in[1]) : least;
    const bool pairs = op.flags & HALVES;
    uint32_t chosen[2] = {};
    const auto of = [&](uint32_t x, uint32_t y, unsigned l, uint32_t how) {
        const auto one = [&](unsigned part, uint32_t p, uint32_t q) {
            const int64_t m = op.flags & UNSIGNED ? int64_t(p) : pairs ? int16_t(p) : int32_t(p);
            const int64_t n = op.flags & UNSIGNED ? int64_t(q) : pairs ? int16_t(q) : int32_t(q);
            const bool first = how >> l & 1 ? m <= n : m >= n;
            chosen[part] |= uint32_t(first) << l;
            const int64_t made = first ? m : n;
            return uint32_t(op.flags & RELU && made < 0 ? 0 : made);
        };
        return pairs ? one(1, x >> 16, y >> 16) << 16 | (one(0, x & 0xffff, y & 0xffff) & 0xffff) : one(0, x, y);
    };
    map(w.target(op.out), lanes, [&](unsigned l) {
        if (op.flags & THREE) return of(of(a(l), b(l), l, least), c(l), l, then);
        const uint32_t x = op.sources < 3 ? a(l) : pairs ? halves(a(l), b(l), std::plus<>()) : a(l) + b(l);
        return of(x, c(l), l, least);
    });
    for (unsigned i = 0; i < op.outs; i++) w.set(op.p[i], chosen[i], lanes);
}

void minimum_wide(Warp& w, const Op& op, uint32_t lanes);

bool prepare_minimum(Op& op)
{
    if (op.has("S64") || op.has("U64")) {
        op.flags = op.has("U64") ? UNSIGNED : 0, op.run = minimum_wide;
        return op.ins && (!op.outs || ((op.p[0].index & 7) == TRUE && (op.p[1].index & 7) == TRUE));
    }
    op.flags = (op.has("U32") || op.has("U16x2") ? UNSIGNED : 0) | (op.has("RELU") ? RELU : 0) |
               (op.has("S16x2") || op.has("U16x2") ? HALVES : 0) | (op.name == "VIMNMX3" ? THREE : 0);
    if (op.flags & (HALVES | THREE) || op.outs) op.run = minimum_of_any;
    return op.ins;
}

// |a - b| + c; of bytes each, or their sum.
void difference(Warp& w, const Op& op, uint32_t lanes)
{
    const Source a(w, op.s[0]), b(w, op.s[1]), c(w, op.s[2]);
    const bool natural = op.flags & UNSIGNED;
    map(w.target(op.out), lanes, [&](unsigned l) {
        if (op.name == "VABSDIFF")
            return uint32_t(natural ? llabs(int64_t(a(l)) - b(l)) : llabs(int64_t(int32_t(a(l))) - int32_t(b(l)))) +
                   c(l);
        uint32_t sum = c(l), bytes = 0;
        for (unsigned i = 0; i < 32; i += 8) {
            const int x = int(a(l) >> i & 255), y = int(b(l) >> i & 255),
                      apart = natural ? abs(x - y) : abs(int8_t(x) - int8_t(y));
            sum += uint32_t(apart), bytes |= uint32_t(apart) << i;
        }
        return op.flags & WIDE ? sum : bytes;
    });
}

bool prepare_difference(Op& op)
{
    op.flags = (op.has("U8") || op.has("U32") ? UNSIGNED : 0) | (op.has("ACC") ? WIDE : 0);
    return op.sources == 3;
}

// A permutation that its mode makes from the selector's lowest two bits.
uint32_t selector(uint32_t mode, uint32_t n)
{
    uint32_t made = 0;
    n &= 3;
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t pick[] = {n + i, (n - i) & 7, n, std::max(i, n), std::min(i, n), (n & 1) * 2 + (i & 1)};
        made |= pick[mode - 1] << 4 * i;
    }
    return made;
}

bool prepare_prmt(Op& op)
{
    static const char* const modes[] = {"F4E", "B4E", "RC8", "ECL", "ECR", "RC16"};
    for (uint32_t i = 0; i < 6; i++)
        if (op.has(modes[i])) op.flags = i + 1;
    return op.modifiers.size() == (op.flags != 0);
}

void prmt(Warp& w, const Op& op, uint32_t lanes)
{
    const Source a(w, op.s[0]), how(w, op.s[1]), b(w, op.s[2]);
    const uint32_t fixed = op.s[1].kind == Kind::Number && !op.flags ? op.s[1].value : 0;
    if (fixed == 0x5410) return map(w.target(op.out), lanes, [&](unsigned l) { return (a(l) & 0xffff) | b(l) << 16; });
    if (fixed == 0x7632)
        return map(w.target(op.out), lanes, [&](unsigned l) { return a(l) >> 16 | (b(l) & 0xffff0000); });
    map(w.target(op.out), lanes, [&](unsigned l) {
        const uint64_t bytes = uint64_t(b(l)) << 32 | a(l);
        const uint32_t picks = op.flags ? selector(op.flags, how(l)) : how(l);
        uint32_t made = 0;
        for (unsigned i = 0; i < 4; i++) {
            const unsigned pick = picks >> 4 * i & 15;
            uint32_t byte = uint32_t(bytes >> 8 * (pick & 7) & 255);
            if (pick & 8) byte = byte & 128 ? 255 : 0;
            made |= byte << 8 * i;
        }
        return made;
    });
}

void popc(Warp& w, const Op& op, uint32_t lanes)
{
    const Source a(w, op.s[0]);
    map(w.target(op.out), lanes, [&](unsigned l) { return uint32_t(__builtin_popcount(a(l))); });
}

enum { SHIFT_AMOUNT = 1, SIGNED = 2 };

void flo(Warp& w, const Op& op, uint32_t lanes)  // the place of the leading bit
{
    const Source a(w, op.s[0]);
    map(w.target(op.out), lanes, [&](unsigned l) {
        uint32_t v = a(l);
        if (op.flags & SIGNED && int32_t(v) < 0) v = ~v;
        if (!v) return ALL;
        const unsigned leading = unsigned(__builtin_clz(v));
        return op.flags & SHIFT_AMOUNT ? leading : 31 - leading;
    });
    if (op.outs) w.set(op.p[0], where([&](unsigned l) { return a(l) != 0; }), lanes);
}

bool prepare_flo(Op& op)
{
    op.flags = (op.has("SH") ? SHIFT_AMOUNT : 0) | (op.has("U32") ? 0 : SIGNED);
    return true;
}

void brev(Warp& w, const Op& op, uint32_t lanes)
{
    const Source a(w, op.s[0]);
    map(w.target(op.out), lanes, [&](unsigned l) {
        uint32_t v = a(l), made = 0;
        for (unsigned i = 0; i < 32; i++) made |= (v >> i & 1) << (31 - i);
        return made;
    });
}

void bmsk(Warp& w, const Op& op, uint32_t lanes)
{
    const Source from(w, op.s[0]), width(w, op.s[1]);
    const bool wraps = op.has("W");
    map(w.target(op.out), lanes, [&](unsigned l) {
        const uint32_t at = wraps ? from(l) & 31 : from(l), n = wraps ? width(l) & 31 : width(l);
        if (at > 31) return 0u;
        return (n > 31 ? ALL : (1u << n) - 1) << at;
    });
}

void sgxt(Warp& w, const Op& op, uint32_t lanes)
{
    const Source a(w, op.s[0]), n(w, op.s[1]);
    map(w.target(op.out), lanes, [&](unsigned l) {
        const uint32_t bits = op.has("W") ? n(l) & 31 : std::min(n(l), 32u);
        if (!bits) return 0u;
        const unsigned by = 32 - bits;
        return op.flags & UNSIGNED ? a(l) << by >> by : uint32_t(int32_t(a(l) << by) >> by);
    });
}

bool prepare_sgxt(Op& op)
{
    op.flags = op.has("U32") ? UNSIGNED : 0;
    return true;
}

// Products of bytes, summed.
void idp(Warp& w, const Op& op, uint32_t lanes)
{
    const Source a(w, op.s[0]), b(w, op.s[1]), c(w, op.s[2]);
    const bool two = op.has("2A");
    std::vector<std::string> kinds;
    for (const std::string& m : op.modifiers)
        if (m == "U8" || m == "S8" || m == "U16" || m == "S16") kinds.push_back(m);
    const auto part = [](uint32_t v, unsigned i, const std::string& kind) {
        if (kind == "U8") return int(v >> 8 * i & 255);
        if (kind == "S8") return int(int8_t(v >> 8 * i));
        return kind == "U16" ? int(v >> 16 * i & 65535) : int(int16_t(v >> 16 * i));
    };
    const unsigned from = op.has("HI") ? 2 : 0;
    map(w.target(op.out), lanes, [&](unsigned l) {
        uint32_t sum = c(l);
        for (unsigned i = 0; i < (two ? 2u : 4u); i++)
            sum += uint32_t(part(a(l), i, kinds[0]) * part(b(l), two ? from + i : i, kinds[1]));
        return sum;
    });
}

void p2r(Warp& w, const Op& op, uint32_t lanes)
{
    const Source before(w, op.s[1]), mask(w, op.s[2]);
    const unsigned first = op.uniform ? FIRST_UNIFORM_PREDICATE : 0;
    map(w.target(op.out), lanes, [&](unsigned l) {
        uint32_t bits = 0;
        for (unsigned i = 0; i < 7; i++) bits |= (w.p[first + i] >> l & 1) << i;
        return (before(l) & ~mask(l)) | (bits & mask(l));
    });
}

void r2p(Warp& w, const Op& op, uint32_t lanes)  // PR, a, mask
{
    const Operand &from = op.every[1], &mask = op.every[2];
    Row first;
    const uint32_t* a = w.row(from, first);
    const unsigned by = from.parts == "B1" ? 8 : from.parts == "B2" ? 16 : from.parts == "B3" ? 24 : 0;
    uint32_t* const p = w.p + (op.uniform ? FIRST_UNIFORM_PREDICATE : 0);
    for (unsigned i = 0; i < 7; i++)
        if (mask.value >> i & 1) {
            const uint32_t bits = where([&](unsigned l) { return a[l] >> (by + i) & 1; });
            p[i] = (p[i] & ~lanes) | (bits & lanes);
        }
}

// The first active lane's value for the warp; P: lanes that have another, which take their turn in a loop.
void r2ur(Warp& w, const Op& op, uint32_t lanes)
{
    const Source a(w, op.s[0]);
    const uint32_t v = a(unsigned(__builtin_ctz(lanes)));
    if (op.outs)
        w.set(op.p[0], where([&](unsigned l) { return a(l) != v; }) | (op.has("OR") ? w.predicate(op.p[0]) : 0), lanes);
    map(w.target(op.out), ALL, [&](unsigned) { return v; });
}

constexpr uint32_t BLACKWELL_PARAMETERS = 0x380;

enum Special : uint32_t {
    TID_X,
    TID_Y,
    TID_Z,
    TID,
    CTAID_X,
    CTAID_Y,
    CTAID_Z,
    CTA_OF_CLUSTER,
    CLUSTER_X,
    CLUSTER_Y,
    CLUSTER_Z,
    CLUSTER_SIZE,
    LANE,
    SM,
    WARP_ID,
    EQ_MASK,
    LT_MASK,
    LE_MASK,
    GT_MASK,
    GE_MASK,
    CLOCK,
    CLOCK_HIGH,
    SHARED_HIGH,
    LOCAL_HIGH,
    SHARED_SIZE,
    DYNAMIC_SIZE,
    NOTHING,
    UNKNOWN
};

Special special_named(const std::string& name)
{
    static const auto& names =
        *new std::unordered_map<std::string, Special>{// never destroyed, like the table of opcodes
                                                      {"TID.X", TID_X},
                                                      {"TID.Y", TID_Y},
                                                      {"TID.Z", TID_Z},
                                                      {"TID", TID},
                                                      {"CTAID.X", CTAID_X},
                                                      {"CTAID.Y", CTAID_Y},
                                                      {"CTAID.Z", CTAID_Z},
                                                      {"CgaCtaId", CTA_OF_CLUSTER},
                                                      {"CGA_CTAID.X", CLUSTER_X},
                                                      {"CGA_CTAID.Y", CLUSTER_Y},
                                                      {"CGA_CTAID.Z", CLUSTER_Z},
                                                      {"CgaSize", CLUSTER_SIZE},
                                                      {"LANEID", LANE},
                                                      {"VIRTID", SM},
                                                      {"VIRTUALSMID", SM},
                                                      {"SMID", SM},
                                                      {"WARPID", WARP_ID},
                                                      {"EQMASK", EQ_MASK},
                                                      {"LTMASK", LT_MASK},
                                                      {"LEMASK", LE_MASK},
                                                      {"GTMASK", GT_MASK},
                                                      {"GEMASK", GE_MASK},
                                                      {"CLOCKLO", CLOCK},
                                                      {"CLOCKHI", CLOCK_HIGH},
                                                      {"GLOBALTIMERLO", CLOCK},
                                                      {"GLOBALTIMERHI", CLOCK_HIGH},
                                                      {"SWINHI", SHARED_HIGH},
                                                      {"SWINLO", NOTHING},
                                                      {"LWINHI", LOCAL_HIGH},
                                                      {"LWINLO", NOTHING},
                                                      {"LMEMHIOFF", NOTHING},  // how far down a stack may grow
                                                      {"SMEMSZ", SHARED_SIZE},
                                                      {"DYN_SMEM_SZ", DYNAMIC_SIZE},
                                                      {"DYNAMIC_SMEM_SIZE", DYNAMIC_SIZE}};
    if (name == "SRZ") return NOTHING;
    const auto found = name.compare(0, 3, "SR_") ? names.end() : names.find(name.substr(3));
    return found == names.end() ? UNKNOWN : found->second;
}

uint32_t special(const Warp& w, uint32_t what, unsigned l)
{
    const Block& b = *w.block;
    const uint32_t thread = w.rank * WARP + l;
    const uint32_t *const size = launch.block, *const c = launch.cluster;
    switch (what) {
    case TID_X: return thread % size[0];
    case TID_Y: return thread / size[0] % size[1];
    case TID_Z: return thread / (size[0] * size[1]);
    case TID: return thread % size[0] | thread / size[0] % size[1] << 16;
    case CTAID_X:
    case CTAID_Y:
    case CTAID_Z: return b.index[what - CTAID_X];
    case CTA_OF_CLUSTER: return b.in_cluster;
    case CLUSTER_X:
    case CLUSTER_Y:
    case CLUSTER_Z: return b.index[what - CLUSTER_X] % c[what - CLUSTER_X];
    case CLUSTER_SIZE:
        return launch.parameters >= BLACKWELL_PARAMETERS ? 0 : c[0] * c[1] * c[2];  // then: of which constants
    case LANE: return l;
    case SM: return uint32_t(b.number % launch.multiprocessors);
    case WARP_ID: return w.rank;
    case EQ_MASK: return 1u << l;
    case LT_MASK: return (1u << l) - 1;
    case LE_MASK: return (2u << l) - 1;
    case GT_MASK: return ~((2u << l) - 1);
    case GE_MASK: return ~((1u << l) - 1);
    case CLOCK: return uint32_t(w.clock);
    case CLOCK_HIGH: return uint32_t(w.clock >> 32);
    case SHARED_HIGH: return uint32_t(SHARED_WINDOW >> 32);
    case LOCAL_HIGH: return uint32_t(LOCAL_WINDOW >> 32);
    case SHARED_SIZE: return launch.shared_bytes + launch.reserved_shared;
    case DYNAMIC_SIZE: return launch.shared_bytes;
    }
    return 0;
}

void s2r(Warp& w, const Op& op, uint32_t lanes)
{
    const uint32_t what = op.flags;
    if (op.out.index >= FIRST_UNIFORM) {
        const uint32_t v = special(w, what, 0);
        return map(w.target(op.out), ALL, [&](unsigned) { return v; });
    }
    uint32_t* const d = w.target(op.out);
    if (what == TID_X && launch.block[0] >= WARP && launch.block[0] % WARP == 0) {
        const uint32_t first = w.rank * WARP % launch.block[0];
        return map(d, lanes, [&](unsigned l) { return first + l; });
    }
    map(d, lanes, [&](unsigned l) { return special(w, what, l); });
}

void cs2r(Warp& w, const Op& op, uint32_t lanes)
{
    uint32_t* const low = w.target(op.out);
    const uint32_t what = op.flags, first = special(w, what, 0), second = what == CLOCK ? special(w, CLOCK_HIGH, 0) : 0;
    map(low, lanes, [&](unsigned) { return first; });
    if (!op.has("32") && low != w.r[SINK]) map(low + WARP, lanes, [&](unsigned) { return second; });
}

bool prepare_special(Op& op)
{
    op.flags = special_named(op.s[0].parts);
    if (op.flags == CLOCK || op.flags == CLOCK_HIGH) op.fidelity = Fidelity::APPROXIMATE;
    return op.flags != UNKNOWN;
}

// ---- across lanes
// ----------------------------------------------------------------------------------------------------

[[noreturn]] void takes_from_outside(const Warp& w, const Op& op, unsigned lane, unsigned from)
{
    Fault fault(RUNG_BARRIER);
    fault.at = rung_machine::where(w, op, lane);
    snprintf(fault.text, sizeof fault.text, "a shuffle takes the number of lane %u, which takes no part in it", from);
    throw fault;
}

void shfl(Warp& w, const Op& op, uint32_t lanes)
{
    const Source a(w, op.s[0]), b(w, op.s[1]), c(w, op.s[2]);
    Row made;
    uint32_t inside = 0, outside = 0;
    for (unsigned l = 0; l < WARP; l++) {
        const int clamp = int(c(l) & 31), segment = int(c(l) >> 8 & 31), by = int(b(l) & 31);
        const int least = int(l) & segment, most = least | (clamp & ~segment);
        int from = int(l);
        switch (op.flags) {
        case 0: from = least | (by & ~segment); break;
        case 1: from = int(l) - by; break;
        case 2: from = int(l) + by; break;
        case 3: from = int(l) ^ by;
        }
        const bool ok = op.flags == 1 ? from >= most : from <= most;
        made[l] = a(ok ? unsigned(from) & 31 : l);
        inside |= uint32_t(ok) << l;
        outside |= uint32_t(ok && (w.alive & ~lanes) >> (from & 31) & 1) << l;
        if (outside & lanes) takes_from_outside(w, op, l, unsigned(from) & 31);
    }
    if (op.outs) w.set(op.p[0], inside, lanes);
    map(w.target(op.out), lanes, [&](unsigned l) { return made[l]; });
}

bool prepare_shfl(Op& op)
{
    op.flags = op.has("UP") ? 1 : op.has("DOWN") ? 2 : op.has("BFLY") ? 3 : 0;
    return true;
}

void vote(Warp& w, const Op& op, uint32_t lanes)  // [R,] [P,] P
{
    const Operand* out = nullptr;
    const Operand* holds = nullptr;
    uint32_t votes = ALL;
    for (const Operand& o : op.every) {
        if (o.kind == Kind::Register)
            out = &o;
        else if (&o == &op.every.back())
            votes = w.predicate(o);
        else
            holds = &o;
    }
    const uint32_t active = w.split().lanes & (op.uniform ? ALL : lanes);
    votes &= active;
    if (op.flags & FOR_ALL_LANES && w.order) each(active, [&](unsigned l) { w.order->voted[l] = active; });
    const bool result = op.has("ALL") ? votes == active : op.has("EQ") ? votes == active || !votes : votes != 0;
    if (out) map(w.target(*out), op.uniform ? ALL : lanes, [&](unsigned) { return votes; });
    if (holds) w.set(*holds, result ? ALL : 0, op.uniform ? ALL : lanes);
}

void match(Warp& w, const Op& op, uint32_t lanes)
{
    Row scratch;
    const uint32_t* a = w.row(op.s[0], scratch);
    const bool wide = op.has("U64");
    const auto value = [&](unsigned l) { return a[l] | (wide ? uint64_t(a[WARP + l]) << 32 : 0); };
    Row made;
    uint32_t same = 0;
    for (uint32_t rest = lanes; rest; rest &= ~same) {
        const uint64_t first = value(unsigned(__builtin_ctz(rest)));
        same = lanes & where([&](unsigned l) { return value(l) == first; });
        each(same, [&](unsigned l) { made[l] = same; });
    }
    const uint32_t all = same == lanes ? ALL : 0;
    if (op.has("ALL")) each(lanes, [&](unsigned l) { made[l] = all ? lanes : 0; });
    if (op.outs) w.set(op.p[0], all, lanes);
    uint32_t* d = w.target(op.out);
    each(lanes, [&](unsigned l) { d[l] = made[l]; });
}

void redux(Warp& w, const Op& op, uint32_t lanes)
{
    const Source a(w, op.s[0]);
    uint32_t made = a(unsigned(__builtin_ctz(lanes)));
    const bool is_signed = op.has("S32");
    each(lanes & (lanes - 1), [&](unsigned l) {
        const uint32_t v = a(l);
        if (op.has("SUM"))
            made += v;
        else if (op.has("OR"))
            made |= v;
        else if (op.has("XOR"))
            made ^= v;
        else if (op.has("MIN"))
            made = (is_signed ? int32_t(v) < int32_t(made) : v < made) ? v : made;
        else if (op.has("MAX"))
            made = (is_signed ? int32_t(v) > int32_t(made) : v > made) ? v : made;
        else
            made &= v;
    });
    map(w.target(op.out), ALL, [&](unsigned) { return made; });
}

void elect(Warp& w, const Op& op, uint32_t lanes)  // P, UR, P
{
    const uint32_t among = lanes & (op.ins ? w.predicate(op.in[0]) : ALL);
    const uint32_t first = among & -among;
    if (op.outs) w.set(op.p[0], first, lanes);
    map(w.target(op.out), ALL, [&](unsigned) { return among ? uint32_t(__builtin_ctz(among)) : 0; });
}

// ---- numbers of 64 bits: pairs of registers, or a number ------------------------------------------------------------

struct Wide
{
    const Pair pair;
    const bool is_number;
    const uint64_t number;
    Wide(const Warp& w, const Operand& o)
        : pair(w, o),
          is_number(o.kind == Kind::Number),
          number(o.exact < 0 ? uint64_t(int64_t(o.exact)) : uint64_t(o.value))
    {
    }
    uint64_t operator()(unsigned l) const { return is_number ? number : pair(l); }
};

template <class F>
void wide(Warp& w, const Op& op, uint32_t lanes, F f)
{
    uint32_t* const d = w.target(op.out);
    Row low, high;
    for (unsigned l = 0; l < WARP; l++) {
        const uint64_t v = f(l);
        low[l] = uint32_t(v), high[l] = uint32_t(v >> 32);
    }
    put(d, lanes, low);
    if (d != w.r[SINK]) put(d + WARP, lanes, high);
}

void add_wide(Warp& w, const Op& op, uint32_t lanes)
{
    const Wide a(w, op.s[0]), b(w, op.s[1]);
    wide(w, op, lanes, [&](unsigned l) { return a(l) + b(l); });
}

void select_wide(Warp& w, const Op& op, uint32_t lanes)
{
    const Wide a(w, op.s[0]), b(w, op.s[1]);
    const uint32_t first = w.predicate(op.in[0]);
    wide(w, op, lanes, [&](unsigned l) { return first >> l & 1 ? a(l) : b(l); });
}

void move_wide(Warp& w, const Op& op, uint32_t lanes)
{
    const Wide a(w, op.s[0]);
    if (!a.is_number) return wide(w, op, lanes, a);
    const uint64_t number = uint64_t(op.flags) << 32 | op.s[0].value;
    wide(w, op, lanes, [&](unsigned) { return number; });
}

void compare_wide(Warp& w, const Op& op, uint32_t lanes)
{
    const Wide a(w, op.s[0]), b(w, op.s[1]);
    const uint64_t flip = op.flags & NATURAL ? 0 : 1ull << 63;
    const auto holds = where([&](unsigned l) {
        const uint64_t x = a(l) ^ flip, y = b(l) ^ flip;
        switch (op.flags & 15) {
        case 0: return x < y;
        case 1: return x <= y;
        case 2: return x > y;
        case 3: return x >= y;
        case 4: return x == y;
        case 5: return x != y;
        }
        return (op.flags & 15) == 6;
    });
    const uint32_t other = op.ins ? w.predicate(op.in[0]) : ALL;
    w.set(op.p[0], combined(op.flags >> 4 & 3, holds, other), lanes);
    if (op.outs > 1) w.set(op.p[1], combined(op.flags >> 4 & 3, ~holds, other), lanes);
}

void minimum_wide(Warp& w, const Op& op, uint32_t lanes)
{
    const Wide a(w, op.s[0]), b(w, op.s[1]);
    const uint32_t least = w.predicate(op.in[0]);
    const uint64_t flip = op.flags & UNSIGNED ? 0 : 1ull << 63;
    wide(w, op, lanes, [&](unsigned l) {
        const bool less = (a(l) ^ flip) < (b(l) ^ flip);
        return less == bool(least >> l & 1) ? a(l) : b(l);
    });
}

bool prepare_move(Op& op)
{
    if (op.has("64")) {
        op.run = move_wide;
        const size_t comma = op.text.find(',');
        if (op.s[0].kind == Kind::Number && comma != std::string::npos)  // a number of 64 bits
            op.flags = uint32_t(uint64_t(strtoll(op.text.c_str() + comma + 1, nullptr, 0)) >> 32);
        if (op.s[0].kind == Kind::Number && op.text.find("-0x", comma) == std::string::npos)
            op.flags = uint32_t(strtoull(op.text.c_str() + comma + 1, nullptr, 0) >> 32);
    }
    return true;
}

bool prepare_select(Op& op)
{
    if (op.has("64")) op.run = select_wide;
    return op.ins;
}

bool prepare_viadd(Op& op)
{
    if (op.has("64")) op.run = add_wide;
    op.flags = op.has("16x2") ? HALVES : 0;
    return true;
}

bool prepare_uniform_vote(Op& op) { return op.uniform = true; }
bool prepare_plop3(Op& op) { return op.every.size() == 7; }
bool prepare_lepc(Op& op) { return !op.sources || (op.sources == 1 && op.s[0].kind == Kind::Number); }

#define OF_INTEGERS
#include "rows.h"

}  // namespace

void add_integers(Table& table) { add_rows(table); }

}  // namespace rung_machine
