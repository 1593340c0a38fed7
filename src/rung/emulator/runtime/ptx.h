// Inline PTX, parsed once for each asm statement and then interpreted.
#pragma once
#include "async.h"

#include <string.h>

#include <string>

namespace rung_emulator {

template <class To, class From>
inline To bits_as(From from)
{
    static_assert(sizeof(To) == sizeof(From), "the same bits");
    To to;
    memcpy(&to, &from, sizeof(To));
    return to;
}

struct PtxOperand  // as in include/rung_emulator/ptx.h
{
    void* target;
    unsigned long long low, high;
    unsigned char bytes;
    bool read;
};

struct Value
{
    unsigned long long low, high;
};

enum class Kind : unsigned char { None, Register, Immediate, Special, Address, Vector, Sink, Label };

struct Argument
{
    Kind kind = Kind::None;
    unsigned reg = 0;             // Register, Address: of the base (or ~0u)
    unsigned second = ~0u;        // p|q
    bool negated = false;         // !p
    long long number = 0;         // Immediate; Address: offset; Label: instruction
    std::string name;
    std::vector<Argument> parts;  // Vector; of a tensor's address: the map and the coordinates
};

struct Type
{
    char kind = 'b';  // b u s f (h: bf16, t: tf32, p: predicate, x: pair of f16, y: pair of bf16)
    unsigned bytes = 4;
};

enum class Space : unsigned char { Generic, Global, Shared, Cluster, Local };

struct Machine;

struct Instruction
{
    void (*run)(Machine&, const Instruction&) = nullptr;
    std::string text;                // as written, for messages
    std::vector<std::string> words;  // mbarrier try_wait parity shared::cta b64
    std::vector<Argument> args;
    Type type, other;                // the last type named, and the one before
    Space space = Space::Generic;
    unsigned lanes = 1;              // v2, v4, x2, x4
    int guard = -1;                  // @p
    bool guard_negated = false;

    bool has(const char* word) const
    {
        for (const std::string& w : words)
            if (w == word) return true;
        return false;
    }
};

struct Program
{
    std::vector<Instruction> code;
    unsigned registers = 0;
    unsigned operands = 0;
};

struct Machine
{
    const Program& program;
    Value* registers;
    bool* written;  // which of the registers
    PtxOperand* operands;
    Site site;
    size_t next = 0;

    Value value(const Argument& a) const;
    unsigned long long number(const Argument& a) const { return value(a).low; }
    void set(const Argument& a, Value v);
    void set(const Argument& a, unsigned long long low) { set(a, Value{low, 0}); }
    bool predicate(const Argument& a) const { return (value(a).low & 1) != a.negated; }
    char* pointer(const Argument& address, Space space, unsigned bytes, const Instruction& i) const;
    unsigned long long address(const Argument& a) const;
    Place shared(const Argument& a, unsigned bytes, const Instruction& i) const;  // a 32-bit address
    void store_operands();   // what was written goes to the kernel's variables
    void reload_operands();
    [[noreturn]] void refuse(const Instruction& i, const char* why) const;
};

typedef void (*Handler)(Machine&, const Instruction&);
void nullptr_collective(void* const* data, unsigned lanes);  // lanes come together, and nothing is ordered by it
Handler handler_of(const Instruction& i);          // ptx_instructions.cpp
unsigned word_of_dimensions(const Instruction& i);
Handler asynchronous_handler(const Instruction& i);  // ptx_async.cpp
Handler product_handler(const Instruction& i);       // products.cpp

}  // namespace rung_emulator
