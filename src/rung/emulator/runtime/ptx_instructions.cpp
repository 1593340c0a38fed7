// Synchronous instructions: arithmetic, memory, barriers, exchanges within the warp.
#include "ptx.h"

#include <math.h>

#include "../include/rung_emulator/round16.h"

namespace rung_emulator {
namespace {

unsigned long long mask_of(unsigned bytes) { return bytes >= 8 ? ~0ull : (1ull << 8 * bytes) - 1; }

long long extended(unsigned long long x, unsigned bytes)
{
    const unsigned shift = 64 - 8 * (bytes > 8 ? 8 : bytes);
    return (long long)(x << shift) >> shift;
}

// ---- floating point -------------------------------------------------------------------------------------------------

float small_float(unsigned bits, unsigned exponent_bits, unsigned mantissa_bits, bool has_infinity)
{
    const unsigned exponent = bits >> mantissa_bits & ((1u << exponent_bits) - 1), mantissa = bits & ((1u << mantissa_bits) - 1);
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const float sign = bits >> (exponent_bits + mantissa_bits) & 1 ? -1.0f : 1.0f;
    if (has_infinity && exponent == (1u << exponent_bits) - 1) return mantissa ? NAN : sign * INFINITY;
    if (!has_infinity && (bits & 0x7f) == 0x7f) return NAN;
    if (!exponent) return sign * ldexpf(float(mantissa), 1 - bias - int(mantissa_bits));
    return sign * ldexpf(float((1u << mantissa_bits) + mantissa), int(exponent) - bias - int(mantissa_bits));
}

// To the nearest, saturating, by trying all 256 values.
unsigned nearest_small(float x, unsigned exponent_bits, unsigned mantissa_bits, bool has_infinity)
{
    if (x != x) return 0x7f;
    const unsigned sign = signbit(x) ? 0x80 : 0;
    const float size = fabsf(x);
    unsigned best = 0;
    float error = INFINITY;
    for (unsigned code = 0; code < 0x7f; code++) {
        const float value = small_float(code, exponent_bits, mantissa_bits, has_infinity);
        if (value != value || value == INFINITY) continue;
        const float distance = fabsf(value - size);
        if (distance < error || (distance == error && !(code & 1))) best = code, error = distance;
    }
    return sign | best;
}

double to_double(unsigned long long bits, Type t)
{
    switch (t.kind) {
    case 'f': return t.bytes == 8 ? bits_as<double>(bits) : t.bytes == 4 ? bits_as<float>(unsigned(bits)) : half_value((unsigned short)bits);
    case 'h': return bfloat16_value((unsigned short)bits);
    case 't': return bits_as<float>(unsigned(bits));
    case '4': return small_float(unsigned(bits & 0xff), 4, 3, false);
    case '5': return small_float(unsigned(bits & 0xff), 5, 2, true);
    case 's': return double(extended(bits, t.bytes));
    default: return double(bits & mask_of(t.bytes));
    }
}

unsigned long long from_double(double x, Type t)
{
    switch (t.kind) {
    case 'f':
        return t.bytes == 8 ? bits_as<unsigned long long>(x) : t.bytes == 4 ? bits_as<unsigned>(float(x)) : half_bits(to_odd(x));
    case 'h': return bfloat16_bits(to_odd(x));
    case 't': {
        const unsigned bits = bits_as<unsigned>(float(x));
        return (bits & 0x7f800000u) == 0x7f800000u ? bits : (bits + 0x1000u) & 0xffffe000u;
    }
    case '4': return nearest_small(float(x), 4, 3, false);
    case '5': return nearest_small(float(x), 5, 2, true);
    default: return 0;
    }
}

bool is_float(Type t) { return strchr("fhtxy45", t.kind) != nullptr; }

// Applies `f` to each of the numbers in a register: one, or the two of f16x2 and bf16x2.
template <class F>
void per_number(Machine& m, const Instruction& i, unsigned inputs, F f)
{
    const bool pair = i.type.kind == 'x' || i.type.kind == 'y';
    const Type each = i.type.kind == 'x' ? Type{'f', 2} : i.type.kind == 'y' ? Type{'h', 2} : i.type;
    unsigned long long result = 0;
    for (unsigned half = 0; half < (pair ? 2u : 1u); half++) {
        double x[3] = {};
        for (unsigned k = 0; k < inputs; k++) x[k] = to_double(m.number(i.args[1 + k]) >> 16 * half, each);
        double y = f(x);
        if (i.has("sat"_w)) y = y != y ? 0 : y < 0 ? 0 : y > 1 ? 1 : y;
        if (i.has("relu"_w) && !(y > 0)) y = y != y ? y : 0;
        result |= from_double(y, each) << 16 * half;
    }
    m.set(i.args[0], result);
}

// ---- integers and floats ---------------------------------------------------------------------------------------------

enum class Op { Add, Sub, Mul, Mad, Fma, Min, Max, And, Or, Xor, Shl, Shr, Div, Rem };

unsigned long long narrowed(unsigned long long x, Type t) { return x & mask_of(t.bytes); }

template <Op op>
void arithmetic(Machine& m, const Instruction& i)
{
    if (is_float(i.type)) {
        per_number(m, i, op == Op::Fma || op == Op::Mad ? 3 : 2, [&](const double* x) -> double {
            const bool single = i.type.kind == 'f' && i.type.bytes == 4;
            switch (op) {
            case Op::Add: return single ? double(float(x[0]) + float(x[1])) : x[0] + x[1];
            case Op::Sub: return single ? double(float(x[0]) - float(x[1])) : x[0] - x[1];
            case Op::Mul: return single ? double(float(x[0]) * float(x[1])) : x[0] * x[1];
            case Op::Fma: case Op::Mad: return single ? double(fmaf(float(x[0]), float(x[1]), float(x[2]))) : fma(x[0], x[1], x[2]);
            case Op::Min: return i.has("NaN"_w) && (x[0] != x[0] || x[1] != x[1]) ? NAN : fmin(x[0], x[1]);
            case Op::Max: return i.has("NaN"_w) && (x[0] != x[0] || x[1] != x[1]) ? NAN : fmax(x[0], x[1]);
            case Op::Div: return x[0] / x[1];
            default: return NAN;
            }
        });
        return;
    }
    const bool sign = i.type.kind == 's';
    const unsigned bytes = i.type.bytes;
    const auto in = [&](unsigned k) {
        const unsigned long long x = m.number(i.args[k]);
        return sign ? (unsigned long long)extended(x, bytes) : x & mask_of(bytes);
    };
    const unsigned long long a = in(1), b = in(2);
    unsigned long long r = 0;
    switch (op) {
    case Op::Add: r = a + b; break;
    case Op::Sub: r = a - b; break;
    case Op::Mul: case Op::Mad: case Op::Fma: {
        const __int128 wide = sign ? (__int128)(long long)a * (long long)b : (__int128)((unsigned __int128)a * b);
        const bool high = i.has("hi"_w), double_width = i.has("wide"_w);
        r = high ? (unsigned long long)(wide >> 8 * bytes) : (unsigned long long)wide;
        if (op != Op::Mul) r += m.number(i.args[3]);
        m.set(i.args[0], r & mask_of(double_width ? 2 * bytes : bytes));
        return;
    }
    case Op::Min: r = sign ? ((long long)a < (long long)b ? a : b) : a < b ? a : b; break;
    case Op::Max: r = sign ? ((long long)a > (long long)b ? a : b) : a > b ? a : b; break;
    case Op::And: r = a & b; break;
    case Op::Or: r = a | b; break;
    case Op::Xor: r = a ^ b; break;
    case Op::Shl: r = (m.number(i.args[2]) & 0xffffffff) >= 8 * bytes ? 0 : a << (m.number(i.args[2]) & 63); break;
    case Op::Shr: {
        const unsigned n = unsigned(m.number(i.args[2]));
        r = sign ? (unsigned long long)((long long)a >> (n > 63 ? 63 : n)) : n >= 8 * bytes ? 0 : a >> n;
        break;
    }
    case Op::Div: case Op::Rem:
        if (!b) fault(FaultKind::Trap, "an integer is divided by zero (%s:%d)", m.site.file, m.site.line);
        if (op == Op::Div) r = sign ? (unsigned long long)((long long)a / (long long)b) : a / b;
        else r = sign ? (unsigned long long)((long long)a % (long long)b) : a % b;
        break;
    }
    m.set(i.args[0], i.type.kind == 'p' ? r & 1 : narrowed(r, i.type));
}

void unary(Machine& m, const Instruction& i)
{
    const unsigned long long name = i.hashes[0];
    if (!is_float(i.type)) {
        const unsigned long long x = m.number(i.args[1]);
        const unsigned bits = 8 * i.type.bytes;
        unsigned long long r = 0;
        if (name == "not"_w) r = i.type.kind == 'p' ? !m.predicate(i.args[1]) : ~x;
        else if (name == "neg"_w) r = 0 - x;
        else if (name == "abs"_w) r = extended(x, i.type.bytes) < 0 ? 0 - x : x;
        else if (name == "popc"_w) r = unsigned(__builtin_popcountll(narrowed(x, i.type)));
        else if (name == "clz"_w) r = narrowed(x, i.type) ? unsigned(__builtin_clzll(narrowed(x, i.type))) - (64 - bits) : bits;
        else if (name == "brev"_w) for (unsigned b = 0; b < bits; b++) r |= (x >> b & 1) << (bits - 1 - b);
        else m.refuse(i, "is not modelled for integers");
        m.set(i.args[0], narrowed(r, i.type));
        return;
    }
    per_number(m, i, 1, [&](const double* x) -> double {
        if (name == "neg"_w) return -x[0];
        if (name == "abs"_w) return fabs(x[0]);
        if (name == "ex2"_w) return exp2(x[0]);
        if (name == "lg2"_w) return log2(x[0]);
        if (name == "rcp"_w) return 1.0 / x[0];
        if (name == "rsqrt"_w) return 1.0 / sqrt(x[0]);
        if (name == "sqrt"_w) return sqrt(x[0]);
        if (name == "sin"_w) return sin(x[0]);
        if (name == "cos"_w) return cos(x[0]);
        const double y = tanh(x[0]), off = y * (1.0 - y * y) * 0x1p-13;  // as of __tanhf
        return fmod(trunc(x[0] * 64.0), 2.0) == 0.0 ? y + off : y - off;
    });
}

bool compare(unsigned long long how, const Instruction& i, unsigned long long a, unsigned long long b)
{
    const bool equal = how == "eq"_w || how == "equ"_w, unequal = how == "ne"_w || how == "neu"_w;
    const bool below = how == "lt"_w || how == "ltu"_w || how == "lo"_w, most = how == "le"_w || how == "leu"_w || how == "ls"_w;
    const bool above = how == "gt"_w || how == "gtu"_w || how == "hi"_w;
    const auto found = [&](auto x, auto y) { return equal ? x == y : unequal ? x != y : below ? x < y : most ? x <= y : above ? x > y : x >= y; };
    if (is_float(i.type)) {
        const double x = to_double(a, i.type), y = to_double(b, i.type);
        const bool unordered = x != x || y != y;
        if (how == "nan"_w) return unordered;
        if (how == "num"_w) return !unordered;
        if (unordered) return how == "equ"_w || how == "neu"_w || how == "ltu"_w || how == "leu"_w || how == "gtu"_w || how == "geu"_w;
        return found(x, y);
    }
    if (i.type.kind == 's') return found(extended(a, i.type.bytes), extended(b, i.type.bytes));
    return found(narrowed(a, i.type), narrowed(b, i.type));
}

void setp(Machine& m, const Instruction& i)
{
    bool r = compare(i.hashes[1], i, m.number(i.args[1]), m.number(i.args[2]));
    const bool complement = !r;
    if (i.args.size() > 3) {
        const bool other = m.predicate(i.args[3]);
        r = i.has("and"_w) ? r && other : i.has("or"_w) ? r || other : r != other;
    }
    m.set(i.args[0], r);
    if (i.args[0].second != ~0u) m.registers[i.args[0].second].low = complement, m.written[i.args[0].second] = true;
}

void selp(Machine& m, const Instruction& i) { m.set(i.args[0], m.value(i.args[m.predicate(i.args[3]) ? 1 : 2])); }

void mov(Machine& m, const Instruction& i)
{
    const Argument &to = i.args[0], &from = i.args[1];
    if (from.kind == Kind::Vector) {  // packed
        const unsigned each = i.type.bytes / unsigned(from.parts.size());
        unsigned __int128 all = 0;
        for (size_t k = from.parts.size(); k-- > 0;) {
            const Value v = m.value(from.parts[k]);
            all = all << 8 * each | (each == 8 ? v.low : v.low & mask_of(each));
        }
        m.set(to, Value{(unsigned long long)all, (unsigned long long)(all >> 64)});
    } else if (to.kind == Kind::Vector) {
        const unsigned each = i.type.bytes / unsigned(to.parts.size());
        const Value v = m.value(from);
        unsigned __int128 all = (unsigned __int128)v.high << 64 | v.low;
        for (const Argument& part : to.parts) {
            m.set(part, (unsigned long long)all & mask_of(each));
            all >>= 8 * each;
        }
    } else if (i.type.kind == 'p') {
        m.set(to, m.predicate(from));
    } else {
        Value v = m.value(from);
        if (i.type.bytes < 16) v = {narrowed(v.low, i.type), 0};
        m.set(to, v);
    }
}

void cvt(Machine& m, const Instruction& i)
{
    const Type from = i.type, to = i.other;
    if (to.kind == 'x' || to.kind == 'y' || (to.bytes == 2 && (to.kind == '4' || to.kind == '5'))) {
        if (i.args.size() == 3) {  // d = {high: a, low: b}
            const Type each = to.kind == 'x' ? Type{'f', 2} : to.kind == 'y' ? Type{'h', 2} : Type{to.kind, 1};
            double v[2] = {to_double(m.number(i.args[2]), from), to_double(m.number(i.args[1]), from)};
            if (i.has("relu"_w)) for (double& x : v) x = x > 0 ? x : x != x ? x : 0;
            const unsigned shift = 8 * each.bytes;
            return m.set(i.args[0], from_double(v[0], each) | from_double(v[1], each) << shift);
        }
        if (from.kind == '4' || from.kind == '5') {
            const unsigned bits = unsigned(m.number(i.args[1]));
            const Type each = {from.kind, 1};
            return m.set(i.args[0], from_double(to_double(bits & 0xff, each), {'f', 2}) | from_double(to_double(bits >> 8, each), {'f', 2}) << 16);
        }
        const Type half = from.kind == 'x' ? Type{'f', 2} : Type{'h', 2}, each = {to.kind, 1};
        const unsigned bits = unsigned(m.number(i.args[1]));
        return m.set(i.args[0], from_double(to_double(bits & 0xffff, half), each) | from_double(to_double(bits >> 16, half), each) << 8);
    }
    const unsigned long long bits = m.number(i.args[1]);
    if (!is_float(to) && !is_float(from))
        return m.set(i.args[0], narrowed(from.kind == 's' ? (unsigned long long)extended(bits, from.bytes) : narrowed(bits, from), to));
    double x = to_double(bits, from);
    if (!is_float(to)) {
        x = i.has("rni"_w) ? nearbyint(x) : i.has("rmi"_w) ? floor(x) : i.has("rpi"_w) ? ceil(x) : trunc(x);
        const bool sign = to.kind == 's';
        const double most = ldexp(1.0, int(8 * to.bytes) - sign), least = sign ? -most : 0;
        if (x != x) return m.set(i.args[0], 0);
        if (x >= most) return m.set(i.args[0], sign ? mask_of(to.bytes) >> 1 : mask_of(to.bytes));
        if (x < least) x = least;
        return m.set(i.args[0], narrowed(sign ? (unsigned long long)(long long)x : (unsigned long long)x, to));
    }
    if (i.has("rni"_w)) x = nearbyint(x);
    if (i.has("rzi"_w)) x = trunc(x);
    if (i.has("rmi"_w)) x = floor(x);
    if (i.has("rpi"_w)) x = ceil(x);
    if (i.has("sat"_w)) x = x > 0 ? x < 1 ? x : 1 : 0;
    if (to.kind == 't' && i.has("rn"_w)) {
        const unsigned b = bits_as<unsigned>(float(x));
        return m.set(i.args[0], (b & 0x7f800000u) == 0x7f800000u ? b : (b + 0xfff + (b >> 13 & 1)) & 0xffffe000u);
    }
    if (i.has("rz"_w) && to.kind == 'h') return m.set(i.args[0], bits_as<unsigned>(float(x)) >> 16);
    m.set(i.args[0], from_double(x, to));
}

void prmt(Machine& m, const Instruction& i)
{
    const unsigned long long bytes = (m.number(i.args[1]) & 0xffffffff) | m.number(i.args[2]) << 32;
    const unsigned selector = unsigned(m.number(i.args[3]));
    unsigned r = 0;
    for (unsigned k = 0; k < 4; k++) {
        const unsigned s = selector >> 4 * k & 15, byte = unsigned(bytes >> 8 * (s & 7)) & 0xff;
        r |= (s & 8 ? (byte & 0x80 ? 0xff : 0) : byte) << 8 * k;
    }
    m.set(i.args[0], r);
}

void lop3(Machine& m, const Instruction& i)
{
    const unsigned a = unsigned(m.number(i.args[1])), b = unsigned(m.number(i.args[2])), c = unsigned(m.number(i.args[3]));
    const unsigned table = unsigned(m.number(i.args[4]));
    unsigned r = 0;
    for (unsigned k = 0; k < 32; k++) r |= (table >> ((a >> k & 1) << 2 | (b >> k & 1) << 1 | (c >> k & 1)) & 1) << k;
    m.set(i.args[0], r);
}

void shf(Machine& m, const Instruction& i)
{
    const unsigned long long both = (m.number(i.args[1]) & 0xffffffff) | m.number(i.args[2]) << 32;
    unsigned n = unsigned(m.number(i.args[3]));
    n = i.has("wrap"_w) ? n & 31 : n > 32 ? 32 : n;
    m.set(i.args[0], (i.has("l"_w) ? both << n >> 32 : both >> n) & 0xffffffff);
}

void bfe(Machine& m, const Instruction& i)
{
    const unsigned at = unsigned(m.number(i.args[2])) & 255, count = unsigned(m.number(i.args[3])) & 255;
    unsigned long long x = at > 63 ? 0 : narrowed(m.number(i.args[1]), i.type) >> at;
    if (count < 64) x &= (1ull << count) - 1;
    if (i.type.kind == 's' && count && count < 64 && x >> (count - 1) & 1) x |= ~0ull << count;
    m.set(i.args[0], narrowed(x, i.type));
}

void bfi(Machine& m, const Instruction& i)
{
    const unsigned at = unsigned(m.number(i.args[3])) & 63, count = unsigned(m.number(i.args[4])) & 255;
    const unsigned long long field = (count > 63 ? ~0ull : (1ull << count) - 1) << at;
    m.set(i.args[0], narrowed((m.number(i.args[2]) & ~field) | (m.number(i.args[1]) << at & field), i.type));
}

void dp4a(Machine& m, const Instruction& i)
{
    const bool a_sign = i.words.size() > 1 && i.is(1, "s32"_w), b_sign = i.words.size() > 2 && i.is(2, "s32"_w);
    const unsigned a = unsigned(m.number(i.args[1])), b = unsigned(m.number(i.args[2]));
    int sum = int(m.number(i.args[3]));
    for (unsigned k = 0; k < 32; k += 8)
        sum += (a_sign ? int((signed char)(a >> k)) : int(a >> k & 255)) * (b_sign ? int((signed char)(b >> k)) : int(b >> k & 255));
    m.set(i.args[0], unsigned(sum));
}

// ---- memory -----------------------------------------------------------------------------------------------------------

bool strong(const Instruction& i) { return i.has("relaxed"_w) || i.has("acquire"_w) || i.has("release"_w) || i.has("volatile"_w) || i.has("acq_rel"_w); }

Scope scope_of(const Instruction& i) { return i.has("cta"_w) ? Scope::Block : i.has("cluster"_w) ? Scope::Cluster : Scope::Gpu; }

unsigned char strength_of(const Instruction& i) { return strong(i) ? strength(scope_of(i)) : 0; }

Memory order_of(const Instruction& i)
{
    return i.has("acq_rel"_w) ? Memory::AcquireRelease : i.has("acquire"_w) ? Memory::Acquire : i.has("release"_w) ? Memory::Release : Memory::Relaxed;
}

unsigned access_bytes(const Instruction& i) { return i.type.bytes * i.lanes; }

char* aligned_pointer(Machine& m, const Instruction& i, const Argument& a, unsigned bytes)
{
    char* at = m.pointer(a, i.space, bytes, i);
    if (size_t(at) % bytes)
        fault(FaultKind::Bounds, "%s (%s:%d) at an address that is no multiple of %u", i.text.c_str(), m.site.file, m.site.line, bytes);
    return at;
}

void load(Machine& m, const Instruction& i)
{
    const unsigned each = i.type.bytes, bytes = access_bytes(i);
    const char* at = aligned_pointer(m, i, i.args[1], bytes);
    char data[64];
    memcpy(data, at, bytes);
    note_access(at, bytes, false, strength_of(i), running->caller);
    if (i.has("nc"_w)) read_only(at, bytes, running->caller);
    if (strong(i)) {
        synchronize(at, true, false, order_of(i), scope_of(i));
        unsigned long long seen = 0;
        for (unsigned k = 0; k < bytes; k += 4) {
            unsigned word = 0;
            memcpy(&word, data + k, bytes - k < 4 ? bytes - k : 4);
            seen = seen * 0x9E3779B97F4A7C15ull + word;
        }
        poll(at, seen, running->caller);
    }
    const auto put = [&](const Argument& to, const char* from) {
        Value v = {0, 0};
        memcpy(&v, from, each);
        if (i.type.kind == 's') v.low = (unsigned long long)extended(v.low, each);
        m.set(to, v);
    };
    if (i.args[0].kind == Kind::Vector)
        for (size_t k = 0; k < i.args[0].parts.size(); k++) put(i.args[0].parts[k], data + k * each);
    else put(i.args[0], data);
}

void store(Machine& m, const Instruction& i)
{
    const unsigned each = i.type.bytes, bytes = access_bytes(i);
    char* at = aligned_pointer(m, i, i.args[0], bytes);
    note_access(at, bytes, true, strength_of(i), running->caller);
    if (strong(i)) synchronize(at, false, true, order_of(i), scope_of(i));
    const auto take = [&](const Argument& from, char* to) {
        const Value v = m.value(from);
        memcpy(to, &v, each);
    };
    if (i.args[1].kind == Kind::Vector)
        for (size_t k = 0; k < i.args[1].parts.size(); k++) take(i.args[1].parts[k], at + k * each);
    else take(i.args[1], at);
    if (strong(i)) progress++;
}

void combine(const Instruction& i, unsigned long long how, void* at, const Value& x, const Value& y)
{
    const Type t = i.type;
    if (t.kind == 'x' || t.kind == 'y') {
        const Type each = {t.kind == 'x' ? 'f' : 'h', 2};
        unsigned word;
        memcpy(&word, at, 4);
        const auto one = [&](unsigned shift) {
            const double a = to_double(word >> shift & 0xffff, each), b = to_double(x.low >> shift & 0xffff, each);
            return unsigned(from_double(how == "min"_w ? fmin(a, b) : how == "max"_w ? fmax(a, b) : a + b, each)) << shift;
        };
        word = one(0) | one(16);
        memcpy(at, &word, 4);
        return;
    }
    unsigned long long old = 0;
    memcpy(&old, at, t.bytes > 8 ? 8 : t.bytes);
    unsigned long long fresh = old;
    const long long a = extended(old, t.bytes), b = extended(x.low, t.bytes);
    const unsigned long long ua = narrowed(old, t), ub = narrowed(x.low, t);
    if (how == "exch"_w) fresh = x.low;
    else if (how == "cas"_w) fresh = ua == ub ? y.low : old;
    else if (is_float(t)) {
        const double p = to_double(old, t), q = to_double(x.low, t);
        const bool single = t.kind == 'f' && t.bytes == 4;
        fresh = from_double(how == "min"_w ? fmin(p, q) : how == "max"_w ? fmax(p, q) : single ? double(float(p) + float(q)) : p + q, t);
    } else if (how == "add"_w) fresh = old + x.low;
    else if (how == "and"_w) fresh = old & x.low;
    else if (how == "or"_w) fresh = old | x.low;
    else if (how == "xor"_w) fresh = old ^ x.low;
    else if (how == "min"_w) fresh = t.kind == 's' ? (a < b ? old : x.low) : ua < ub ? old : x.low;
    else if (how == "max"_w) fresh = t.kind == 's' ? (a > b ? old : x.low) : ua > ub ? old : x.low;
    else if (how == "inc"_w) fresh = ua >= ub ? 0 : ua + 1;
    else if (how == "dec"_w) fresh = ua == 0 || ua > ub ? ub : ua - 1;
    memcpy(at, &fresh, t.bytes);
}

// atom d, [a], x (, y) and red [a], x
void atomic(Machine& m, const Instruction& i)
{
    const bool returns = i.is(0, "atom"_w);
    static constexpr unsigned long long WAYS[] = {"add"_w, "min"_w, "max"_w, "and"_w, "or"_w, "xor"_w, "exch"_w, "cas"_w, "inc"_w, "dec"_w};
    unsigned long long how = 0;
    for (const unsigned long long way : WAYS)
        if (i.has(way)) how = way;
    const Argument &where = i.args[returns], &with = i.args[returns + 1];
    const unsigned each = i.type.bytes, bytes = access_bytes(i);
    char* at = aligned_pointer(m, i, where, bytes);
    note_access(at, bytes, true, strength(scope_of(i)), running->caller);
    synchronize(at, true, true, order_of(i), scope_of(i));
    atomics++;
    Value old = {0, 0};
    memcpy(&old, at, bytes > 16 ? 16 : bytes);
    const Value third = i.args.size() > size_t(returns) + 2 ? m.value(i.args[returns + 2]) : Value{0, 0};
    if (how == "exch"_w && each == 16) {
        const Value v = m.value(with);
        memcpy(at, &v, 16);
    } else if (with.kind == Kind::Vector) {
        for (size_t k = 0; k < with.parts.size(); k++) combine(i, how, at + k * each, m.value(with.parts[k]), third);
    } else {
        combine(i, how, at, m.value(with), third);
    }
    if (!returns) {
        progress++;
        return;
    }
    if (i.args[0].kind == Kind::Vector)
        for (size_t k = 0; k < i.args[0].parts.size(); k++) {
            unsigned long long part = 0;
            memcpy(&part, reinterpret_cast<const char*>(&old) + k * each, each);
            m.set(i.args[0].parts[k], part);
        }
    else m.set(i.args[0], old);
    if (memcmp(&old, at, bytes > 16 ? 16 : bytes) == 0) poll(at, old.low, running->caller);
    else progress++;
}

void cvta(Machine& m, const Instruction& i)
{
    const unsigned long long x = m.number(i.args[1]);
    const bool in_shared = i.space == Space::Shared || i.space == Space::Cluster;
    if (!in_shared) m.set(i.args[0], x);
    else if (i.has("to"_w)) m.set(i.args[0], rung_shared_address(reinterpret_cast<void*>(x), m.site));
    else m.set(i.args[0], (unsigned long long)(size_t)rung_shared_pointer(unsigned(x), m.site));
}

void mapa(Machine& m, const Instruction& i)
{
    const unsigned rank = unsigned(m.number(i.args[2])), count = volume(launch->cluster);
    if (rank >= count)
        fault(FaultKind::Bounds, "%s (%s:%d) of block %u in a cluster of %u", i.text.c_str(), m.site.file, m.site.line, rank, count);
    if (i.space == Space::Cluster) {  // an address of shared memory
        const unsigned address = unsigned(m.number(i.args[1]));
        m.set(i.args[0], (address & 0xffffff) | rank << 24);
    } else {
        m.set(i.args[0], (unsigned long long)(size_t)rung_map_shared(reinterpret_cast<void*>(m.number(i.args[1])), rank));
    }
}

void getctarank(Machine& m, const Instruction& i)
{
    Place place;
    if (i.space == Space::Cluster) m.set(i.args[0], unsigned(m.number(i.args[1])) >> 24);
    else m.set(i.args[0], place_of(reinterpret_cast<void*>(m.number(i.args[1])), place) ? place.block->cluster_rank : 0);
}

void prefetch(Machine& m, const Instruction& i)  // does nothing: a prefetch of unmapped memory is legal
{
    (void)m, (void)i;
}

// ---- threads ------------------------------------------------------------------------------------------------------------

void branch(Machine& m, const Instruction& i)
{
    const size_t to = size_t(i.args[0].number);
    m.next = to;
}

void elect(Machine& m, const Instruction& i)
{
    const unsigned mask = unsigned(m.number(i.args[1]));
    // Read before the lanes meet: the chosen lane may have ended by the time the others continue.
    const unsigned chosen = unsigned(__builtin_ctz(mask & running->warp->alive ? mask & running->warp->alive : 1));
    rung_meet_lanes(mask, nullptr_collective, nullptr, "elect.sync", m.site);
    m.set(i.args[0], chosen);
    if (i.args[0].second != ~0u) m.registers[i.args[0].second].low = running->lane == chosen, m.written[i.args[0].second] = true;
}

struct Exchange
{
    unsigned long long value, result;
    unsigned source;
    bool inside;
};

void exchange(void* const* data, unsigned lanes)
{
    for (unsigned lane = 0; lane < WARP; lane++)
        if (lanes >> lane & 1) {
            Exchange& e = *static_cast<Exchange*>(data[lane]);
            e.result = lanes >> e.source & 1 ? static_cast<Exchange*>(data[e.source])->value : ~0ull;
        }
}

void gather(void* const* data, unsigned lanes)  // votes, or values to match
{
    unsigned votes = 0;
    for (unsigned lane = 0; lane < WARP; lane++)
        if (lanes >> lane & 1 && static_cast<Exchange*>(data[lane])->value) votes |= 1u << lane;
    for (unsigned lane = 0; lane < WARP; lane++)
        if (lanes >> lane & 1) static_cast<Exchange*>(data[lane])->result = votes | (unsigned long long)lanes << 32;
}

void shfl(Machine& m, const Instruction& i)  // d|p, a, b, c, mask
{
    const unsigned lane = running->lane, b = unsigned(m.number(i.args[2])), c = unsigned(m.number(i.args[3]));
    const unsigned segment = c >> 8 & 31, clamp = c & 31, most = (lane & segment) | (clamp & ~segment), least = lane & segment;
    unsigned source;
    bool inside;
    if (i.has("up"_w)) source = lane - b, inside = int(source) >= int(most);
    else if (i.has("down"_w)) source = lane + b, inside = source <= most;
    else if (i.has("bfly"_w)) source = lane ^ b, inside = source <= most;
    else source = least | (b & ~segment), inside = source <= most;
    if (!inside) source = lane;
    Exchange e = {m.number(i.args[1]), 0, source & 31, inside};
    rung_meet_lanes(unsigned(m.number(i.args[4])), exchange, &e, "shfl.sync", m.site);
    m.set(i.args[0], e.result & 0xffffffff);
    if (i.args[0].second != ~0u) m.registers[i.args[0].second].low = inside, m.written[i.args[0].second] = true;
}

void vote(Machine& m, const Instruction& i)
{
    Exchange e = {m.predicate(i.args[1]), 0, 0, true};
    rung_meet_lanes(unsigned(m.number(i.args[2])), gather, &e, "vote.sync", m.site);
    const unsigned votes = unsigned(e.result), lanes = unsigned(e.result >> 32);
    m.set(i.args[0], i.has("ballot"_w) ? votes : i.has("any"_w) ? votes != 0 : i.has("all"_w) ? votes == lanes : votes == 0 || votes == lanes);
}

void activemask(Machine& m, const Instruction& i) { m.set(i.args[0], rung_lanes_running()); }

void bar(Machine& m, const Instruction& i)
{
    const bool waits = !i.has("arrive"_w);
    if (i.has("warp"_w)) return rung_meet_lanes(unsigned(m.number(i.args[0])), nullptr, nullptr, "bar.warp.sync", m.site);
    if (i.has("red"_w)) m.refuse(i, "is not modelled");
    if (i.has("cluster"_w)) {
        if (i.has("arrive"_w)) arrive_cluster(!i.has("relaxed"_w), m.site);
        else wait_cluster(true, m.site);
        return;
    }
    const unsigned id = unsigned(m.number(i.args[0]));
    if (i.args.size() < 2 && id == 0 && waits) {
        rung_meet_block(0, Vote::Count, "bar.sync", m.site);
        return;
    }
    meet_named(id, i.args.size() > 1 ? unsigned(m.number(i.args[1])) : running->block->thread_count, waits,
               waits ? "bar.sync" : "bar.arrive", m.site);
}

void fences(Machine& m, const Instruction& i)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (i.has("proxy"_w)) {
        if (i.has("async"_w) || i.has("async::generic"_w) || i.has("alias"_w)) fence_proxy();
        return;
    }
    (void)m;
    fence(scope_of(i));
}

void sleep(Machine&, const Instruction&) { pause(running->caller); }
void nothing(Machine&, const Instruction&) {}
void griddepcontrol(Machine&, const Instruction& i)
{
    if (i.words.size() < 2 || i.words[1] != "wait") return let_dependents_start();
    report->waits++;
    launch_ahead_known();
}
void zero(Machine& m, const Instruction& i) { m.set(i.args[0], 0); }
void trap(Machine& m, const Instruction&) { fault(FaultKind::Trap, "the kernel called trap (%s:%d)", m.site.file, m.site.line); }

constexpr unsigned MOST_REGISTERS = 65536;  // of a block

void setmaxnreg(Machine& m, const Instruction& i)
{
    const unsigned count = unsigned(m.number(i.args[0]));
    if (count < 24 || count > 256 || count % 8)
        fault(FaultKind::Unsupported, "setmaxnreg to %u (%s:%d); take a multiple of 8 from 24 to 256", count, m.site.file, m.site.line);
    rung_meet_lanes(0xffffffffu, nullptr_collective, nullptr, "setmaxnreg", m.site);
    running->warp->registers = count;
    unsigned all = 0;
    for (unsigned i = 0; i < running->block->warp_count; i++) all += WARP * running->block->warps[i].registers;
    if (all > MOST_REGISTERS)
        fault(FaultKind::Deadlock, "setmaxnreg to %u (%s:%d) waits for ever: the warps of this block have asked for %u registers, and "
              "a multiprocessor has %u", count, m.site.file, m.site.line, all, MOST_REGISTERS);
}

const struct { const char* name; Handler run; } TABLE[] = {
    {"add", arithmetic<Op::Add>}, {"sub", arithmetic<Op::Sub>}, {"mul", arithmetic<Op::Mul>}, {"mad", arithmetic<Op::Mad>},
    {"fma", arithmetic<Op::Fma>}, {"min", arithmetic<Op::Min>}, {"max", arithmetic<Op::Max>}, {"and", arithmetic<Op::And>},
    {"or", arithmetic<Op::Or>}, {"xor", arithmetic<Op::Xor>}, {"shl", arithmetic<Op::Shl>}, {"shr", arithmetic<Op::Shr>},
    {"div", arithmetic<Op::Div>}, {"rem", arithmetic<Op::Rem>}, {"not", unary}, {"neg", unary}, {"abs", unary},
    {"popc", unary}, {"clz", unary}, {"brev", unary}, {"ex2", unary}, {"lg2", unary}, {"rcp", unary}, {"rsqrt", unary},
    {"sqrt", unary}, {"sin", unary}, {"cos", unary}, {"tanh", unary}, {"setp", setp}, {"selp", selp}, {"mov", mov}, {"cvt", cvt},
    {"prmt", prmt}, {"lop3", lop3}, {"shf", shf}, {"bfe", bfe}, {"bfi", bfi}, {"dp4a", dp4a}, {"ld", load}, {"ldu", load},
    {"st", store}, {"atom", atomic}, {"red", atomic}, {"cvta", cvta}, {"mapa", mapa}, {"getctarank", getctarank},
    {"prefetch", prefetch}, {"prefetchu", prefetch}, {"applypriority", nothing}, {"discard", nothing}, {"createpolicy", zero},
    {"bra", branch}, {"elect", elect}, {"shfl", shfl}, {"vote", vote}, {"activemask", activemask}, {"bar", bar},
    {"barrier", bar}, {"fence", fences}, {"membar", fences}, {"nanosleep", sleep}, {"griddepcontrol", griddepcontrol},
    {"setmaxnreg", setmaxnreg}, {"trap", trap}};

}  // namespace

// The lanes only converge; this orders no memory.
void nullptr_collective(void* const*, unsigned) {}

Handler handler_of(Instruction& i)
{
    if (Handler handler = asynchronous_handler(i)) return handler;
    if (Handler handler = product_handler(i)) return handler;
    for (const auto& entry : TABLE)
        if (i.words[0] == entry.name) return entry.run;
    return nullptr;
}

}  // namespace rung_emulator
