// Where numbers leave their range: the instructions that make a NaN or an infinity of operands that are finite, and
// those that convert to 8 bits what these cannot hold. And how far stored numbers are from what float64 would have made
// of the same. Only where a launch asks for it: handlers are then called through those here, so that other launches pay
// nothing. Products of tensor cores are not looked at.
#include <math.h>
#include <stdio.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "machine.h"

namespace rung_machine {
namespace {

enum class Format { Single, Double, Halves, Bfloats };

struct Maker  // what an instruction reads and makes
{
    Format from, to;
    double most = INFINITY;  // that 8 bits hold; beyond, the result is cut to it
};

std::vector<Handler> plain;  // the handlers of the program's instructions
std::vector<Maker> makers;

unsigned parts_of(Format format) { return format == Format::Single || format == Format::Double ? 1 : 2; }

double number(const uint32_t* row, Format format, unsigned part, unsigned lane)
{
    const uint32_t bits = row[lane];
    const uint16_t half = uint16_t(bits >> 16 * part);
    switch (format) {
    case Format::Single: return double(as_float(bits));
    case Format::Halves: return double(half_to_float(half));
    case Format::Bfloats: return double(bf16_to_float(half));
    case Format::Double: break;
    }
    const uint64_t both = bits | uint64_t(row[WARP + lane]) << 32;
    double made;
    memcpy(&made, &both, 8);
    return made;
}

// A source's value in a lane before the instruction runs, which may overwrite it.
double source(const Warp& w, const Operand& o, Format format, unsigned part, unsigned lane)
{
    if (o.real) return o.exact;
    if (o.parts.find("H0_H0") == 0) part = 0;
    if (o.parts.find("H1_H1") == 0) part = 1;
    Row pair[2];
    const uint32_t* row = w.row(o, pair[0]);
    if (format == Format::Double && o.kind != Kind::Register) {
        Row upper;
        const uint32_t* const high = o.kind == Kind::Constant ? indexed_constant(w, o, upper, 4) : nullptr;
        if (!high) return 0;  // unknown, and taken as finite
        pair[1][lane] = high[lane], pair[0][lane] = row[lane], row = pair[0];
    }
    double found = number(row, format, part, lane);
    if (o.absolute) found = fabs(found);
    return o.negative ? -found : found;
}

bool maker_of(const Op& op, Maker& made)
{
    const std::string& name = op.name;
    const bool bf16 = op.has("BF16") || op.has("BF16_V2");
    const Format pair = bf16 ? Format::Bfloats : Format::Halves;
    if (name == "FADD" || name == "FMUL" || name == "FFMA") return made = {Format::Single, Format::Single}, true;
    if (name == "MUFU") return made = {Format::Single, Format::Single}, !(op.flags >= 8 || op.has("F16") || bf16);
    if (name == "DADD" || name == "DMUL" || name == "DFMA") return made = {Format::Double, Format::Double}, true;
    if (name == "HADD2" || name == "HMUL2" || name == "HFMA2") return made = {pair, pair}, !op.has("F32");
    if (name != "F2FP" || !op.has("F32") || op.has("UNPACK_B")) return false;
    made = {Format::Single, pair};
    if (op.has("E4M3")) made.most = 448;
    if (op.has("E5M2")) made.most = 57344;
    return true;
}

void tell(const Warp& w, const Op& op, unsigned lane, const char* kind, const char* what, const double* of,
          unsigned count)
{
    rung_machine_fault told = Fault(RUNG_TRAP);
    told.at = where(w, op, lane);
    int at = snprintf(told.text, sizeof told.text, "makes %s:", what);
    for (unsigned i = 0; i < count; i++)
        at += snprintf(told.text + at, sizeof told.text - size_t(at), "%s %.9g", i ? "," : "", of[i]);
    snprintf(told.text + at, sizeof told.text - size_t(at), " (%s)", op.text.c_str());
    snprintf(told.lacks, sizeof told.lacks, "%s", kind);
    const_cast<Op&>(op).run = plain[op.number];  // once is enough
    launch.made(&told);
}

void watched(Warp& w, const Op& op, uint32_t lanes)
{
    const Maker& maker = makers[op.number];
    const unsigned parts = parts_of(maker.to), sources = std::min(op.sources, 3u);
    static double before[2][3][WARP];
    uint32_t finite[2] = {lanes, lanes};
    for (unsigned part = 0; part < parts; part++)
        for (unsigned i = 0; i < sources; i++) {
            const unsigned of = maker.from == Format::Single ? 0 : part;
            each(lanes, [&](unsigned l) {
                const double value = before[part][i][l] = source(w, op.s[i], maker.from, of, l);
                finite[part] &= ~(uint32_t(!isfinite(value)) << l);
            });
        }
    plain[op.number](w, op, lanes);
    if (w.gives_way || op.out.index == ZERO) return;
    const uint32_t* const made = w.target(op.out);
    for (unsigned part = 0; part < parts; part++)
        for (uint32_t left = finite[part]; left; left &= left - 1) {
            const unsigned l = unsigned(__builtin_ctz(left));
            double of[3];
            for (unsigned i = 0; i < sources; i++) of[i] = before[part][i][l];
            if (maker.most < INFINITY) {
                const double given = of[1 - part];  // the first source is the upper part
                if (fabs(given) <= maker.most) continue;
                char text[80];
                snprintf(text, sizeof text, "a number of 8 bits, of which %.9g is the largest", maker.most);
                return tell(w, op, l, "overflow", text, &given, 1);
            }
            const double value = number(made, maker.to, part, l);
            if (isfinite(value)) continue;
            const bool narrows = maker.from != maker.to;
            if (isnan(value)) return tell(w, op, l, "nan", "a NaN", of, sources);
            return tell(w, op, l, narrows ? "overflow" : "infinity", narrows ? "infinity in 16 bits" : "infinity", of,
                        sources);
        }
}

// ---- float64 beside each number ------------------------------------------------------------------------------------
// What a register holds has a double beside it as long as its bits are those that the double was made with: whatever
// else writes it makes the double anew, of the value. So does memory.

struct Exact
{
    double value = 0, error = 0;         // `error`: how far the rounded number is from it, relatively
    const std::string* arose = nullptr;  // the line at which the error has grown most
};
struct Shadow
{
    uint32_t bits;
    Format format = Format::Double;  // none
    Exact part[2];
};
struct Kept
{
    uint32_t bits;
    Exact of;
};
using Shadows = std::vector<std::array<Shadow, WARP>>;  // [register][lane]
std::unordered_map<const Warp*, Shadows> shadows;
std::unordered_map<uint64_t, Kept> words, halves;  // by their address in the host's memory
std::map<uint32_t, rung_machine_error> worst;      // of each store
std::set<std::string> places;                      // of all launches: what lies in memory names them

constexpr double ROUNDS_TO_INTEGER = 4194304;  // 2^22: numbers from there on are added in order to round

double relative(double value, double exact)
{
    if (value == exact || !isfinite(value) || !isfinite(exact)) return 0;
    return fabs(value - exact) / std::max(fabs(exact), 1e-300);
}

Shadow& shadow_at(const Warp& w, unsigned row, unsigned lane)
{
    Shadows& all = shadows[&w];
    if (all.empty()) all.resize(FIRST_UNIFORM);
    return all[row][lane];
}

bool is_known(const Warp& w, unsigned row, unsigned lane, Format format)
{
    const Shadow& s = shadow_at(w, row, lane);
    return s.format == format && s.bits == w.r[row][lane];
}

Exact exact_source(const Warp& w, const Operand& o, Format format, unsigned part, unsigned lane)
{
    const double value = source(w, o, format, part, lane);
    if (o.kind != Kind::Register || o.index >= ZERO || !isfinite(value) || !is_known(w, o.index, lane, format))
        return {value};
    if (o.parts.find("H0_H0") == 0) part = 0;
    if (o.parts.find("H1_H1") == 0) part = 1;
    Exact found = shadow_at(w, o.index, lane).part[part];
    if (o.absolute) found.value = fabs(found.value);
    if (o.negative) found.value = -found.value;
    return found;
}

double exactly(const Op& op, const double* s)
{
    double made = 0;
    if (op.name == "MUFU") switch (op.flags) {
        case 0: made = 1 / s[0]; break;
        case 1: made = 1 / sqrt(s[0]); break;
        case 2: made = exp2(s[0]); break;
        case 3: made = log2(s[0]); break;
        case 4: made = sqrt(s[0]); break;
        case 5: made = sin(s[0] * 6.283185307179586); break;
        case 6: made = cos(s[0] * 6.283185307179586); break;
        default: made = tanh(s[0]);
        }
    else if (op.name.find("ADD") == 1)
        made = s[0] + s[1];
    else
        made = op.name.find("MUL") == 1 ? s[0] * s[1] : s[0] * s[1] + s[2];
    if (op.has("SAT")) made = std::min(std::max(made, 0.0), 1.0);
    return op.has("RELU") ? std::max(made, 0.0) : made;
}

// Whether the number is meant to differ from the exact one: rounded to an integer, or scaled by what is not modelled.
bool rounds_on_purpose(const Op& op)
{
    for (const char* how : {"RM", "RP", "RZ", "D2", "D4", "D8", "M2", "M4", "M8"})
        if (op.has(how)) return true;
    for (const Operand& o : op.s)
        if (o.real && fabs(o.exact) >= ROUNDS_TO_INTEGER && fabs(o.exact) < 8 * ROUNDS_TO_INTEGER) return true;
    return false;
}

const std::string* place_of(const Op& op)
{
    const std::vector<std::string>& of = launch.program->places;
    return &*places.insert(op.number < of.size() ? of[op.number] : "").first;
}

// The error of a number that an instruction makes of others, and where it arose: here, if it is twice what they had.
void blame(const Op& op, double value, const Exact* from, unsigned count, Exact& made)
{
    made.error = relative(value, made.value);
    const Exact* before = nullptr;
    for (unsigned i = 0; i < count; i++)
        if (from[i].error > (before ? before->error : 0)) before = &from[i];
    made.arose = before && made.error <= 2 * before->error ? before->arose : place_of(op);
}

void computed(Warp& w, const Op& op, uint32_t lanes)
{
    const Maker& maker = makers[op.number];
    const unsigned parts = parts_of(maker.to), sources = std::min(op.sources, 3u);
    static Exact before[2][WARP][3];
    for (unsigned part = 0; part < parts; part++)
        each(lanes, [&](unsigned l) {
            for (unsigned i = 0; i < sources; i++)
                before[part][l][i] = exact_source(w, op.s[i], maker.from, maker.from == Format::Single ? 0 : part, l);
        });
    plain[op.number](w, op, lanes);
    if (w.gives_way || op.out.index >= ZERO) return;
    const uint32_t* const made = w.target(op.out);
    const bool narrows = op.name == "F2FP", meant = rounds_on_purpose(op);
    each(lanes, [&](unsigned l) {
        Shadow& s = shadow_at(w, op.out.index, l);
        s.bits = made[l], s.format = maker.to;
        for (unsigned part = 0; part < parts; part++) {
            const Exact* from = before[part][l];
            const double value = number(made, maker.to, part, l),
                         given[3] = {from[0].value, from[1].value, from[2].value};
            if (narrows) from += 1 - part;  // the first source is the upper part
            s.part[part] = {meant || !isfinite(value) ? value : narrows ? from->value : exactly(op, given)};
            blame(op, value, from, narrows ? 1 : sources, s.part[part]);
        }
    });
}

// A register that takes a value from another one. A shuffle is asked for its lanes by a second run.
void moved(Warp& w, const Op& op, uint32_t lanes)
{
    std::array<Shadow, WARP> found;
    const bool shuffles = op.name == "SHFL", known = op.out.index < ZERO;
    if (shuffles && known && op.s[0].kind == Kind::Register && op.s[0].index < ZERO) {
        Row& from = w.r[op.s[0].index];
        Row values, before, lane_of;
        memcpy(values, from, sizeof values), memcpy(before, w.r[op.out.index], sizeof before);
        for (unsigned l = 0; l < WARP; l++) from[l] = l;
        plain[op.number](w, op, lanes);
        memcpy(lane_of, w.r[op.out.index], sizeof lane_of);
        memcpy(w.r[op.out.index], before, sizeof before), memcpy(from, values, sizeof values);
        each(lanes, [&](unsigned l) { found[l] = shadow_at(w, op.s[0].index, lane_of[l] & 31); });
    } else
        each(lanes, [&](unsigned l) {
            for (const Operand& o : op.s)
                if (known && o.kind == Kind::Register && o.index < ZERO && !o.negative && !o.absolute &&
                    shadow_at(w, o.index, l).bits == w.r[o.index][l] && found[l].format == Format::Double)
                    found[l] = shadow_at(w, o.index, l);
        });
    plain[op.number](w, op, lanes);
    if (!w.gives_way && known) each(lanes, [&](unsigned l) { shadow_at(w, op.out.index, l) = found[l]; });
}

void addresses_of(const Warp& w, const Op& op, uint32_t lanes, uint64_t* at)
{
    const uint64_t from = op.space == Space::SHARED ? uint64_t(w.block->shared.data()) : 0;
    each(lanes, [&](unsigned l) { at[l] = from + address(w, op.s[0], l); });
}

void loaded(Warp& w, const Op& op, uint32_t lanes)
{
    uint64_t at[WARP];
    addresses_of(w, op, lanes, at);
    plain[op.number](w, op, lanes);
    if (w.gives_way || op.out.index >= ZERO) return;
    const auto half = [&](uint64_t where, uint32_t bits, Exact& to) {
        const auto found = halves.find(where);
        const bool known = found != halves.end() && found->second.bits == (bits & 0xffff);
        if (known) to = found->second.of;
        return known;
    };
    for (unsigned i = 0; i < std::max(1u, op.bytes / 4u); i++)
        each(lanes, [&](unsigned l) {
            Shadow& s = shadow_at(w, op.out.index + i, l);
            const uint32_t bits = w.r[op.out.index + i][l];
            const uint64_t where = at[l] + 4 * i;
            s = {bits, Format::Double, {}};
            if (const auto found = words.find(where);
                op.bytes >= 4 && found != words.end() && found->second.bits == bits)
                s.format = Format::Single, s.part[0] = found->second.of;
            else if (half(where, bits, s.part[0]) && (op.bytes < 4 || half(where + 2, bits >> 16, s.part[1])))
                s.format = Format::Halves;
        });
}

void note_worst(const Warp& w, const Op& op, unsigned lane, double value, const Exact& exact)
{
    rung_machine_error& told = worst[op.number];
    if (told.arose && exact.error <= told.relative) return;
    told = {where(w, op, lane), value, exact.value, exact.error, exact.arose ? exact.arose->c_str() : ""};
}

void stored(Warp& w, const Op& op, uint32_t lanes)
{
    uint64_t at[WARP];
    addresses_of(w, op, lanes, at);
    plain[op.number](w, op, lanes);
    const Operand& from = op.s[1];
    if (w.gives_way || from.kind != Kind::Register || from.index >= ZERO || op.bytes == 1) return;
    for (unsigned i = 0; i < std::max(1u, op.bytes / 4u); i++)
        each(lanes, [&](unsigned l) {
            const unsigned row = from.index + i;
            const uint64_t where = at[l] + 4 * i;
            const Shadow& s = shadow_at(w, row, l);
            words.erase(where), halves.erase(where), halves.erase(where + 2);
            if (s.format == Format::Double || s.bits != w.r[row][l]) return;
            if (s.format == Format::Single && op.bytes >= 4) words[where] = {s.bits, s.part[0]};
            for (unsigned part = 0; part < (op.bytes < 4 ? 1 : parts_of(s.format)); part++) {
                if (s.format != Format::Single) halves[where + 2 * part] = {s.bits >> 16 * part & 0xffff, s.part[part]};
                note_worst(w, op, l, number(w.r[row], s.format, part, l), s.part[part]);
            }
        });
}

// What else writes a register: the bits may be the same by chance.
void forgotten(Warp& w, const Op& op, uint32_t lanes)
{
    plain[op.number](w, op, lanes);
    if (!w.gives_way && op.out.index < ZERO)
        each(lanes, [&](unsigned l) { shadow_at(w, op.out.index, l).format = Format::Double; });
}

Handler shadowed(const Op& op)
{
    static const std::set<std::string> moves = {"MOV", "SEL", "FSEL", "FMNMX", "FMNMX3", "SHFL"};
    const bool widens = op.name.find("HADD2") == 0 && op.has("F32");
    if (maker_of(op, makers[op.number]) && makers[op.number].to != Format::Double && isinf(makers[op.number].most))
        return computed;
    if (widens)
        return makers[op.number] = {op.has("BF16_V2") ? Format::Bfloats : Format::Halves, Format::Single}, computed;
    if (moves.count(op.name) || (op.name == "IMAD" && op.has("MOV"))) return moved;
    if (op.way == Way::PLAIN || op.way == Way::GENERIC) return op.store ? stored : loaded;
    return op.out.kind == Kind::Register ? forgotten : op.run;
}

}  // namespace

void begin_numbers()
{
    if (!launch.made && !launch.precise) return;
    std::vector<Op>& ops = launch.program->ops;
    plain.clear(), makers.assign(ops.size(), {}), worst.clear(), shadows.clear();
    for (Op& op : ops) {
        plain.push_back(op.run);
        if (launch.precise)
            op.run = shadowed(op);
        else if (maker_of(op, makers[op.number]))
            op.run = watched;
    }
}

void end_numbers()
{
    if (!launch.made && !launch.precise) return;
    for (Op& op : launch.program->ops) op.run = plain[op.number];
    for (const auto& [_, one] : worst) launch.precise(&one);
}

}  // namespace rung_machine
