// Reads the text of an asm statement: registers, labels, instructions with their guards and operands.
#include "ptx.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

namespace rung_emulator {
namespace {

unsigned along(Index i, char axis) { return axis == 'x' ? i.x : axis == 'y' ? i.y : i.z; }

Index quotient(Index a, Index b) { return {a.x / b.x, a.y / b.y, a.z / b.z}; }

unsigned long long ticks(const Thread&, char)
{
    static unsigned long long count;
    return count += 100;
}

typedef const Thread& T;
const struct { const char* name; unsigned long long (*read)(T, char axis); } SPECIALS[] = {
    {"laneid", [](T t, char) { return 0ull + t.lane; }},
    {"warpid", [](T t, char) { return 0ull + t.rank / WARP; }},
    {"tid", [](T t, char axis) { return 0ull + along(t.index, axis); }},
    {"ntid", [](T, char axis) { return 0ull + along(launch->block, axis); }},
    {"ctaid", [](T t, char axis) { return 0ull + along(t.block->index, axis); }},
    {"nctaid", [](T, char axis) { return 0ull + along(launch->grid, axis); }},
    {"cluster_ctarank", [](T t, char) { return 0ull + t.block->cluster_rank; }},
    {"cluster_nctarank", [](T, char) { return 0ull + volume(launch->cluster); }},
    {"cluster_ctaid", [](T t, char axis) { return 0ull + along(t.block->index, axis) % along(launch->cluster, axis); }},
    {"cluster_nctaid", [](T, char axis) { return 0ull + along(launch->cluster, axis); }},
    {"clusterid", [](T t, char axis) { return 0ull + along(quotient(t.block->index, launch->cluster), axis); }},
    {"nclusterid", [](T, char axis) { return 0ull + along(quotient(launch->grid, launch->cluster), axis); }},
    {"lanemask_lt", [](T t, char) { return (1ull << t.lane) - 1; }},
    {"lanemask_le", [](T t, char) { return (2ull << t.lane) - 1; }},
    {"lanemask_gt", [](T t, char) { return ~((2ull << t.lane) - 1) & 0xffffffffull; }},
    {"lanemask_ge", [](T t, char) { return ~((1ull << t.lane) - 1) & 0xffffffffull; }},
    {"lanemask_eq", [](T t, char) { return 1ull << t.lane; }},
    {"smid", [](T t, char) { return 0ull + unsigned(t.block - blocks); }},
    {"nsmid", [](T, char) { return 132ull; }},
    {"dynamic_smem_size", [](T, char) { return 0ull + launch->dynamic_bytes; }},
    {"total_smem_size", [](T, char) { return 0ull + shared_bytes(); }},
    {"clock", ticks}, {"clock64", ticks}, {"clock_hi", ticks}, {"globaltimer", ticks}, {"globaltimer_lo", ticks}};

void find_special(Argument& a)
{
    const size_t dot = a.name.find('.');
    const std::string base = a.name.substr(0, dot);
    if (dot != std::string::npos) a.axis = a.name[dot + 1];
    for (const auto& entry : SPECIALS)
        if (base == entry.name) a.special = entry.read;
}

struct Reader
{
    const char* at;
    const char* text;
    Program& program;
    Site site;
    std::vector<std::pair<std::string, unsigned>> names;
    std::vector<std::pair<std::string, size_t>> labels;

    [[noreturn]] void fail(const char* why) const
    {
        fault(FaultKind::Unsupported, "this inline PTX (%s:%d) cannot be read, %s: %.120s", site.file, site.line, why, text);
    }

    void skip()
    {
        for (;;) {
            while (isspace((unsigned char)*at)) at++;
            if (at[0] == '/' && at[1] == '/') while (*at && *at != '\n') at++;
            else if (at[0] == '/' && at[1] == '*') {
                const char* end = strstr(at, "*/");
                at = end ? end + 2 : at + strlen(at);
            } else return;
        }
    }
    bool take(char c)
    {
        skip();
        if (*at != c) return false;
        at++;
        return true;
    }
    static bool word_char(char c) { return isalnum((unsigned char)c) || c == '_' || c == '$'; }
    std::string word()
    {
        skip();
        const char* begin = at;
        while (word_char(*at)) at++;
        return std::string(begin, at);
    }
    unsigned find(const std::string& name) const
    {
        for (size_t i = names.size(); i-- > 0;)
            if (names[i].first == name) return names[i].second;
        return ~0u;
    }

    Argument argument()
    {
        Argument a;
        skip();
        if (take('!')) {
            a = argument();
            a.negated = true;
            return a;
        }
        if (take('{')) {
            a.kind = Kind::Vector;
            while (!take('}')) {
                a.parts.push_back(argument());
                take(',');
                skip();
                if (!*at) fail("for want of a }");
            }
            return a;
        }
        if (take('[')) {
            a.kind = Kind::Address;
            a.reg = ~0u;
            const Argument base = argument();
            if (base.kind == Kind::Immediate) a.number = base.number;
            else a.reg = base.reg;
            if (base.kind != Kind::Immediate && base.kind != Kind::Register) fail("at an address");
            if (take('+')) a.number += argument().number;
            while (take(',')) a.parts.push_back(argument());
            if (!take(']')) fail("for want of a ]");
            return a;
        }
        if (*at == '%') {
            at++;
            if (isdigit((unsigned char)*at)) {
                a.kind = Kind::Register;
                a.reg = unsigned(strtoul(at, const_cast<char**>(&at), 10));
                if (a.reg >= program.operands) fail("since it names an operand that is not there");
                return second(a);
            }
            if (*at == '%') at++;
            const char* begin = at;
            while (word_char(*at) || *at == '.') at++;
            a.name = std::string(begin, at);
            a.reg = find("%" + a.name);
            a.kind = a.reg == ~0u ? Kind::Special : Kind::Register;
            if (a.kind == Kind::Special) find_special(a);
            return second(a);
        }
        if (isdigit((unsigned char)*at) || *at == '-') {
            a.kind = Kind::Immediate;
            const bool minus = take('-');
            if (at[0] == '0' && (at[1] == 'f' || at[1] == 'F' || at[1] == 'd' || at[1] == 'D')) {
                at += 2;
                a.number = (long long)strtoull(at, const_cast<char**>(&at), 16);
                return a;
            }
            char* end;
            a.number = (long long)strtoull(at, &end, 0);
            if (*end == '.') {
                a.number = (long long)bits_as<unsigned>(float(strtod(at, &end)));
                a.name = "float";
            }
            while (*end == 'U' || *end == 'L' || *end == 'u' || *end == 'l') end++;
            at = end;
            if (minus) a.number = a.name.empty() ? -a.number : a.number ^ 0x80000000ll;
            return a;
        }
        a.name = word();
        if (a.name.empty()) fail("at an operand");
        if (a.name == "_") {
            a.kind = Kind::Sink;
            return second(a);
        }
        a.reg = find(a.name);
        a.kind = a.reg == ~0u ? Kind::Label : Kind::Register;
        return second(a);
    }

    Argument second(Argument a)
    {
        if (*at != '|') return a;
        at++;
        const Argument other = argument();
        a.second = other.reg;
        return a;
    }

    void declare()  // .reg .pred p, q;
    {
        while (take('.')) word();
        do {
            skip();
            const bool percent = *at == '%';
            while (*at == '%') at++;
            std::string name = (percent ? "%" : "") + word();
            if (take('<')) {  // %r<4>
                const unsigned count = unsigned(strtoul(at, const_cast<char**>(&at), 10));
                take('>');
                for (unsigned i = 0; i < count; i++) names.push_back({name + std::to_string(i), program.registers++});
            } else {
                names.push_back({name, program.registers++});
            }
        } while (take(','));
    }

    static bool type_named(const std::string& w, Type& type)
    {
        static const struct { const char* name; char kind; unsigned bytes; } TYPES[] = {
            {"b8", 'b', 1}, {"b16", 'b', 2}, {"b32", 'b', 4}, {"b64", 'b', 8}, {"b128", 'b', 16},
            {"u8", 'u', 1}, {"u16", 'u', 2}, {"u32", 'u', 4}, {"u64", 'u', 8},
            {"s8", 's', 1}, {"s16", 's', 2}, {"s32", 's', 4}, {"s64", 's', 8},
            {"f16", 'f', 2}, {"f32", 'f', 4}, {"f64", 'f', 8}, {"bf16", 'h', 2}, {"tf32", 't', 4},
            {"f16x2", 'x', 4}, {"bf16x2", 'y', 4}, {"pred", 'p', 1}, {"e4m3", '4', 1}, {"e5m2", '5', 1},
            {"e4m3x2", '4', 2}, {"e5m2x2", '5', 2}};
        for (const auto& t : TYPES)
            if (w == t.name) return type = {t.kind, t.bytes}, true;
        return false;
    }

    void instruction()
    {
        Instruction i;
        if (take('@')) {
            i.guard_negated = take('!');
            const Argument p = argument();
            if (p.kind != Kind::Register) fail("since its guard is no predicate");
            i.guard = int(p.reg);
        }
        skip();
        const char* begin = at;
        std::string w = word();
        if (at[0] == ':' && at[1] != ':') {
            at++;
            labels.push_back({w, program.code.size()});
            return;
        }
        i.words.push_back(w);
        while (*at == '.') {
            at++;
            std::string part = word();
            while (at[0] == ':' && at[1] == ':') {
                at += 2;
                part += "::" + word();
            }
            i.words.push_back(part);
        }
        for (const std::string& part : i.words) {
            Type type;
            if (type_named(part, type)) i.other = i.type, i.type = type;
            if (part == "global") i.space = Space::Global;
            if (part == "shared" || part == "shared::cta") i.space = Space::Shared;
            if (part == "shared::cluster") i.space = Space::Cluster;
            if (part == "local") i.space = Space::Local;
            if (part == "v2" || part == "x2") i.lanes = 2;
            if (part == "v4" || part == "x4") i.lanes = 4;
            if (part == "v8") i.lanes = 8;
        }
        for (const std::string& part : i.words) i.hashes.push_back(hash(part.data(), part.size()));
        skip();
        while (*at && *at != ';' && *at != '}') {
            i.args.push_back(argument());
            if (!take(',')) break;
        }
        skip();
        i.text = std::string(begin, at);
        if (*at && *at != '}' && !take(';')) fail("for want of a ;");
        i.run = handler_of(i);
        if (!i.run)
            fault(FaultKind::Unsupported, "the PTX instruction %.100s (%s:%d) is not modelled: set in the header "
                  "emulate = \"why not\"", i.text.c_str(), site.file, site.line);
        program.code.push_back(i);
    }

    void all()
    {
        std::vector<size_t> scopes;
        for (skip(); *at; skip()) {
            if (take('{')) scopes.push_back(names.size());
            else if (take('}')) {
                if (scopes.empty()) fail("since a } has no {");
                names.resize(scopes.back());
                scopes.pop_back();
            } else if (take(';')) continue;
            else if (!strncmp(at, ".reg", 4)) {
                at += 4;
                declare();
                take(';');
            } else instruction();
        }
        for (Instruction& i : program.code)
            for (Argument& a : i.args)
                if (a.kind == Kind::Label) {
                    bool found = false;
                    for (const auto& label : labels)
                        if (label.first == a.name) a.number = (long long)label.second, found = true;
                    if (!found) fail("since it names a register or label that is not declared");
                }
    }
};

}  // namespace

Value Machine::value(const Argument& a) const
{
    switch (a.kind) {
    case Kind::Register: return registers[a.reg];
    case Kind::Immediate: return {(unsigned long long)a.number, 0};
    case Kind::Special:
        if (!a.special) fault(FaultKind::Unsupported, "the special register %%%s (%s:%d) is not modelled", a.name.c_str(), site.file, site.line);
        return {a.special(*running, a.axis), 0};
    default: return {0, 0};
    }
}

void Machine::set(const Argument& a, Value v)
{
    if (a.kind == Kind::Register) registers[a.reg] = v, written[a.reg] = true;
}

unsigned long long Machine::address(const Argument& a) const
{
    return (a.reg == ~0u ? 0 : registers[a.reg].low) + (unsigned long long)a.number;
}

Place Machine::shared(const Argument& a, unsigned bytes, const Instruction& i) const
{
    return place_at(unsigned(address(a)), bytes, i.text.c_str(), site);
}

char* Machine::pointer(const Argument& a, Space space, unsigned bytes, const Instruction& i) const
{
    if (space == Space::Shared || space == Space::Cluster) return memory_at(shared(a, bytes, i));
    return reinterpret_cast<char*>(address(a));
}

void Machine::store_operands()
{
    for (unsigned i = 0; i < program.operands; i++) {
        if (!written[i] || !operands[i].target) continue;
        if (operands[i].bytes == 4) memcpy(operands[i].target, &registers[i], 4);
        else memcpy(operands[i].target, &registers[i], operands[i].bytes);
        written[i] = false;
    }
}

void Machine::reload_operands()
{
    for (unsigned i = 0; i < program.operands; i++)
        if (operands[i].target) memcpy(&registers[i], operands[i].target, operands[i].bytes);
}

void Machine::refuse(const Instruction& i, const char* why) const
{
    fault(FaultKind::Unsupported, "the PTX instruction %.100s (%s:%d) %s", i.text.c_str(), site.file, site.line, why);
}

}  // namespace rung_emulator

using namespace rung_emulator;

extern "C" RUNG_API void rung_ptx(void** program, const char* text, PtxOperand* operands, unsigned count, Site site)
{
    if (!*program) {
        Program* fresh = new Program;
        fresh->operands = fresh->registers = count;
        Reader reader = {text, text, *fresh, site, {}, {}};
        reader.all();
        *program = fresh;
    }
    const Program& parsed = *static_cast<Program*>(*program);
    if (parsed.registers > 192) fault(FaultKind::Unsupported, "this inline PTX (%s:%d) has more than 192 registers", site.file, site.line);
    // Only as much stack as is needed: each thread's stack should occupy as little of the caches as possible.
    Value* registers = static_cast<Value*>(__builtin_alloca((parsed.registers + 1) * sizeof(Value)));
    bool* written = static_cast<bool*>(__builtin_alloca(parsed.registers + 1));
    memset(written, 0, parsed.registers);
    for (unsigned i = 0; i < count; i++) registers[i] = {operands[i].low, operands[i].high};
    for (unsigned i = count; i < parsed.registers; i++) registers[i] = {0, 0};
    running->caller = __builtin_return_address(0);
    Machine machine = {parsed, registers, written, operands, site};
    while (machine.next < parsed.code.size()) {
        const Instruction& i = parsed.code[machine.next++];
        if (i.guard >= 0 && (registers[i.guard].low & 1) == i.guard_negated) continue;
        i.run(machine, i);
    }
    running->caller = nullptr;
    machine.store_operands();
}
