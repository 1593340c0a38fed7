// Where numbers leave their range: the instructions that make a NaN or an infinity of operands that are finite, and
// those that convert to 8 bits what these cannot hold. Only where a launch asks for it: their handlers are then called
// through the one here, so that other launches pay nothing. Products of tensor cores are not looked at.
#include <math.h>
#include <stdio.h>

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

}  // namespace

void begin_numbers()
{
    if (!launch.made) return;
    std::vector<Op>& ops = launch.program->ops;
    plain.clear(), makers.assign(ops.size(), {});
    for (Op& op : ops) {
        plain.push_back(op.run);
        if (maker_of(op, makers[op.number])) op.run = watched;
    }
}

void end_numbers()
{
    if (!launch.made) return;
    for (Op& op : launch.program->ops) op.run = plain[op.number];
}

}  // namespace rung_machine
