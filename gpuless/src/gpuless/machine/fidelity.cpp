// How faithfully this process' launches were executed: instructions of warps whose results are a GPU's bit for bit,
// those that come from a table found from a GPU's results, those that are only near, and those that are refused.
#include <stdio.h>
#include <string.h>

#include <array>
#include <map>
#include <set>

#include "entry.h"
#include "machine.h"

namespace rung_machine {
namespace {

using Counts = std::map<std::string, uint64_t>;
uint64_t exact;
auto& inexact = *new std::array<Counts, 2>;  // by table, and approximate; read when the process ends
auto& refused = *new std::set<std::string>;

// The opcode with its modifiers.
std::string name_of(const std::string& text)
{
    const size_t from = text[0] == '@' ? text.find(' ') + 1 : 0;
    return text.substr(from, text.find(' ', from) - from);
}

std::string listed(const Counts& counts)
{
    std::string out;
    for (const auto& [name, count] : counts)
        out += (out.empty() ? "\"" : ", \"") + name + "\": " + std::to_string(count);
    return "{" + out + "}";
}

}  // namespace

void note_refused(const std::string& text) { refused.insert(name_of(text)); }

void note_executed(const Program& program)
{
    for (const Op& op : program.ops) {
        const uint64_t times = program.tally[op.number].executed;
        if (op.fidelity == Fidelity::EXACT)
            exact += times;
        else if (times)
            inexact[op.fidelity == Fidelity::APPROXIMATE][name_of(op.text)] += times;
    }
}

}  // namespace rung_machine

extern "C" __attribute__((visibility("default"))) void rung_machine_fidelity(char* out, uint32_t room)
{
    using namespace rung_machine;
    if (!out) return exact = 0, inexact[0].clear(), inexact[1].clear(), refused.clear();
    std::string names;
    for (const std::string& name : refused) names += (names.empty() ? "\"" : ", \"") + name + "\"";
    snprintf(out, room, "{\"exact\": %llu, \"table\": %s, \"approximate\": %s, \"refused\": [%s]}",
             (unsigned long long)exact, listed(inexact[0]).c_str(), listed(inexact[1]).c_str(), names.c_str());
}
