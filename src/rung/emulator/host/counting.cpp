// `rung count PROGRAM.cu`: a launch executes the kernel's machine code in place of its body, which is a stub. emulator/counting.py
// writes the list of the kernels and reads the counts. Device memory is the program's own, and so are the kernels' variables.
#include "host.h"

#include "../machine/entry.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <map>

extern "C" void* rung_heap_malloc(size_t bytes);
extern "C" const char* rung_heap_release(void* pointer);

namespace rung_host {
namespace {

struct Constant { size_t offset, size; const char* value; };  // a __constant__ variable, and where the program has it
struct Module
{
    char* sections[4];  // constant banks 3 and 4; __device__ variables without and with initial values
    size_t sizes[4];
    std::vector<Constant> constants;
};
struct Code
{
    size_t size;
    Module* module;
    unsigned number, start, constants, shared, local;
    std::string refused, text, table;
    std::vector<std::pair<unsigned, unsigned>> parameters;  // offset and size
    void* program = nullptr;
    size_t instructions = 0;
};
struct Request { std::array<uint64_t, 12> figures = {}; std::array<int64_t, 36> sample = {}; };
struct Sum  // over the launches of one kernel in one form
{
    unsigned long launches = 0;
    std::vector<std::array<uint64_t, 2>> tally;
    std::map<std::array<uint64_t, 3>, Request> requests;  // by instruction, memory and direction
};
struct Pending { const Call* call; const Configuration* how; };

std::map<size_t, Code>& codes() { static auto& all = *new std::map<size_t, Code>; return all; }  // by the address in the executable
using Form = std::array<unsigned, 12>;  // kernel, grid, block, cluster, shared memory, whether it is cooperative
std::vector<std::pair<Form, Sum>>& sums() { static auto& all = *new std::vector<std::pair<Form, Sum>>; return all; }
thread_local Pending pending;

const char* const KINDS[] = {"", "barrier", "deadlock", "bounds", "shared", "unsupported", "trap", "race", "async"};

cudaError_t error_of(const rung_machine_fault& fault)
{
    switch (fault.kind) {
        case RUNG_BOUNDS: return fault.misaligned ? cudaErrorMisalignedAddress : cudaErrorIllegalAddress;
        case RUNG_DEADLOCK: case RUNG_BARRIER: return cudaErrorLaunchTimeout;
        case RUNG_TRAP: return fault.asserts ? cudaErrorAssert : cudaErrorLaunchFailure;
        default: return cudaErrorLaunchFailure;
    }
}

template <class F> F* machine(F*, const char* name)
{
    static void* const library = dlopen(getenv("RUNG_MACHINE"), RTLD_NOW);
    void* const found = library ? dlsym(library, name) : nullptr;
    if (!found) fprintf(stderr, "rung: %s\n", dlerror()), exit(2);
    return reinterpret_cast<F*>(found);
}
#define MACHINE(name) machine(rung_machine_##name, "rung_machine_" #name)

std::string contents(const std::string& path)
{
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
}

char* aligned(const std::string& data)
{
    return static_cast<char*>(memcpy(aligned_alloc(512, (data.size() / 512 + 1) * 512), data.data(), data.size()));
}

int first_image(dl_phdr_info* info, size_t, void* data) { return *static_cast<size_t*>(data) = info->dlpi_addr, 1; }
size_t base()
{
    static const size_t found = [] { size_t at = 0; dl_iterate_phdr(first_image, &at); return at; }();
    return found;
}

void add_counts(const Code& code, Sum& sum)
{
    std::vector<std::array<uint64_t, 2>> tally(code.instructions);
    MACHINE(tally)(code.program, reinterpret_cast<uint64_t(*)[2]>(tally.data()));
    sum.tally.resize(tally.size());
    for (size_t i = 0; i < tally.size(); i++) sum.tally[i][0] += tally[i][0], sum.tally[i][1] += tally[i][1];
    std::vector<std::array<uint64_t, 12>> figures(2 * tally.size());
    std::vector<std::array<int64_t, 36>> samples(figures.size());
    const unsigned count = MACHINE(memory)(code.program, reinterpret_cast<uint64_t(*)[12]>(figures.data()),
                                           reinterpret_cast<int64_t(*)[36]>(samples.data()), unsigned(figures.size()));
    for (unsigned i = 0; i < count; i++) {
        Request& one = sum.requests[{figures[i][0], figures[i][1], figures[i][2]}];
        std::copy_n(figures[i].begin(), 3, one.figures.begin());
        for (size_t k = 3; k < 12; k++) one.figures[k] += figures[i][k];
        if (samples[i][0] && (!one.sample[0] || samples[i][3] > one.sample[3])) one.sample = samples[i];  // the worse one
    }
}

void execute(Code& code, const Call& call, const Configuration& how, void** parameters)
{
    const std::string site = place_of_call(call.site);
    if (!code.refused.empty()) {
        tell(FAULTED, "unsupported", "kernel '" + std::string(call.name) + "'" + code.refused, site);
        return stick(cudaErrorLaunchFailure);
    }
    if (!code.program) {
        const std::string text = contents(code.text);
        code.program = MACHINE(load)(text.c_str()), code.instructions = size_t(std::count(text.begin(), text.end(), '\n'));
        MACHINE(name)(code.program, call.name, contents(code.text + ".lines").c_str());
    }
    Module& module = *code.module;
    for (const Constant& one : module.constants) memcpy(module.sections[0] + one.offset, one.value, one.size);
    std::string first(std::max(code.constants, code.start), '\0');
    for (size_t i = 0; i < code.parameters.size(); i++)
        memcpy(&first[code.start + code.parameters[i].first], parameters[i], code.parameters[i].second);
    char* const bank = aligned(first);
    rung_machine_launch launch = {{how.grid.x, how.grid.y, how.grid.z}, {how.block.x, how.block.y, how.block.z},
                                  {how.cluster.x, how.cluster.y, how.cluster.z}};
    launch.shared_bytes = code.shared + unsigned(how.shared), launch.local_bytes = code.local, launch.cooperative = how.cooperative;
    const std::pair<const void*, size_t> banks[] = {
        {bank, first.size()}, {}, {code.table.data(), code.table.size()}, {module.sections[0], module.sizes[0]}, {module.sections[1], module.sizes[1]}};
    for (size_t i = 0; i < 5; i++) launch.bank[i] = banks[i].first, launch.bank_bytes[i] = unsigned(banks[i].second);
    launch.parameters = code.start, launch.seconds = settings().seconds, launch.prints = true;
    launch.allocate = rung_heap_malloc, launch.release = rung_heap_release;
    rung_machine_fault fault = {};
    const int failed = MACHINE(run)(code.program, &launch, &fault);
    free(bank);
    if (failed) {
        const void* const at = reinterpret_cast<void*>(fault.address);
        const std::string operand = fault.space != RUNG_GLOBAL_SPACE ? "" : (fault.address < 1 << 16 ? "" : "touches ") + describe(at);
        char said[2048] = "";
        MACHINE(sentence)(code.program, &fault, launch.block, operand.c_str(), said, sizeof said);
        tell(fault.kind == RUNG_RACE ? RACED : FAULTED, KINDS[fault.kind], said, site);
        return stick(error_of(fault));
    }
    const dim3 &g = how.grid, &b = how.block, &c = how.cluster;
    const Form form = {code.number, g.x, g.y, g.z, b.x, b.y, b.z, c.x, c.y, c.z, unsigned(how.shared), how.cooperative};
    auto found = std::find_if(sums().begin(), sums().end(), [&](const auto& one) { return one.first == form; });
    if (found == sums().end()) found = sums().insert(found, {form, Sum()});
    found->second.launches++;
    add_counts(code, found->second);
}

}  // namespace

bool counting() { return getenv("RUNG_COUNTED") != nullptr; }

void run_machine_code(const Call& call, const Configuration& how)
{
    pending = {&call, &how};
    call.enter(call.values);
}

// Lines: `module`; `section PATH` for each of four; `place SECTION OFFSET absolute|program|section VALUE [SECTION]`; `constant OFFSET SIZE
// ADDRESS` and `initial SECTION OFFSET SIZE ADDRESS` of the program's own variables; `kernel ADDRESS SIZE NUMBER`, and then its parts.
void begin_counting()
{
    std::ifstream list(getenv("RUNG_COUNTED"));
    Module* module = nullptr;
    unsigned sections = 0;
    const auto number = [&] { size_t value = 0; list >> value; return value; };
    const auto word = [&] { std::string value; list >> value; return value; };
    const auto rest = [&] { std::string value; std::getline(list >> std::ws, value); return value; };
    for (std::string kind; list >> kind;) {
        if (kind == "module") module = new Module{}, sections = 0;
        else if (kind == "section") {
            const std::string data = contents(rest());
            module->sections[sections] = aligned(data), module->sizes[sections++] = data.size();
        } else if (kind == "place") {
            char* const to = module->sections[number()];
            const size_t offset = number();
            const std::string where = word();
            size_t value = number();
            value += where == "program" ? base() : where == "section" ? size_t(module->sections[number()]) : 0;
            memcpy(to + offset, &value, sizeof value);
        } else if (kind == "constant") {
            const size_t offset = number(), size = number();
            module->constants.push_back({offset, size, reinterpret_cast<char*>(base() + number())});
        } else if (kind == "initial") {
            const char* const from = module->sections[number()] + number();
            const size_t size = number();
            memcpy(reinterpret_cast<char*>(base() + number()), from, size);
        } else if (kind == "kernel") {
            const size_t address = number();
            Code& code = codes()[address];
            code.module = module, code.size = number(), code.number = unsigned(number());
            code.start = unsigned(number()), code.constants = unsigned(number()), code.shared = unsigned(number()), code.local = unsigned(number());
            for (size_t i = number(); i; i--) code.parameters.emplace_back(unsigned(number()), 0), code.parameters.back().second = unsigned(number());
            code.refused = rest(), code.text = rest();
            if (code.refused == "-") code.refused.clear();
            code.table = contents(code.text + ".table");
        }
    }
}

// A line for each form of launch, each instruction that was executed, and each row of requests.
void write_counts()
{
    FILE* const file = fopen(getenv("RUNG_COUNTS"), "w");
    if (!file) return;
    for (const auto& [form, sum] : sums()) {
        fprintf(file, "launch %lu", sum.launches);
        for (unsigned one : form) fprintf(file, " %u", one);
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
    const size_t at = size_t(__builtin_return_address(0)) - base();
    auto found = codes().upper_bound(at);
    if (found == codes().begin() || at > (--found)->first + found->second.size) {
        fprintf(stderr, "rung: no machine code has the kernel '%s'\n", pending.call->name);
        exit(2);
    }
    execute(found->second, *pending.call, *pending.how, parameters);
}
