// What the parts of the host library share.
#pragma once
#include "include/rung_host/program.h"

#include <functional>
#include <string>
#include <vector>

namespace rung_host {

// ---- report.cpp -----------------------------------------------------------------------------------------------------
enum ExitCode { FAULTED = 101, RACED = 102, MISUSED = 103 };

struct Settings
{
    int order;  // 0 forward, 1 reverse, 2 shuffled
    unsigned seed;
    int races;            // 0 no, 1 where the work allows, 2 always
    double race_seconds;  // of a kernel's launches of one shape, and a tenth of all launches'
    double seconds;
    bool quiet;
};
const Settings& settings();

std::string shown(const char* path);       // relative to the present folder where it lies there
std::string place_of_call(RungSite site);  // "file.cu:12"
struct Place                               // in a kernel, as far as it is known
{
    std::string file, kernel;
    int line = 0;
    std::vector<unsigned> block, thread;
};
struct Told
{
    std::string kind, text;
    RungSite launched = {};  // or the call of the host's part that is at fault
    Place place = {}, other = {};
};
void tell(ExitCode kind, const Told& what);
bool told_at(RungSite site);
struct Ran
{
    const char* name;
    unsigned long blocks, threads;
    double seconds;
    bool checked;
};
void note_launch(const Ran& ran);
double seconds_now();  // of a clock that only moves on
void begin_progress(const char* kernel,
                    RungSite launched);  // of a launch: a line on standard error now and then, nothing of a short one
void tell_progress(uint64_t ended, uint64_t all);
void end_progress();
void note_once(const std::string& text);
void begin_program();                          // its end is handled while all that the libraries keep is still there
void note_if_failed(const std::string& text);  // at the end

// ---- memory.cpp -----------------------------------------------------------------------------------------------------
enum class Kind { Device, Managed, Pinned, Registered };
constexpr size_t PAGE = 4096;

struct Allocation
{
    char *start, *mapped;
    size_t bytes, length;
    Kind kind;
    bool freed;
    std::string made, ended;      // places of the calls
    bool used_by_kernel = false;  // since memory was last copied to it
};
const Allocation* allocation_at(const void* address);  // guards included, freed ones too
bool device_may_touch(const void* address);
std::string describe(const void* address);  // "16 bytes past the end of the 1,024 bytes from cudaMalloc (file.cu:12)"
size_t device_bytes();
std::string kept_allocations();                                            // in a sentence; nothing if there are none
void each_allocation(const std::function<void(const Allocation&)>& work);  // that kernels may touch

void ran(uint64_t blocks, uint64_t threads, const Call& call);  // a kernel, which ended; threads of a block
void tell_shorts();                                             // copies to the host that left out most of a result

// ---- heap.cpp -------------------------------------------------------------------------------------------------------
void begin_heap();  // before a launch
bool in_heap(const void* address);
const void* heap_memory(size_t* bytes);

// ---- streams.cpp ----------------------------------------------------------------------------------------------------
cudaError_t failed(cudaError_t error);  // becomes the last error
void stick(cudaError_t error);          // every later call returns it
cudaError_t stuck();
void unasked(const std::string& what, cudaError_t error,
             RungSite site);  // a fault, unless the program asks for the last error
struct Alone
{
    Alone();
    ~Alone();
};  // of the host's threads, one at a time is in this library
bool run_pending();  // false if there is nothing to run
bool beside();       // whether work may run at the same time as other work
// The present piece of work reads and writes words of a line of 128 bytes; `plain`: those of them not by atomics alone.
void touch(const std::string& what, RungSite site, uint64_t line, uint32_t read, uint32_t written, uint32_t plain);
void tell_unasked();
unsigned long moment();  // two launches of consecutive moments have nothing between them
// Memory that pending work uses and the host may not touch, or not write, until it has waited.
struct Watch
{
    const void* from;
    size_t bytes;
    bool reads;
    bool copy;
    std::string name;
    RungSite site;
};  // `reads`: may not read, either
void enqueue(cudaStream_t stream, std::function<void()> work, cudaGraphNodeType type,
             const std::vector<Watch>& watches = {});
unsigned long present_work();  // its number
bool capturing(cudaStream_t stream);
cudaError_t wait_for(cudaStream_t stream);
void wait_for_all();
cudaError_t add_node(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count,
                     std::function<void()> work, cudaGraphNodeType type);

// ---- host_access.cpp ------------------------------------------------------------------------------------------------
void watch(unsigned long number, const std::vector<Watch>& every);
void open_watched();  // while work runs
void close_watched();
void end_watch(unsigned long number);      // the work has run
bool host_accessed(unsigned long number);  // what it uses, so that what a kernel touches has to be known
void touched_beside_host(unsigned long number, uint64_t line, uint32_t read, uint32_t written, uint32_t plain);

// ---- launch.cpp -----------------------------------------------------------------------------------------------------
cudaError_t prepare(Call call, const Configuration& configuration, std::function<void()>& work);
bool call_of(const void* kernel, void** arguments, Call& call);

// ---- kernels.cpp ----------------------------------------------------------------------------------------------------
struct Record;
void begin_modules(const Record* first, const Record* last);
void run_machine_code(const Call& call, const Configuration& how, double race_seconds);
bool is_variable(const void* address);
struct KernelFacts
{ unsigned registers, shared, local; };
const KernelFacts* facts_of(const void* kernel);
bool counting();
void write_counts();

// ---- device.cpp -----------------------------------------------------------------------------------------------------
const cudaDeviceProp& device();
// Of those that an SM has room for.
int blocks_at_once(size_t threads, unsigned registers, size_t shared);
size_t warps_of(unsigned registers,
                size_t threads);  // that a multiprocessor's registers are enough for, in whole blocks

}  // namespace rung_host
