// Inline PTX: each asm statement is parsed once and then interpreted.
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

// Hash of a word of PTX, computed at compile time for literals: handlers test an instruction's words on every execution.
constexpr unsigned long long hash(const char* text, size_t length)
{
    unsigned long long h = 0xcbf29ce484222325ull;
    for (size_t i = 0; i < length; i++) h = (h ^ (unsigned char)text[i]) * 0x100000001b3ull;
    return h;
}
constexpr unsigned long long operator""_w(const char* text, size_t length) { return hash(text, length); }

enum class Kind : unsigned char { None, Register, Immediate, Special, Address, Vector, Sink, Label };

struct Argument
{
    Kind kind = Kind::None;
    unsigned reg = 0;             // Register, Address: of the base (or ~0u)
    unsigned second = ~0u;        // p|q
    bool negated = false;         // !p
    long long number = 0;         // Immediate; Address: offset; Label: instruction
    std::string name;
    unsigned long long (*special)(const Thread&, char axis) = nullptr;  // Special; null: not modelled
    char axis = 'x';
    std::vector<Argument> parts;  // Vector; of a tensor's address: the map and the coordinates
};

struct Type
{
    char kind = 'b';  // b u s f (h: bf16, t: tf32, p: predicate, x: pair of f16, y: pair of bf16)
    unsigned bytes = 4;
};

enum class Space : unsigned char { Generic, Global, Shared, Cluster, Local };

// Number formats of tensor-core products.
enum class Number : unsigned char { Half, Bfloat, Tf32, E4m3, E5m2, S8, U8 };
struct ProductKind
{
    unsigned rows = 0, columns = 0, depth = 0, numbers = 0;  // of a by b; how many formats the instruction names
    Number a = Number::Half, b = Number::Half;
    char result = 0;  // 'f', 'h' (f16) or 's'
};

struct Machine;

struct Instruction
{
    void (*run)(Machine&, const Instruction&) = nullptr;
    std::string text;                // as written, for messages
    std::vector<std::string> words;  // mbarrier try_wait parity shared::cta b64
    std::vector<unsigned long long> hashes;  // of the words
    std::vector<Argument> args;
    Type type, other;                // the last type in the instruction, and the one before
    Space space = Space::Generic;
    unsigned lanes = 1;              // v2, v4, x2, x4
    int guard = -1;                  // @p
    bool guard_negated = false;
    ProductKind product;             // of mma and wgmma

    bool has(unsigned long long word) const
    {
        for (const unsigned long long w : hashes)
            if (w == word) return true;
        return false;
    }
    bool is(unsigned k, unsigned long long word) const { return hashes[k] == word; }
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
    bool* written;  // by register
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
    void store_operands();   // copies written operands to the kernel's variables
    void reload_operands();
    [[noreturn]] void refuse(const Instruction& i, const char* why) const;
};

typedef void (*Handler)(Machine&, const Instruction&);
void nullptr_collective(void* const* data, unsigned lanes);  // lanes converge; no memory is ordered
Handler handler_of(Instruction& i);          // ptx_instructions.cpp
unsigned word_of_dimensions(const Instruction& i);
Handler asynchronous_handler(const Instruction& i);  // ptx_async.cpp
Handler product_handler(Instruction& i);       // products.cpp; also sets i.product

}  // namespace rung_emulator
