// What memory holds that nothing has written: in each word a number whose lower half its address decides; by default
// NaN in float and half. A word that still holds the number of its address is taken for unwritten; one of random bits
// does once in 2^32.
#pragma once
#include <stddef.h>
#include <stdint.h>
#include <string.h>

namespace rung_machine {

constexpr uint32_t NOT_A_NUMBER =
    0xffc10000u;  // as integers the words are about -4 million, so that small ones are none

inline uint32_t unwritten_word(uint64_t at, uint32_t upper = NOT_A_NUMBER)
{ return upper + 0x7c01 + uint32_t((at >> 2) * 0x9e3779b97f4a7c15ull >> 54) % 1023; }

// Of memory whose addresses count from `at`, which is a multiple of four.
inline void fill_unwritten(void* memory, size_t bytes, uint64_t at, uint32_t upper = NOT_A_NUMBER)
{
    char* const to = static_cast<char*>(memory);
    for (size_t i = 0; i + 4 <= bytes; i += 4) {
        const uint32_t word = unwritten_word(at + i, upper);
        memcpy(to + i, &word, sizeof word);
    }
}

// How many of these bytes lie in unwritten words.
inline size_t unwritten_bytes(const void* memory, uint64_t at, size_t bytes, uint32_t upper = NOT_A_NUMBER)
{
    size_t found = 0;
    const char* const from = static_cast<const char*>(memory);
    for (uint64_t word = at / 4 * 4; word < at + bytes; word += 4) {
        const uint32_t wanted = unwritten_word(word, upper);
        if (memcmp(from + int64_t(word - at), &wanted, sizeof wanted)) continue;
        found += size_t((word + 4 < at + bytes ? word + 4 : at + bytes) - (word > at ? word : at));
    }
    return found;
}

// After a write of these bytes: the first and the last word, of which other bytes may be unwritten, hold another number
// than their address's even where the bytes that were written are equal to its.
inline void note_written(void* memory, uint64_t at, size_t bytes, uint32_t upper = NOT_A_NUMBER)
{
    char* const to = static_cast<char*>(memory);
    const auto change = [&](uint64_t word, uint64_t other) {
        const uint32_t unwritten = unwritten_word(word, upper);
        if (!memcmp(to + int64_t(word - at), &unwritten, sizeof unwritten)) to[int64_t(other - at)] ^= 1;
    };
    const uint64_t end = at + bytes;
    if (at % 4) change(at / 4 * 4, at / 4 * 4);
    if (end % 4) change(end / 4 * 4, end / 4 * 4 + 3);
}

}  // namespace rung_machine
