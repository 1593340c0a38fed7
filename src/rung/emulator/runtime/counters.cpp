// Lanes run one after the other, so a request is collected lane by lane: a lane joins the first request of the same
// instruction in the same iteration of the loops around it that it is not part of. As lanes mostly do the same, that is the
// one after the request that it joined last. A lane that is far ahead lets the others run, so that few requests are open.
#include "counters.h"
#include "async.h"

#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <unordered_map>
#include <vector>

namespace rung_emulator {

bool counting;

namespace {

constexpr unsigned AHEAD = 64;        // accesses of a lane, after which the warp's other lanes run
constexpr unsigned MOST_OPEN = 4096;  // requests of a warp that wait for further lanes
constexpr unsigned ROOM = MOST_OPEN + WARP * AHEAD;
constexpr unsigned SECTOR = 32, LINE = 128, BANKS = 32, OPEN = 32, WAYS = 4;

struct Total
{
    unsigned long long requests, lanes, bytes, unique_bytes, sectors, lines, ideal_sectors, wavefronts, ideal_wavefronts;
};

// What one request costs, and the request itself.
struct Cost
{
    unsigned lanes, bytes, phase;  // mask; per lane; of the first address within a line, or within a bank
    unsigned unique_bytes, sectors, lines, ideal_sectors, wavefronts, ideal_wavefronts;
    bool shared;
    intptr_t apart[WARP];  // from the first lane's address
};

struct Instruction
{
    unsigned counter;  // its return address, from the start of the kernel's code
    bool write;
    Way way;
    unsigned width, line;  // bytes that one access of the machine code takes on that line; neighbouring ones of a lane are one
    Total total[2];     // in global memory, in shared memory
    Cost last[4], worst;  // requests; the worst has the most sectors or wavefronts beyond the ideal
};
std::vector<Instruction> instructions;
std::vector<unsigned> number_of[2];  // [write][counter]: 1 + index into `instructions`
unsigned long long cut;              // requests that were counted though lanes may have been missing

// A basic block of the kernel, and how often lanes and warps have executed it.
struct Executed
{
    unsigned counter;  // the return address of its call, from the start of the kernel's code
    unsigned long long lanes, warps;
};
std::vector<Executed> executed;
std::vector<unsigned> block_at;  // [counter]: 1 + index into `executed`
struct Happened { unsigned event, warp, amount, serial; };
constexpr size_t MOST_EVENTS = 4096;
std::vector<Happened> happened;
unsigned long long products[2];  // of warps: mma.sync, wgmma

// A request in a trace: of block 0, or a store to global memory. Addresses in shared memory count from its start.
constexpr unsigned TRACE_HEAD = 7;
struct Traced { unsigned long long counter, block, warp, lanes, bytes, place, way, at[WARP]; };  // place: 1 shared, 2 store, 4 times the swizzle
std::vector<Traced> traced;
unsigned trace_room;  // requests that the next launch keeps, half of them block 0's; 0: no trace

unsigned long* path_at;              // of the running thread; null if the kernel keeps none

struct Wide { unsigned width, line; };
std::unordered_map<unsigned, Wide> wide_at[2];  // [write][counter]: of the library that is launched next

struct Request
{
    const void* caller;
    unsigned long path;
    unsigned lanes, bytes, instruction;
    unsigned next;  // 1 + index of the next one with the same instruction and path
    uintptr_t at[WARP];
};

struct Open  // an access that the lane's next ones may extend
{
    unsigned request, bytes, line;
    uintptr_t at;
};

}  // namespace

struct WarpCounters
{
    Request* requests = static_cast<Request*>(malloc(ROOM * sizeof(Request)));  // memory that is not used takes none
    unsigned count = 0;
    std::vector<unsigned> table = std::vector<unsigned>(2 * ROOM);  // 1 + index of the first request, by instruction and path
    std::vector<unsigned> used;  // places in the table
    unsigned cursor[WARP] = {};   // after the request that the lane joined last
    unsigned ahead[WARP] = {};    // accesses since requests were last counted
    Open open[WARP][OPEN] = {};
    bool any_open = false;
    std::vector<unsigned> executed;  // [block][lane]
    ~WarpCounters() { free(requests); }
};

namespace {

bool in_shared(uintptr_t address) { return address - uintptr_t(shared.fixed) < shared_bytes(); }

// Whether each active lane has the address of the lane beside it, or each that of the lane two further.
bool in_pairs(const Request& r, unsigned lanes)
{
    for (unsigned apart = 1; apart <= 2; apart++) {
        bool all = true;
        for (unsigned lane = 0; lane < WARP && all; lane++)
            if (lanes >> lane & 1 && lanes >> (lane ^ apart) & 1 && r.at[lane] != r.at[lane ^ apart]) all = false;
        if (all) return true;
    }
    return false;
}

// Accesses of 8 bytes pass by half warps and of 16 bytes by quarters, two together where neighbours read the same; lanes
// that read one word share it.
void count_banks(const Request& r, Cost& cost)
{
    unsigned groups[4], count = 0;
    if (r.bytes <= 4) groups[count++] = r.lanes;
    else {
        const unsigned wide = r.bytes <= 8 ? WARP : WARP / 2;
        for (unsigned first = 0; first < WARP; first += wide) {
            const unsigned lanes = r.lanes & (wide == WARP ? ~0u : 0xffffu << first);
            if (in_pairs(r, lanes)) groups[count++] = lanes;
            else
                for (unsigned half = 0; half < 2; half++) groups[count++] = lanes & ((1u << wide / 2) - 1) << (first + half * wide / 2);
        }
    }
    for (unsigned g = 0; g < count; g++) {
        unsigned words = 0;
        uintptr_t word[WARP * 5];
        for (unsigned lane = 0; lane < WARP; lane++) {
            if (!(groups[g] >> lane & 1)) continue;
            const uintptr_t from = r.at[lane] - uintptr_t(shared.fixed);
            for (uintptr_t w = from / 4; w <= (from + r.bytes - 1) / 4 && words < WARP * 5; w++) word[words++] = w;
        }
        if (!words) continue;
        std::sort(word, word + words);
        words = unsigned(std::unique(word, word + words) - word);
        unsigned used[BANKS] = {}, most = 0;
        for (unsigned i = 0; i < words; i++) most = std::max(most, ++used[word[i] % BANKS]);
        cost.wavefronts += most;
        cost.ideal_wavefronts++;
    }
}

void count_sectors(const Request& r, Cost& cost)
{
    uintptr_t at[WARP];
    unsigned count = 0;
    for (unsigned lane = 0; lane < WARP; lane++)
        if (r.lanes >> lane & 1) at[count++] = r.at[lane];
    if (!std::is_sorted(at, at + count)) std::sort(at, at + count);
    uintptr_t sector = 0, line = 0, end = 0;  // the first not yet counted
    for (unsigned i = 0; i < count; i++) {
        const uintptr_t after = at[i] + r.bytes;
        const uintptr_t s = std::max(sector, at[i] / SECTOR), l = std::max(line, at[i] / LINE), from = std::max(end, at[i]);
        sector = std::max(sector, (after - 1) / SECTOR + 1), line = std::max(line, (after - 1) / LINE + 1);
        if (sector > s) cost.sectors += unsigned(sector - s);
        if (line > l) cost.lines += unsigned(line - l);
        if (after > from) cost.unique_bytes += unsigned(after - from), end = after;
    }
    cost.ideal_sectors = (cost.unique_bytes + SECTOR - 1) / SECTOR;
}

unsigned waste(const Cost& cost) { return cost.shared ? cost.wavefronts - cost.ideal_wavefronts : cost.sectors - cost.ideal_sectors; }

Traced* traced_next(const Thread& thread, bool to_global)
{
    const Index b = thread.block->index, grid = launch->grid;
    const unsigned long long block = (b.z * 1ull * grid.y + b.y) * grid.x + b.x;
    if (block ? !to_global || traced.size() >= trace_room : traced.size() >= trace_room / 2) return nullptr;
    traced.push_back({0, block, thread.rank / WARP, 0, 0, 0, 0, {}});
    return &traced.back();
}

void trace_request(const Request& r, const Instruction& instruction, const Thread& thread, bool is_shared)
{
    Traced* const t = traced_next(thread, instruction.write && !is_shared);
    if (!t) return;
    t->counter = instruction.counter, t->lanes = r.lanes, t->bytes = r.bytes;
    t->place = is_shared | instruction.write << 1, t->way = (unsigned long long)instruction.way;
    for (unsigned lane = 0; lane < WARP; lane++) t->at[lane] = r.at[lane] - (is_shared ? uintptr_t(shared.fixed) : 0);
}

void trace_span(const Span& span, const Thread& thread, unsigned counter, bool write)
{
    Traced* const t = traced_next(thread, write && !span.shared.block);
    if (!t) return;
    t->counter = counter, t->lanes = 1u << thread.lane, t->bytes = span.bytes, t->way = (unsigned long long)Way::Bulk;
    t->place = (span.shared.block != nullptr) | write << 1 | span.swizzle << 2;
    t->at[thread.lane] = span.shared.block ? span.shared.offset : uintptr_t(span.global);
}

// Requests of one instruction mostly have the same pattern, which is then not counted anew.
void emit(Request& r, const Warp& warp)
{
    if (!r.lanes) return;
    Instruction& instruction = instructions[r.instruction];
    const unsigned first = unsigned(__builtin_ctz(r.lanes));
    const bool is_shared = in_shared(r.at[first]);
    if (trace_room) trace_request(r, instruction, *warp.lanes[first], is_shared);
    // Conflicts do not change if all lanes move by the same number of banks.
    const unsigned phase = unsigned(r.at[first] % (is_shared ? 4 : LINE));
    Cost& last = instruction.last[phase / SECTOR];
    bool known = last.lanes == r.lanes && last.bytes == r.bytes && last.phase == phase && last.shared == is_shared;
    if (known) {
        intptr_t different = 0;
        for (unsigned lane = 0; lane < WARP; lane++)
            different |= (intptr_t(r.at[lane] - r.at[first]) ^ last.apart[lane]) & -intptr_t(r.lanes >> lane & 1);
        known = !different;
    }
    if (!known) {
        last = {r.lanes, r.bytes, phase, 0, 0, 0, 0, 0, 0, is_shared, {}};
        for (unsigned lane = 0; lane < WARP; lane++)
            if (r.lanes >> lane & 1) last.apart[lane] = intptr_t(r.at[lane] - r.at[first]);
        if (is_shared) count_banks(r, last);
        else count_sectors(r, last);
        if (!instruction.worst.lanes || waste(last) > waste(instruction.worst)) instruction.worst = last;
    }
    const unsigned lanes = unsigned(__builtin_popcount(r.lanes));
    Total& total = instruction.total[is_shared];
    total.requests++, total.lanes += lanes, total.bytes += lanes * r.bytes;
    total.unique_bytes += last.unique_bytes, total.sectors += last.sectors, total.lines += last.lines;
    total.ideal_sectors += last.ideal_sectors, total.wavefronts += last.wavefronts, total.ideal_wavefronts += last.ideal_wavefronts;
}

unsigned& slot_of(WarpCounters& counters, unsigned instruction, unsigned long path)
{
    const size_t size = counters.table.size();
    size_t at = ((path ^ instruction * 0x9E3779B97F4A7C15ul) * 0xD6E8FEB86659FD93ul >> 32) % size;
    for (;; at = at + 1 == size ? 0 : at + 1) {
        unsigned& found = counters.table[at];
        if (!found) {
            counters.used.push_back(unsigned(at));
            return found;
        }
        const Request& r = counters.requests[found - 1];
        if (r.instruction == instruction && r.path == path) return found;
    }
}

// Keeps the first `kept` requests.
void reset(WarpCounters& counters, unsigned kept)
{
    counters.count = kept;
    memset(counters.cursor, 0, sizeof counters.cursor);
    memset(counters.ahead, 0, sizeof counters.ahead);
    if (counters.any_open) memset(counters.open, 0, sizeof counters.open), counters.any_open = false;
    for (const unsigned used : counters.used) counters.table[used] = 0;
    counters.used.clear();
    for (unsigned i = 0; i < kept; i++) {
        Request& r = counters.requests[i];
        unsigned* link = &slot_of(counters, r.instruction, r.path);
        while (*link) link = &counters.requests[*link - 1].next;
        *link = i + 1, r.next = 0;
    }
}

// Counts the requests that every lane has joined; all of them if too many are open.
void emit_complete(Warp& warp)
{
    WarpCounters& counters = *warp.counters;
    unsigned kept = 0;
    for (unsigned i = 0; i < counters.count; i++)
        if (warp.alive & ~counters.requests[i].lanes) counters.requests[kept++] = counters.requests[i];
        else emit(counters.requests[i], warp);
    if (kept > MOST_OPEN) {
        for (unsigned i = 0; i < kept; i++) emit(counters.requests[i], warp);
        cut += kept, kept = 0;
    }
    reset(counters, kept);
}

unsigned find(WarpCounters& counters, const void* caller, unsigned number, unsigned long path, unsigned lane)
{
    unsigned* link = &slot_of(counters, number, path);
    while (*link) {
        Request& r = counters.requests[*link - 1];
        if (!(r.lanes >> lane & 1)) return *link - 1;
        link = &r.next;
    }
    Request& r = counters.requests[counters.count];
    r.caller = caller, r.path = path, r.lanes = r.bytes = r.next = 0, r.instruction = number;
    *link = counters.count + 1;
    return counters.count++;
}

unsigned number_at(const void* caller, bool write, Way way)
{
    const size_t counter = size_t(static_cast<const char*>(caller) - code);
    if (counter > size_t(code_end - code)) return 0;
    unsigned& number = number_of[write][counter];
    if (!number) {
        const auto wide = wide_at[write].find(unsigned(counter));
        const Wide known = wide == wide_at[write].end() ? Wide{0, 0} : wide->second;
        instructions.push_back({unsigned(counter), write, way, known.width, known.line, {}, {}, {}});
        number = unsigned(instructions.size());
    }
    return number;
}

// Accesses that may become one lie in one block of 16 bytes; four blocks of a set are open at once.
Open* open_set(WarpCounters& counters, unsigned lane, uintptr_t address)
{
    return &counters.open[lane][unsigned((address >> 4) * 0x9E3779B1u >> 16) % (OPEN / WAYS) * WAYS];
}

bool extends(WarpCounters& counters, const Instruction& instruction, unsigned lane, uintptr_t address, unsigned bytes)
{
    Open* const set = open_set(counters, lane, address);
    for (Open* o = set; o < set + WAYS; o++) {
        if (!o->bytes || o->line != instruction.line || o->at + o->bytes != address) continue;
        if (o->bytes + bytes > instruction.width || o->at % instruction.width) continue;
        o->bytes += bytes;
        Request& r = counters.requests[o->request];
        r.bytes = std::max(r.bytes, o->bytes);
        return true;
    }
    return false;
}

void begin_open(WarpCounters& counters, unsigned lane, const Open& open)
{
    Open* const set = open_set(counters, lane, open.at);
    memmove(set + 1, set, (WAYS - 1) * sizeof(Open));  // the oldest is forgotten
    set[0] = open;
    counters.any_open = true;
}

}  // namespace

void settle(Warp& warp)
{
    if (!counting || !warp.counters) return;
    for (unsigned i = 0; i < warp.counters->count; i++) emit(warp.counters->requests[i], warp);
    reset(*warp.counters, 0);
}

// A warp executes a block as often as the lane that executes it most often: lanes that do so together count once.
void settle_last(Warp& warp)
{
    settle(warp);
    if (!counting || !warp.counters) return;
    std::vector<unsigned>& mine = warp.counters->executed;
    for (size_t i = 0; i < mine.size() / WARP; i++) {
        unsigned most = 0;
        for (unsigned lane = 0; lane < WARP; lane++)
            executed[i].lanes += mine[i * WARP + lane], most = std::max(most, mine[i * WARP + lane]);
        executed[i].warps += most;
    }
    std::fill(mine.begin(), mine.end(), 0);
}

void settle_block(Block& block)
{
    for (unsigned i = 0; counting && i < block.warp_count; i++) settle(block.warps[i]);
}

void free_counters(Warp& warp)
{
    delete warp.counters;
    warp.counters = nullptr;
}

void exchange_paths(Thread* from, const Thread* to)
{
    unsigned long* path = launch->module->path;
    if (!path) return;
    if (from) from->path = *path;
    if (to) *path = to->path;
}

namespace {

// The thread that runs, and where its accesses are not counted: its own variables; threadIdx and constants.
struct Now
{
    const Thread* thread;
    WarpCounters* counters;
    unsigned lane, bit;
    uintptr_t stack, code, code_bytes;
} now;

__attribute__((noinline)) void set_now()
{
    const Thread& me = *running;
    if (!me.warp->counters) me.warp->counters = new WarpCounters;
    now = {&me, me.warp->counters, me.lane, 1u << me.lane, uintptr_t(me.stack), uintptr_t(code), size_t(code_end - code)};
}

// The warp's other lanes run, up to here.
__attribute__((noinline)) void let_others_run()
{
    Warp& warp = *running->warp;
    const unsigned lane = running->lane;
    run_next();
    if (warp.counters->ahead[lane] >= AHEAD) emit_complete(warp);  // they have come as far, or wait
}

__attribute__((noinline)) void join(uintptr_t address, unsigned bytes, bool write, Way way, const void* caller)
{
    const unsigned number = number_at(caller, write, way);
    if (!number) return;
    WarpCounters& counters = *now.counters;
    const Instruction& instruction = instructions[number - 1];
    const bool narrow = bytes < instruction.width;
    if (narrow && extends(counters, instruction, now.lane, address, bytes)) return;
    if (counters.count == ROOM) emit_complete(*running->warp);
    const unsigned at = find(counters, narrow ? nullptr : caller, number - 1, path_at ? *path_at : 0, now.lane);
    Request& r = counters.requests[at];
    counters.cursor[now.lane] = at + 1;
    r.lanes |= now.bit;
    r.bytes = std::max(r.bytes, bytes);
    r.at[now.lane] = address;
    if (narrow) begin_open(counters, now.lane, {at, bytes, instruction.line, address});
    if (++counters.ahead[now.lane] >= AHEAD) let_others_run();
}

}  // namespace

void count_access(uintptr_t address, size_t bytes, bool write, Way way, const void* caller)
{
    if (!counting || !running || meeting_lanes || !bytes) return;
    if (running != now.thread) set_now();
    if (address - now.stack < STACK_BYTES || address - now.code < now.code_bytes) return;
    WarpCounters& counters = *now.counters;
    const unsigned at = counters.cursor[now.lane];
    Request& r = counters.requests[at];
    if (at >= counters.count || r.caller != caller || r.path != (path_at ? *path_at : 0) || r.lanes & now.bit)
        return join(address, unsigned(bytes), write, way, caller);
    counters.cursor[now.lane] = at + 1;
    r.lanes |= now.bit;
    if (r.bytes < bytes) r.bytes = unsigned(bytes);
    r.at[now.lane] = address;
    if (++counters.ahead[now.lane] >= AHEAD) let_others_run();
}

void begin_counting()
{
    counting = launch->counters;
    if (!counting) return;
    instructions.clear(), executed.clear(), happened.clear(), traced.clear(), cut = products[0] = products[1] = 0;
    block_at.assign(size_t(code_end - code) + 1, 0);
     now = {}, path_at = launch->module->path;
    for (std::vector<unsigned>& numbers : number_of) numbers.assign(size_t(code_end - code) + 1, 0);
}

void end_counting() { counting = false; }

void count_bytes(uintptr_t address, size_t bytes, bool write, Way way, const void* caller)
{
    if (!counting || !bytes) return;
    const unsigned number = number_at(caller, write, way);
    if (!number) return;
    Total& total = instructions[number - 1].total[in_shared(address)];
    total.bytes += bytes, total.unique_bytes += bytes;
    if (!in_shared(address)) total.sectors += (address + bytes - 1) / SECTOR - address / SECTOR + 1, total.ideal_sectors += (bytes + SECTOR - 1) / SECTOR;
}

// A copy by the copy engine is one request of its issuing thread, and its pieces are counted by their bytes.
void count_operation(const Pending& operation)
{
    if (!counting || operation.kind == Async::Arrive) return;
    unsigned bytes = 0;
    for (const Span& span : operation.from) bytes += span.fill ? 0 : span.bytes;
    count_event(Event::Copy, *operation.thread, bytes, operation.serial);
    const void* caller = operation.thread->caller;
    for (const bool write : {false, true}) {
        const std::vector<Span>& spans = write ? operation.to : operation.from;
        bool counted[2] = {};
        for (const Span& span : spans) {
            if (span.fill) continue;
            const bool is_shared = span.shared.block;
            const unsigned number = number_at(caller, write, Way::Bulk);
            if (!number) return;
            if (trace_room) trace_span(span, *operation.thread, instructions[number - 1].counter, write);
            Total& total = instructions[number - 1].total[is_shared];
            if (!counted[is_shared]) counted[is_shared] = true, total.requests++, total.lanes++;
            total.bytes += span.bytes, total.unique_bytes += span.bytes;
            if (is_shared) continue;
            const uintptr_t at = uintptr_t(span.global);
            total.sectors += (at + span.bytes - 1) / SECTOR - at / SECTOR + 1;
            total.ideal_sectors += (span.bytes + SECTOR - 1) / SECTOR;
        }
    }
}

// Of lanes that do the same, one counts.
void count_event(Event event, const Thread& thread, unsigned amount, unsigned long serial)
{
    const Index& block = thread.block->index;
    if (!counting || happened.size() >= MOST_EVENTS || block.x || block.y || block.z) return;
    const bool of_warp = event != Event::Copy && event != Event::Arrived;
    if (of_warp && thread.lane != unsigned(__builtin_ctz(thread.warp->alive))) return;
    happened.push_back({unsigned(event), thread.rank / WARP, amount, unsigned(serial)});
}

void count_product(bool asynchronous, unsigned count)
{
    if (!counting) return;
    products[asynchronous] += count;
    count_event(Event::Product, *running->warp->lanes[__builtin_ctz(running->warp->alive)], count);
}

void count_barrier(const void* caller)
{
    if (!counting || running->lane != unsigned(__builtin_ctz(running->warp->alive))) return;
    count_event(Event::Barrier, *running);
    if (const unsigned number = number_at(caller, false, Way::Barrier)) {
        Total& total = instructions[number - 1].total[1];
        total.requests++, total.lanes += unsigned(__builtin_popcount(running->warp->alive));
    }
}

}  // namespace rung_emulator

using namespace rung_emulator;

extern "C" {

RUNG_API void rung_matrix_row(const void* address)
{
    count_access(uintptr_t(address), 16, false, Way::Matrix, __builtin_return_address(0));
}

// At the start of each basic block.
RUNG_API void __sanitizer_cov_trace_pc()
{
    if (!counting || !running || meeting_lanes) return;
    if (running != now.thread) set_now();
    const uintptr_t counter = uintptr_t(__builtin_return_address(0)) - now.code;
    if (counter >= now.code_bytes) return;
    unsigned& number = block_at[counter];
    if (!number) executed.push_back({unsigned(counter), 0, 0}), number = unsigned(executed.size());
    std::vector<unsigned>& mine = now.counters->executed;
    if (mine.size() < number * WARP) mine.resize(executed.size() * WARP);
    mine[(number - 1) * WARP + now.lane]++;
}

RUNG_API void rung_count_products(unsigned count) { count_product(false, count); }

// Blocks that the last launch executed, one row of counter, lanes and warps for each; returns how many there are. The two
// kinds of products of tensor cores are in `tensor`.
RUNG_API unsigned rung_executed(unsigned long long (*rows)[3], unsigned long long (*tensor)[2], unsigned room)
{
    for (unsigned i = 0; i < executed.size() && i < room; i++)
        rows[i][0] = executed[i].counter, rows[i][1] = executed[i].lanes, rows[i][2] = executed[i].warps;
    (*tensor)[0] = products[0], (*tensor)[1] = products[1];
    return unsigned(executed.size());
}

// The first block's events: kind, warp, bytes or products, number of the copy; returns how many there are.
RUNG_API unsigned rung_happened(unsigned (*rows)[4], unsigned room)
{
    for (unsigned i = 0; i < happened.size() && i < room; i++) memcpy(rows[i], &happened[i], sizeof *rows);
    return unsigned(happened.size());
}

// Keeps so many requests of each launch from now on; `rows` are those of the last one.
RUNG_API void rung_trace(unsigned room) { trace_room = room; }

RUNG_API unsigned rung_traced(unsigned long long (*rows)[TRACE_HEAD + WARP], unsigned room)
{
    for (unsigned i = 0; i < traced.size() && i < room; i++) memcpy(rows[i], &traced[i], sizeof *rows);
    return unsigned(traced.size());
}

// In the next launch, accesses at `counter` are parts of ones of `width` bytes that the machine code makes on `line`. 0 forgets all.
RUNG_API void rung_count_width(unsigned counter, int write, unsigned width, unsigned line)
{
    if (!width) wide_at[0].clear(), wide_at[1].clear();
    else wide_at[write][counter] = {width, line};
}

constexpr unsigned FIGURES = 13, SAMPLE = 3 + WARP;

// What the last launch counted, one row for each instruction and memory; returns how many there are. `samples` are the worst
// requests: lanes, bytes of each, place within a line, distances from the first lane.
RUNG_API unsigned rung_counted(unsigned long long (*rows)[FIGURES], long long (*samples)[SAMPLE], unsigned room)
{
    unsigned count = 0;
    for (const Instruction& i : instructions)
        for (unsigned memory = 0; memory < 2; memory++) {
            const Total& t = i.total[memory];
            if (!t.requests && !t.bytes) continue;
            if (count < room) {
                const unsigned long long row[FIGURES] = {i.counter, memory, i.write, (unsigned long long)i.way, t.requests, t.lanes,
                    t.bytes, t.unique_bytes, t.sectors, t.lines, t.ideal_sectors, t.wavefronts, t.ideal_wavefronts};
                memcpy(rows[count], row, sizeof row);
                const bool mine = i.worst.lanes && i.worst.shared == (memory == 1);
                samples[count][0] = mine ? i.worst.lanes : 0, samples[count][1] = i.worst.bytes, samples[count][2] = i.worst.phase;
                for (unsigned lane = 0; lane < WARP; lane++) samples[count][3 + lane] = i.worst.apart[lane];
            }
            count++;
        }
    return count;
}

RUNG_API unsigned long long rung_counted_early() { return cut; }

}  // extern "C"
