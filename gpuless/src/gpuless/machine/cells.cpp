#include "cells.h"

#include <array>
#include <unordered_map>
#include <vector>

#include "machine.h"

namespace rung_machine {
namespace {

constexpr size_t MOST_PAGES = 1 << 16, MOST_APART = 1 << 19, PAGE_ROWS = 32, RECENT = 64, MOST_SPARE = 1 << 17;

struct Page
{ CellRow rows[PAGE_ROWS]; };
std::unordered_map<uint64_t, std::unique_ptr<Page>> pages;
std::vector<std::unique_ptr<Page>> spare_pages;
std::array<std::pair<uint64_t, Page*>, RECENT> recent;  // by the last bits of their numbers
std::vector<std::unique_ptr<Cell[]>> spare_words;
size_t apart;  // rows of which each word has its cell

Page* page_of(uint64_t number)
{
    auto& last = recent[number % RECENT];
    if (last.second && last.first == number) return last.second;
    auto found = pages.find(number);
    if (found == pages.end()) {
        if (pages.size() >= MOST_PAGES) return nullptr;
        std::unique_ptr<Page> made;
        if (spare_pages.empty())
            made.reset(new Page());
        else
            made = std::move(spare_pages.back()), spare_pages.pop_back();
        found = pages.emplace(number, std::move(made)).first;
    }
    last = {number, found->second.get()};
    return last.second;
}

Cell* spread(CellRow& row)
{
    if (apart >= MOST_APART) return nullptr;
    apart++;
    if (spare_words.empty())
        row.words.reset(new Cell[ROW_WORDS]);
    else
        row.words = std::move(spare_words.back()), spare_words.pop_back();
    const auto lane = [](const Access& of, unsigned word) { return (of.lanes & 0xff) + (word >> (of.lanes >> 8)); };
    for (unsigned i = 0; i < ROW_WORDS; i++) {
        Cell& cell = row.words[i] = row.all;
        for (Access* of : {&cell.write, &cell.read, &cell.apart})
            if (of->clock) of->lanes = 1u << lane(*of, i);
        if (cell.write.clock) memset(cell.writers, int(lane(row.all.write, i)), sizeof cell.writers);
    }
    return row.words.get();
}

}  // namespace

CellRow::~CellRow() { apart -= words != nullptr; }

void CellRow::forget()
{
    all = {}, crowded = 0;
    if (!words) return;
    apart--;
    if (spare_words.size() < MOST_SPARE)
        spare_words.push_back(std::move(words));
    else
        words.reset();
}

CellRow* cell_row(Block* shared, uint32_t unit, uint64_t word)
{
    if (!shared) {
        Page* const page = page_of(word / ROW_WORDS / PAGE_ROWS);
        return page ? &page->rows[word / ROW_WORDS % PAGE_ROWS] : nullptr;
    }
    if (shared->cells.empty()) shared->cells.resize(shared->shared.size() / (4 * ROW_WORDS) + 1);
    CellRow& row = shared->cells[word / ROW_WORDS];
    if (row.unit != unit) row.forget(), row.unit = unit;  // of a block that had this memory before
    return &row;
}

Cell* cell_in(CellRow& row, uint64_t word)
{
    Cell* const words = row.words ? row.words.get() : spread(row);
    return words ? words + word % ROW_WORDS : nullptr;
}

void forget_global_cells()
{
    for (auto& [_, page] : pages) {
        for (CellRow& row : page->rows) row.forget();
        if (spare_pages.size() < MOST_PAGES / 16) spare_pages.push_back(std::move(page));
    }
    pages.clear(), recent.fill({});
}

}  // namespace rung_machine
