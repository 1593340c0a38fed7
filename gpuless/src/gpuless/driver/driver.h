// What the parts of libcuda.so.1 share. The types and functions of the interface are those of NVIDIA's cuda.h.
#pragma once
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default)
#include <cuda.h>
#pragma GCC visibility pop

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "../machine/entry.h"

#define EXPORTED extern "C" __attribute__((visibility("default")))

namespace gpuless {

// ---- report.cpp: settings, faults as records, the summary -----------------------------------------------------------
enum ExitCode { FAULTED = 101, RACED = 102, MISUSED = 103 };

struct Settings
{
    int order;  // 0 forward, 1 reverse, 2 shuffled
    unsigned seed;
    int races;           // 0 no, 1 where the work allows, 2 always
    int64_t race_steps;  // instructions of warps, of a kernel's launches of one shape, and a tenth of all launches'
    double seconds;      // of CPU time, until a launch is ended
    uint64_t steps;      // instead, instructions of warps; 0: no limit
    bool quiet, stop;    // `stop` ends the program at its first fault
    bool numbers;        // where a NaN, an infinity or an overflow is made is told
    bool precision;      // float64 is computed beside floating-point numbers
};
const Settings& settings();
unsigned period();    // a fault is told once in each; a suite of tests has one for each test
void begin_period();  // with the settings that the environment has now

struct Place  // a line, and who was there, as far as it is known
{
    std::string file, kernel;
    int line = 0;
    std::vector<unsigned> block, thread;
};
struct Site  // a call of the host's: the function's name, and the instruction behind the call
{
    const char* function = nullptr;
    const void* address = nullptr;
    const Place* python = nullptr;  // the line, in a process of Python's; never destroyed
};
struct Told
{
    std::string kind, text;
    Site site = {};  // the launch, or the call that is at fault
    Place place = {}, other = {};
    const char* memory = "";  // where it lies, of a kernel's fault
};
void tell(ExitCode code, const Told& what);
void note_once(const std::string& text);
void note_if_failed(const std::string& text);  // told at the end if anything failed
struct Ran
{
    const char* name;
    uint64_t blocks, threads, instructions;
    double seconds;
    bool checked, atomics;
};
void note_launch(const Ran& ran);
void note_error(const Place& store, const rung_machine_error& error);  // of a launch's stored number
double seconds_now();                                                  // of a clock that only moves on
void begin_progress(const char* kernel);
void tell_progress(uint64_t ended, uint64_t all);
void end_progress();

// ---- sites.cpp: who called ------------------------------------------------------------------------------------------
Site here(const char* function, const void* address);  // or the call that the runtime library has named
Place place_of(const Site& site);                      // empty if its line is not known
Place place_of_instruction(const void* address);
std::string called(const Site& site);  // "cudaMalloc (main.cu:12)"
std::string number(size_t n);          // "1,024"
std::string shown(const std::string& path);
struct PerThread  // inside, the null stream is that of the thread
{
    explicit PerThread(const void* address);
    ~PerThread();
};
bool per_thread_default();

// ---- context.cpp ----------------------------------------------------------------------------------------------------
struct Alone  // of the host's threads, one at a time is in this library
{
    Alone();
    ~Alone();
};
extern thread_local bool of_library;                      // whether this thread makes no calls of the program's
bool is_alone();                                          // this thread, already
void let_others(const std::function<void()>& meanwhile);  // in, while a function of the program's runs, or a wait
CUresult ready();                                         // the sticky error, or that there is no context
CUresult initialized();                                   // or that cuInit has not been called
void stick(CUresult error);                               // every later call returns it
CUresult stuck();
CUcontext current();
int current_device();
size_t limit_of(CUlimit limit);
#define BEGIN(NAME)                                                                                                    \
    const Site site = here(NAME, __builtin_return_address(0));                                                         \
    const Alone alone;                                                                                                 \
    if (const CUresult error = ready()) return error;                                                                  \
    (void)site

// ---- device.cpp -----------------------------------------------------------------------------------------------------
struct Gpu  // a row of gpus.toml and the limits of its architecture; clocks in MHz
{
    const char *key, *name;
    int major, minor, multiprocessors, gib, clock, memory_clock, bus, l2_mib, shared_kib, reserved_kib, threads, blocks;
};
const std::vector<const Gpu*>& gpus();
const Gpu& gpu();  // the current context's
size_t warps_of(unsigned registers,
                size_t threads);  // that a multiprocessor's registers are enough for, in whole blocks

// ---- memory.cpp -----------------------------------------------------------------------------------------------------
enum class Kind { Device, Managed, Pinned, Registered, Mapped };
constexpr size_t PAGE = 4096;

struct Allocation
{
    char *start, *mapped;
    size_t bytes, length;
    Kind kind;
    bool freed;
    Site made, ended;
    unsigned flags = 0;
    int device = 0;
    CUmemoryPool pool = nullptr;
    uint64_t id = 0;
    bool used_by_kernel = false;  // since memory was last copied to it
    bool read_mostly = false;     // and what else the program advises of managed memory
    CUmemLocation preferred = {}, prefetched = {};
    std::set<int> accessed_by;  // devices; -1 the host
    bool of_graph = false;      // which keeps its address: a node begins and another may end it, at each launch
    bool begun = true;
};
Allocation* allocation_at(const void* address);  // guards included, freed ones too
bool device_may_touch(const void* address);
std::string describe(const void* address);  // "16 bytes past the end of the 1,024 bytes from cudaMalloc (file.cu:12)"
CUresult allocate(void** pointer, size_t bytes, Kind kind, const Site& site);
CUresult release(void* pointer, bool pinned, const Site& site);
std::function<void()> beginning(void* of_graph);               // of a node
std::function<void()> ending(void* of_any, const Site& site);  // likewise
size_t bytes_in_use();
std::string kept_allocations();                                      // in a sentence; nothing if there are none
void each_allocation(const std::function<void(Allocation&)>& work);  // that kernels may touch
uint64_t allocations_changed();                                      // a number that grows with each change
void register_memory(char* start, size_t bytes, Kind kind, const Site& site);
void forget_memory(Allocation& memory);
inline CUdeviceptr device_pointer(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }
inline char* bytes_at(CUdeviceptr pointer) { return reinterpret_cast<char*>(pointer); }

// ---- copies.cpp -----------------------------------------------------------------------------------------------------
struct Block3  // a part of memory: bytes of a row, rows, slices, and how far apart they are
{
    char* start;
    size_t pitch, slice;
};
struct Copy
{
    Block3 to, from;
    size_t width, height = 1, depth = 1;
    int to_device = -1, from_device = -1;  // 1 device memory is asked for, 0 host memory, -1 either
};
CUresult copy(const Copy& what, CUstream stream, bool wait, const Site& site);
struct Fill
{
    char* to;
    size_t pitch, width, height;  // of elements
    unsigned size, value;         // of an element
};
CUresult fill(const Fill& what, CUstream stream, const Site& site);
std::function<void()> copying(const Copy& what, const Site& site);  // what a node of a graph does
std::function<void()> filling(const Fill& what, const Site& site);
std::string objection(const void* address, size_t bytes, int device);
struct Code;
void ran(uint64_t blocks, uint64_t threads, const std::string& kernel, const Site& site,
         const std::vector<const void*>& pointers);
void tell_shorts();  // copies to the host that left out most of a result

// ---- heap.cpp: malloc of kernels ------------------------------------------------------------------------------------
void begin_heap();  // before a launch
bool in_heap(const void* address);
const void* heap_memory(size_t* bytes);
void* heap_malloc(size_t bytes);
const char* heap_release(void* pointer);  // what is wrong, or null

// ---- streams.cpp ----------------------------------------------------------------------------------------------------
using Work = std::function<void()>;
void note_call();    // of the host: work that nobody waits for stays where it is for a while
bool run_pending();  // false if there is nothing to run
bool beside();       // whether work may run at the same time as other work
// The present piece of work reads and writes words of a line of 128 bytes; `plain`: those of them not by atomics alone.
void touch(const std::string& what, const Site& site, uint64_t line, uint32_t read, uint32_t written, uint32_t plain);
unsigned long moment();  // two launches of consecutive moments have nothing between them
// Memory that pending work uses and the host may not touch, or not write, until it has waited.
struct Watch
{
    const void* from;
    size_t bytes;
    bool reads;  // may not read, either
    bool copy;
    std::string name;
    Site site;
};
struct NodeParameters;  // graphs.h
void enqueue(CUstream stream, Work work, const NodeParameters& node, const std::vector<Watch>& watches = {});
unsigned long present_work();  // its number
bool capturing(CUstream stream);
CUresult check_stream(CUstream stream);  // an error if it is no stream, or if its capture has failed
CUresult wait_for(CUstream stream);
CUresult wait_for_all_streams();
void wait_for_all();

// ---- host_access.cpp ------------------------------------------------------------------------------------------------
void watch(unsigned long number, const std::vector<Watch>& every);
void open_watched();  // while work runs
void close_watched();
void end_watch(unsigned long number);      // the work has run
bool host_accessed(unsigned long number);  // what it uses, so that what a kernel touches has to be known
void touched_beside_host(unsigned long number, uint64_t line, uint32_t read, uint32_t written, uint32_t plain);

// ---- modules.cpp, launch.cpp ----------------------------------------------------------------------------------------
struct Variable
{
    char* address;
    size_t bytes;
};
struct Module;
struct Code  // a kernel
{
    Module* module;
    std::string name, refused, text, lines, table;
    std::string title;   // the name as its source has it, without parameters
    bool tiles = false;  // Triton's: threads hold elements of tiles
    bool later = false;  // all else is read when the kernel is used
    unsigned start = 0, constants = 0, shared = 0, local = 0, stack = 0, registers = 0, threads = 1024;
    unsigned cluster[3] = {0, 0, 0};
    std::vector<std::pair<unsigned, unsigned>> parameters;       // offset and size
    std::vector<std::pair<unsigned, std::string>> shared_names;  // offset and name
    std::vector<std::string> places;
    std::vector<bool> of_cuda;  // such a place lies in CUDA's own headers, and is not known
    bool starts_next = false;   // before it ends
    bool atomics = false;       // are among its instructions
    void* program = nullptr;
    size_t instructions = 0;
    int dynamic_limit = 48 * 1024, carveout = -1, cluster_policy = 0;
    bool any_cluster = false;
    unsigned reserved() const;
    unsigned parameter_bytes() const;
};
struct Module
{
    int arch = 90;
    char* sections[4] = {};
    size_t sizes[4] = {};
    std::map<std::string, Variable> variables;
    std::map<std::string, Code> codes;
    std::string cubin;  // the file that it was made of
};
CUresult load_image(const void* image, CUmodule* module, std::string* log);
Code* code_at(CUfunction function);  // or of a CUkernel; null if it is none
bool is_variable(const void* address);
CUresult load_request(const std::string& request, std::string* answer);  // of the loader process
const std::set<Module*>& modules();
struct Configuration
{
    unsigned grid[3], block[3], cluster[3] = {0, 0, 0};
    size_t shared = 0;
    bool cooperative = false, dependent = false;
    CUstream stream = nullptr;
};
CUresult submit(Code& code, const Configuration& how, void** values, void** extra, const Site& site);
CUresult prepare(Code& code, Configuration how, std::string parameters, const Site& site, Work& work);
CUresult packed(const Code& code, void** values, void** extra, std::string& parameters);
int active_blocks(const Code& code, int threads, size_t shared);
bool counting();
void write_counts();

}  // namespace gpuless
