// Conversions between float and the two 16-bit formats, rounding to nearest even, bit-identical to the GPU's.
#pragma once

namespace rung_emulator {

inline unsigned short half_bits(float f)
{
    if (f != f) return 0x7fff;
#ifdef __F16C__
    typedef float Floats __attribute__((vector_size(16)));
    typedef short Shorts __attribute__((vector_size(16)));
    const Shorts r = (Shorts)__builtin_ia32_vcvtps2ph(Floats{f, 0, 0, 0}, 0);
    return (unsigned short)r[0];
#else
    const unsigned bits = bits_as<unsigned>(f), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude >= 0x477ff000) return (unsigned short)(sign | 0x7c00);  // rounds beyond 65504
    if (magnitude < 0x38800000) {  // below the normal numbers: the float adder rounds in steps of 2^-24
        const float shifted = bits_as<float>(magnitude) + 0.5f;
        return (unsigned short)(sign | (bits_as<unsigned>(shifted) - 0x3f000000));
    }
    return (unsigned short)(sign | ((magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13));
#endif
}

inline float half_value(unsigned short h)
{
#ifdef __F16C__
    typedef float Floats __attribute__((vector_size(16)));
    typedef short Shorts __attribute__((vector_size(16)));
    const Floats r = (Floats)__builtin_ia32_vcvtph2ps(Shorts{(short)h, 0, 0, 0, 0, 0, 0, 0});
    return r[0];
#else
    const unsigned sign = unsigned(h & 0x8000) << 16, magnitude = h & 0x7fff;
    if (magnitude >= 0x7c00) return bits_as<float>(sign | 0x7f800000 | (magnitude & 0x3ff) << 13);
    const float scaled = bits_as<float>(magnitude << 13) * 0x1p112f;  // exact, for subnormal numbers too
    return bits_as<float>(bits_as<unsigned>(scaled) | sign);
#endif
}

inline unsigned short bfloat16_bits(float f)
{
    if (f != f) return 0x7fff;
    const unsigned bits = bits_as<unsigned>(f);
    return (unsigned short)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

inline float bfloat16_value(unsigned short b) { return bits_as<float>(unsigned(b) << 16); }

// Round to odd: the float rounds to 16 bits as the double would.
inline float to_odd(double d)
{
    const float f = float(d);
    if (f != f || double(f) == d || f - f != 0.0f) return f;
    unsigned bits = bits_as<unsigned>(f);
    if (fabs(double(f)) > fabs(d)) bits--;
    return bits_as<float>(bits | 1);
}

}  // namespace rung_emulator
