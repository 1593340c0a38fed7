// Nodes of memory and events, attributes of kernels' nodes, and what a graph keeps alive.
#include "graphs.h"

#include <algorithm>

struct CUuserObject_st
{
    CUhostFn destroy;
    void* value;
    unsigned count;
};

namespace gpuless {
namespace {

auto& objects = *new std::set<CUuserObject>;

void drop(CUuserObject object, unsigned count)
{
    if (!objects.count(object)) return;
    object->count -= std::min(count, object->count);
    if (object->count) return;
    objects.erase(object);
    const CUhostFn destroy = object->destroy;
    void* const value = object->value;
    delete object;
    let_others([=] { destroy(value); });
}

}  // namespace

void keep_objects(const std::map<CUuserObject, unsigned>& kept)
{
    for (const auto& [object, count] : kept) object->count += count;
}
void drop_objects(const std::map<CUuserObject, unsigned>& kept)
{
    for (const auto& [object, count] : kept) drop(object, count);
}

}  // namespace gpuless

using namespace gpuless;

#define CHECK(CONDITION)                                                                                               \
    if (!(CONDITION)) return CUDA_ERROR_INVALID_VALUE

CUresult cuUserObjectCreate(CUuserObject* object, void* value, CUhostFn destroy, unsigned count, unsigned flags)
{
    BEGIN("cuUserObjectCreate");
    CHECK(object && destroy && count && flags == CU_USER_OBJECT_NO_DESTRUCTOR_SYNC);
    *object = new CUuserObject_st{destroy, value, count};
    return objects.insert(*object), CUDA_SUCCESS;
}
CUresult cuUserObjectRetain(CUuserObject object, unsigned count)
{
    BEGIN("cuUserObjectRetain");
    CHECK(objects.count(object) && count);
    return object->count += count, CUDA_SUCCESS;
}
CUresult cuUserObjectRelease(CUuserObject object, unsigned count)
{
    BEGIN("cuUserObjectRelease");
    CHECK(objects.count(object) && count);
    return drop(object, count), CUDA_SUCCESS;
}
CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned count, unsigned flags)
{
    BEGIN("cuGraphRetainUserObject");
    CHECK(is_graph(graph) && objects.count(object) && count);
    graph->objects[object] += count;
    if (!(flags & CU_GRAPH_USER_OBJECT_MOVE)) object->count += count;
    return CUDA_SUCCESS;
}
CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned count)
{
    BEGIN("cuGraphReleaseUserObject");
    CHECK(is_graph(graph) && objects.count(object) && graph->objects[object] >= count);
    if (!(graph->objects[object] -= count)) graph->objects.erase(object);
    return drop(object, count), CUDA_SUCCESS;
}

// ---- memory ---------------------------------------------------------------------------------------------------------
CUresult cuGraphAddMemAllocNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* needs, size_t count,
                                CUDA_MEM_ALLOC_NODE_PARAMS* p)
{
    BEGIN("cuGraphAddMemAllocNode");
    CHECK(p && p->bytesize);
    void* memory = nullptr;
    if (const CUresult error = allocate(&memory, p->bytesize, Kind::Device, site)) return error;
    p->dptr = device_pointer(memory);
    NodeParameters parameters(CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    parameters.alloc = *p;
    return add_checked(node, graph, needs, count, parameters, site);
}
CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS* p)
{
    BEGIN("cuGraphMemAllocNodeGetParams");
    CHECK(is_node(node) && p && node->parameters.type == CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    return *p = node->parameters.alloc, CUDA_SUCCESS;
}
CUresult cuGraphAddMemFreeNode(CUgraphNode* node, CUgraph graph, const CUgraphNode* needs, size_t count,
                               CUdeviceptr pointer)
{
    BEGIN("cuGraphAddMemFreeNode");
    CHECK(allocation_at(bytes_at(pointer)));
    NodeParameters parameters(CU_GRAPH_NODE_TYPE_MEM_FREE);
    parameters.freed = pointer;
    return add_checked(node, graph, needs, count, parameters, site);
}
CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr* pointer)
{
    BEGIN("cuGraphMemFreeNodeGetParams");
    CHECK(is_node(node) && pointer && node->parameters.type == CU_GRAPH_NODE_TYPE_MEM_FREE);
    return *pointer = node->parameters.freed, CUDA_SUCCESS;
}
CUresult cuDeviceGraphMemTrim(CUdevice device)
{ return device < 0 || size_t(device) >= gpus().size() ? CUDA_ERROR_INVALID_DEVICE : initialized(); }
CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute, void* value)
{
    if (device < 0 || size_t(device) >= gpus().size()) return CUDA_ERROR_INVALID_DEVICE;
    return *static_cast<cuuint64_t*>(value) = 0, initialized();  // memory of graphs is an allocation's as any other
}
CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute, void*)
{ return device < 0 || size_t(device) >= gpus().size() ? CUDA_ERROR_INVALID_DEVICE : initialized(); }

// ---- events ---------------------------------------------------------------------------------------------------------
static CUresult change_event(CUgraphNode node, CUgraphNodeType type, CUevent event, const Site& site)
{
    CHECK(is_node(node) && is_event(event));
    NodeParameters parameters(type);
    parameters.event = event;
    return change_node(node, parameters, site);
}
CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode node, CUevent event)
{
    BEGIN("cuGraphEventRecordNodeSetEvent");
    return change_event(node, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event, site);
}
CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode node, CUevent event)
{
    BEGIN("cuGraphEventWaitNodeSetEvent");
    return change_event(node, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event, site);
}
CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event)
{
    BEGIN("cuGraphExecEventRecordNodeSetEvent");
    return change_event(node_in(exec, node), CU_GRAPH_NODE_TYPE_EVENT_RECORD, event, site);
}
CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event)
{
    BEGIN("cuGraphExecEventWaitNodeSetEvent");
    return change_event(node_in(exec, node), CU_GRAPH_NODE_TYPE_WAIT_EVENT, event, site);
}

// ---- attributes of a kernel's node ----------------------------------------------------------------------------------
CUresult cuGraphKernelNodeSetAttribute(CUgraphNode node, CUkernelNodeAttrID attribute,
                                       const CUkernelNodeAttrValue* value)
{
    BEGIN("cuGraphKernelNodeSetAttribute");
    CHECK(is_node(node) && value && node->parameters.type == CU_GRAPH_NODE_TYPE_KERNEL);
    NodeParameters changed = node->parameters;
    changed.changes_how = true;
    if (attribute == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) changed.how.cooperative = value->cooperative;
    if (attribute == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
        changed.how.cluster[0] = value->clusterDim.x, changed.how.cluster[1] = value->clusterDim.y,
        changed.how.cluster[2] = value->clusterDim.z;
    return change_node(node, changed, site);
}
CUresult cuGraphKernelNodeGetAttribute(CUgraphNode node, CUkernelNodeAttrID attribute, CUkernelNodeAttrValue* value)
{
    BEGIN("cuGraphKernelNodeGetAttribute");
    CHECK(is_node(node) && value && node->parameters.type == CU_GRAPH_NODE_TYPE_KERNEL);
    const Configuration& how = node->parameters.how;
    *value = {};
    if (attribute == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) value->cooperative = how.cooperative;
    if (attribute == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
        value->clusterDim.x = how.cluster[0], value->clusterDim.y = how.cluster[1],
        value->clusterDim.z = how.cluster[2];
    return CUDA_SUCCESS;
}
CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode to, CUgraphNode from)
{
    BEGIN("cuGraphKernelNodeCopyAttributes");
    CHECK(is_node(to) && is_node(from) && to->parameters.type == CU_GRAPH_NODE_TYPE_KERNEL &&
          from->parameters.type == CU_GRAPH_NODE_TYPE_KERNEL);
    NodeParameters changed = to->parameters;
    changed.changes_how = true, changed.how.cooperative = from->parameters.how.cooperative;
    std::copy(from->parameters.how.cluster, from->parameters.how.cluster + 3, changed.how.cluster);
    return change_node(to, changed, site);
}
