// A part of the executor takes its rows out of facts/opcodes.h: OF_ and its name are defined.
#define ACCESS(name, handler, prepare, writes, modifiers, group, unit, interval, width, way, space, direction)         \
    {#name,    handler,      prepare,  writes,       modifiers,           Pipe::unit,                                  \
     interval, Width::width, Way::way, Space::space, Direction::direction},
#define OP(name, handler, prepare, writes, modifiers, group, unit, interval, width)                                    \
    ACCESS(name, handler, prepare, writes, modifiers, group, unit, interval, width, NONE, NONE, NONE)
const Opcode ROWS[] = {
#include "../facts/opcodes.h"
};
#undef OP
#undef ACCESS

void add_rows(Table& table)
{
#if defined(OF_INTEGERS) || defined(OF_FLOATS)
    constexpr bool computes = true;
#else
    constexpr bool computes = false;
#endif
    for (const Opcode& row : ROWS) (table[row.name] = row).computes = computes;
}
