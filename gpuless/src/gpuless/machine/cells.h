// The histories of words of memory, for races.cpp: a cell for each, or one for 32 beside each other.
#pragma once
#include <stdint.h>

#include <memory>

namespace rung_machine {

struct Block;

struct Access
{
    uint32_t clock, unit, instruction, lanes;  // clock 0: none
    uint16_t index;
    uint8_t mask, strong;  // of the bytes of a word; 0 a plain access, else the scope of a strong one and one more
};

// The history of four bytes: the last write with the lane of each byte, and the reads since then. `others` are further
// warps of the reader's block, whose same lanes read at the same count; `apart` is a read by other lanes, of other
// bytes or by another block; yet others are in a crowd. Where nothing can order blocks, a reader in another block is
// enough.
struct Cell
{
    Access write, read, apart;
    uint32_t others, crowd;
    uint8_t writers[4];
};

constexpr unsigned ROW_WORDS = 32;

// Words beside each other. As long as whole warps access them lane after lane, one cell stands for all; the `lanes` of
// its accesses are then a layout: the lane of the first word, and in which power of two of words each lane has.
struct CellRow
{
    Cell all = {};
    std::unique_ptr<Cell[]> words;  // where they differ
    uint32_t unit = ~0u;            // of shared memory: the cluster that it belongs to
    uint32_t crowded = 0;           // words that nothing has written and two blocks have read: any write is a race

    CellRow() = default;
    CellRow(CellRow&&) = default;
    CellRow& operator=(CellRow&&) = default;
    ~CellRow();
    void forget();  // all accesses
};

constexpr uint32_t layout_of(unsigned first_lane, unsigned shift) { return first_lane | shift << 8; }
constexpr uint32_t lanes_of_layout(uint32_t layout)
{ return (~0u >> (ROW_WORDS - (ROW_WORDS >> (layout >> 8)))) << (layout & 0xff); }

CellRow* cell_row(Block* shared, uint32_t unit, uint64_t word);  // null: there is no room
Cell* cell_in(CellRow& row, uint64_t word);  // of a word, apart from those beside it; null: likewise
void forget_global_cells();

}  // namespace rung_machine
