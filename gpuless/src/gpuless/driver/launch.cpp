// Launches: their checks, when races are looked for, and the run on the machine.
#include "graphs.h"
#include "modules.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <algorithm>
#include <array>
#include <tuple>

namespace gpuless {

extern uint64_t module_changes;
void count(const Code& code, const Configuration& how);
bool predicting();
int predicted(const Code& code, const Configuration& how, const rung_machine_launch& launch, rung_machine_fault& fault);

namespace {

constexpr char OF_CUDA[] = "cuda";  // in a line's place in module files (modules.py)
const char* const KINDS[] = {"",     "barrier", "deadlock", "bounds",    "shared",    "unsupported",
                             "trap", "race",    "async",    "unwritten", "unfinished"};

CUresult error_of(const rung_machine_fault& fault)
{
    switch (fault.kind) {
    case RUNG_BOUNDS: return fault.misaligned ? CUDA_ERROR_MISALIGNED_ADDRESS : CUDA_ERROR_ILLEGAL_ADDRESS;
    case RUNG_DEADLOCK:
    case RUNG_BARRIER: return CUDA_ERROR_LAUNCH_TIMEOUT;
    case RUNG_TRAP: return fault.asserts ? CUDA_ERROR_ASSERT : CUDA_ERROR_LAUNCH_FAILED;
    default: return CUDA_ERROR_LAUNCH_FAILED;
    }
}

bool of_cuda(const Code& code, int instruction)  // its line lies in CUDA's own headers
{ return instruction >= 0 && size_t(instruction) < code.of_cuda.size() && code.of_cuda[size_t(instruction)]; }

std::vector<std::string> lines_of(const std::string& text)
{
    std::vector<std::string> found;
    for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1)
        found.push_back(shown(text.substr(at, end - at)));
    return found;
}

// What kernels may touch; kept until memory or code changes.
const std::vector<rung_machine_region>& regions()
{
    static auto& found = *new std::vector<rung_machine_region>;
    static uint64_t memory, code;
    static const void* heap;
    size_t bytes = 0;
    const void* const heap_now = heap_memory(&bytes);
    if (!found.empty() && memory == allocations_changed() && code == module_changes && heap == heap_now) return found;
    memory = allocations_changed(), code = module_changes, heap = heap_now;
    found.clear();
    const auto add = [&](const void* from, size_t bytes) {
        if (bytes) found.push_back({uint64_t(from), uint64_t(from) + bytes, 0});
    };
    each_allocation([&](const Allocation& one) { add(one.start, one.bytes); });
    for (const Module* module : modules()) {
        for (size_t i = 0; i < 2; i++) add(module->sections[i], module->sizes[i]);
        for (const auto& [_, one] : module->variables) add(one.address, one.bytes);
    }
    add(heap, heap ? bytes : 0);
    if (found.empty()) found.push_back({1, 2, 0});
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
    const uint64_t at = fault.address - code.reserved();  // behind what the system takes
    for (const auto& one : code.shared_names)
        if (one.first <= at && (!nearest || one.first >= nearest->first)) nearest = &one;
    return nearest ? "shared variable '" + nearest->second + "', byte " + std::to_string(at - nearest->first)
                   : "shared memory";
}

Place place_in(const Code& code, const rung_where& where, const unsigned* block)
{
    Place place;
    place.kernel = code.title;
    if (where.instruction < 0) return place;
    if (size_t(where.instruction) < code.places.size()) {
        const std::string& line = code.places[size_t(where.instruction)];
        const size_t colon = line.rfind(':');
        if (colon != std::string::npos) place.file = line.substr(0, colon), place.line = atoi(line.c_str() + colon + 1);
    }
    place.block = {where.block[0], where.block[1], where.block[2]};
    if (where.lane < 32)
        place.thread = {where.thread % block[0], where.thread / block[0] % block[1],
                        where.thread / (block[0] * block[1])};
    return place;
}

bool begin_code(Code& code, const Site& site)
{
    if (code.program) return true;
    if (code.refused.empty()) {
        code.program = rung_machine_load(code.text.c_str()),
        code.instructions = size_t(std::count(code.text.begin(), code.text.end(), '\n'));
        code.places = lines_of(code.lines), code.starts_next = code.text.find("PREEXIT") != std::string::npos;
        for (const char* const name : {"ATOM", "RED.", "REDG."})
            code.atomics |= code.text.find(name) != std::string::npos;
        for (std::string& place : code.places) {
            code.of_cuda.push_back(place == OF_CUDA);
            if (place == OF_CUDA) place.clear();
        }
        const char* const problem = rung_machine_problem(code.program);
        if (!problem) {
            std::string places;
            for (const std::string& place : code.places) places += place + "\n";
            rung_machine_name(code.program, code.title.c_str(), places.c_str());
            return true;
        }
        const size_t at = strtoul(problem, nullptr, 10);
        const char* const instruction = strchr(problem, ' ');
        code.refused = "kernel '" + code.title + "'" +
                       (at < code.places.size() && !code.places[at].empty() ? ", " + code.places[at] : "") +
                       ": the instruction" + (instruction ? instruction : "") + " is not executed here";
        code.program = nullptr;
    }
    tell(FAULTED, {"unsupported", code.refused, site});
    return false;
}

std::string sentence_of(const Code& code, const rung_machine_fault& fault, const uint32_t* block)
{
    char said[2048] = "";
    rung_machine_sentence(code.program, &fault, block, operand_of(code, fault).c_str(), said, sizeof said);
    return said;
}

// A kernel goes on behind its reads of what nothing has written. In local memory they may be the compiler's, such as of
// an array that is copied whole, and CUDA's own headers pass elements behind an array's end through shared memory,
// whose values they do not use (CUB's partial tiles): these are told only if the program fails.
void tell_unwritten(const Code& code, const Configuration& how, const Site& site)
{
    static auto& told = *new std::set<std::tuple<unsigned, const Code*, int>>;
    rung_machine_fault fault;
    for (uint32_t space = RUNG_GLOBAL_SPACE; space <= RUNG_LOCAL_SPACE; space++) {
        if (!rung_machine_unwritten(space, &fault) || !told.emplace(period(), &code, fault.at.instruction).second)
            continue;
        const std::string said = sentence_of(code, fault, how.block);
        const bool unused = space == RUNG_SHARED_SPACE && of_cuda(code, fault.at.instruction);
        if (space != RUNG_LOCAL_SPACE && !unused)
            tell(FAULTED, {"unwritten", said, site, place_in(code, fault.at, how.block)});
        else
            note_if_failed(said);
    }
}

char* aligned(const std::string& data)
{ return static_cast<char*>(memcpy(aligned_alloc(512, (data.size() / 512 + 1) * 512), data.data(), data.size())); }

std::vector<const void*> pointers_in(const std::string& parameters)
{
    std::vector<const void*> found;
    for (size_t at = 0; at + 8 <= parameters.size(); at += 8) {
        const void* one = nullptr;
        memcpy(&one, &parameters[at], 8);
        if (uintptr_t(one) >> 16) found.push_back(one);
    }
    return found;
}

// What the machine needs besides the constant bank of the parameters.
rung_machine_launch described(const Code& code, const Configuration& how, uint64_t race_steps)
{
    rung_machine_launch launch = {};
    std::copy(how.grid, how.grid + 3, launch.grid), std::copy(how.block, how.block + 3, launch.block);
    std::copy(how.cluster, how.cluster + 3, launch.cluster);
    const Module& module = *code.module;
    launch.shared_bytes = code.shared + unsigned(how.shared), launch.reserved_shared = code.reserved(),
    launch.local_bytes = code.local, launch.cooperative = how.cooperative;
    const std::pair<const void*, size_t> banks[] = {{code.table.data(), code.table.size()},
                                                    {module.sections[0], module.sizes[0]},
                                                    {module.sections[1], module.sizes[1]}};
    for (size_t i = 0; i < 3; i++)
        launch.bank[i + 2] = banks[i].first, launch.bank_bytes[i + 2] = unsigned(banks[i].second);
    launch.parameters = code.start, launch.seconds = settings().seconds, launch.steps = settings().steps,
    launch.prints = true;
    launch.allocate = heap_malloc, launch.release = heap_release, launch.progress = tell_progress;
    const std::vector<rung_machine_region>& touched = regions();
    launch.regions = touched.data(), launch.region_count = unsigned(touched.size());
    launch.order = unsigned(settings().order), launch.seed = settings().seed, launch.races = race_steps > 0,
    launch.race_steps = race_steps, launch.registers = code.registers;
    launch.uncounted = !counting();
    launch.multiprocessors = unsigned(gpu().multiprocessors);
    launch.tiles = code.tiles;
    launch.poison = 1 + settings().seed % 5;  // the first: what reads it is known
    return launch;
}

// What the launch touched, for the conflicts with the host and other streams.
void tell_conflicts(const Code& code, const Site& site)
{
    if (host_accessed(present_work()))
        rung_machine_touched([](void*, uint64_t line, uint32_t read, uint32_t written,
                                uint32_t plain) { touched_beside_host(present_work(), line, read, written, plain); },
                             nullptr);
    if (!settings().races || !beside()) return;
    std::pair<const Code&, const Site&> who{code, site};
    rung_machine_touched(
        [](void* of, uint64_t line, uint32_t read, uint32_t written, uint32_t plain) {
            const auto& [code, site] = *static_cast<std::pair<const Code&, const Site&>*>(of);
            if (!in_heap(reinterpret_cast<void*>(line * 128)))
                touch("kernel '" + code.title + "'", site, line, read, written, plain);
        },
        &who);
}

struct Running
{
    const Code* code;
    const Configuration* how;
    const Site* site;
    bool raced;
} running;

void tell_fault(const rung_machine_fault& fault)
{
    const Code& code = *running.code;
    const unsigned* const block = running.how->block;
    Told told = {KINDS[fault.kind], sentence_of(code, fault, block), *running.site, place_in(code, fault.at, block)};
    if (fault.kind == RUNG_UNFINISHED)
        told.text += " (GPULESS_SECONDS or GPULESS_INSTRUCTIONS is the limit of a launch)";
    if (fault.kind == RUNG_RACE) told.other = place_in(code, fault.other, block);
    const char* const memories[] = {"", "global", "shared", "local"};
    told.memory = memories[fault.space];
    tell(fault.kind == RUNG_RACE ? RACED : FAULTED, told);
}

// A race is told once for two lines; the launch goes on, as a GPU's does. CUDA's own headers count on more than the
// memory model promises (Thrust's unique writes what another block has read before a relaxed flag).
void tell_race(const rung_machine_fault* fault)
{
    static auto& told = *new std::set<std::tuple<unsigned, const Code*, std::string, std::string>>;
    running.raced = true;
    const Code& code = *running.code;
    const auto line = [&](int at) {
        const bool known = at >= 0 && size_t(at) < code.places.size() && !code.places[size_t(at)].empty();
        return known ? code.places[size_t(at)] : std::to_string(at);
    };
    if (of_cuda(code, fault->at.instruction) && of_cuda(code, fault->other.instruction))
        return note_once("races between two lines of CUDA's own headers are not told");
    const std::string one = line(fault->at.instruction), other = line(fault->other.instruction);
    if (told.emplace(period(), &code, std::min(one, other), std::max(one, other)).second) tell_fault(*fault);
}

void tell_made(const rung_machine_fault* fault)
{
    static auto& told = *new std::set<std::tuple<unsigned, const Code*, int>>;
    if (!told.emplace(period(), running.code, fault->at.instruction).second) return;
    tell(FAULTED, {fault->lacks, sentence_of(*running.code, *fault, running.how->block), *running.site,
                   place_in(*running.code, fault->at, running.how->block)});
}

void execute(Code& code, const Configuration& how, const std::string& parameters, uint64_t race_steps, const Site& site)
{
    if (!begin_code(code, site)) return;
    std::string first(std::max<size_t>(code.constants, code.start + parameters.size()), '\0');
    const auto put = [&](unsigned at, auto value) {  // what the driver tells kernels besides what the machine does
        if (at + sizeof value <= (code.start ? code.start : first.size())) memcpy(&first[at], &value, sizeof value);
    };
    const int arch = code.module->arch;
    put(arch < 90 ? 0x50 : arch < 100 ? 0xd0 : 0x120, code.module->sections[0]);  // where constant bank 3 lies
    if (arch < 100) put(0x2c, unsigned(how.shared));
    memcpy(&first[code.start], parameters.data(), parameters.size());
    char* const bank = aligned(first);
    rung_machine_launch launch = described(code, how, race_steps);
    launch.bank[0] = bank, launch.bank_bytes[0] = unsigned(first.size()), launch.race = tell_race;
    if (settings().precision)
        launch.precise = [](const rung_machine_error* error) {
            note_error(place_in(*running.code, error->at, running.how->block), *error);
        };
    else if (settings().numbers)
        launch.made = tell_made;
    static unsigned long last_moment;
    launch.dependent = how.dependent && moment() == last_moment + 1,
    launch.followed = settings().races &&
                      (code.starts_next || beside() || host_accessed(present_work()));  // else all before it has ended
    last_moment = moment();
    rung_machine_fault fault = {};
    running = {&code, &how, &site, false};
    const int failed =
        predicting() ? predicted(code, how, launch, fault) : rung_machine_run(code.program, &launch, &fault);
    free(bank);
    if (!running.raced) tell_unwritten(code, how, site);  // else it may be the race's own
    if (failed) {
        tell_fault(fault);
        if (fault.kind != RUNG_UNSUPPORTED) stick(error_of(fault));  // the machine's own lack does not hide the rest
        return;
    }
    ran(uint64_t(how.grid[0]) * how.grid[1] * how.grid[2], uint64_t(how.block[0]) * how.block[1] * how.block[2],
        code.title, site, pointers_in(parameters));
    tell_conflicts(code, site);
    if (counting() && !predicting()) count(code, how);
}

// How many instructions races are looked for in this launch: in a kernel's launches of one shape until they have
// executed GPULESS_RACE_INSTRUCTIONS, in all launches ten times as many, and in any kernel's first launch.
struct Raced
{
    int64_t of_all = 0;
    std::map<std::array<size_t, 8>, int64_t> of_shape;
    std::set<const Code*> kernels;
};
uint64_t race_steps(const Code& code, Raced& raced, int64_t of_shape)
{
    if (settings().races != 1) return settings().races ? UINT64_MAX : 0;
    const int64_t most = settings().race_steps, left = std::min(most - of_shape, 10 * most - raced.of_all);
    return uint64_t(std::max(left, raced.kernels.insert(&code).second ? most / 3 : 0));
}

void run(Code& code, const Configuration& how, const std::string& parameters, const Site& site)
{
    const uint64_t blocks = uint64_t(how.grid[0]) * how.grid[1] * how.grid[2],
                   threads = blocks * how.block[0] * how.block[1] * how.block[2];
    static auto& raced = *new Raced;
    int64_t& of_shape = raced.of_shape[{size_t(&code), how.grid[0], how.grid[1], how.grid[2], how.block[0],
                                        how.block[1], how.block[2], how.shared}];
    const uint64_t races = race_steps(code, raced, of_shape);
    const double begun = seconds_now();
    begin_heap();
    begin_progress(code.title.c_str());
    execute(code, how, parameters, races, site);
    end_progress();
    fflush(stdout);
    const double seconds = seconds_now() - begun;
    const uint64_t steps = rung_machine_steps();
    of_shape += int64_t(std::min(steps, races)), raced.of_all += int64_t(std::min(steps, races));
    if (settings().races == 1 && steps > races)
        note_once("races: checked in a kernel's first launches of one shape, then in every 16th block (--races "
                  "checks all)");
    note_launch({code.title.c_str(), blocks, threads, steps, seconds, races > 0, code.atomics});
}

CUresult refusal(const Code& code, const Configuration& how)
{
    const Gpu& g = gpu();
    const size_t threads = size_t(how.block[0]) * how.block[1] * how.block[2],
                 blocks = size_t(how.grid[0]) * how.grid[1] * how.grid[2];
    if (!blocks || !threads) return CUDA_ERROR_INVALID_VALUE;
    if (how.block[0] > 1024 || how.block[1] > 1024 || how.block[2] > 64 || threads > 1024)
        return CUDA_ERROR_INVALID_VALUE;
    if (how.grid[0] > 0x7fffffffu || how.grid[1] > 65535 || how.grid[2] > 65535) return CUDA_ERROR_INVALID_VALUE;
    if (threads > code.threads) return CUDA_ERROR_INVALID_VALUE;
    if (!warps_of(code.registers, threads)) return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    const size_t most = size_t(g.shared_kib - g.reserved_kib) << 10;
    if (how.shared > size_t(code.dynamic_limit) || how.shared + code.shared > most) return CUDA_ERROR_INVALID_VALUE;
    const unsigned *const c = how.cluster, cluster = c[0] * c[1] * c[2];
    if (cluster > 1) {
        if (g.major < 9) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
        if (how.grid[0] % c[0] || how.grid[1] % c[1] || how.grid[2] % c[2] || cluster > (code.any_cluster ? 16u : 8u))
            return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    }
    if (how.cooperative && blocks > size_t(active_blocks(code, int(threads), how.shared)) * size_t(g.multiprocessors))
        return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    return CUDA_SUCCESS;
}

}  // namespace

unsigned Code::reserved() const { return module->arch >= 90 ? 1024 : 0; }
unsigned Code::parameter_bytes() const
{
    unsigned end = 0;
    for (const auto& [offset, size] : parameters) end = std::max(end, offset + size);
    return end;
}

CUresult packed(const Code& code, void** values, void** extra, std::string& parameters)
{
    parameters.assign(code.parameter_bytes(), '\0');
    if (values) {
        for (size_t i = 0; i < code.parameters.size(); i++) {
            if (!values[i]) return CUDA_ERROR_INVALID_VALUE;
            memcpy(&parameters[code.parameters[i].first], values[i], code.parameters[i].second);
        }
        return CUDA_SUCCESS;
    }
    const void* buffer = nullptr;
    size_t bytes = 0;
    for (void** one = extra; one && *one != CU_LAUNCH_PARAM_END; one += 2)
        if (*one == CU_LAUNCH_PARAM_BUFFER_POINTER)
            buffer = one[1];
        else if (*one == CU_LAUNCH_PARAM_BUFFER_SIZE)
            bytes = *static_cast<size_t*>(one[1]);
        else
            return CUDA_ERROR_INVALID_VALUE;
    if (!parameters.empty() && (!buffer || bytes < parameters.size())) return CUDA_ERROR_INVALID_VALUE;
    if (!parameters.empty()) memcpy(&parameters[0], buffer, parameters.size());
    return CUDA_SUCCESS;
}

CUresult prepare(Code& code, Configuration how, std::string parameters, const Site& site, Work& work)
{
    if (!how.cluster[0])
        for (size_t i = 0; i < 3; i++) how.cluster[i] = code.cluster[0] ? code.cluster[i] : 1;
    if (const CUresult error = refusal(code, how)) return error;
    work = [&code, how, site, parameters = std::move(parameters)] { run(code, how, parameters, site); };
    return CUDA_SUCCESS;
}

static NodeParameters node_of(CUfunction function, const Code& code, const Configuration& how,
                              const std::string& arguments)
{
    NodeParameters node(CU_GRAPH_NODE_TYPE_KERNEL);
    node.kernel = {function,     how.grid[0],          how.grid[1], how.grid[2], how.block[0], how.block[1],
                   how.block[2], unsigned(how.shared), nullptr,     nullptr,     nullptr,      nullptr};
    node.how = how, node.arguments = arguments;
    (void)code;
    return node;
}

static CUresult launch(CUfunction function, const Configuration& how, void** values, void** extra, const Site& site)
{
    Code* const code = code_at(function);
    if (!code) return CUDA_ERROR_INVALID_HANDLE;
    if (const CUresult error = check_stream(how.stream)) return error;
    std::string parameters;
    if (const CUresult error = packed(*code, values, extra, parameters)) return error;
    std::vector<Watch> watches;
    for (const void* one : pointers_in(parameters))
        if (const Allocation* const memory = allocation_at(one); memory && memory->kind == Kind::Managed)
            watches.push_back({memory->start, memory->bytes, true, false, "kernel '" + code->title + "'", site});
    const NodeParameters node =
        capturing(how.stream) ? node_of(function, *code, how, parameters) : NodeParameters(CU_GRAPH_NODE_TYPE_KERNEL);
    Work work;
    if (const CUresult error = prepare(*code, how, std::move(parameters), site, work)) return error;
    enqueue(how.stream, std::move(work), node, watches);
    return CUDA_SUCCESS;
}

}  // namespace gpuless

using namespace gpuless;

CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                        unsigned bz, unsigned shared, CUstream stream, void** values, void** extra)
{
    BEGIN("cuLaunchKernel");
    Configuration how = {{gx, gy, gz}, {bx, by, bz}};
    how.shared = shared, how.stream = stream;
    return launch(function, how, values, extra, site);
}
CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                                   unsigned bz, unsigned shared, CUstream stream, void** values)
{
    BEGIN("cuLaunchCooperativeKernel");
    Configuration how = {{gx, gy, gz}, {bx, by, bz}};
    how.shared = shared, how.stream = stream, how.cooperative = true;
    return launch(function, how, values, nullptr, site);
}
CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** values, void** extra)
{
    BEGIN("cuLaunchKernelEx");
    if (!config) return CUDA_ERROR_INVALID_VALUE;
    Configuration how = {{config->gridDimX, config->gridDimY, config->gridDimZ},
                         {config->blockDimX, config->blockDimY, config->blockDimZ}};
    how.shared = config->sharedMemBytes, how.stream = config->hStream;
    for (unsigned i = 0; i < config->numAttrs; i++) {
        const CUlaunchAttributeValue& value = config->attrs[i].value;
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) how.cooperative = value.cooperative;
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
            how.dependent = value.programmaticStreamSerializationAllowed;
        if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            how.cluster[0] = value.clusterDim.x, how.cluster[1] = value.clusterDim.y,
            how.cluster[2] = value.clusterDim.z;
    }
    return launch(function, how, values, extra, site);
}
