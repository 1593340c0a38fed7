// The sentence that a fault is told in.
#include "entry.h"
#include "machine.h"

#include <stdio.h>
#include <stdlib.h>

namespace rung_machine {
namespace {

std::string place_of(const Program& program, int32_t instruction)
{ return instruction >= 0 && size_t(instruction) < program.places.size() ? program.places[size_t(instruction)] : ""; }

// {n} stands for the place of an instruction.
std::string with_places(const Program& program, const char* text)
{
    std::string out;
    for (const char* at = text; *at; at++) {
        char* end = nullptr;
        const long number = *at == '{' ? strtol(at + 1, &end, 10) : 0;
        if (*at != '{' || *end != '}') {
            out += *at;
            continue;
        }
        const std::string place = place_of(program, int32_t(number));
        out += place.empty() ? "of some line" : "at " + place;
        at = end;
    }
    return out;
}

std::string index_of(const char* name, const uint32_t* at)
{
    char text[80];
    snprintf(text, sizeof text, ", %s (%u, %u, %u)", name, at[0], at[1], at[2]);
    return text;
}

}  // namespace

void thread_index(const rung_where& at, const uint32_t* block, uint32_t* thread)
{
    thread[0] = at.thread % block[0], thread[1] = at.thread / block[0] % block[1],
    thread[2] = at.thread / (block[0] * block[1]);
}

std::string sentence(const Program& program, const rung_machine_fault& fault, const uint32_t* block,
                     const std::string& operand)
{
    std::string told = "kernel '" + program.kernel + "'";
    if (fault.at.instruction >= 0) told += index_of("block", fault.at.block);
    if (fault.at.lane < WARP) {
        uint32_t thread[3];
        thread_index(fault.at, block, thread);
        told += index_of("thread", thread);
    }
    if (const std::string place = place_of(program, fault.at.instruction); !place.empty()) told += ", " + place;
    told += ": ";
    if (fault.kind == RUNG_RACE) {
        const std::string other = place_of(program, fault.other.instruction);
        return told + fault.text + (other.empty() ? "" : " at " + other) + ", " + fault.lacks +
               (operand.empty() ? "" : ": " + operand);
    }
    const std::string text = with_places(program, fault.text);
    return told + text + (text.empty() || operand.empty() ? "" : ": ") + operand;
}

}  // namespace rung_machine

using namespace rung_machine;

#define EXPORTED __attribute__((visibility("default")))

extern "C" {

EXPORTED void rung_machine_name(void* program, const char* kernel, const char* places)
{
    Program& named = *static_cast<Program*>(program);
    named.kernel = kernel, named.places.clear();
    for (const char* at = places; *at;) {
        const char* const end = strchrnul(at, '\n');
        named.places.emplace_back(at, end);
        at = *end ? end + 1 : end;
    }
}

EXPORTED void rung_machine_sentence(void* program, const rung_machine_fault* fault, const uint32_t* block,
                                    const char* operand, char* out, uint32_t room)
{ snprintf(out, room, "%s", sentence(*static_cast<Program*>(program), *fault, block, operand).c_str()); }
}
