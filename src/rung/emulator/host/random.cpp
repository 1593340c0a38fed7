// Steps of XORWOW without drawing: a step is a linear map of 160 bits, and its powers are products of matrices.
#include "host.h"

#include <array>

namespace rung_host {
RUNG_HOST void skip_xorwow(unsigned* v, unsigned long long n, bool sequences);
namespace {

using Vector = std::array<unsigned, 5>;
using Matrix = std::array<Vector, 160>;  // the image of each bit

Vector image(const Matrix& map, const Vector& of)
{
    Vector sum = {};
    for (unsigned bit = 0; bit < 160; bit++)
        if (of[bit / 32] >> bit % 32 & 1)
            for (int i = 0; i < 5; i++) sum[size_t(i)] ^= map[bit][size_t(i)];
    return sum;
}

Matrix one_step()
{
    Matrix map;
    for (unsigned bit = 0; bit < 160; bit++) {
        Vector v = {};
        v[bit / 32] = 1u << bit % 32;
        const unsigned t = v[0] ^ v[0] >> 2, last = (v[4] ^ v[4] << 4) ^ (t ^ t << 1);
        map[bit] = {v[1], v[2], v[3], v[4], last};
    }
    return map;
}

constexpr unsigned SEQUENCE = 67;  // a sequence has 2^67 numbers

// The power 2^i of a step.
const Matrix& power(unsigned i)
{
    static std::vector<Matrix>& made = *new std::vector<Matrix>{one_step()};
    while (made.size() <= i) {
        const Matrix& last = made.back();
        Matrix twice;
        for (unsigned bit = 0; bit < 160; bit++) twice[bit] = image(last, last[bit]);
        made.push_back(twice);
    }
    return made[i];
}

}  // namespace

void skip_xorwow(unsigned* v, unsigned long long n, bool sequences)
{
    Vector now = {v[0], v[1], v[2], v[3], v[4]};
    for (unsigned bit = sequences ? SEQUENCE : 0; n; n >>= 1, bit++)
        if (n & 1) now = image(power(bit), now);
    for (size_t i = 0; i < 5; i++) v[i] = now[i];
}

}  // namespace rung_host
