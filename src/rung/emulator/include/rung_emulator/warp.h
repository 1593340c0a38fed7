// Shuffles, votes and reductions of a warp; the lanes of the mask do converge.
#pragma once

namespace rung_emulator {

// A lane's operand and result.
struct Offer
{
    unsigned long long value;
    unsigned long long result;
    unsigned source;  // the lane whose value it reads
};

// A lane that has ended or does not exist gives the bits of a NaN, so that using its value is noticed.
inline void shuffle(void* const* data, unsigned lanes)
{
    for (unsigned lane = 0; lane < 32; lane++) {
        if (!(lanes >> lane & 1)) continue;
        Offer& offer = *static_cast<Offer*>(data[lane]);
        offer.result = lanes >> offer.source & 1 ? static_cast<Offer*>(data[offer.source])->value : ~0ull;
    }
}

inline void ballot(void* const* data, unsigned lanes)
{
    unsigned votes = 0;
    for (unsigned lane = 0; lane < 32; lane++)
        if (lanes >> lane & 1 && static_cast<Offer*>(data[lane])->value) votes |= 1u << lane;
    for (unsigned lane = 0; lane < 32; lane++)
        if (lanes >> lane & 1) static_cast<Offer*>(data[lane])->result = votes | (unsigned long long)lanes << 32;
}

inline void match(void* const* data, unsigned lanes)
{
    for (unsigned lane = 0; lane < 32; lane++) {
        if (!(lanes >> lane & 1)) continue;
        Offer& offer = *static_cast<Offer*>(data[lane]);
        offer.result = 0;
        for (unsigned other = 0; other < 32; other++)
            if (lanes >> other & 1 && static_cast<Offer*>(data[other])->value == offer.value) offer.result |= 1ull << other;
    }
}

template <class T, class Combine>
void reduce_lanes(void* const* data, unsigned lanes)
{
    T total{};
    bool first = true;
    for (unsigned lane = 0; lane < 32; lane++) {
        if (!(lanes >> lane & 1)) continue;
        const T value = (T)(static_cast<Offer*>(data[lane])->value);
        total = first ? value : Combine::of(total, value);
        first = false;
    }
    for (unsigned lane = 0; lane < 32; lane++)
        if (lanes >> lane & 1) static_cast<Offer*>(data[lane])->result = (unsigned long long)total;
}

struct Add { template <class T> static T of(T a, T b) { return a + b; } };
struct Min { template <class T> static T of(T a, T b) { return b < a ? b : a; } };
struct Max { template <class T> static T of(T a, T b) { return a < b ? b : a; } };
struct BitAnd { template <class T> static T of(T a, T b) { return a & b; } };
struct BitOr { template <class T> static T of(T a, T b) { return a | b; } };
struct BitXor { template <class T> static T of(T a, T b) { return a ^ b; } };

template <class T>
inline T shuffle_from(unsigned mask, T value, unsigned source, const char* what, Site site)
{
    static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
    Offer offer{0, 0, source & 31};
    memcpy(&offer.value, &value, sizeof(T));
    rung_meet_lanes(mask, shuffle, &offer, what, site);
    memcpy(&value, &offer.result, sizeof(T));
    return value;
}

inline unsigned long long vote(unsigned mask, bool predicate, const char* what, Site site)
{
    Offer offer{predicate, 0, 0};
    rung_meet_lanes(mask, ballot, &offer, what, site);
    return offer.result;
}

// Source lanes of each kind of shuffle; beyond its segment of `width` lanes a lane reads itself.
inline unsigned lane_at(unsigned lane, int index, int width) { return (lane & ~unsigned(width - 1)) | (unsigned(index) & unsigned(width - 1)); }
inline unsigned lane_up(unsigned lane, unsigned delta, int width) { return (lane & unsigned(width - 1)) >= delta ? lane - delta : lane; }
inline unsigned lane_down(unsigned lane, unsigned delta, int width) { return (lane & unsigned(width - 1)) + delta < unsigned(width) ? lane + delta : lane; }
inline unsigned lane_xor(unsigned lane, int bits, int width)
{
    const unsigned other = lane ^ unsigned(bits);
    return other < (lane & ~unsigned(width - 1)) + unsigned(width) ? other : lane;
}

}  // namespace rung_emulator

#define RUNG_SHUFFLES(T) \
    inline T __shfl_sync(unsigned mask, T value, int index, int width = 32, rung_emulator::Site site = rung_emulator::here()) \
    { return rung_emulator::shuffle_from(mask, value, rung_emulator::lane_at(rung_lane(), index, width), "__shfl_sync", site); } \
    inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32, rung_emulator::Site site = rung_emulator::here()) \
    { return rung_emulator::shuffle_from(mask, value, rung_emulator::lane_up(rung_lane(), delta, width), "__shfl_up_sync", site); } \
    inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32, rung_emulator::Site site = rung_emulator::here()) \
    { return rung_emulator::shuffle_from(mask, value, rung_emulator::lane_down(rung_lane(), delta, width), "__shfl_down_sync", site); } \
    inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32, rung_emulator::Site site = rung_emulator::here()) \
    { return rung_emulator::shuffle_from(mask, value, rung_emulator::lane_xor(rung_lane(), bits, width), "__shfl_xor_sync", site); }

RUNG_SHUFFLES(int)
RUNG_SHUFFLES(unsigned)
RUNG_SHUFFLES(long)
RUNG_SHUFFLES(unsigned long)
RUNG_SHUFFLES(long long)
RUNG_SHUFFLES(unsigned long long)
RUNG_SHUFFLES(float)
RUNG_SHUFFLES(double)

inline void __syncwarp(unsigned mask = 0xffffffffu, rung_emulator::Site site = rung_emulator::here())
{
    rung_meet_lanes(mask, nullptr, nullptr, "__syncwarp", site);
}
inline unsigned __ballot_sync(unsigned mask, int predicate, rung_emulator::Site site = rung_emulator::here())
{
    return unsigned(rung_emulator::vote(mask, predicate, "__ballot_sync", site));
}
inline int __any_sync(unsigned mask, int predicate, rung_emulator::Site site = rung_emulator::here())
{
    return unsigned(rung_emulator::vote(mask, predicate, "__any_sync", site)) != 0;
}
inline int __all_sync(unsigned mask, int predicate, rung_emulator::Site site = rung_emulator::here())
{
    const unsigned long long votes = rung_emulator::vote(mask, predicate, "__all_sync", site);
    return unsigned(votes) == unsigned(votes >> 32);
}
inline int __uni_sync(unsigned mask, int predicate, rung_emulator::Site site = rung_emulator::here())
{
    const unsigned long long votes = rung_emulator::vote(mask, predicate, "__uni_sync", site);
    return unsigned(votes) == 0 || unsigned(votes) == unsigned(votes >> 32);
}
inline unsigned __activemask() { return rung_lanes_running(); }

template <class T>
inline unsigned __match_any_sync(unsigned mask, T value, rung_emulator::Site site = rung_emulator::here())
{
    rung_emulator::Offer offer{0, 0, 0};
    memcpy(&offer.value, &value, sizeof(T));
    rung_meet_lanes(mask, rung_emulator::match, &offer, "__match_any_sync", site);
    return unsigned(offer.result);
}
template <class T>
inline unsigned __match_all_sync(unsigned mask, T value, int* predicate, rung_emulator::Site site = rung_emulator::here())
{
    const unsigned same = __match_any_sync(mask, value, site);
    const unsigned long long votes = rung_emulator::vote(mask, true, "__match_all_sync", site);
    *predicate = same == unsigned(votes);
    return *predicate ? mask : 0;
}

#define RUNG_REDUCTION(NAME, T, COMBINE) \
    inline T NAME(unsigned mask, T value, rung_emulator::Site site = rung_emulator::here()) \
    { \
        rung_emulator::Offer offer{(unsigned long long)value, 0, 0}; \
        rung_meet_lanes(mask, rung_emulator::reduce_lanes<T, rung_emulator::COMBINE>, &offer, #NAME, site); \
        return (T)offer.result; \
    }
RUNG_REDUCTION(__reduce_add_sync, int, Add)
RUNG_REDUCTION(__reduce_add_sync, unsigned, Add)
RUNG_REDUCTION(__reduce_min_sync, int, Min)
RUNG_REDUCTION(__reduce_min_sync, unsigned, Min)
RUNG_REDUCTION(__reduce_max_sync, int, Max)
RUNG_REDUCTION(__reduce_max_sync, unsigned, Max)
RUNG_REDUCTION(__reduce_and_sync, unsigned, BitAnd)
RUNG_REDUCTION(__reduce_or_sync, unsigned, BitOr)
RUNG_REDUCTION(__reduce_xor_sync, unsigned, BitXor)
