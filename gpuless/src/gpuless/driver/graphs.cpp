// Graphs, by the interface and by capture.
#include "graphs.h"

#include <string.h>

#include <algorithm>

namespace gpuless {

CUresult copying_work(const CUDA_MEMCPY3D& p, Work& work, const Site& site);

namespace {

auto& graphs = *new std::set<CUgraph>;
auto& execs = *new std::set<CUgraphExec>;
auto& nodes = *new std::set<CUgraphNode>;
unsigned graph_ids;

// The parameters of a kernel's node as its owner keeps them: `values` point into `arguments`.
void keep_values(NodeParameters& node, const Code& code)
{
    node.values = std::make_shared<std::vector<void*>>();
    for (const auto& [offset, _] : code.parameters) node.values->push_back(&node.arguments[offset]);
    node.kernel.kernelParams = node.values->data(), node.kernel.extra = nullptr;
}

CUgraphNode copied(const CUgraphNode node, CUgraph to)
{
    const CUgraphNode fresh = new CUgraphNode_st(*node);
    fresh->graph = to, nodes.insert(fresh);
    NodeParameters& p = fresh->parameters;
    if (p.type == CU_GRAPH_NODE_TYPE_KERNEL)
        if (const Code* const code = code_at(p.kernel.func)) keep_values(p, *code);
    return fresh;
}

void forget(CUgraphNode node)
{
    if (node->parameters.child && node->parameters.child->owned) delete node->parameters.child;
    nodes.erase(node);
    delete node;
}

// All pieces of a graph's nodes, one after another: a child graph within one node.
CUresult work_of_child(CUgraph child, Work& work)
{
    std::vector<Work> every;
    for (CUgraphNode node : child->nodes) every.push_back(node->work);
    work = [every = std::move(every)] {
        for (const Work& one : every)
            if (one) one();
    };
    return CUDA_SUCCESS;
}

CUresult work_of_kernel(NodeParameters& node, Work& work, const Site& site)
{
    CUDA_KERNEL_NODE_PARAMS& k = node.kernel;
    Code* const code = code_at(k.func ? k.func : reinterpret_cast<CUfunction>(k.kern));
    if (!code) return CUDA_ERROR_INVALID_VALUE;
    std::string arguments;
    if (const CUresult error = packed(*code, k.kernelParams, k.extra, arguments)) return error;
    node.arguments = arguments;
    Configuration how = {{k.gridDimX, k.gridDimY, k.gridDimZ}, {k.blockDimX, k.blockDimY, k.blockDimZ}};
    how.shared = k.sharedMemBytes, how.cooperative = node.how.cooperative;
    std::copy(node.how.cluster, node.how.cluster + 3, how.cluster);
    node.how = how;
    if (!k.func) k.func = reinterpret_cast<CUfunction>(k.kern);
    keep_values(node, *code);
    return prepare(*code, how, std::move(arguments), site, work);
}

CUresult work_of(NodeParameters& node, Work& work, const Site& site)
{
    switch (node.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return work_of_kernel(node, work, site);
    case CU_GRAPH_NODE_TYPE_MEMCPY: return copying_work(node.memcpy, work, site);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
        const CUDA_MEMSET_NODE_PARAMS& s = node.memset;
        if (s.elementSize != 1 && s.elementSize != 2 && s.elementSize != 4) return CUDA_ERROR_INVALID_VALUE;
        const Fill fill = {bytes_at(s.dst), s.pitch, s.width, s.height, s.elementSize, s.value};
        if (!objection(fill.to, (s.height - 1) * s.pitch + s.width * s.elementSize, 1).empty())
            return CUDA_ERROR_INVALID_VALUE;
        return work = filling(fill, site), CUDA_SUCCESS;
    }
    case CU_GRAPH_NODE_TYPE_HOST:
        if (!node.host.fn) return CUDA_ERROR_INVALID_VALUE;
        return work = [host = node.host] { let_others([&] { host.fn(host.userData); }); }, CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_GRAPH: return work_of_child(node.child, work);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: return work = beginning(bytes_at(node.alloc.dptr)), CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_MEM_FREE: return work = ending(bytes_at(node.freed), site), CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        return work = [event = node.event] { event->time = seconds_now(), event->recorded = present_work(); },
               CUDA_SUCCESS;
    default: return CUDA_SUCCESS;
    }
}

CUgraphExec instantiated(const CUgraph_st& graph)
{
    const CUgraphExec exec = new CUgraphExec_st;
    exec->id = ++graph_ids, execs.insert(exec);
    keep_objects(exec->objects = graph.objects);
    for (size_t i = 0; i < graph.nodes.size(); i++) exec->of[graph.nodes[i]] = i;
    for (const CUgraphNode node : graph.nodes) {
        exec->nodes.push_back(copied(node, nullptr));
        exec->nodes.back()->parameters.child = nullptr;
        exec->needs.emplace_back(), exec->agents.push_back(new_agent());
        for (const CUgraphNode need : node->needs) exec->needs.back().push_back(exec->of[need]);
    }
    return exec;
}

// A circle of nodes cannot be instantiated.
bool has_circle(const CUgraph_st& graph)
{
    std::map<CUgraphNode, int> state;
    const std::function<bool(CUgraphNode)> circular = [&](CUgraphNode node) {
        int& mine = state[node];
        if (mine) return mine == 1;
        mine = 1;
        for (CUgraphNode need : node->needs)
            if (circular(need)) return true;
        return state[node] = 2, false;
    };
    return std::any_of(graph.nodes.begin(), graph.nodes.end(), circular);
}

CUresult add(CUgraphNode* node, CUgraph graph, const CUgraphNode* needs, size_t count, NodeParameters parameters,
             const Site& site)
{
    if (!node || !graphs.count(graph) || (count && !needs)) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (!nodes.count(needs[i]) || needs[i]->graph != graph) return CUDA_ERROR_INVALID_VALUE;
    Work work;
    if (const CUresult error = work_of(parameters, work, site)) return error;
    *node = add_node(graph, std::move(work), {needs, needs + count}, std::move(parameters));
    return CUDA_SUCCESS;
}

CUresult change(CUgraphNode node, NodeParameters parameters, const Site& site)
{
    if (node->parameters.type != parameters.type) return CUDA_ERROR_INVALID_VALUE;
    if (parameters.type == CU_GRAPH_NODE_TYPE_KERNEL && !parameters.changes_how) parameters.how = node->parameters.how;
    Work work;
    if (const CUresult error = work_of(parameters, work, site)) return error;
    node->parameters = parameters, node->work = std::move(work);
    if (parameters.type == CU_GRAPH_NODE_TYPE_KERNEL) keep_values(node->parameters, *code_at(parameters.kernel.func));
    return CUDA_SUCCESS;
}

CUresult change_in(CUgraphExec exec, CUgraphNode node, NodeParameters parameters, const Site& site)
{
    if (!execs.count(exec)) return CUDA_ERROR_INVALID_VALUE;
    const auto found = exec->of.find(node);
    return found == exec->of.end() ? CUDA_ERROR_INVALID_VALUE
                                   : change(exec->nodes[found->second], std::move(parameters), site);
}

}  // namespace

CUgraphNode add_node(CUgraph graph, Work work, std::vector<CUgraphNode> needs, NodeParameters parameters)
{
    const CUgraphNode node =
        new CUgraphNode_st{std::move(work), std::move(needs), std::move(parameters), graph, true, ++graph->nodes_made};
    if (node->parameters.type == CU_GRAPH_NODE_TYPE_KERNEL)
        if (const Code* const code = code_at(node->parameters.kernel.func)) keep_values(node->parameters, *code);
    nodes.insert(node), graph->nodes.push_back(node);
    return node;
}

bool is_graph(CUgraph graph) { return graphs.count(graph); }
bool is_node(CUgraphNode node) { return nodes.count(node); }
void forget_node(CUgraphNode node) { forget(node); }
CUgraphNode node_in(CUgraphExec exec, CUgraphNode node)
{ return execs.count(exec) && exec->of.count(node) ? exec->nodes[exec->of[node]] : nullptr; }
CUresult add_checked(CUgraphNode* node, CUgraph graph, const CUgraphNode* needs, size_t count,
                     NodeParameters parameters, const Site& site)
{ return add(node, graph, needs, count, std::move(parameters), site); }
CUresult change_node(CUgraphNode node, NodeParameters parameters, const Site& site)
{ return change(node, std::move(parameters), site); }

void capture(CUstream_st& stream, Work work, const NodeParameters& parameters)
{ stream.captured = {add_node(stream.capture, std::move(work), stream.captured, parameters)}; }

}  // namespace gpuless

using namespace gpuless;

CUgraph_st::~CUgraph_st()
{
    for (CUgraphNode node : nodes) forget(node);
    drop_objects(objects);
    graphs.erase(this);
}
CUgraphExec_st::~CUgraphExec_st()
{
    for (CUgraphNode node : nodes) forget(node);
    drop_objects(objects);
    execs.erase(this);
}

#define CHECK(CONDITION)                                                                                               \
    if (!(CONDITION)) return CUDA_ERROR_INVALID_VALUE

CUresult cuGraphCreate(CUgraph* graph, unsigned flags)
{
    BEGIN("cuGraphCreate");
    CHECK(graph && !flags);
    *graph = new CUgraph_st;
    (*graph)->id = ++graph_ids;
    return graphs.insert(*graph), CUDA_SUCCESS;
}
CUresult cuGraphDestroy(CUgraph graph)
{
    BEGIN("cuGraphDestroy");
    CHECK(graphs.count(graph) && !graph->owned);
    return delete graph, CUDA_SUCCESS;
}
static CUresult instantiate(CUgraphExec* exec, CUgraph graph, unsigned long long flags)
{
    CHECK(exec && graphs.count(graph) && !has_circle(*graph));
    *exec = instantiated(*graph);
    (*exec)->flags = flags;
    return CUDA_SUCCESS;
}
CUresult cuGraphInstantiate(CUgraphExec* exec, CUgraph graph, unsigned long long flags)
{
    BEGIN("cuGraphInstantiate");
    return instantiate(exec, graph, flags);
}
CUresult cuGraphInstantiateWithParams(CUgraphExec* exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* p)
{
    BEGIN("cuGraphInstantiateWithParams");
    CHECK(p);
    const CUresult error = instantiate(exec, graph, p->flags);
    p->hErrNode_out = nullptr, p->result_out = error ? CUDA_GRAPH_INSTANTIATE_ERROR : CUDA_GRAPH_INSTANTIATE_SUCCESS;
    return error;
}
CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    BEGIN("cuGraphExecDestroy");
    CHECK(execs.count(exec));
    return delete exec, CUDA_SUCCESS;
}
CUresult cuGraphExecGetFlags(CUgraphExec exec, cuuint64_t* flags)
{
    BEGIN("cuGraphExecGetFlags");
    CHECK(execs.count(exec) && flags);
    return *flags = exec->flags, CUDA_SUCCESS;
}
CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo* result)
{
    BEGIN("cuGraphExecUpdate");
    CHECK(execs.count(exec) && graphs.count(graph) && result);
    *result = {CU_GRAPH_EXEC_UPDATE_SUCCESS, nullptr, nullptr};
    bool same = exec->nodes.size() == graph->nodes.size();
    result->result = same ? result->result : CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    for (size_t i = 0; same && i < exec->nodes.size(); i++)
        if (exec->nodes[i]->parameters.type != graph->nodes[i]->parameters.type)
            same = false, result->result = CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
        else if (exec->needs[i].size() != graph->nodes[i]->needs.size())
            same = false, result->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    if (!same) return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    const CUgraphExec fresh = instantiated(*graph);
    std::swap(exec->nodes, fresh->nodes), std::swap(exec->needs, fresh->needs), std::swap(exec->agents, fresh->agents);
    std::swap(exec->of, fresh->of);
    return delete fresh, CUDA_SUCCESS;
}
CUresult cuGraphUpload(CUgraphExec exec, CUstream stream)
{
    BEGIN("cuGraphUpload");
    CHECK(execs.count(exec));
    return check_stream(stream);
}
CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    BEGIN("cuGraphLaunch");
    CHECK(execs.count(exec));
    if (const CUresult error = check_stream(stream)) return error;
    CUstream_st& one = *stream_of(stream);
    if (one.capture) {
        for (CUgraphNode node : exec->nodes) capture(one, node->enabled ? node->work : Work(), node->parameters);
        return CUDA_SUCCESS;
    }
    begin_several();
    const std::vector<unsigned long> first = before_next(one);
    const Clock known = known_by(one);
    std::vector<unsigned long> numbers(exec->nodes.size());
    std::vector<Clock> after(numbers.size(), known);
    one.known = known;
    const std::function<void(size_t)> add = [&](size_t i) {
        if (numbers[i]) return;
        std::vector<unsigned long> needs = first;
        for (size_t need : exec->needs[i]) add(need), needs.push_back(numbers[need]), join(after[i], after[need]);
        numbers[i] = issue(exec->nodes[i]->enabled ? exec->nodes[i]->work : Work(), needs, exec->agents[i], after[i]);
        after[i][exec->agents[i]] = numbers[i];
        join(one.known, after[i]);
    };
    for (size_t i = 0; i < numbers.size(); i++) add(i);
    one.last = {issue(nullptr, numbers.empty() ? first : numbers, one.agent, one.known)};
    one.known[one.agent] = one.last[0];
    return wait_where_many(), CUDA_SUCCESS;
}
CUresult cuGraphClone(CUgraph* clone, CUgraph graph)
{
    BEGIN("cuGraphClone");
    CHECK(clone && graphs.count(graph));
    std::map<CUgraphNode, CUgraphNode> of;
    *clone = new CUgraph_st;
    keep_objects((*clone)->objects = graph->objects);
    (*clone)->id = ++graph_ids, (*clone)->nodes_made = graph->nodes_made, graphs.insert(*clone);
    for (const CUgraphNode node : graph->nodes) (*clone)->nodes.push_back(of[node] = copied(node, *clone));
    for (CUgraphNode node : (*clone)->nodes)
        for (CUgraphNode& need : node->needs) need = of[need];
    return CUDA_SUCCESS;
}
CUresult cuGraphNodeFindInClone(CUgraphNode* found, CUgraphNode node, CUgraph clone)
{
    BEGIN("cuGraphNodeFindInClone");
    CHECK(found && nodes.count(node) && graphs.count(clone));
    for (CUgraphNode one : clone->nodes)
        if (one->id == node->id) return *found = one, CUDA_SUCCESS;
    return CUDA_ERROR_INVALID_VALUE;
}

// ---- nodes ----------------------------------------------------------------------------------------------------------
CUresult cuGraphAddEmptyNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* needs, size_t count)
{
    BEGIN("cuGraphAddEmptyNode");
    return add(node, graph, needs, count, NodeParameters(CU_GRAPH_NODE_TYPE_EMPTY), site);
}
CUresult cuGraphAddChildGraphNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* needs, size_t count,
                                  CUgraph child)
{
    BEGIN("cuGraphAddChildGraphNode");
    CHECK(graphs.count(child));
    NodeParameters parameters(CU_GRAPH_NODE_TYPE_GRAPH);
    if (const CUresult error = cuGraphClone(&parameters.child, child)) return error;
    parameters.child->owned = true;
    return add(node, graph, needs, count, parameters, site);
}
CUresult cuGraphAddEventRecordNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* needs, size_t count,
                                   CUevent event)
{
    BEGIN("cuGraphAddEventRecordNode");
    CHECK(is_event(event));
    NodeParameters parameters(CU_GRAPH_NODE_TYPE_EVENT_RECORD);
    parameters.event = event;
    return add(node, graph, needs, count, parameters, site);
}
CUresult cuGraphAddEventWaitNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* needs, size_t count,
                                 CUevent event)
{
    BEGIN("cuGraphAddEventWaitNode");
    CHECK(is_event(event));
    NodeParameters parameters(CU_GRAPH_NODE_TYPE_WAIT_EVENT);
    parameters.event = event;
    return add(node, graph, needs, count, parameters, site);
}
static NodeParameters parameters_of(const CUgraphNodeParams& p)
{
    NodeParameters made(p.type);
    const CUDA_KERNEL_NODE_PARAMS_v3& k = p.kernel;
    switch (p.type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        made.kernel = {k.func,      k.gridDimX,       k.gridDimY,     k.gridDimZ, k.blockDimX, k.blockDimY,
                       k.blockDimZ, k.sharedMemBytes, k.kernelParams, k.extra,    k.kern,      k.ctx};
        break;
    case CU_GRAPH_NODE_TYPE_MEMCPY: made.memcpy = p.memcpy.copyParams; break;
    case CU_GRAPH_NODE_TYPE_MEMSET:
        made.memset = {p.memset.dst,         p.memset.pitch, p.memset.value,
                       p.memset.elementSize, p.memset.width, p.memset.height};
        break;
    case CU_GRAPH_NODE_TYPE_HOST: made.host = {p.host.fn, p.host.userData}; break;
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: made.event = p.eventRecord.event; break;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: made.event = p.eventWait.event; break;
    default: break;
    }
    return made;
}
CUresult cuGraphAddNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* needs, const CUgraphEdgeData*,
                        size_t count, CUgraphNodeParams* p)
{
    BEGIN("cuGraphAddNode");
    CHECK(p);
    switch (p->type) {
    case CU_GRAPH_NODE_TYPE_GRAPH: return cuGraphAddChildGraphNode(node, graph, needs, count, p->graph.graph);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        return cuGraphAddMemAllocNode(node, graph, needs, count,
                                      reinterpret_cast<CUDA_MEM_ALLOC_NODE_PARAMS*>(&p->alloc));
    case CU_GRAPH_NODE_TYPE_MEM_FREE: return cuGraphAddMemFreeNode(node, graph, needs, count, p->free.dptr);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT:
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: return CUDA_ERROR_NOT_SUPPORTED;
    default: return add(node, graph, needs, count, parameters_of(*p), site);
    }
}
CUresult cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams* p)
{
    BEGIN("cuGraphNodeSetParams");
    CHECK(nodes.count(node) && p);
    return change(node, parameters_of(*p), site);
}
CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams* p)
{
    BEGIN("cuGraphExecNodeSetParams");
    CHECK(p);
    return change_in(exec, node, parameters_of(*p), site);
}
#define NODE(NAME, TYPE)                                                                                               \
    BEGIN(NAME);                                                                                                       \
    CHECK(nodes.count(node) && p && node->parameters.type == CU_GRAPH_NODE_TYPE_##TYPE)
// Nodes of one kind: added, read, changed, and changed in a graph that was instantiated; some take a context, too.
#define KIND(NAME, TYPE, PARAMETERS, FIELD, ...)                                                                       \
    static NodeParameters parameters_of(const PARAMETERS& p)                                                           \
    {                                                                                                                  \
        NodeParameters made(CU_GRAPH_NODE_TYPE_##TYPE);                                                                \
        return made.FIELD = p, made;                                                                                   \
    }                                                                                                                  \
    CUresult cuGraphAdd##NAME##Node(CUgraphNode* node, CUgraph graph, const CUgraphNode* needs, size_t count,          \
                                    const PARAMETERS* p __VA_ARGS__)                                                   \
    {                                                                                                                  \
        BEGIN("cuGraphAdd" #NAME "Node");                                                                              \
        CHECK(p);                                                                                                      \
        return add(node, graph, needs, count, parameters_of(*p), site);                                                \
    }                                                                                                                  \
    CUresult cuGraph##NAME##NodeGetParams(CUgraphNode node, PARAMETERS* p)                                             \
    {                                                                                                                  \
        NODE("cuGraph" #NAME "NodeGetParams", TYPE);                                                                   \
        return *p = node->parameters.FIELD, CUDA_SUCCESS;                                                              \
    }                                                                                                                  \
    CUresult cuGraph##NAME##NodeSetParams(CUgraphNode node, const PARAMETERS* p)                                       \
    {                                                                                                                  \
        NODE("cuGraph" #NAME "NodeSetParams", TYPE);                                                                   \
        return change(node, parameters_of(*p), site);                                                                  \
    }                                                                                                                  \
    CUresult cuGraphExec##NAME##NodeSetParams(CUgraphExec exec, CUgraphNode node, const PARAMETERS* p __VA_ARGS__)     \
    {                                                                                                                  \
        BEGIN("cuGraphExec" #NAME "NodeSetParams");                                                                    \
        CHECK(p);                                                                                                      \
        return change_in(exec, node, parameters_of(*p), site);                                                         \
    }
KIND(Kernel, KERNEL, CUDA_KERNEL_NODE_PARAMS, kernel)
KIND(Memcpy, MEMCPY, CUDA_MEMCPY3D, memcpy, , CUcontext)
KIND(Memset, MEMSET, CUDA_MEMSET_NODE_PARAMS, memset, , CUcontext)
KIND(Host, HOST, CUDA_HOST_NODE_PARAMS, host)

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph* p)
{
    NODE("cuGraphChildGraphNodeGetGraph", GRAPH);
    return *p = node->parameters.child, CUDA_SUCCESS;
}
CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode node, CUevent* p)
{
    NODE("cuGraphEventRecordNodeGetEvent", EVENT_RECORD);
    return *p = node->parameters.event, CUDA_SUCCESS;
}
CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode node, CUevent* p)
{
    NODE("cuGraphEventWaitNodeGetEvent", WAIT_EVENT);
    return *p = node->parameters.event, CUDA_SUCCESS;
}
CUresult cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode node, unsigned enabled)
{
    BEGIN("cuGraphNodeSetEnabled");
    CHECK(execs.count(exec) && exec->of.count(node));
    return exec->nodes[exec->of[node]]->enabled = enabled, CUDA_SUCCESS;
}
CUresult cuGraphNodeGetEnabled(CUgraphExec exec, CUgraphNode node, unsigned* enabled)
{
    BEGIN("cuGraphNodeGetEnabled");
    CHECK(execs.count(exec) && exec->of.count(node));
    return *enabled = exec->nodes[exec->of[node]]->enabled, CUDA_SUCCESS;
}
