// From the text of an instruction to an Op.
#include "machine.h"

#include <math.h>
#include <stdlib.h>

#include <algorithm>

namespace rung_machine {
namespace {

const Table& table()
{
    static const Table& made =
        []() -> const Table& {  // never destroyed: kernels may run after the statics of main's libraries
        Table& t = *new Table;
        add_integers(t), add_floats(t), add_memory(t), add_control(t), add_tensor(t), add_async(t), add_texture(t);
        return t;
    }();
    return made;
}

std::string trimmed(const std::string& text)
{
    const size_t first = text.find_first_not_of(" \t"), last = text.find_last_not_of(" \t;");
    return first == std::string::npos || last == std::string::npos || last < first
               ? ""
               : text.substr(first, last - first + 1);
}

std::vector<std::string> split_at(const std::string& text, char separator)
{
    std::vector<std::string> parts;
    std::string part;
    int depth = 0;
    for (const char c : text) {
        depth += (c == '[') - (c == ']');
        if (c == separator && !depth)
            parts.push_back(trimmed(part)), part.clear();
        else
            part += c;
    }
    if (!trimmed(part).empty()) parts.push_back(trimmed(part));
    return parts;
}

bool digits(const std::string& text)
{
    return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// R12, RZ, UR4, URZ as a row; -1 if it is none.
int row_of(const std::string& name)
{
    const bool uniform = name.size() > 1 && name[0] == 'U' && name[1] == 'R';
    const std::string rest = name.substr(uniform ? 2 : 1);
    if (!uniform && name[0] != 'R') return -1;
    if (rest == "Z") return ZERO;
    return digits(rest) ? atoi(rest.c_str()) + (uniform ? int(FIRST_UNIFORM) : 0) : -1;
}

int predicate_of(const std::string& name)
{
    const bool uniform = name.size() > 2 && name[0] == 'U' && name[1] == 'P';
    const std::string rest = name.substr(uniform ? 2 : 1);
    if (!uniform && name[0] != 'P') return -1;
    const int number = rest == "T" ? int(TRUE) : digits(rest) && rest.size() == 1 ? rest[0] - '0' : -1;
    return number < 0 || number > int(TRUE) ? -1 : number + (uniform ? int(FIRST_UNIFORM_PREDICATE) : 0);
}

bool number_of(const std::string& text, Operand& o)
{
    const bool minus = text[0] == '-';
    const std::string plain = trimmed(text.substr(text[0] == '-' || text[0] == '+'));
    if (plain.compare(0, 2, "0x") == 0) {
        const uint64_t value = strtoull(plain.c_str(), nullptr, 16);
        o.value = uint32_t(minus ? -value : value), o.exact = minus ? -double(value) : double(value);
    } else {
        char* end = nullptr;
        double value;
        if (plain == "INF")
            value = INFINITY;
        else if (plain == "QNAN" || plain == "SNAN")
            value = NAN;
        else {
            value = strtod(plain.c_str(), &end);
            if (end == plain.c_str() || *end) return false;
        }
        o.real = true, o.exact = minus ? -value : value, o.value = as_bits(float(o.exact));
        if (value != value) o.value = minus ? 0xffffffffu : 0x7fffffffu;
    }
    o.kind = Kind::Number;
    return true;
}

// What stands in brackets: registers and an offset.
bool place_of(const std::string& text, Operand& o)
{
    for (std::string part : split_at(text, '+')) {
        if (part.empty()) continue;
        const std::vector<std::string> words = split_at(part, '.');
        const int row = row_of(words[0]);
        if (row >= 0) {
            const bool uniform = words[0][0] == 'U';
            (uniform ? o.uniform : o.base) = uint16_t(row);
            for (size_t i = 1; i < words.size(); i++) {
                if (words[i] == "64")
                    (uniform ? o.uniform_wide : o.wide) = true;
                else if (words[i][0] == 'X' && digits(words[i].substr(1)))
                    o.scale = uint8_t(atoi(words[i].c_str() + 1));
                else if (words[i] == "U32" && !uniform)
                    o.parts = words[i];
                else if (words[i] != "U32" && words[i] != "reuse")
                    return false;
            }
        } else {
            Operand number;
            if (!number_of(part, number) || number.real) return false;
            o.offset += int32_t(number.value);
        }
    }
    return true;
}

std::string inside(const std::string& text, size_t open, size_t& after)
{
    const size_t close = text.find(']', open);
    after = close == std::string::npos ? text.size() : close + 1;
    return text.substr(open + 1, after - open - 2);
}

bool operand(std::string text, Operand& o)
{
    while (!text.empty()) {
        if (text[0] == '!' || text[0] == '~')
            o.inverted = true;
        else if (text[0] == '-' && text.size() > 1 && strchr("RU|c[", text[1]))
            o.negative = true;
        else if (text[0] == '|') {
            o.absolute = true;
            text.erase(std::remove(text.begin(), text.end(), '|'), text.end());
            continue;
        } else
            break;
        text = trimmed(text.substr(1));
    }
    if (text.empty()) return false;
    size_t after = 0;
    if (text.compare(0, 2, "c[") == 0 || text.compare(0, 3, "cx[") == 0) {
        Operand bank;
        if (!number_of(inside(text, text.find('['), after), bank)) return false;
        o.kind = Kind::Constant, o.index = uint16_t(bank.value);
        const bool known = place_of(inside(text, after, after), o);
        if (o.base == ZERO && o.uniform == ZERO) o.offset &= 0xffff;  // nvdisasm takes its 16 bits for a signed number
        if (after < text.size()) o.parts = text.substr(after + 1);
        return known && o.index < 8;
    }
    if (text.compare(0, 6, "gdesc[") == 0) {
        o.kind = Kind::Memory;
        o.descriptor = uint16_t(row_of(inside(text, 5, after)));
        if (after < text.size()) o.parts = text.substr(after + 1);
        return true;
    }
    if (text.compare(0, 5, "desc[") == 0) {
        o.descriptor = uint16_t(row_of(inside(text, 4, after)));
        text = text.substr(after);
        if (text.empty()) {
            o.kind = Kind::Memory;
            return true;
        }
    }
    if (text[0] == '[') {
        o.kind = Kind::Memory;
        return place_of(inside(text, 0, after), o);
    }
    if (number_of(text, o)) return true;
    const std::vector<std::string> words = split_at(text.substr(0, text.find(' ')), '.');
    if (const int row = row_of(words[0]); row >= 0) {
        o.kind = Kind::Register, o.index = uint16_t(row);
        for (size_t i = 1; i < words.size(); i++)
            if (words[i] != "reuse") o.parts += (o.parts.empty() ? "" : ".") + words[i];
        return true;
    }
    if (const int predicate = predicate_of(words[0]); predicate >= 0) {
        o.kind = Kind::Predicate, o.index = uint16_t(predicate);
        return true;
    }
    if (text.compare(0, 3, "32@") == 0) return false;  // an address that nobody has filled in
    o.kind = Kind::Other, o.parts = text;
    if (text[0] == 'B' && digits(text.substr(1))) o.index = uint16_t(atoi(text.c_str() + 1));
    return true;
}

// Operands by their part. Predicates before the first source are written, those behind the last are read.
void sorted(Op& op, bool writes_register)
{
    size_t i = 0, end = op.every.size();
    const auto is = [&](size_t k, Kind kind) { return k < end && op.every[k].kind == kind; };
    while (is(i, Kind::Predicate) && op.outs < 2) op.p[op.outs++] = op.every[i++];
    if (writes_register && i < end) {
        op.out = op.every[i++];
        while (is(i, Kind::Predicate) && op.outs < 2 && i + 1 < end && op.every[i + 1].kind != Kind::None &&
               op.every[i].inverted == false) {
            // R0, P0, R1: written. R0, P0 alone (a vote): read.
            bool sources = false;
            for (size_t k = i + 1; k < end; k++) sources |= op.every[k].kind != Kind::Predicate;
            if (!sources) break;
            op.p[op.outs++] = op.every[i++];
        }
    }
    for (; i < end; i++) {
        if (op.every[i].kind == Kind::Predicate && op.ins < 3)
            op.in[op.ins++] = op.every[i];
        else if (op.every[i].kind != Kind::Predicate && op.sources < 5)
            op.s[op.sources++] = op.every[i];
    }
}

// Whether a modifier is among the words of a row, in which # stands for a number.
bool may_have(const char* words, const std::string& modifier)
{
    for (const char* at = words; *at;) {
        const char* m = modifier.c_str();
        for (; *at && *at != ' '; at++) {
            if (*at != '#') {
                if (!m || *m++ != *at) m = nullptr;
            } else if (m && isdigit(*m)) {
                while (isdigit(*m)) m++;
            } else
                m = nullptr;
        }
        if (m && !*m) return true;
        at += *at == ' ';
    }
    return false;
}

bool decode(const std::string& text, Op& op)
{
    op.text = text;
    std::string rest = text;
    if (rest[0] == '@') {
        const size_t space = rest.find(' ');
        std::string guard = rest.substr(1, space - 1);
        op.guard_inverted = guard[0] == '!';
        const int predicate = predicate_of(guard.substr(op.guard_inverted));
        if (predicate < 0) return false;
        op.guard = uint16_t(predicate);
        rest = trimmed(rest.substr(space));
    }
    const size_t space = rest.find(' ');
    op.modifiers = split_at(rest.substr(0, space), '.');
    op.name = op.modifiers[0];
    op.modifiers.erase(op.modifiers.begin());
    for (const std::string& m : op.modifiers) op.names.emplace_back(m.c_str());
    op.uniform = op.name[0] == 'U';
    auto found = table().find(op.name);
    if (found == table().end() && op.uniform) found = table().find(op.name.substr(1));
    if (found == table().end()) return false;
    if (space != std::string::npos)
        for (const std::string& part : split_at(rest.substr(space + 1), ',')) {
            op.every.emplace_back();
            if (!operand(part, op.every.back())) return false;
        }
    const Opcode& opcode = found->second;
    op.opcode = &opcode, op.run = opcode.run;
    op.way = opcode.way, op.space = opcode.space, op.direction = opcode.direction;
    op.store = op.direction == Direction::WRITE;
    sorted(op, opcode.writes_register);
    for (const std::string& m : op.modifiers)
        if (!may_have(opcode.modifiers, m)) return false;
    return op.run && (!opcode.prepare || opcode.prepare(op));
}

void widen(Program& program, Operand& o)
{
    const bool fixed = o.base == ZERO && o.uniform == ZERO;
    if (o.kind != Kind::Number && !(o.kind == Kind::Constant && fixed)) return;
    program.wide.emplace_back(new Row[1]);
    Row& row = *program.wide.back().get();
    std::fill(row, row + WARP, o.value);
    o.lanes = row;
    if (o.kind == Kind::Constant) program.constants.push_back({&o, &row});
}

uint16_t clocks_of_products(const Op& op)
{
    if (op.opcode->width == Width::MATRICES) return op.has("1684") || op.has("1688") ? 2 : 4;
    if (op.opcode->pipe == Pipe::TENSOR && op.opcode->width == Width::DOUBLE) return 16;
    if (op.opcode->width != Width::GROUP) return 0;
    const size_t n = op.modifiers.empty() ? std::string::npos : op.modifiers[0].find('x');  // 64x256x16
    return n == std::string::npos ? 4 : uint16_t(atoi(op.modifiers[0].c_str() + n + 1) / 2);
}

}  // namespace

Program* decoded(const char* text)
{
    Program* const program = new Program;
    for (const char* line = text; *line;) {
        const char* const end = strchrnul(line, '\n');
        char* space = nullptr;
        const uint32_t at = uint32_t(strtoul(line, &space, 16));
        const uint32_t control = *space == ':' ? uint32_t(strtoul(space + 1, &space, 16)) : 0;
        const std::string instruction = trimmed(std::string(space, size_t(end - space)));
        line = *end ? end + 1 : end;
        if (instruction.empty()) continue;
        program->at[at] = uint32_t(program->ops.size()), program->addresses.push_back(at);
        program->ops.emplace_back();
        program->ops.back().number = uint32_t(program->ops.size() - 1);
        program->ops.back().control = control;
        if (decode(instruction, program->ops.back())) continue;
        note_refused(instruction);
        if (program->problem.empty()) program->problem = std::to_string(program->ops.size() - 1) + " " + instruction;
    }
    for (Op& op : program->ops) {
        const bool fence = op.way == Way::FENCE;
        op.meets = fence || op.way == Way::ATOMIC;
        program->orders_blocks |= fence && !op.has("CTA");
    }
    program->tally.resize(program->ops.size());
    program->memory.resize(program->ops.size());
    for (Op& op : program->ops) {
        op.memory = &program->memory[op.number];
        if (op.opcode) op.products = clocks_of_products(op);
        op.plain = true;
        for (Operand* o : {&op.s[0], &op.s[1], &op.s[2], &op.s[3], &op.s[4]}) {
            widen(*program, *o);
            op.plain &= o->kind == Kind::None ||
                        ((o->kind == Kind::Register || o->lanes) && !o->negative && !o->absolute && !o->inverted);
        }
        op.computes = op.opcode && op.opcode->computes;
        if (!op.every.empty() && op.every.back().kind == Kind::Number) {
            const auto target = program->at.find(op.every.back().value);
            if (target != program->at.end()) op.target = target->second;
        }
    }
    mark_verified_reads(*program), mark_orders_within_blocks(*program);
    return program;
}

}  // namespace rung_machine
