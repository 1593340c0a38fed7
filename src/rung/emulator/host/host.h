// What the parts of the host library share.
#pragma once
#include "include/rung_host/program.h"

#include "../runtime/launch.h"

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
    int races;  // 0 no, 1 where the work allows, 2 always
    int workers;
    double seconds;
    bool quiet;
};
const Settings& settings();

std::string place_of_call(RungSite site);  // "file.cu:12"
void tell(ExitCode kind, const char* what, const std::string& text, const std::string& launched = "");
struct Ran { const char* name; unsigned long blocks, threads; double seconds; bool checked; };
void note_launch(const Ran& ran);
void note_once(const std::string& text);
std::string line_of(unsigned long long counter);  // "file.cu:12" of an instruction, or nothing
bool forked();                                    // whether this is a worker of a launch

// ---- memory.cpp -----------------------------------------------------------------------------------------------------
enum class Kind { Device, Managed, Pinned, Registered };

struct Allocation
{
    char *start, *mapped;
    size_t bytes, length;
    Kind kind;
    bool freed;
    std::string made, ended;  // places of the calls
};
const Allocation* allocation_at(const void* address);  // guards included, freed ones too
bool device_may_touch(const void* address);
std::string describe(const void* address);  // "16 bytes past the end of the 1,024 bytes from cudaMalloc (file.cu:12)"
size_t device_bytes();
unsigned long kept_allocations(size_t* bytes);
void check_tails(const char* kernel);

// ---- heap.cpp -------------------------------------------------------------------------------------------------------
void begin_heap();  // before a launch
bool in_heap(const void* address);

// ---- streams.cpp ----------------------------------------------------------------------------------------------------
cudaError_t failed(cudaError_t error);  // becomes the last error
void stick(cudaError_t error);          // every later call returns it
cudaError_t stuck();
unsigned long moment();  // two launches of consecutive moments have nothing between them
void enqueue(cudaStream_t stream, std::function<void()> work, cudaGraphNodeType type);
bool capturing(cudaStream_t stream);
cudaError_t wait_for(cudaStream_t stream);
void wait_for_all();
cudaError_t add_node(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count, std::function<void()> work,
                     cudaGraphNodeType type);

// ---- launch.cpp -----------------------------------------------------------------------------------------------------
cudaError_t prepare(Call call, const Configuration& configuration, std::function<void()>& work);
bool call_of(const void* kernel, void** arguments, Call& call);

// ---- counting.cpp ---------------------------------------------------------------------------------------------------
bool counting();
void begin_counting();
void run_machine_code(const Call& call, const Configuration& how);
void write_counts();

// ---- device.cpp -----------------------------------------------------------------------------------------------------
const cudaDeviceProp& device();

}  // namespace rung_host
