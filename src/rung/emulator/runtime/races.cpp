// Vector clocks: each thread counts its releases and stores, for every other thread, the last count that is ordered
// before it. g++'s thread sanitizer calls the functions below at every access of a kernel; the rules of what is ordered
// are CUDA's. Barriers order their threads, __syncwarp its lanes; shuffles and votes order nothing. An atomic releases
// what a fence before it covers, and a fence after it acquires that, within the scopes of both fences and of the
// atomics (a barrier acquires it within its block). An mbarrier releases what came before its arrivals.
#include "async.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <initializer_list>
#include <unordered_map>

namespace rung_emulator {

bool watching;
unsigned repeats;

namespace {

bool known_only;  // a kernel may touch only what is registered
bool guarding;  // accesses are at least checked against their tensors' bounds

constexpr unsigned BARRIER_AGENTS = 64, OUT_AGENTS = 16;
constexpr size_t MOST_BYTES = size_t(1) << 30;  // for all threads' clocks: about 9000 threads at once

constexpr size_t MOST_READS = size_t(64) << 20;  // remembered of all crowds; see `remember`

// The history of four bytes: the last write, and the reads since then that no later read makes redundant.
struct Access
{
    unsigned clock, place;  // of the instruction, from the start of the kernel's code; clock 0: none
    unsigned short slot;
    unsigned char mask;  // of the bytes
    unsigned char strong;  // 0: a plain access; else the scope of an atomic, volatile or relaxed one, and one more
};
struct Cell
{
    Access write, read, other;
    unsigned crowd;  // further readers, as an index into `crowds`; 0: none
};
std::vector<std::vector<Access>> crowds;
std::vector<unsigned> free_crowds;
std::vector<unsigned short> covered;  // [slot]: used by `thin_out`
size_t crowded;                       // total capacity of all crowds, in reads

constexpr unsigned PAGE_CELLS = 1024;
struct Page
{
    uintptr_t number;
    unsigned long long launch;
    Page* next;
    uintptr_t from, to;  // addresses of the tensor that contains it; all addresses if none does
    bool input;          // nothing may write it
    bool constant;       // and no launch ahead has written it
    unsigned long long written[PAGE_CELLS], read[PAGE_CELLS];  // the last launch that did; not recorded for inputs
    Cell cells[PAGE_CELLS];
};
constexpr unsigned BUCKETS = 4096;
Page* buckets[BUCKETS];
Page *last_page;

struct Tensor { uintptr_t memory, from, to, end; bool input, constant; };  // its allocation, and the data inside it
std::vector<Tensor> tensors;

// A dependent launch starts while the one ahead may still run. The launch before that one may still run too, if the one ahead
// let others start before its own wait.
struct Ahead
{
    unsigned long long last, running_from;  // numbers of launches; 0: unknown, and anything may be running
    bool lets_start_early;
} ahead;
unsigned long long running_from;  // the first launch that may still run alongside the present one

unsigned threads, slots, width;       // per co-resident block; in all, with agents; entries per row
// [slot][width]: the thread's clock; the part of it that fence.proxy.async covers; what atomics released from earlier blocks,
// which had the same slots.
unsigned* table;
unsigned* now;                        // [slot]
unsigned* born;                       // [slot]: the count at which its thread of the present blocks began
constexpr unsigned SCOPES = 3;
// [scope][slot]: what the last fence of that scope or a wider one covers; what atomics have read since, which a fence of that
// scope or a wider one acquires
Clock *released[SCOPES], *pending_acquire[SCOPES];
std::vector<unsigned> set_begins;     // per set of blocks: the count at which its threads began
std::vector<unsigned> sets;
std::vector<unsigned*> rows_of_set, rows_of_launch, free_rows;

// What atomics at one address release, by scope: the whole GPU, one cluster, one block.
struct Released
{
    const void* domain;  // null: all
    size_t set;          // of blocks, as numbered by `sets`; a release within a block or cluster ends with its set
    Clock clock;
};
std::unordered_map<const void*, std::vector<Released>> locations;
uintptr_t base;                       // of shared memory, as the kernel's code sees it
size_t bytes_of_block;

unsigned launch_ahead() { return slots - 1; }  // the agent that stands for the launch ahead
unsigned slot_of(const Thread& thread) { return unsigned(thread.block - blocks) * threads + thread.rank; }
unsigned* row_of(unsigned slot) { return table + size_t(slot) * width; }

unsigned* new_row(bool for_launch)
{
    unsigned* row;
    if (free_rows.empty()) row = static_cast<unsigned*>(malloc(width * sizeof(unsigned)));
    else row = free_rows.back(), free_rows.pop_back();
    memset(row, 0, width * sizeof(unsigned));
    (for_launch ? rows_of_launch : rows_of_set).push_back(row);
    return row;
}

void join(unsigned* to, const unsigned* from)
{
    for (unsigned i = 0; i < width; i++) to[i] = to[i] < from[i] ? from[i] : to[i];
}

void join_thread(unsigned* to, unsigned slot)
{
    join(to, row_of(slot));
    if (to[slot] < now[slot]) to[slot] = now[slot];
}

bool ordered(unsigned me, const Access& was)
{
    const bool earlier = was.slot < threads * resident && was.clock < born[was.slot];  // by a block that has ended
    return (was.slot == me && !earlier) || row_of(me)[was.slot + (earlier ? 2 * slots : 0)] >= was.clock;
}

const void* domain_of(const Block& block, unsigned scope)
{
    if (scope == unsigned(Scope::Gpu)) return nullptr;
    return scope == unsigned(Scope::Cluster) && block.cluster ? static_cast<const void*>(block.cluster) : &block;
}

Clock* released_at(std::vector<Released>& place, const void* domain)
{
    for (Released& entry : place)
        if (entry.domain == domain) {
            if (domain && entry.set != sets.size()) entry.set = sets.size(), entry.clock = {};
            return &entry.clock;
        }
    return nullptr;
}

// A release at GPU scope is also visible to later blocks.
void propagate_to_later_blocks(unsigned* row)
{
    for (unsigned i = 0; i < slots; i++) row[2 * slots + i] = row[2 * slots + i] < row[i] ? row[i] : row[2 * slots + i];
}

// Atomic, volatile and relaxed accesses do not race with each other if the scope of each includes the other's thread.
bool both_strong(unsigned slot, unsigned char strong, const Access& was)
{
    const unsigned narrower = strong < was.strong ? strong : was.strong;
    if (!narrower || narrower == SCOPES) return narrower;
    if (was.clock < born[was.slot]) return false;  // by a block that has ended
    return domain_of(blocks[slot / threads], narrower - 1) == domain_of(blocks[was.slot / threads], narrower - 1);
}

// For a generic write that the copy engine or the tensor cores then read: did a fence.proxy.async come between?
bool proxied(unsigned me, const Access& was) { return was.slot >= threads * resident || row_of(me)[slots + was.slot] >= was.clock; }

[[noreturn]] void race(uintptr_t where, bool write, unsigned place, const Access& was, bool was_write, const char* how,
                       const char* lacks)
{
    report->address = where;
    report->counter = uintptr_t(code) + place;
    report->other_counter = uintptr_t(code) + was.place;
    const char* verb = write ? "writes" : "reads";
    const char* past = was_write ? "written" : "read";
    if (was.slot >= threads * resident)
        fault(FaultKind::Race, "%s%s what a copy or product under way %s|%s, or the wait is for another one (wait_group, byte barrier)",
              verb, how, was_write ? "writes" : "reads", lacks);
    size_t set = 0;
    while (set + 1 < set_begins.size() && set_begins[set + 1] <= was.clock) set++;
    const unsigned rank = was.slot % threads, number = was.slot / threads;
    const Index block = launch->block, mine = running->block->index, other = block_of_set(sets[set], number);
    const Index thread = {rank % block.x, rank / block.x % block.y, rank / (block.x * block.y)};
    char of[80] = "";
    if (other.x != mine.x || other.y != mine.y || other.z != mine.z)
        snprintf(of, sizeof of, " of block (%u, %u, %u)", other.x, other.y, other.z);
    fault(FaultKind::Race, "%s%s what thread (%u, %u, %u)%s has %s|%s%s", verb, how, thread.x, thread.y, thread.z, of, past, lacks,
          *of ? " (of blocks: a __threadfence before the flag or counter that tells of it)" : "");
}

void* zeroed(size_t count, size_t size)
{
    void* const found = calloc(count, size);
    if (!found) fault(FaultKind::Unsupported, "there is no memory left to search this kernel for races: use a smaller case");
    return found;
}

// The cells of a block's shared memory, or of a page of other memory.
Cell* shared_cells(Block& block)
{
    if (!block.past) block.past = static_cast<struct Past*>(zeroed(bytes_of_block / 4 + 2, sizeof(Cell)));
    return reinterpret_cast<Cell*>(block.past);
}

Page*& bucket_of(uintptr_t number) { return buckets[number * 2654435761u % BUCKETS]; }

// Discards the history of freed memory.
void forget_pages(uintptr_t memory, uintptr_t end)
{
    last_page = nullptr;
    for (uintptr_t number = memory / (4 * PAGE_CELLS); number * 4 * PAGE_CELLS < end; number++)
        for (Page** page = &bucket_of(number); *page; page = &(*page)->next)
            if ((*page)->number == number) {
                Page* const old = *page;
                *page = old->next;
                free(old);
                break;
            }
}

Page* page_of(uintptr_t number)
{
    if (last_page && last_page->number == number && last_page->launch == launches) return last_page;
    Page*& bucket = bucket_of(number);
    Page* page = bucket;
    while (page && page->number != number) page = page->next;
    if (!page) {
        page = static_cast<Page*>(zeroed(1, sizeof(Page)));
        page->number = number, page->next = bucket;
        bucket = page;
    } else if (page->launch != launches) {
        memset(page->cells, 0, sizeof page->cells);
    }
    if (page->launch != launches) {
        page->launch = launches;
        page->from = 0, page->to = known_only ? 0 : ~uintptr_t(0), page->input = page->constant = false;
        const uintptr_t at = number * 4 * PAGE_CELLS;
        for (const Tensor& tensor : tensors)
            if (tensor.memory <= at && at < tensor.end) {
                page->from = tensor.from, page->to = tensor.to;
                page->input = tensor.input, page->constant = tensor.constant;
            }
    }
    return last_page = page;
}

// The cell of an address, and its place for a report: an offset in shared memory, or the address itself.
Cell& cell_of(uintptr_t address)
{
    return page_of(address / (4 * PAGE_CELLS))->cells[address / 4 % PAGE_CELLS];
}

// Guard pages fault only at page granularity; the bytes before them are checked here. Returns whether the address is in an
// input: nothing may write one, so its reads cannot race.
bool stay_inside(uintptr_t address, size_t size, bool write, const void* caller)
{
    const Page* page = page_of(address / (4 * PAGE_CELLS));
    if (address >= page->from && address + size <= page->to && !(write && page->input)) return page->input;
    report->address = address >= page->from && address < page->to && address + size > page->to ? page->to : address;
    report->counter = uintptr_t(caller) - 1;
    fault(FaultKind::Bounds, "%s", "");
}

// Before a dependent launch waits for those ahead, it may only read what none of them writes and write what none of
// them touches.
void stay_behind(unsigned me, uintptr_t address, size_t size, bool write, const void* caller)
{
    const bool early = launch->dependent && !row_of(me)[launch_ahead()];
    const auto ahead_of_it = [](unsigned long long last) { return last != launches && last >= running_from; };
    for (uintptr_t at = address; at < address + size; at = at / 4 * 4 + 4) {
        Page* const page = page_of(at / (4 * PAGE_CELLS));
        if (page->constant || (page->input && (!early || running_from))) return;
        unsigned long long &written = page->written[at / 4 % PAGE_CELLS], &read = page->read[at / 4 % PAGE_CELLS];
        const bool is_written = ahead_of_it(written), is_read = write && ahead_of_it(read);
        if (early && (is_written || is_read) && (page->from || page->to != ~uintptr_t(0))) {
            report->address = at;
            report->counter = uintptr_t(caller) - 1;
            fault(FaultKind::Race, "%s what the launch ahead may still %s|before it waits for that launch (pdl_wait)",
                  write ? "writes" : "reads", is_written ? "write" : "read");
        }
        (write ? written : read) = launches;
    }
}

struct Accessor
{
    unsigned me;       // the thread whose clock decides
    unsigned slot, clock;
    bool agent;
};

// Whether every write ordered after the read `mine` is also ordered after `was`; then `was` need not be kept. This does not
// hold for the copy engine's reads, whose issuer's clock is unknown, nor for strong reads, which are not ordered before all
// writes that they allow.
inline bool stands_for(Access& mine, const Accessor& who, const Access& was)
{
    if (was.slot == mine.slot && was.clock == mine.clock && was.strong == mine.strong) {
        mine.mask |= was.mask;
        return true;
    }
    if (was.mask & ~mine.mask) return false;
    if (was.slot == mine.slot) return mine.strong <= was.strong;
    return !mine.strong && !who.agent && ordered(who.me, was);
}

// Drops the reads that later reads of the same thread, or the last read, make redundant.
void thin_out(std::vector<Access>& reads, Access& mine, const Accessor& who)
{
    covered.resize(slots);  // a mask of four bytes for each of four strengths
    size_t kept = reads.size();
    for (size_t i = reads.size(); i-- > 0;) {
        Access& read = reads[i];
        unsigned known = 0;
        for (unsigned strong = 0; strong <= read.strong; strong++) known |= covered[read.slot] >> 4 * strong & 15;
        if (!(read.mask & ~known) || stands_for(mine, who, read)) continue;
        covered[read.slot] |= (unsigned short)(read.mask << 4 * read.strong);
        reads[--kept] = read;
    }
    for (size_t i = kept; i < reads.size(); i++) covered[reads[i].slot] = 0;
    reads.erase(reads.begin(), reads.begin() + kept);
}

// The third reader and those after it. They are thinned out only when the capacity is reached, so that a read takes constant
// time on average, and twice the number of threads is enough. Beyond MOST_READS in total, each new read replaces the last.
void remember(Cell& cell, Access& mine, const Accessor& who)
{
    if (!cell.crowd) {
        if (crowds.empty()) crowds.emplace_back();  // 0: none
        if (free_crowds.empty()) cell.crowd = unsigned(crowds.size()), crowds.emplace_back();
        else cell.crowd = free_crowds.back(), free_crowds.pop_back();
    }
    std::vector<Access>& reads = crowds[cell.crowd];
    if (!reads.empty() && reads.back().slot == mine.slot && stands_for(mine, who, reads.back())) {
        reads.back() = mine;
        return;
    }
    if (reads.size() == reads.capacity()) {
        thin_out(reads, mine, who);
        if (const size_t room = reads.capacity(); reads.size() * 2 >= room) {
            const size_t more = room ? room : 4;
            if (crowded + more <= MOST_READS) reads.reserve(room + more), crowded += more;
            else if (!room) return;
            else if (reads.size() == room) reads.pop_back();
        }
    }
    reads.push_back(mine);
}

void leave(Cell* cells, size_t count)  // their history is discarded
{
    for (size_t i = 0; i < count; i++)
        if (const unsigned crowd = cells[i].crowd) crowds[crowd].clear(), free_crowds.push_back(crowd);
    memset(static_cast<void*>(cells), 0, count * sizeof(Cell));
}

// Lanes of a warp may store the same value to one address by one instruction. What is stored is known only after the access
// was announced: it is compared at the thread's next access, or before another thread runs.
struct Repeated
{
    const void* address;
    size_t bytes;
    unsigned value;
    uintptr_t where;
    unsigned place;
    Access was;
};
Repeated repeated[8];
const char* start_of_cells;  // plus an access's `where`: its address

bool repeats_statement(unsigned slot, bool write, unsigned char strong, unsigned place, const Access& was)
{
    return write && !strong && !was.strong && place == was.place && was.clock >= born[was.slot] && slot / threads == was.slot / threads &&
           slot % threads / WARP == was.slot % threads / WARP && repeats < sizeof repeated / sizeof *repeated;
}

inline void touch(Cell& cell, uintptr_t where, unsigned char mask, bool write, unsigned char strong, unsigned place, const Accessor& who)
{
    Access& last = cell.write;
    if (last.clock && last.mask & mask && !both_strong(who.slot, strong, last)) {
        if (last.slot == who.slot && last.clock == who.clock && who.agent) {}  // pieces of one operation
        else if (!ordered(who.me, last)) {
            if (who.agent || !repeats_statement(who.slot, write, strong, place, last))
                race(where, write, place, last, true, who.agent ? " asynchronously" : "", "with no barrier between");
            Repeated& one = repeated[repeats++];
            one = {start_of_cells + where, size_t(__builtin_popcount(mask)), 0, where, place, last};
            memcpy(&one.value, one.address, one.bytes);
        }
        else if (who.agent && !write && !proxied(who.me, last))
            race(where, write, place, last, true, " asynchronously", "with no fence.proxy.async between");
    }
    Access mine = {who.clock, place, (unsigned short)who.slot, mask, strong};
    if (!write) {
        Access &first = cell.read, &other = cell.other;
        if (!cell.crowd || crowds[cell.crowd].empty())
            for (Access* read : {&cell.read, &cell.other})
                if (!read->clock || stands_for(mine, who, *read)) {
                    *read = mine;
                    return;
                }
        remember(cell, mine, who);
        return;
    }
    const auto test = [&](const Access& read) {
        if (read.clock && read.mask & mask && !both_strong(who.slot, strong, read) &&
            !(read.slot == who.slot && read.clock == who.clock && who.agent) && !ordered(who.me, read))
            race(where, true, place, read, false, who.agent ? " asynchronously" : "", "with no barrier between");
    };
    test(cell.read), test(cell.other);
    if (cell.crowd) {
        for (const Access& read : crowds[cell.crowd]) test(read);
        crowds[cell.crowd].clear();
    }
    if (last.clock == mine.clock && last.slot == mine.slot && last.strong == strong) last.mask |= mask, last.place = place;
    else last = mine;
    cell.read.clock = cell.other.clock = 0;  // ordered before this write by whatever orders the write itself
}

void touch_span(Cell* cells, uintptr_t first, size_t size, bool in_shared, bool write, unsigned char strong, unsigned place,
                const Accessor& who)
{
    for (uintptr_t at = first, end = first + size; at < end;) {
        const uintptr_t next = at / 4 * 4 + 4 < end ? at / 4 * 4 + 4 : end;
        const unsigned char mask = (unsigned char)(((1u << (next - at)) - 1) << at % 4);
        touch(in_shared ? cells[at / 4] : cell_of(at), at, mask, write, strong, place, who);
        at = next;
    }
}

unsigned place_in_code(const void* caller) { return caller ? unsigned(static_cast<const char*>(caller) - code - 1) : 0; }

void access(uintptr_t address, size_t size, bool write, unsigned char strong, const void* caller)
{
    if (!guarding || !running || meeting_lanes) return;  // for a whole warp: values that lanes exchange
    Thread& me = *running;
    if (address - uintptr_t(me.stack) < STACK_BYTES) return;  // its own variables
    const Index* index = launch->module->thread_index;
    if (address - uintptr_t(index) < sizeof(Index) || address - uintptr_t(launch->module->block_index) < sizeof(Index) ||
        address - uintptr_t(launch->module->block_dim) < sizeof(Index) || address - uintptr_t(launch->module->grid_dim) < sizeof(Index))
        return;
    Place place = {};
    if (address - base < bytes_of_block) place = {me.block, unsigned(address - base)};
    else if (me.block->cluster && place_of(reinterpret_cast<void*>(address), place)) {
        if (place.block != me.block && !others_started(*me.block)) {
            report->address = address, report->counter = uintptr_t(caller) - 1;
            fault(FaultKind::Race, "%s the shared memory of another block of the cluster|before a barrier of the cluster has shown that it has "
                  "started", write ? "writes" : "reads");
        }
    }
    else {
        const bool input = stay_inside(address, size, write, caller);
        if (watching) stay_behind(slot_of(me), address, size, write, caller);
        if (input) return;
    }
    if (!watching) return;
    if (repeats) compare_repeats();
    const unsigned slot = slot_of(me);
    const Accessor who = {slot, slot, now[slot], false};
    start_of_cells = reinterpret_cast<const char*>(place.block ? address - place.offset : 0);
    if (!place.block) touch_span(nullptr, address, size, false, write, strong, place_in_code(caller), who);
    else touch_span(shared_cells(*place.block), place.offset, size, true, write, strong, place_in_code(caller), who);
}

}  // namespace

// ---- the scheduler ----------------------------------------------------------------------------------------------------

void watch(bool on)
{
    threads = volume(launch->block);
    const unsigned warps = (threads + WARP - 1) / WARP * resident;
    slots = threads * resident + BARRIER_AGENTS + OUT_AGENTS + warps + 1;
    width = 3 * slots;
    base = uintptr_t(shared.fixed);
    bytes_of_block = shared_bytes();
    last_page = nullptr;
    repeats = 0;
    guarding = on;
    table = nullptr;
    running_from = ahead.lets_start_early ? ahead.running_from : ahead.last;
    if (!launch->dependent || (known_only && !ahead.last)) running_from = launches;  // in a program that is all that ran before
    ahead = {launches, running_from, false};
    if (on && slots < 65536 && size_t(slots) * width * 4 <= MOST_BYTES)
        table = static_cast<unsigned*>(calloc(size_t(slots) * width, sizeof(unsigned)));
    watching = table;
    if (on && !watching) report->unwatched = threads * resident;
    if (!watching) return;
    now = static_cast<unsigned*>(calloc(slots, sizeof(unsigned)));
    born = static_cast<unsigned*>(calloc(slots, sizeof(unsigned)));
    for (unsigned scope = 0; scope < SCOPES; scope++) {
        released[scope] = static_cast<Clock*>(calloc(slots, sizeof(Clock)));
        pending_acquire[scope] = static_cast<Clock*>(calloc(slots, sizeof(Clock)));
    }
    set_begins.clear(), sets.clear(), locations.clear();
}

void watch_set(unsigned number)
{
    if (!watching) return;
    unsigned latest = 0;
    for (unsigned i = 0; i < threads * resident; i++) latest = latest < now[i] ? now[i] : latest;
    for (unsigned* row : rows_of_set) free_rows.push_back(row);
    rows_of_set.clear();
    set_begins.push_back(latest + 1), sets.push_back(number);
    for (unsigned i = 0; i < threads * resident; i++) {
        if (latest) memset(row_of(i), 0, width * sizeof(unsigned));
        now[i] = born[i] = latest + 1;
        for (unsigned scope = 0; scope < SCOPES; scope++) released[scope][i] = pending_acquire[scope][i] = {};
    }
}

void forget_shared(Block& block)
{
    if (watching && block.past) leave(shared_cells(block), bytes_of_block / 4 + 2);
}

void compare_repeats()
{
    while (repeats) {
        const Repeated one = repeated[--repeats];  // taken out first, since a race ends the launch and comes by here again
        if (!memcmp(one.address, &one.value, one.bytes)) continue;
        repeats = 0;
        race(one.where, true, one.place, one.was, true, " another value over", "in the same instruction of their warp");
    }
}

void unwatch()
{
    guarding = false;
    if (!watching) return;
    watching = false;
    for (std::vector<unsigned*>* rows : {&rows_of_set, &rows_of_launch, &free_rows}) {
        for (unsigned* row : *rows) free(row);
        rows->clear();
    }
    crowds = {}, free_crowds = {}, covered = {}, crowded = 0;
    free(table), free(now), free(born);
    for (unsigned scope = 0; scope < SCOPES; scope++) free(released[scope]), free(pending_acquire[scope]);
}

// ---- what orders --------------------------------------------------------------------------------------------------------

static void take_up(unsigned slot, Scope widest)  // acquires what atomics have released
{
    for (unsigned scope = 0; scope <= unsigned(widest); scope++) {
        unsigned* row = pending_acquire[scope][slot].row;
        if (!row) continue;
        join(row_of(slot), row);
        memset(row, 0, width * sizeof(unsigned));
    }
}

void order_blocks(const Meeting& meeting)
{
    if (!watching || meeting.state == State::AtCluster) return;
    std::vector<unsigned> all(width);
    for (unsigned b = 0; b < meeting.block_count; b++)
        for (unsigned i = 0; i < meeting.blocks[b].thread_count; i++) {
            const unsigned slot = slot_of(meeting.blocks[b].threads[i]);
            take_up(slot, meeting.state == State::AtGrid ? Scope::Gpu : Scope::Block);
            join_thread(all.data(), slot);
        }
    for (unsigned b = 0; b < meeting.block_count; b++)
        for (unsigned i = 0; i < meeting.blocks[b].thread_count; i++) {
            const unsigned slot = slot_of(meeting.blocks[b].threads[i]);
            memcpy(row_of(slot), all.data(), width * sizeof(unsigned));
            now[slot]++;
        }
}

void order_lanes(Warp& warp, unsigned lanes)
{
    if (!watching) return;
    static std::vector<unsigned> all;
    all.assign(width, 0);
    for (unsigned lane = 0; lane < WARP; lane++)
        if (lanes >> lane & 1) {
            take_up(slot_of(*warp.lanes[lane]), Scope::Block);
            join_thread(all.data(), slot_of(*warp.lanes[lane]));
        }
    for (unsigned lane = 0; lane < WARP; lane++)
        if (lanes >> lane & 1) {
            const unsigned slot = slot_of(*warp.lanes[lane]);
            memcpy(row_of(slot), all.data(), width * sizeof(unsigned));
            now[slot]++;
        }
}

void publish_of(const Thread& thread, Clock& to)
{
    if (!watching) return;
    if (!to.row) to.row = new_row(false);
    join_thread(to.row, slot_of(thread));
    now[slot_of(thread)]++;
}

void publish(Clock& to) { publish_of(*running, to); }

void learn_as(const Thread& thread, const Clock& from)
{
    if (watching && from.row) join(row_of(slot_of(thread)), from.row);
}

void learn(const Clock& from) { learn_as(*running, from); }

void hand_over(Clock& from, Clock& to)
{
    if (!watching || !from.row) return;
    if (!to.row) to.row = new_row(false);
    memcpy(to.row, from.row, width * sizeof(unsigned));
    empty(from);
}

void empty(Clock& clock)
{
    if (watching && clock.row) memset(clock.row, 0, width * sizeof(unsigned));
}

void fence(Scope widest)
{
    if (!watching || !running) return;
    const unsigned me = slot_of(*running);
    take_up(me, widest);
    for (unsigned scope = 0; scope <= unsigned(widest); scope++) {
        unsigned*& row = released[scope][me].row;
        if (!row) row = new_row(false);
        memcpy(row, row_of(me), width * sizeof(unsigned));
        row[me] = now[me];
    }
    now[me]++;
}

void fence_proxy()
{
    if (!watching) return;
    const unsigned me = slot_of(*running);
    unsigned* row = row_of(me);
    memcpy(row + slots, row, slots * sizeof(unsigned));
    row[slots + me] = now[me];
    now[me]++;
}

void synchronize(const void* address, bool load, bool store, Memory order, Scope widest)
{
    if (!watching || !running) return;
    const unsigned me = slot_of(*running);
    Place place;
    const void* key = address;
    if (place_of(address, place)) key = shared_cells(*place.block) + place.offset / 4;
    const auto found = locations.find(key);
    std::vector<Released>* location = found == locations.end() ? nullptr : &found->second;
    const bool acquire = order == Memory::Acquire || order == Memory::AcquireRelease;
    const bool release = order == Memory::Release || order == Memory::AcquireRelease;
    for (unsigned scope = 0; load && location && scope <= unsigned(widest); scope++) {
        const Clock* clock = released_at(*location, domain_of(*running->block, scope));
        if (!clock || !clock->row) continue;
        if (acquire) join(row_of(me), clock->row);
        else {
            Clock& to = pending_acquire[scope][me];
            if (!to.row) to.row = new_row(false);
            join(to.row, clock->row);
        }
    }
    if (!store) return;
    if (!load && location)  // a plain store hides earlier releases
        for (Released& entry : *location)
            if (entry.clock.row && (!entry.domain || entry.set == sets.size())) memset(entry.clock.row, 0, width * sizeof(unsigned));
    bool releases = false;
    for (unsigned scope = 0; scope <= unsigned(widest); scope++) {
        if (!release && !released[scope][me].row) continue;
        if (!location) location = &locations[key];
        const void* domain = domain_of(*running->block, scope);
        Clock* clock = released_at(*location, domain);
        if (!clock) location->push_back({domain, sets.size(), {}}), clock = &location->back().clock;
        if (!clock->row) clock->row = new_row(!domain);
        if (release) join_thread(clock->row, me), releases = true;
        else join(clock->row, released[scope][me].row);
        if (!domain) propagate_to_later_blocks(clock->row);
    }
    if (releases) now[me]++;
}

// ---- what accesses ------------------------------------------------------------------------------------------------------

void note_access(const void* address, size_t bytes, bool write, unsigned char strong, const void* place)
{
    access(uintptr_t(address), bytes, write, strong, place);
}

void read_only(const void* address, size_t bytes, const void* place)
{
    if (!watching || !running || meeting_lanes) return;
    Place in_shared;
    if (place_of(address, in_shared)) return;
    for (uintptr_t at = uintptr_t(address) / 4 * 4; at < uintptr_t(address) + bytes; at += 4) {
        const Access& last = cell_of(at).write;
        if (last.clock)
            race(at, false, place_in_code(place), last, true, " through the read-only cache",
                 "but that cache may hold data from before the launch");
    }
}

void note_copy(const Thread& thread, Place to, int bytes, const void* place)
{
    if (!watching) return;
    const unsigned slot = slot_of(thread);
    touch_span(shared_cells(*to.block), to.offset, size_t(bytes), true, true, false, place_in_code(place), {slot, slot, now[slot], false});
}

void note_barrier(Place place)
{
    if (!watching) return;  // the history there is discarded: only barrier instructions touch barriers
    leave(shared_cells(*place.block) + place.offset / 4, 2);
}

// ---- agents -------------------------------------------------------------------------------------------------------------

unsigned agent_of_barrier(unsigned number) { return number % BARRIER_AGENTS; }

unsigned agent_of_warp(const Warp& warp)
{
    const Block& block = *warp.lanes[0]->block;
    return BARRIER_AGENTS + OUT_AGENTS + unsigned(&block - blocks) * block.warp_count + unsigned(&warp - block.warps);
}

static void note_span(const Thread& issuer, const Span& span, bool write, unsigned agent, unsigned long serial)
{
    if (span.fill) return;
    const bool recorded = span.shared.block || !stay_inside(uintptr_t(span.global), span.bytes, write, issuer.caller);
    if (!watching) return;
    const unsigned me = slot_of(issuer);
    if (!span.shared.block) stay_behind(me, uintptr_t(span.global), span.bytes, write, issuer.caller);
    if (!recorded) return;
    const Accessor who = {me, threads * resident + agent, unsigned(serial), true};
    const unsigned place = place_in_code(issuer.caller);
    if (span.shared.block) touch_span(shared_cells(*span.shared.block), span.shared.offset, span.bytes, true, write, false, place, who);
    else touch_span(nullptr, uintptr_t(span.global), span.bytes, false, write, false, place, who);
}

void note_operand(const Thread& issuer, Place from, unsigned bytes, unsigned agent, unsigned long serial)
{
    if (!watching) return;
    Span span = {};
    span.shared = from, span.bytes = bytes;
    note_span(issuer, span, false, agent, serial);
}

// A copy out of shared memory reads before it writes, and each can be waited for separately.
unsigned writing_agent(const Pending& operation)
{
    return operation.kind == Async::CopyOut ? operation.agent + OUT_AGENTS / 2 : operation.agent;
}

void note_operation(Pending& operation)
{
    if (!guarding || operation.kind == Async::Arrive) return;
    const Thread& issuer = *operation.thread;
    if (!operation.barriers.empty()) operation.agent = operation.barriers[0]->agent;
    else operation.agent = BARRIER_AGENTS + slot_of(issuer) % (OUT_AGENTS / 2);  // and the agent of its writes follows
    // Global memory that a copy reads was written by earlier kernels, or by threads whose writes are ordered.
    for (const Span& span : operation.from) note_span(issuer, span, false, operation.agent, operation.serial);
    for (const Span& span : operation.to)
        if (!operation.reduce) note_span(issuer, span, true, writing_agent(operation), operation.serial);
}

void agent_done(unsigned agent, unsigned long serial, Clock& to)
{
    if (!watching) return;
    if (!to.row) to.row = new_row(false);
    unsigned& known = to.row[threads * resident + agent];
    if (known < serial) known = unsigned(serial);
}

void launch_ahead_known()
{
    if (watching) row_of(slot_of(*running))[launch_ahead()] = 1;
}

void let_dependents_start()
{
    if (watching && !row_of(slot_of(*running))[launch_ahead()]) ahead.lets_start_early = true;
}

void agent_known(unsigned agent, unsigned long serial)
{
    if (!watching) return;
    unsigned& known = row_of(slot_of(*running))[threads * resident + agent];
    if (known < serial) known = unsigned(serial);
}

}  // namespace rung_emulator

// ---- what g++ calls ---------------------------------------------------------------------------------------------------

using namespace rung_emulator;
#define HERE __builtin_return_address(0)

static inline void strong_access(void* address, size_t size, bool load, bool store, const void* caller)
{
    if (!guarding || !running) return;
    if (launch->order == int(Order::Shuffled) && !meeting_lanes) progress++, pause(caller);  // other threads may run first
    const Scope scope = running->of_block ? Scope::Block : Scope::Gpu;
    access(uintptr_t(address), size, store, strength(scope), caller);
    synchronize(address, load, store, Memory::Relaxed, scope);
}

extern "C" {

// Registers whole pages from `memory` to `end`. A kernel may touch only `from` to `to`, and only read them if `input` is 1 (an
// input) or 2 (written by no kernel). An empty range unregisters the memory.
RUNG_API void rung_tensor(uintptr_t memory, uintptr_t from, uintptr_t to, uintptr_t end, int input)
{
    for (size_t i = 0; i < tensors.size(); i++)
        if (tensors[i].memory == memory) tensors[i] = tensors.back(), tensors.pop_back(), i--;
    if (from < to) tensors.push_back({memory, from, to, end, input != 0, input == 2});
    else forget_pages(memory, end);
}

RUNG_API void rung_known_only(bool on) { known_only = on; }

// The launch ahead of the next one is unknown; in a program there is none.
RUNG_API void rung_unknown_launch_ahead() { ahead = {}; }

#define PLAIN(SIZE) \
    RUNG_API void __tsan_read##SIZE(void* a) { access(uintptr_t(a), SIZE, false, false, HERE); } \
    RUNG_API void __tsan_write##SIZE(void* a) { access(uintptr_t(a), SIZE, true, false, HERE); } \
    RUNG_API void __tsan_volatile_read##SIZE(void* a) \
    { \
        if (__builtin_expect(overdue, false)) yield_at_call(HERE); \
        strong_access(a, SIZE, true, false, HERE); \
    } \
    RUNG_API void __tsan_volatile_write##SIZE(void* a) { strong_access(a, SIZE, false, true, HERE); } \
    RUNG_API void __tsan_unaligned_read##SIZE(void* a) { access(uintptr_t(a), SIZE, false, false, HERE); } \
    RUNG_API void __tsan_unaligned_write##SIZE(void* a) { access(uintptr_t(a), SIZE, true, false, HERE); }
PLAIN(1)
PLAIN(2)
PLAIN(4)
PLAIN(8)
PLAIN(16)
RUNG_API void __tsan_read_range(void* a, size_t size) { access(uintptr_t(a), size, false, false, HERE); }
RUNG_API void __tsan_write_range(void* a, size_t size) { access(uintptr_t(a), size, true, false, HERE); }
RUNG_API void __tsan_func_entry(void*) {}
RUNG_API void __tsan_func_exit() {}
RUNG_API void __tsan_vptr_read(void** a) { access(uintptr_t(a), sizeof *a, false, false, HERE); }
RUNG_API void __tsan_vptr_update(void** a, void*) { access(uintptr_t(a), sizeof *a, true, false, HERE); }
RUNG_API void __tsan_init() {}
RUNG_API void __tsan_atomic_thread_fence(int order)  // the order encodes which fence it is (threads.h)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    fence(order == __ATOMIC_SEQ_CST ? Scope::Gpu : Scope::Block);
}

#define FETCH(BITS, T, NAME) \
    RUNG_API T __tsan_atomic##BITS##_fetch_##NAME(T* a, T value, int) \
    { \
        strong_access(a, sizeof(T), true, true, HERE); \
        return __atomic_fetch_##NAME(a, value, __ATOMIC_SEQ_CST); \
    }
#define ATOMIC(BITS, T) \
    RUNG_API T __tsan_atomic##BITS##_load(const T* a, int) \
    { \
        strong_access(const_cast<T*>(a), sizeof(T), true, false, HERE); \
        return __atomic_load_n(a, __ATOMIC_SEQ_CST); \
    } \
    RUNG_API void __tsan_atomic##BITS##_store(T* a, T value, int) \
    { \
        strong_access(a, sizeof(T), false, true, HERE); \
        __atomic_store_n(a, value, __ATOMIC_SEQ_CST); \
    } \
    RUNG_API T __tsan_atomic##BITS##_exchange(T* a, T value, int) \
    { \
        strong_access(a, sizeof(T), true, true, HERE); \
        return __atomic_exchange_n(a, value, __ATOMIC_SEQ_CST); \
    } \
    RUNG_API int __tsan_atomic##BITS##_compare_exchange_strong(T* a, T* expected, T value, int, int) \
    { \
        strong_access(a, sizeof(T), true, true, HERE); \
        return __atomic_compare_exchange_n(a, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
    } \
    RUNG_API int __tsan_atomic##BITS##_compare_exchange_weak(T* a, T* expected, T value, int, int) \
    { \
        strong_access(a, sizeof(T), true, true, HERE); \
        return __atomic_compare_exchange_n(a, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST); \
    } \
    FETCH(BITS, T, add) \
    FETCH(BITS, T, sub) \
    FETCH(BITS, T, and) \
    FETCH(BITS, T, or) \
    FETCH(BITS, T, xor)
ATOMIC(8, unsigned char)
ATOMIC(16, unsigned short)
ATOMIC(32, unsigned)
ATOMIC(64, unsigned long)

}  // extern "C"
