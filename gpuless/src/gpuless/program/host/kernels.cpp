// A launch executes the kernel's machine code: the body of each kernel in the host's part is a stub. Device memory is
// the program's own, and so are the kernels' variables. For `rung count` what is counted is written at the end
// (emulator/counting.py).
#include "host.h"
#include "modules.h"

#include "../../machine/entry.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <set>

extern "C" void* rung_heap_malloc(size_t bytes);
extern "C" const char* rung_heap_release(void* pointer);

namespace rung_host {
namespace {

struct Constant
{
    size_t offset, size;
    const char* value;
};  // a __constant__ variable, and where the program has it
struct Module
{
    char* sections[4];
    size_t sizes[4];
    std::vector<Constant> constants;
    std::vector<std::pair<char*, size_t>> variables;  // the program's
};
struct Code
{
    size_t size;
    Module* module;
    std::string cubin, source, name, refused, text, lines, table;
    unsigned start, constants, shared, local, registers;
    std::vector<std::pair<unsigned, unsigned>> parameters;       // offset and size
    std::vector<std::pair<unsigned, std::string>> shared_names;  // offset and name
    std::vector<std::string> places;
    bool starts_next = false;  // before it ends
    void* program = nullptr;
    size_t instructions = 0;
};
struct Request
{
    std::array<uint64_t, 12> figures = {};
    std::array<int64_t, 36> sample = {};
};
struct Sum  // over the launches of one kernel in one form
{
    const Code* code;
    std::array<unsigned, 11> form;  // grid, block, cluster, shared memory, whether it is cooperative
    unsigned long launches = 0;
    std::vector<std::array<uint64_t, 2>> tally;
    std::map<std::array<uint64_t, 3>, Request> requests;  // by instruction, memory and direction
    rung_machine_prediction made = {};
    std::vector<std::array<double, 12>> stalls;  // of each instruction
};
constexpr unsigned RESERVED_SHARED = 1024;  // before a block's own, in sm_90's code, which programs are
struct Pending
{
    const Call* call;
    const Configuration* how;
    double race_seconds;
};

auto& modules = *new std::vector<Module*>;
auto& codes = *new std::map<const char*, Code>;  // by the address of the stub
auto& sums = *new std::vector<Sum>;
thread_local Pending pending;

const char* const KINDS[] = {"",     "barrier", "deadlock", "bounds",    "shared",    "unsupported",
                             "trap", "race",    "async",    "unwritten", "unfinished"};

cudaError_t error_of(const rung_machine_fault& fault)
{
    switch (fault.kind) {
    case RUNG_BOUNDS: return fault.misaligned ? cudaErrorMisalignedAddress : cudaErrorIllegalAddress;
    case RUNG_DEADLOCK:
    case RUNG_BARRIER: return cudaErrorLaunchTimeout;
    case RUNG_TRAP: return fault.asserts ? cudaErrorAssert : cudaErrorLaunchFailure;
    default: return cudaErrorLaunchFailure;
    }
}

char* aligned(const std::string& data)
{ return static_cast<char*>(memcpy(aligned_alloc(512, (data.size() / 512 + 1) * 512), data.data(), data.size())); }

std::vector<std::string> lines_of(const std::string& text)
{
    std::vector<std::string> found;
    for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1)
        found.push_back(shown(text.substr(at, end - at).c_str()));
    return found;
}

void read_module(const Record& record)
{
    Reader read(record);
    const std::string cubin = read.line(), source = read.line();
    read.piece();
    Module* const module = new Module{};
    modules.push_back(module);
    unsigned sections = 0;
    for (std::string kind; read.word(kind);) {
        if (kind == "symbol") {
            const std::string what = read.word();
            char* const address = record.addresses[read.number()];
            const size_t size = read.number();
            if (what == "variable") module->variables.emplace_back(address, size);
            read.word();
        } else if (kind == "section") {
            const std::string data = read.piece();
            module->sections[sections] = aligned(data), module->sizes[sections++] = data.size();
        } else if (kind == "place") {
            char* const to = module->sections[read.number()];
            const size_t offset = read.number();
            const std::string where = read.word();
            size_t value = read.number();
            value += where == "program"   ? size_t(record.addresses[read.number()])
                     : where == "section" ? size_t(module->sections[read.number()])
                                          : 0;
            memcpy(to + offset, &value, sizeof value);
        } else if (kind == "constant") {
            const size_t offset = read.number(), size = read.number();
            module->constants.push_back({offset, size, record.addresses[read.number()]});
        } else if (kind == "initial") {
            const char* const section = module->sections[read.number()];
            const size_t offset = read.number(), size = read.number();
            memcpy(record.addresses[read.number()], section + offset, size);
        } else if (kind == "kernel") {
            const char* const address = record.addresses[read.number()];
            Code code = {};
            code.module = module, code.cubin = cubin, code.source = source, code.size = read.number(),
            code.name = read.word(), code.refused = read.line();
            if (code.refused == "-") {
                code.refused.clear();
                code.start = unsigned(read.number()), code.constants = unsigned(read.number()),
                code.shared = unsigned(read.number());
                code.local = unsigned(read.number()), code.registers = unsigned(read.number());
                for (size_t i = read.number(); i; i--)
                    code.parameters.emplace_back(unsigned(read.number()), 0),
                        code.parameters.back().second = unsigned(read.number());
                for (size_t i = read.number(); i; i--)
                    code.shared_names.emplace_back(unsigned(read.number()), ""),
                        code.shared_names.back().second = read.word();
                code.text = read.piece(), code.lines = read.piece(), code.table = read.piece();
            }
            codes.emplace(address, std::move(code));
        }
    }
}

void add_counts(const Code& code, Sum& sum)
{
    std::vector<std::array<uint64_t, 2>> tally(code.instructions);
    rung_machine_tally(code.program, reinterpret_cast<uint64_t (*)[2]>(tally.data()));
    sum.tally.resize(tally.size());
    for (size_t i = 0; i < tally.size(); i++) sum.tally[i][0] += tally[i][0], sum.tally[i][1] += tally[i][1];
    std::vector<std::array<uint64_t, 12>> figures(2 * tally.size());
    std::vector<std::array<int64_t, 36>> samples(figures.size());
    const unsigned count =
        rung_machine_memory(code.program, reinterpret_cast<uint64_t (*)[12]>(figures.data()),
                            reinterpret_cast<int64_t (*)[36]>(samples.data()), unsigned(figures.size()));
    for (unsigned i = 0; i < count; i++) {
        Request& one = sum.requests[{figures[i][0], figures[i][1], figures[i][2]}];
        std::copy_n(figures[i].begin(), 3, one.figures.begin());
        for (size_t k = 3; k < 12; k++) one.figures[k] += figures[i][k];
        if (samples[i][0] && (!one.sample[0] || samples[i][3] > one.sample[3]))
            one.sample = samples[i];  // the worse one
    }
}

Sum& sum_of(const Code& code, const Configuration& how)
{
    const dim3 &g = how.grid, &b = how.block, &c = how.cluster;
    const std::array<unsigned, 11> form = {
        g.x, g.y, g.z, b.x, b.y, b.z, c.x, c.y, c.z, unsigned(how.shared), how.cooperative};
    auto found =
        std::find_if(sums.begin(), sums.end(), [&](const Sum& one) { return one.code == &code && one.form == form; });
    if (found == sums.end()) found = sums.insert(found, Sum{&code, form});
    return *found;
}

// For `rung count --time`: the constants of the model of time. Then only the blocks that stand for a grid are executed.
const std::vector<double>& constants()
{
    static const auto& given = *[] {
        std::istringstream words(getenv("RUNG_CONSTANTS") ? getenv("RUNG_CONSTANTS") : "");
        return new std::vector<double>(std::istream_iterator<double>(words), {});
    }();
    return given;
}
bool predicting() { return !constants().empty(); }

int predicted(const Code& code, const Call& call, const Configuration& how, const rung_machine_launch& launch,
              rung_machine_fault& fault)
{
    Sum& sum = sum_of(code, how);
    if (sum.launches++) return 0;  // it takes as long as the first
    const int resident = blocks_at_once(how.block.x * how.block.y * how.block.z, code.registers, launch.shared_bytes);
    if (getenv("RUNG_COLD")) rung_machine_cold();
    sum.stalls.resize(code.instructions);
    return rung_machine_predict(code.program, &launch, constants().data(), unsigned(std::max(1, resident)),
                                launch.shared_bytes + device().reservedSharedMemPerBlock, HUGE_VAL, &sum.made,
                                reinterpret_cast<double (*)[12]>(sum.stalls.data()), &fault);
}

// What kernels may touch.
std::vector<rung_machine_region> regions()
{
    std::vector<rung_machine_region> found;
    const auto add = [&](const void* from, size_t bytes) {
        if (bytes) found.push_back({uint64_t(from), uint64_t(from) + bytes, 0});
    };
    each_allocation([&](const Allocation& one) { add(one.start, one.bytes); });
    for (const Module* module : modules) {
        for (const auto& [from, bytes] : module->variables) add(from, bytes);
        for (size_t i = 0; i < 4; i++) add(module->sections[i], module->sizes[i]);
    }
    size_t bytes = 0;
    if (const void* const heap = heap_memory(&bytes)) add(heap, bytes);
    return found;
}

std::string operand_of(const Code& code, const rung_machine_fault& fault)
{
    if (fault.space == RUNG_GLOBAL_SPACE) {
        const std::string what = describe(reinterpret_cast<void*>(fault.address));
        return fault.kind == RUNG_RACE || fault.kind == RUNG_UNWRITTEN || fault.misaligned || fault.address < 1 << 16
                   ? what
                   : "touches " + what;
    }
    if (fault.space != RUNG_SHARED_SPACE) return "";
    const std::pair<unsigned, std::string>* nearest = nullptr;
    const uint64_t at = fault.address - 1024;  // behind what the system takes
    for (const auto& one : code.shared_names)
        if (one.first <= at && (!nearest || one.first >= nearest->first)) nearest = &one;
    return nearest ? "shared variable '" + nearest->second + "', byte " + std::to_string(at - nearest->first)
                   : "shared memory";
}

Place place_of(const Code& code, const rung_where& where, const dim3& block, const char* kernel)
{
    Place place;
    place.kernel = kernel;
    if (where.instruction < 0) return place;
    if (size_t(where.instruction) < code.places.size()) {
        const std::string& line = code.places[size_t(where.instruction)];
        const size_t colon = line.rfind(':');
        if (colon != std::string::npos) place.file = line.substr(0, colon), place.line = atoi(line.c_str() + colon + 1);
    }
    place.block = {where.block[0], where.block[1], where.block[2]};
    if (where.lane < 32)
        place.thread = {where.thread % block.x, where.thread / block.x % block.y, where.thread / (block.x * block.y)};
    return place;
}

bool begin_code(Code& code, const Call& call)
{
    if (!code.refused.empty()) {
        tell(FAULTED, {"unsupported", code.refused, call.site});
        stick(cudaErrorLaunchFailure);
        return false;
    }
    if (code.program) return true;
    code.program = rung_machine_load(code.text.c_str()),
    code.instructions = size_t(std::count(code.text.begin(), code.text.end(), '\n'));
    code.places = lines_of(code.lines), code.starts_next = code.text.find("PREEXIT") != std::string::npos;
    std::string places;
    for (const std::string& place : code.places) places += place + "\n";
    rung_machine_name(code.program, call.name, places.c_str());
    return true;
}

std::string sentence_of(const Code& code, const rung_machine_fault& fault, const uint32_t* block)
{
    char said[2048] = "";
    rung_machine_sentence(code.program, &fault, block, operand_of(code, fault).c_str(), said, sizeof said);
    return said;
}

// A kernel goes on behind its reads of what nothing has written. In local memory they may be the compiler's, such as of
// an array that is copied whole: they are told only if the program fails.
void tell_unwritten(const Code& code, const Call& call, const Configuration& how, const uint32_t* block)
{
    static auto& told = *new std::set<std::pair<const Code*, int>>;
    rung_machine_fault fault;
    for (uint32_t space = RUNG_GLOBAL_SPACE; space <= RUNG_LOCAL_SPACE; space++) {
        if (!rung_machine_unwritten(space, &fault) || !told.emplace(&code, fault.at.instruction).second) continue;
        const std::string said = sentence_of(code, fault, block);
        if (space != RUNG_LOCAL_SPACE)
            tell(FAULTED, {"unwritten", said, call.site, place_of(code, fault.at, how.block, call.name)});
        else
            note_if_failed(said);
    }
}

void execute(Code& code, const Call& call, const Configuration& how, double race_seconds, void** parameters)
{
    if (!begin_code(code, call)) return;
    Module& module = *code.module;
    for (const Constant& one : module.constants) memcpy(module.sections[0] + one.offset, one.value, one.size);
    std::string first(std::max(code.constants, code.start), '\0');
    for (size_t i = 0; i < code.parameters.size(); i++)
        memcpy(&first[code.start + code.parameters[i].first], parameters[i], code.parameters[i].second);
    char* const bank = aligned(first);
    rung_machine_launch launch = {{how.grid.x, how.grid.y, how.grid.z},
                                  {how.block.x, how.block.y, how.block.z},
                                  {how.cluster.x, how.cluster.y, how.cluster.z}};
    launch.shared_bytes = code.shared + unsigned(how.shared), launch.reserved_shared = RESERVED_SHARED,
    launch.local_bytes = code.local, launch.cooperative = how.cooperative;
    const std::pair<const void*, size_t> banks[] = {{bank, first.size()},
                                                    {},
                                                    {code.table.data(), code.table.size()},
                                                    {module.sections[0], module.sizes[0]},
                                                    {module.sections[1], module.sizes[1]}};
    for (size_t i = 0; i < 5; i++) launch.bank[i] = banks[i].first, launch.bank_bytes[i] = unsigned(banks[i].second);
    launch.parameters = code.start, launch.seconds = settings().seconds, launch.prints = true;
    launch.allocate = rung_heap_malloc, launch.release = rung_heap_release, launch.progress = tell_progress;
    const std::vector<rung_machine_region> touched = regions();
    launch.regions = touched.data(), launch.region_count = unsigned(touched.size());
    launch.order = unsigned(settings().order), launch.seed = settings().seed, launch.races = race_seconds > 0,
    launch.race_seconds = race_seconds, launch.registers = code.registers;
    launch.uncounted = !counting();
    launch.multiprocessors = unsigned(device().multiProcessorCount);
    launch.poison = 1 + settings().seed % 5;  // the first: what reads it is known
    static unsigned long last_moment;
    launch.dependent = how.dependent && moment() == last_moment + 1,
    launch.followed = settings().races &&
                      (code.starts_next || beside() || host_accessed(present_work()));  // else all before it has ended
    last_moment = moment();
    rung_machine_fault fault = {};
    const int failed =
        predicting() ? predicted(code, call, how, launch, fault) : rung_machine_run(code.program, &launch, &fault);
    free(bank);
    if (failed) {
        Told told = {KINDS[fault.kind], sentence_of(code, fault, launch.block), call.site,
                     place_of(code, fault.at, how.block, call.name)};
        if (fault.kind == RUNG_UNFINISHED) told.text += " (RUNG_SECONDS is the limit of a launch)";
        if (fault.kind == RUNG_RACE) told.other = place_of(code, fault.other, how.block, call.name);
        tell(fault.kind == RUNG_RACE ? RACED : FAULTED, told);
        return stick(error_of(fault));
    }
    tell_unwritten(code, call, how, launch.block);
    ran(uint64_t(how.grid.x) * how.grid.y * how.grid.z, uint64_t(how.block.x) * how.block.y * how.block.z, call);
    if (host_accessed(present_work())) {
        const auto take = [](void*, uint64_t line, uint32_t read, uint32_t written, uint32_t plain) {
            touched_beside_host(present_work(), line, read, written, plain);
        };
        rung_machine_touched(take, nullptr);
    }
    if (settings().races && beside()) {
        const auto take = [](void* of, uint64_t line, uint32_t read, uint32_t written, uint32_t plain) {
            const Call& call = *static_cast<const Call*>(of);
            if (!in_heap(reinterpret_cast<void*>(line * 128)))
                touch("kernel '" + std::string(call.name) + "'", call.site, line, read, written, plain);
        };
        rung_machine_touched(take, const_cast<Call*>(&call));
    }
    if (!counting() || predicting()) return;
    Sum& sum = sum_of(code, how);
    sum.launches++;
    add_counts(code, sum);
}

Code* code_at(const char* address)
{
    auto found = codes.upper_bound(address);
    return found == codes.begin() || address > (--found)->first + found->second.size ? nullptr : &found->second;
}

}  // namespace

bool counting() { return getenv("RUNG_COUNTS") != nullptr; }

void begin_modules(const Record* first, const Record* last)
{
    begin_program();
    for (; first < last; first++) read_module(*first);
}

void run_machine_code(const Call& call, const Configuration& how, double race_seconds)
{
    pending = {&call, &how, race_seconds};
    call.enter(call.values);
}

bool is_variable(const void* address)
{
    for (const Module* module : modules)
        for (const auto& [from, bytes] : module->variables)
            if (address >= from && address < from + bytes) return true;
    return false;
}

const KernelFacts* facts_of(const void* kernel)
{
    static KernelFacts facts;
    const auto found = codes.find(static_cast<const char*>(kernel));
    if (found == codes.end()) return nullptr;
    facts = {found->second.registers, found->second.shared, found->second.local};
    return &facts;
}

// A line for each form of launch, each instruction that was executed, and each row of requests.
void write_counts()
{
    FILE* const file = fopen(getenv("RUNG_COUNTS"), "w");
    if (!file) return;
    for (const Sum& sum : sums) {
        fprintf(file, "launch %lu", sum.launches);
        for (unsigned one : sum.form) fprintf(file, " %u", one);
        fprintf(file, "\ncode %s\n%s\n%s", sum.code->name.c_str(), sum.code->cubin.c_str(), sum.code->source.c_str());
        if (predicting()) {
            fprintf(file, "\nsimulated %a %u %u %a %u", sum.made.clocks, sum.made.resident, sum.made.together,
                    sum.made.atomic_clocks, sum.made.swaps);
            for (size_t i = 0; i < sum.stalls.size(); i++)
                for (size_t why = 0; why < sum.stalls[i].size(); why++)
                    if (sum.stalls[i][why] > 0) fprintf(file, "\nstall %zu %zu %a", i, why, sum.stalls[i][why]);
        }
        for (size_t i = 0; i < sum.tally.size(); i++)
            if (sum.tally[i][0]) fprintf(file, "\ntally %zu %lu %lu", i, sum.tally[i][0], sum.tally[i][1]);
        for (const auto& [_, request] : sum.requests) {
            fprintf(file, "\nrequest");
            for (uint64_t one : request.figures) fprintf(file, " %lu", one);
            for (int64_t one : request.sample) fprintf(file, " %ld", one);
        }
        fprintf(file, "\n");
    }
    fclose(file);
}

}  // namespace rung_host

using namespace rung_host;

// What the body of each kernel calls in the host's code, with the addresses of its parameters.
RUNG_HOST __attribute__((noinline)) void rung_stub(void** parameters)
{
    Code* const code = code_at(static_cast<const char*>(__builtin_return_address(0)));
    if (!code) {
        fprintf(stderr, "rung: no machine code has the kernel '%s'\n", pending.call->name);
        exit(2);
    }
    execute(*code, *pending.call, *pending.how, pending.race_seconds, parameters);
}
