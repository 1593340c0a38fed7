// Textures and surfaces: TEX, TLD, TLD4, TXD, SULD and SUST. Only the largest level of a texture is known.
#include "texture.h"

#include <math.h>

#include <algorithm>

#include "machine.h"

namespace rung_machine {
namespace {

std::vector<rung_texture> textures(1);  // by number
std::vector<uint32_t> unused;

constexpr unsigned CHANNELS = 4;
enum : uint8_t { WRAP, CLAMP, MIRROR, BORDER };
enum : uint8_t { SIGNED_NUMBER, UNSIGNED_NUMBER, FLOAT_NUMBER };

// The object that a lane names: in a register, or in constant memory at a word's number.
const rung_texture& object_of(Warp& w, const Operand& first, const Operand& second, unsigned lane)
{
    uint32_t number = 0;
    if (first.kind == Kind::Number) {
        const std::vector<uint8_t>& bank = launch.bank[first.value & 7];
        if (second.value * 4 + 4 <= bank.size()) memcpy(&number, bank.data() + second.value * 4, 4);
    } else {
        Row scratch;
        number = w.row(first, scratch)[lane];
    }
    if (number == 0 || number >= textures.size() || !textures[number].address)
        fail(w, RUNG_BOUNDS, "there is no texture or surface object %u", number);
    return textures[number];
}

struct Texel
{
    float real[CHANNELS] = {0, 0, 0, 1};
    uint32_t bits[CHANNELS] = {0, 0, 0, 1};
};

bool reads_floats(const rung_texture& t) { return t.kind == FLOAT_NUMBER || t.reads_normalized; }

Texel texel_at(const rung_texture& t, int64_t x, int64_t y, int64_t z)
{
    Texel made;
    const unsigned size = t.channel_bits / 8;
    const uint8_t* from = reinterpret_cast<const uint8_t*>(t.address) + uint64_t(z) * t.slice + uint64_t(y) * t.pitch +
                          uint64_t(x) * size * t.channels;
    for (unsigned c = 0; c < t.channels; c++, from += size) {
        uint32_t bits = 0;
        memcpy(&bits, from, size);
        const unsigned unused_bits = 32 - t.channel_bits;
        const int32_t number = int32_t(bits << unused_bits) >> unused_bits;
        const double most = ldexp(1.0, int(t.channel_bits) - (t.kind == SIGNED_NUMBER)) - 1;
        if (t.kind == FLOAT_NUMBER)
            made.real[c] = size == 2 ? half_to_float(uint16_t(bits)) : as_float(bits);
        else if (t.reads_normalized)
            made.real[c] = t.kind == SIGNED_NUMBER ? std::max(float(number / most), -1.0f) : float(double(bits) / most);
        made.bits[c] = t.kind == SIGNED_NUMBER ? uint32_t(number) : bits;
    }
    return made;
}

// The place of a texel by an address mode; -1: beyond the border.
int64_t addressed(int64_t at, int64_t size, uint8_t mode)
{
    if (at >= 0 && at < size) return at;
    if (mode == BORDER) return -1;
    if (mode == WRAP) return (at % size + size) % size;
    if (mode == MIRROR) {
        const int64_t within = (at % (2 * size) + 2 * size) % (2 * size);
        return within < size ? within : 2 * size - 1 - within;
    }
    return std::clamp<int64_t>(at, 0, size - 1);
}

uint8_t mode_of(const rung_texture& t, unsigned axis)  // the first and the third want normalized coordinates
{
    const uint8_t mode = t.address_mode[axis];
    return !t.normalized && (mode == WRAP || mode == MIRROR) ? uint8_t(CLAMP) : mode;
}

Texel texel(const rung_texture& t, int64_t x, int64_t y, int64_t z, bool layered)
{
    const int64_t at[3] = {addressed(x, t.width, mode_of(t, 0)), addressed(y, t.height, mode_of(t, 1)),
                           layered ? std::clamp<int64_t>(z, 0, t.depth - 1) : addressed(z, t.depth, mode_of(t, 2))};
    if (at[0] >= 0 && at[1] >= 0 && at[2] >= 0) return texel_at(t, at[0], at[1], at[2]);
    Texel made;
    for (unsigned c = 0; c < CHANNELS; c++) made.real[c] = t.border[c], made.bits[c] = as_bits(t.border[c]);
    return made;
}

struct Axis  // of a linear filter: the lower texel, and the weight of the upper one, in 1/256
{
    int64_t low;
    float upper;
    explicit Axis(float x)
    {
        const float below = floorf(x - 0.5f);
        low = int64_t(below), upper = floorf((x - 0.5f - below) * 256 + 0.5f) / 256;
    }
};

Texel filtered(const rung_texture& t, const float* at, unsigned dimensions, int64_t layer, bool layered)
{
    const Axis x(at[0]), y(dimensions > 1 ? at[1] : 0.5f), z(dimensions > 2 ? at[2] : 0.5f);
    Texel made;
    float sum[CHANNELS] = {};
    for (unsigned corner = 0; corner < 1u << dimensions; corner++) {
        const bool right = corner & 1, down = corner & 2, behind = corner & 4;
        float weight = right ? x.upper : 1 - x.upper;
        if (dimensions > 1) weight *= down ? y.upper : 1 - y.upper;
        if (dimensions > 2) weight *= behind ? z.upper : 1 - z.upper;
        if (weight == 0) continue;
        const Texel one = texel(t, x.low + right, y.low + down, layered ? layer : z.low + behind, layered);
        for (unsigned c = 0; c < CHANNELS; c++) sum[c] += weight * one.real[c];
    }
    std::copy(sum, sum + CHANNELS, made.real);
    return made;
}

// ---- TEX and its like: two destinations of two registers, coordinates, level, object, kind, which channels ---------

enum : uint32_t { DIMENSIONS = 3, LAYERED = 4, INTEGERS = 8, GATHERS = 16, COMPONENT = 5, CUBE = 128, CUBES = 256 };

// The face of a cube that a direction meets, and where, from 0 to 1: the table of CUDA's guide.
int64_t face_of(float x, float y, float z, float* at)
{
    const float a = fabsf(x), b = fabsf(y), c = fabsf(z);
    const unsigned axis = a >= b && a >= c ? 0 : b >= c ? 1 : 2;
    const bool back = signbit(axis == 0 ? x : axis == 1 ? y : z);
    const float m = std::max({a, b, c}), s = axis == 0 ? (back ? z : -z) : axis == 2 && back ? -x : x;
    at[0] = (s / m + 1) / 2, at[1] = ((axis != 1 ? -y : back ? -z : z) / m + 1) / 2;
    return 2 * axis + back;
}

struct Sampled
{
    const Operand *upper, *lower, *coordinates, *object, *slot;
    uint32_t channels;
    explicit Sampled(const Op& op)
    {
        size_t kind = 0;
        while (op.every[kind].kind != Kind::Other) kind++;
        upper = &op.every[0], lower = &op.every[1], coordinates = &op.every[2];
        object = &op.every[kind - 2], slot = &op.every[kind - 1];
        const Operand* const last = &op.every.back();
        channels = last->kind == Kind::Number && last != slot ? last->value & 15 : 15;
    }
};

Texel sampled(const rung_texture& t, const Op& op, const float* at, int64_t layer)
{
    const unsigned dimensions = op.flags & DIMENSIONS;
    const bool layered = op.flags & LAYERED;
    int64_t place[3] = {0, 0, 0};
    for (unsigned d = 0; d < dimensions; d++) place[d] = int64_t(floorf(at[d]));
    if (op.flags & GATHERS) {
        const Axis x(at[0]), y(at[1]);
        static const uint8_t RIGHT[] = {0, 1, 1, 0}, DOWN[] = {1, 1, 0, 0};
        Texel made;
        for (unsigned c = 0; c < CHANNELS; c++) {
            const Texel one = texel(t, x.low + RIGHT[c], y.low + DOWN[c], layer, layered);
            made.real[c] = one.real[op.flags >> COMPONENT & 3], made.bits[c] = one.bits[op.flags >> COMPONENT & 3];
        }
        return made;
    }
    if (t.filter && reads_floats(t))
        return filtered(t, at, t.height == 1 && dimensions == 2 ? 1 : dimensions, layer, layered);
    return texel(t, place[0], place[1], layered ? layer : place[2], layered);
}

void sample(Warp& w, const Op& op, uint32_t lanes)
{
    const Sampled operands(op);
    const unsigned dimensions = op.flags & DIMENSIONS;
    const bool layered = op.flags & LAYERED, has_layer = layered && !(op.flags & CUBE && !(op.flags & CUBES));
    uint32_t made[CHANNELS][WARP];
    each(lanes, [&](unsigned l) {
        const rung_texture& t = object_of(w, *operands.object, *operands.slot, l);
        const auto word = [&](unsigned i) { return w.r[operands.coordinates->index + i][l]; };
        float at[3] = {};
        int64_t layer = has_layer ? int64_t(word(0) & 0xffff) : 0;
        const int64_t size[3] = {t.width, t.height, t.depth};
        Texel one;
        if (op.flags & CUBE) {
            const auto direction = [&](unsigned d) { return as_float(word(has_layer + d)); };
            layer = layer * 6 + face_of(direction(0), direction(1), direction(2), at);
            at[0] *= float(t.width), at[1] *= float(t.height);
            one = sampled(t, op, at, layer);
        } else if (op.flags & INTEGERS) {
            int64_t place[3] = {};
            for (unsigned d = 0; d < dimensions; d++) place[d] = int32_t(word(layered + d));
            const auto beyond = [&](unsigned d) { return place[d] < 0 || place[d] >= size[d]; };
            if (!beyond(0) && !beyond(1) && !beyond(2))
                one = texel_at(t, place[0], place[1], layered ? layer : place[2]);
        } else {
            for (unsigned d = 0; d < dimensions; d++)
                at[d] = as_float(word(layered + d)) * (t.normalized ? float(size[d]) : 1.0f);
            one = sampled(t, op, at, layer);
        }
        for (unsigned c = 0; c < CHANNELS; c++) made[c][l] = reads_floats(t) ? as_bits(one.real[c]) : one.bits[c];
    });
    unsigned next = 0;
    for (unsigned c = 0; c < CHANNELS; c++) {
        if (!(operands.channels >> c & 1)) continue;
        const Operand& to = next < 2 ? *operands.lower : *operands.upper;
        if (to.index != ZERO) each(lanes, [&](unsigned l) { w.r[to.index + next % 2][l] = made[c][l]; });
        next++;
    }
}

bool prepare_sample(Op& op)
{
    static const struct
    {
        const char* name;
        uint32_t flags;
    } KINDS[] = {{"1D", 1},
                 {"2D", 2},
                 {"3D", 3},
                 {"ARRAY_1D", 1 | LAYERED},
                 {"ARRAY_2D", 2 | LAYERED},
                 {"CUBE", 2 | LAYERED | CUBE},
                 {"ARRAY_CUBE", 2 | LAYERED | CUBE | CUBES}};
    static const char* const COMPONENTS[] = {"R", "G", "B", "A"};
    for (const Operand& o : op.every)
        for (const auto& kind : KINDS)
            if (o.kind == Kind::Other && o.parts == kind.name) op.flags = kind.flags;
    if (!op.flags || op.every.size() < 6) return false;
    if (op.name == "TEX" || op.name == "TXD") op.fidelity = Fidelity::APPROXIMATE;  // filters
    if (op.name == "TLD") op.flags |= INTEGERS;
    if (op.name == "TLD4") op.flags |= GATHERS;
    for (uint32_t i = 0; i < 4; i++)
        if (op.name == "TLD4" && op.has(COMPONENTS[i])) op.flags |= i << COMPONENT;
    return true;
}

// ---- surfaces: bytes at a place; what lies beyond traps, is left out, or is taken for the border --------------------

enum : uint32_t { TRAPS = 8, IGNORES = 16, WRITES = 32, EXTENDS_SIGN = 64 };

void surface(Warp& w, const Op& op, uint32_t lanes)
{
    const bool writes = op.flags & WRITES;
    const Operand &place = op.s[0], &object = op.s[1 + writes], &slot = op.s[2 + writes];
    const unsigned dimensions = op.flags & DIMENSIONS, words = (op.bytes + 3u) / 4;
    launch.changes += writes;
    each(lanes, [&](unsigned l) {
        const rung_texture& t = object_of(w, object, slot, l);
        const int64_t bytes = int64_t(t.width) * t.channels * t.channel_bits / 8;
        int64_t at[3] = {};
        for (unsigned d = 0; d < dimensions; d++) at[d] = int32_t(w.r[place.base + d][l]);
        if (op.flags & LAYERED && dimensions == 2) at[2] = at[1], at[1] = 0;  // a layer of rows
        const int64_t size[3] = {bytes, t.height, t.depth};
        bool inside = true;
        for (unsigned d = 0; d < 3; d++) {
            const int64_t most = size[d] - (d ? 1 : op.bytes);
            inside &= at[d] >= 0 && at[d] <= most;
            if (!(op.flags & (TRAPS | IGNORES))) at[d] = std::clamp<int64_t>(at[d], 0, most), inside = true;
        }
        if (!inside && op.flags & TRAPS)
            fail(w, RUNG_TRAP, "a surface of %lld bytes, %u rows and %u layers is accessed at (%lld, %lld, %lld)",
                 (long long)bytes, t.height, t.depth, (long long)at[0], (long long)at[1], (long long)at[2]);
        if (at[0] % op.bytes) fail(w, RUNG_BOUNDS, "a place in a surface is no multiple of %u bytes", op.bytes);
        uint8_t* const memory = reinterpret_cast<uint8_t*>(t.address) + uint64_t(at[2]) * t.slice +
                                uint64_t(at[1]) * t.pitch + uint64_t(at[0]);
        uint32_t data[4] = {};
        if (writes) {
            for (unsigned i = 0; i < words; i++) data[i] = op.s[1].index == ZERO ? 0 : w.r[op.s[1].index + i][l];
            if (inside) memcpy(memory, data, op.bytes);
            return;
        }
        if (inside) memcpy(data, memory, op.bytes);
        if (op.flags & EXTENDS_SIGN) data[0] = op.bytes == 1 ? uint32_t(int8_t(data[0])) : uint32_t(int16_t(data[0]));
        if (op.out.index != ZERO)
            for (unsigned i = 0; i < words; i++) w.r[op.out.index + i][l] = data[i];
    });
}

bool prepare_surface(Op& op)
{
    op.bytes = op.has("128")                    ? 16
               : op.has("64")                   ? 8
               : op.has("U16") || op.has("S16") ? 2
               : op.has("U8") || op.has("S8")   ? 1
                                                : 4;
    op.flags = op.has("1D")                         ? 1
               : op.has("2D")                       ? 2
               : op.has("3D") || op.has("2D_ARRAY") ? 3
               : op.has("1D_ARRAY")                 ? 2
                                                    : 0;
    if (op.has("1D_ARRAY")) op.flags |= LAYERED;
    if (!op.flags || !op.has("D") || !op.has("BA")) return false;
    if (op.name == "SUST") op.flags |= WRITES;
    return op.flags |= (op.has("TRAP") ? +TRAPS : 0) | (op.has("IGN") ? +IGNORES : 0) |
                       (op.has("S8") || op.has("S16") ? +EXTENDS_SIGN : 0);
}

#define OF_TEXTURE
#include "rows.h"

}  // namespace

void add_texture(Table& table) { add_rows(table); }

}  // namespace rung_machine

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED uint32_t rung_machine_add_texture(const rung_texture* texture)
{
    using namespace rung_machine;
    if (unused.empty()) unused.push_back(uint32_t(textures.size())), textures.emplace_back();
    const uint32_t number = unused.back();
    unused.pop_back();
    textures[number] = *texture;
    return number;
}

EXPORTED void rung_machine_remove_texture(uint32_t number)
{
    using namespace rung_machine;
    if (number == 0 || number >= textures.size() || !textures[number].address) return;
    textures[number] = {};
    unused.push_back(number);
}
