// One of the 16-bit types and its pair. The including file sets RUNG_T, RUNG_T2, RUNG_RAW, RUNG_RAW2, RUNG_BITS, RUNG_VALUE.

struct RUNG_RAW { unsigned short x; };
struct RUNG_RAW2 { unsigned short x, y; };

struct __attribute__((aligned(2))) RUNG_T
{
    unsigned short bits;

    RUNG_T() = default;
    RUNG_T(float f) : bits(rung_emulator::RUNG_BITS(f)) {}
    RUNG_T(double d) : bits(rung_emulator::RUNG_BITS(rung_emulator::to_odd(d))) {}
    RUNG_T(int i) : RUNG_T(double(i)) {}
    RUNG_T(unsigned i) : RUNG_T(double(i)) {}
    RUNG_T(short i) : RUNG_T(float(i)) {}
    RUNG_T(unsigned short i) : RUNG_T(float(i)) {}
    RUNG_T(long i) : RUNG_T(double(i)) {}
    RUNG_T(unsigned long i) : RUNG_T(double(i)) {}
    RUNG_T(long long i) : RUNG_T(double(i)) {}
    RUNG_T(unsigned long long i) : RUNG_T(double(i)) {}
    RUNG_T(RUNG_RAW raw) : bits(raw.x) {}

    operator float() const { return rung_emulator::RUNG_VALUE(bits); }
    operator RUNG_RAW() const { return {bits}; }
    explicit operator double() const { return float(*this); }
    explicit operator int() const { return rung_emulator::saturated<int>(float(*this)); }
    explicit operator unsigned() const { return rung_emulator::saturated<unsigned>(float(*this)); }
    explicit operator short() const { return short(float(*this)); }
    explicit operator long long() const { return rung_emulator::saturated<long long>(float(*this)); }
    explicit operator bool() const { return (bits & 0x7fff) != 0; }

    RUNG_T& operator+=(RUNG_T b) { return *this = RUNG_T(float(*this) + float(b)); }
    RUNG_T& operator-=(RUNG_T b) { return *this = RUNG_T(float(*this) - float(b)); }
    RUNG_T& operator*=(RUNG_T b) { return *this = RUNG_T(float(*this) * float(b)); }
    RUNG_T& operator/=(RUNG_T b) { return *this = RUNG_T(float(*this) / float(b)); }
    RUNG_T& operator++() { return *this += RUNG_T(1.0f); }
    RUNG_T& operator--() { return *this -= RUNG_T(1.0f); }
};

struct __attribute__((aligned(4))) RUNG_T2
{
    RUNG_T x, y;
    RUNG_T2() = default;
    RUNG_T2(RUNG_T x, RUNG_T y) : x(x), y(y) {}
    RUNG_T2(RUNG_RAW2 raw) { x.bits = raw.x, y.bits = raw.y; }
    operator RUNG_RAW2() const { return {x.bits, y.bits}; }
};

namespace rung_emulator {
inline RUNG_T fused(RUNG_T a, RUNG_T b, RUNG_T c) { return RUNG_T(fma(double(a), double(b), double(c))); }
inline RUNG_T larger(RUNG_T a, RUNG_T b) { return RUNG_T(rung_fmaxf(float(a), float(b))); }
inline RUNG_T smaller(RUNG_T a, RUNG_T b) { return RUNG_T(rung_fminf(float(a), float(b))); }
inline RUNG_T saturate(RUNG_T a) { return RUNG_T(__saturatef(float(a))); }
}  // namespace rung_emulator

// ---- arithmetic: a float sum, product or quotient of two such numbers, rounded once more, is the exact one rounded --

#define RUNG_BINARY(NAME, NAME2, OP) \
    inline RUNG_T NAME(RUNG_T a, RUNG_T b) { return RUNG_T(float(a) OP float(b)); } \
    inline RUNG_T NAME##_rn(RUNG_T a, RUNG_T b) { return NAME(a, b); } \
    inline RUNG_T NAME##_sat(RUNG_T a, RUNG_T b) { return rung_emulator::saturate(NAME(a, b)); } \
    inline RUNG_T2 NAME2(RUNG_T2 a, RUNG_T2 b) { return RUNG_T2(NAME(a.x, b.x), NAME(a.y, b.y)); } \
    inline RUNG_T2 NAME2##_rn(RUNG_T2 a, RUNG_T2 b) { return NAME2(a, b); } \
    inline RUNG_T2 NAME2##_sat(RUNG_T2 a, RUNG_T2 b) { return RUNG_T2(NAME##_sat(a.x, b.x), NAME##_sat(a.y, b.y)); } \
    inline RUNG_T operator OP(const RUNG_T& a, const RUNG_T& b) { return NAME(a, b); } \
    inline RUNG_T2 operator OP(const RUNG_T2& a, const RUNG_T2& b) { return NAME2(a, b); } \
    inline RUNG_T2& operator OP##=(RUNG_T2& a, const RUNG_T2& b) { return a = NAME2(a, b); }
RUNG_BINARY(__hadd, __hadd2, +)
RUNG_BINARY(__hsub, __hsub2, -)
RUNG_BINARY(__hmul, __hmul2, *)
inline RUNG_T __hdiv(RUNG_T a, RUNG_T b) { return RUNG_T(float(a) / float(b)); }
inline RUNG_T2 __h2div(RUNG_T2 a, RUNG_T2 b) { return RUNG_T2(__hdiv(a.x, b.x), __hdiv(a.y, b.y)); }
inline RUNG_T operator/(const RUNG_T& a, const RUNG_T& b) { return __hdiv(a, b); }
inline RUNG_T2 operator/(const RUNG_T2& a, const RUNG_T2& b) { return __h2div(a, b); }

inline RUNG_T __hneg(RUNG_T a) { a.bits ^= 0x8000; return a; }
inline RUNG_T __habs(RUNG_T a) { a.bits &= 0x7fff; return a; }
inline RUNG_T2 __hneg2(RUNG_T2 a) { return RUNG_T2(__hneg(a.x), __hneg(a.y)); }
inline RUNG_T2 __habs2(RUNG_T2 a) { return RUNG_T2(__habs(a.x), __habs(a.y)); }
inline RUNG_T operator-(const RUNG_T& a) { return __hneg(a); }
inline RUNG_T operator+(const RUNG_T& a) { return a; }
inline RUNG_T2 operator-(const RUNG_T2& a) { return __hneg2(a); }

inline RUNG_T __hfma(RUNG_T a, RUNG_T b, RUNG_T c) { return rung_emulator::fused(a, b, c); }
inline RUNG_T __hfma_sat(RUNG_T a, RUNG_T b, RUNG_T c) { return rung_emulator::saturate(__hfma(a, b, c)); }
inline RUNG_T __hfma_relu(RUNG_T a, RUNG_T b, RUNG_T c) { return rung_emulator::larger(__hfma(a, b, c), RUNG_T(0.0f)); }
inline RUNG_T2 __hfma2(RUNG_T2 a, RUNG_T2 b, RUNG_T2 c) { return RUNG_T2(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)); }
inline RUNG_T __hmax(RUNG_T a, RUNG_T b) { return rung_emulator::larger(a, b); }
inline RUNG_T __hmin(RUNG_T a, RUNG_T b) { return rung_emulator::smaller(a, b); }
inline RUNG_T2 __hmax2(RUNG_T2 a, RUNG_T2 b) { return RUNG_T2(__hmax(a.x, b.x), __hmax(a.y, b.y)); }
inline RUNG_T2 __hmin2(RUNG_T2 a, RUNG_T2 b) { return RUNG_T2(__hmin(a.x, b.x), __hmin(a.y, b.y)); }
// Of these the result is NaN if an operand is.
inline RUNG_T __hmax_nan(RUNG_T a, RUNG_T b) { return float(a) != float(a) ? a : float(b) != float(b) ? b : __hmax(a, b); }
inline RUNG_T __hmin_nan(RUNG_T a, RUNG_T b) { return float(a) != float(a) ? a : float(b) != float(b) ? b : __hmin(a, b); }
inline RUNG_T2 __hmax2_nan(RUNG_T2 a, RUNG_T2 b) { return RUNG_T2(__hmax_nan(a.x, b.x), __hmax_nan(a.y, b.y)); }
inline RUNG_T2 __hmin2_nan(RUNG_T2 a, RUNG_T2 b) { return RUNG_T2(__hmin_nan(a.x, b.x), __hmin_nan(a.y, b.y)); }
inline RUNG_T2 __hfma2_sat(RUNG_T2 a, RUNG_T2 b, RUNG_T2 c) { return RUNG_T2(__hfma_sat(a.x, b.x, c.x), __hfma_sat(a.y, b.y, c.y)); }
inline RUNG_T2 __hfma2_relu(RUNG_T2 a, RUNG_T2 b, RUNG_T2 c) { return RUNG_T2(__hfma_relu(a.x, b.x, c.x), __hfma_relu(a.y, b.y, c.y)); }
// Complex numbers: c + a b.
inline RUNG_T2 __hcmadd(RUNG_T2 a, RUNG_T2 b, RUNG_T2 c)
{
    return RUNG_T2(__hfma(__hneg(a.y), b.y, __hfma(a.x, b.x, c.x)), __hfma(a.y, b.x, __hfma(a.x, b.y, c.y)));
}
inline bool __hisnan(RUNG_T a) { return float(a) != float(a); }
inline int __hisinf(RUNG_T a) { return (a.bits & 0x7fff) == RUNG_T(INFINITY).bits ? (a.bits & 0x8000 ? -1 : 1) : 0; }

inline RUNG_T2 __hisnan2(RUNG_T2 a) { return RUNG_T2(RUNG_T(float(__hisnan(a.x))), RUNG_T(float(__hisnan(a.y)))); }

// The pairs' forms: of both halves one truth (__hbeq2), a mask of bits, and with u true where an operand is NaN.
#define RUNG_PAIRS(NAME, ONE) \
    inline RUNG_T2 __h##NAME##2(RUNG_T2 a, RUNG_T2 b) { return RUNG_T2(RUNG_T(float(ONE(a.x, b.x))), RUNG_T(float(ONE(a.y, b.y)))); } \
    inline bool __hb##NAME##2(RUNG_T2 a, RUNG_T2 b) { return ONE(a.x, b.x) && ONE(a.y, b.y); } \
    inline unsigned __h##NAME##2_mask(RUNG_T2 a, RUNG_T2 b) { return (ONE(a.x, b.x) ? 0xffffu : 0) | (ONE(a.y, b.y) ? 0xffff0000u : 0); }
#define RUNG_COMPARE(NAME, OP) \
    inline bool __h##NAME(RUNG_T a, RUNG_T b) { return float(a) OP float(b); } \
    inline bool __h##NAME##u(RUNG_T a, RUNG_T b) { return __hisnan(a) || __hisnan(b) || float(a) OP float(b); } \
    inline bool operator OP(const RUNG_T& a, const RUNG_T& b) { return float(a) OP float(b); } \
    RUNG_PAIRS(NAME, __h##NAME) \
    RUNG_PAIRS(NAME##u, __h##NAME##u) \
    inline bool operator OP(const RUNG_T2& a, const RUNG_T2& b) { return __hb##NAME##2(a, b); }
RUNG_COMPARE(eq, ==)
RUNG_COMPARE(ne, !=)
RUNG_COMPARE(lt, <)
RUNG_COMPARE(le, <=)
RUNG_COMPARE(gt, >)
RUNG_COMPARE(ge, >=)

#define RUNG_MATH(NAME, FUNCTION) \
    inline RUNG_T h##NAME(RUNG_T a) { return RUNG_T(FUNCTION(float(a))); } \
    inline RUNG_T2 h2##NAME(RUNG_T2 a) { return RUNG_T2(h##NAME(a.x), h##NAME(a.y)); }
RUNG_MATH(exp, expf)
RUNG_MATH(exp2, exp2f)
RUNG_MATH(exp10, exp10f)
RUNG_MATH(log, logf)
RUNG_MATH(log2, log2f)
RUNG_MATH(log10, log10f)
RUNG_MATH(sqrt, sqrtf)
RUNG_MATH(rsqrt, rsqrtf)
RUNG_MATH(sin, sinf)
RUNG_MATH(cos, cosf)
RUNG_MATH(tanh, tanhf)
RUNG_MATH(tanh_approx, tanhf)
RUNG_MATH(rcp, __frcp_rn)
RUNG_MATH(floor, floorf)
RUNG_MATH(ceil, ceilf)
RUNG_MATH(trunc, truncf)
RUNG_MATH(rint, rintf)

// ---- conversions to and from integers, in each direction of rounding; SHORT is the type's part of their names ------

namespace rung_emulator {
// By the order of their values: the next number above, and below.
inline RUNG_T above(RUNG_T a) { a.bits = a.bits & 0x8000 ? (a.bits == 0x8000 ? 1 : a.bits - 1) : a.bits + 1; return a; }
inline RUNG_T below(RUNG_T a) { return __hneg(above(__hneg(a))); }
inline RUNG_T rounded_down(double d, RUNG_T*) { const RUNG_T a(d); return double(float(a)) > d ? below(a) : a; }
inline RUNG_T rounded_up(double d, RUNG_T*) { const RUNG_T a(d); return double(float(a)) < d ? above(a) : a; }
inline RUNG_T rounded_in(double d, RUNG_T* to) { return d < 0 ? rounded_up(d, to) : rounded_down(d, to); }
}  // namespace rung_emulator

#define RUNG_FROM(NAME, FROM, TO) \
    inline RUNG_T __##NAME##2##TO##_rz(FROM v) { return rung_emulator::rounded_in(double(v), (RUNG_T*)nullptr); } \
    inline RUNG_T __##NAME##2##TO##_rd(FROM v) { return rung_emulator::rounded_down(double(v), (RUNG_T*)nullptr); } \
    inline RUNG_T __##NAME##2##TO##_ru(FROM v) { return rung_emulator::rounded_up(double(v), (RUNG_T*)nullptr); } \
    inline RUNG_T __##NAME##2##TO##_rn(FROM v) { return RUNG_T(v); }
#define RUNG_INTEGER(NAME, T, SHORT) \
    RUNG_FROM(NAME, T, SHORT) \
    inline T __##SHORT##2##NAME##_rn(RUNG_T h) { return rung_emulator::saturated<T>(nearbyintf(float(h))); } \
    inline T __##SHORT##2##NAME##_rz(RUNG_T h) { return rung_emulator::saturated<T>(truncf(float(h))); } \
    inline T __##SHORT##2##NAME##_rd(RUNG_T h) { return rung_emulator::saturated<T>(floorf(float(h))); } \
    inline T __##SHORT##2##NAME##_ru(RUNG_T h) { return rung_emulator::saturated<T>(ceilf(float(h))); }
#define RUNG_CONVERSIONS(SHORT) \
    RUNG_FROM(float, float, SHORT) \
    RUNG_INTEGER(int, int, SHORT) \
    RUNG_INTEGER(uint, unsigned, SHORT) \
    RUNG_INTEGER(short, short, SHORT) \
    RUNG_INTEGER(ushort, unsigned short, SHORT) \
    RUNG_INTEGER(ll, long long, SHORT) \
    RUNG_INTEGER(ull, unsigned long long, SHORT) \
    inline signed char __##SHORT##2char_rz(RUNG_T h) { return rung_emulator::saturated<signed char>(float(h)); } \
    inline unsigned char __##SHORT##2uchar_rz(RUNG_T h) { return rung_emulator::saturated<unsigned char>(float(h)); }

inline RUNG_T atomicAdd(RUNG_T* address, RUNG_T value) { return rung_emulator::update(address, [=](RUNG_T old) { return __hadd(old, value); }); }
inline RUNG_T2 atomicAdd(RUNG_T2* address, RUNG_T2 value) { return rung_emulator::update(address, [=](RUNG_T2 old) { return __hadd2(old, value); }); }

#undef RUNG_BINARY
#undef RUNG_COMPARE
#undef RUNG_PAIRS
#undef RUNG_MATH
