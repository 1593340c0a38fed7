// CUDA's math functions. The fast intrinsics are the accurate functions here; their error is not modelled.
#pragma once

#define rung_fmaxf __builtin_fmaxf
#define rung_fminf __builtin_fminf

#define RUNG_MINMAX(T) \
    inline T min(T a, T b) { return b < a ? b : a; } \
    inline T max(T a, T b) { return a < b ? b : a; }
#define RUNG_MINMAX_MIXED(A, B, T) \
    inline T min(A a, B b) { return (T)b < (T)a ? (T)b : (T)a; } \
    inline T max(A a, B b) { return (T)a < (T)b ? (T)b : (T)a; } \
    inline T min(B a, A b) { return (T)b < (T)a ? (T)b : (T)a; } \
    inline T max(B a, A b) { return (T)a < (T)b ? (T)b : (T)a; }
RUNG_MINMAX(int)
RUNG_MINMAX(unsigned)
RUNG_MINMAX(long)
RUNG_MINMAX(unsigned long)
RUNG_MINMAX(long long)
RUNG_MINMAX(unsigned long long)
RUNG_MINMAX_MIXED(int, unsigned, unsigned)
RUNG_MINMAX_MIXED(long, unsigned long, unsigned long)
RUNG_MINMAX_MIXED(long long, unsigned long long, unsigned long long)
inline float min(float a, float b) { return rung_fminf(a, b); }
inline float max(float a, float b) { return rung_fmaxf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline double min(float a, double b) { return fmin(a, b); }
inline double max(float a, double b) { return fmax(a, b); }
inline double min(double a, float b) { return fmin(a, b); }
inline double max(double a, float b) { return fmax(a, b); }
inline unsigned umin(unsigned a, unsigned b) { return min(a, b); }
inline unsigned umax(unsigned a, unsigned b) { return max(a, b); }
inline long long llmin(long long a, long long b) { return min(a, b); }
inline long long llmax(long long a, long long b) { return max(a, b); }

inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float rsqrt(float x) { return rsqrtf(x); }
inline float rcbrtf(float x) { return 1.0f / cbrtf(x); }
inline float exp10f(float x) { return float(__builtin_exp10(double(x))); }
inline float sinpif(float x) { return float(sin(M_PI * double(x))); }
inline float cospif(float x) { return float(cos(M_PI * double(x))); }
inline void sincosf(float x, float* s, float* c) { *s = sinf(x), *c = cosf(x); }
inline void sincos(double x, double* s, double* c) { *s = sin(x), *c = cos(x); }
inline void sincospif(float x, float* s, float* c) { *s = sinpif(x), *c = cospif(x); }
inline float normcdff(float x) { return 0.5f * erfcf(-x * 0.70710678f); }
inline double normcdf(double x) { return 0.5 * erfc(-x * M_SQRT1_2); }
inline double rcbrt(double x) { return 1.0 / cbrt(x); }
inline double sinpi(double x) { return sin(M_PI * fmod(x, 2.0)); }
inline double cospi(double x) { return cos(M_PI * fmod(x, 2.0)); }
inline void sincospi(double x, double* s, double* c) { *s = sinpi(x), *c = cospi(x); }
inline double norm3d(double x, double y, double z) { return sqrt(x * x + y * y + z * z); }
inline float norm3df(float x, float y, float z) { return sqrtf(x * x + y * y + z * z); }
inline float fdividef(float x, float y) { return x / y; }

inline float __expf(float x) { return expf(x); }
inline float __exp10f(float x) { return exp10f(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __log10f(float x) { return log10f(x); }
inline float __powf(float x, float y) { return exp2f(y * log2f(x)); }  // NaN for negative numbers, as on a GPU
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __tanf(float x) { return tanf(x); }
inline void __sincosf(float x, float* s, float* c) { sincosf(x, s, c); }
// tanh.approx has a relative error of up to 2^-11 on a GPU. Here it has up to 2^-13, of either sign: float32's bounds refuse it,
// and those of 16 bits do not.
inline float __tanhf(float x)
{
    const float y = tanhf(x), off = y * (1.0f - y * y) * 0x1p-13f;
    return fmodf(truncf(x * 64.0f), 2.0f) == 0.0f ? y + off : y - off;
}
inline float __fdividef(float x, float y) { return x / y; }
inline float __saturatef(float x) { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; }
inline float __frsqrt_rn(float x) { return float(1.0 / sqrt(double(x))); }

// Never part of a fused multiply-add, whatever the compiler's options: the assembly is opaque to it.
namespace rung_emulator {
inline float rounded(float x)
{
    asm("" : "+m"(x));
    return x;
}
}  // namespace rung_emulator
inline float __fadd_rn(float a, float b) { return rung_emulator::rounded(a + b); }
inline float __fsub_rn(float a, float b) { return rung_emulator::rounded(a - b); }
inline float __fmul_rn(float a, float b) { return rung_emulator::rounded(a * b); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0f / a; }
inline float __fsqrt_rn(float a) { return sqrtf(a); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }

// ---- bits -------------------------------------------------------------------------------------------------------

namespace rung_emulator {

template <class To, class From>
inline To bits_as(From from)
{
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

template <class To, class From>
inline To saturated(From x)  // CUDA's conversions clamp and convert NaN to 0
{
    const To low = To(To(~To(0)) < To(0) ? To(1) << (8 * sizeof(To) - 1) : 0), high = To(~low);
    if (x != x) return 0;
    if (x <= From(low)) return low;
    if (x >= From(high)) return high;
    return To(x);
}

}  // namespace rung_emulator

inline int __float_as_int(float x) { return rung_emulator::bits_as<int>(x); }
inline unsigned __float_as_uint(float x) { return rung_emulator::bits_as<unsigned>(x); }
inline float __int_as_float(int x) { return rung_emulator::bits_as<float>(x); }
inline float __uint_as_float(unsigned x) { return rung_emulator::bits_as<float>(x); }
inline long long __double_as_longlong(double x) { return rung_emulator::bits_as<long long>(x); }
inline double __longlong_as_double(long long x) { return rung_emulator::bits_as<double>(x); }
inline int __double2hiint(double x) { return int(__double_as_longlong(x) >> 32); }
inline int __double2loint(double x) { return int(__double_as_longlong(x)); }
inline double __hiloint2double(int hi, int lo) { return __longlong_as_double((long long)hi << 32 | (unsigned)lo); }

#define RUNG_FLOAT_TO(NAME, FROM, T) \
    inline T NAME##_rn(FROM x) { return rung_emulator::saturated<T>(nearbyint(x)); } \
    inline T NAME##_rz(FROM x) { return rung_emulator::saturated<T>(trunc(x)); } \
    inline T NAME##_rd(FROM x) { return rung_emulator::saturated<T>(floor(x)); } \
    inline T NAME##_ru(FROM x) { return rung_emulator::saturated<T>(ceil(x)); }
RUNG_FLOAT_TO(__float2int, float, int)
RUNG_FLOAT_TO(__float2uint, float, unsigned)
RUNG_FLOAT_TO(__float2ll, float, long long)
RUNG_FLOAT_TO(__float2ull, float, unsigned long long)
RUNG_FLOAT_TO(__double2int, double, int)
RUNG_FLOAT_TO(__double2uint, double, unsigned)
RUNG_FLOAT_TO(__double2ll, double, long long)
inline float __int2float_rn(int x) { return float(x); }
inline float __uint2float_rn(unsigned x) { return float(x); }
inline float __ll2float_rn(long long x) { return float(x); }
inline float __ull2float_rn(unsigned long long x) { return float(x); }
inline double __int2double_rn(int x) { return double(x); }
inline float __double2float_rn(double x) { return float(x); }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline unsigned __brev(unsigned x)
{
    unsigned r = 0;
    for (int i = 0; i < 32; i++) r |= (x >> i & 1) << (31 - i);
    return r;
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector)
{
    const unsigned long long both = (unsigned long long)y << 32 | x;
    unsigned r = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned pick = selector >> 4 * i & 15;
        unsigned byte = unsigned(both >> 8 * (pick & 7)) & 255;
        if (pick & 8) byte = byte & 128 ? 255 : 0;
        r |= byte << 8 * i;
    }
    return r;
}
inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned n) { return unsigned(((unsigned long long)hi << 32 | lo) << (n & 31) >> 32); }
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned n) { return unsigned(((unsigned long long)hi << 32 | lo) >> (n & 31)); }
inline int __mul24(int a, int b) { return (a << 8 >> 8) * (b << 8 >> 8); }
inline unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffffu) * (b & 0xffffffu); }
inline int __mulhi(int a, int b) { return int((long long)a * b >> 32); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((unsigned long long)a * b >> 32); }
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) { return (unsigned long long)((unsigned __int128)a * b >> 64); }
inline int __dp4a(int a, int b, int c)
{
    for (int i = 0; i < 4; i++) c += int((signed char)(a >> 8 * i)) * int((signed char)(b >> 8 * i));
    return c;
}
inline unsigned __sad(int a, int b, unsigned c) { return c + unsigned(a < b ? b - a : a - b); }
