// Streams, events and graphs as objects.
#pragma once
#include "driver.h"

struct CUgraphNode_st;

namespace gpuless {

// What a node of a graph is asked for, and made of.
struct NodeParameters
{
    CUgraphNodeType type;
    CUDA_KERNEL_NODE_PARAMS kernel = {};
    CUDA_MEMCPY3D memcpy = {};
    CUDA_MEMSET_NODE_PARAMS memset = {};
    CUDA_HOST_NODE_PARAMS host = {};
    CUDA_MEM_ALLOC_NODE_PARAMS alloc = {};
    CUdeviceptr freed = 0;
    CUevent event = nullptr;
    CUgraph child = nullptr;
    bool changes_how = false;
    Configuration how = {};                      // of a kernel
    std::string arguments;                       // of a kernel: the parameters, packed
    std::shared_ptr<std::vector<void*>> values;  // and where each lies
    explicit NodeParameters(CUgraphNodeType type) : type(type) {}
};

// Of each agent, a stream or a node, the last of its work that is known to end before.
using Clock = std::map<unsigned, unsigned long>;

}  // namespace gpuless

struct CUgraphNode_st
{
    gpuless::Work work;
    std::vector<CUgraphNode> needs;
    gpuless::NodeParameters parameters;
    CUgraph graph = nullptr;
    bool enabled = true;
    unsigned id = 0;
};
struct CUgraph_st
{
    std::vector<CUgraphNode> nodes;
    std::map<CUuserObject, unsigned> objects;  // that it keeps, and how often
    unsigned id = 0, nodes_made = 0;
    bool owned = false;  // by a node of another graph
    ~CUgraph_st();
};
struct CUgraphExec_st
{
    std::vector<CUgraphNode> nodes;
    std::vector<std::vector<size_t>> needs;
    std::vector<unsigned> agents;
    std::map<CUgraphNode, size_t> of;  // the graph's nodes
    std::map<CUuserObject, unsigned> objects;
    unsigned long long flags = 0;
    unsigned id = 0;
    ~CUgraphExec_st();
};
struct CUstream_st
{
    unsigned agent;
    gpuless::Clock known;
    bool blocking = true;
    int priority = 0;
    CUcontext context = nullptr;
    unsigned long long id = 0;
    std::vector<unsigned long> last;  // what its next work must wait for
    CUgraph capture = nullptr;
    bool origin = false, own_graph = true, broken = false;  // of the capture
    unsigned long long capture_id = 0;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    std::vector<CUgraphNode> captured;   // what its next node must wait for
    std::vector<CUgraphEdgeData> edges;  // of those, plain ones
    CUstream_st();
};
struct CUevent_st
{
    unsigned flags = 0;
    unsigned long recorded = 0;  // 0: never
    gpuless::Clock known;
    std::vector<CUgraphNode> captured;
    CUgraph graph = nullptr;
    unsigned long long capture_id = 0;
    double time = -1;
};

namespace gpuless {

CUstream_st* stream_of(CUstream stream);  // null if it is none
std::vector<unsigned long> before_next(CUstream_st& stream);
Clock known_by(const CUstream_st& stream);
void join(Clock& to, const Clock& from);
unsigned long issue(Work run, std::vector<unsigned long> needs, unsigned agent, const Clock& known,
                    std::function<bool()> when = nullptr);
unsigned long append(CUstream_st& stream, Work work, std::function<bool()> when = nullptr);
void wait_for_number(unsigned long number);
void wait_where_many();
unsigned new_agent();
void begin_several();
CUgraphNode add_node(CUgraph graph, Work work, std::vector<CUgraphNode> needs, NodeParameters parameters);
CUresult add_checked(CUgraphNode* node, CUgraph graph, const CUgraphNode* needs, size_t count,
                     NodeParameters parameters, const Site& site);
CUresult change_node(CUgraphNode node, NodeParameters parameters, const Site& site);
CUgraphNode node_in(CUgraphExec exec, CUgraphNode node);  // null if it has none
bool is_graph(CUgraph graph);
bool is_node(CUgraphNode node);
void forget_node(CUgraphNode node);
void keep_objects(const std::map<CUuserObject, unsigned>& objects);
void drop_objects(const std::map<CUuserObject, unsigned>& objects);
void capture(CUstream_st& stream, Work work, const NodeParameters& parameters);
bool is_event(CUevent event);

}  // namespace gpuless

// The beginning of a function of a stream.
#define STREAM(NAME)                                                                                                   \
    BEGIN(NAME);                                                                                                       \
    if (!stream_of(stream)) return CUDA_ERROR_INVALID_HANDLE;                                                          \
    CUstream_st& one = *stream_of(stream);                                                                             \
    (void)one
