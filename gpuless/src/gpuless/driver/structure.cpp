// How the nodes of a graph hang together.
#include "graphs.h"

#include <stdio.h>

#include <algorithm>

namespace gpuless {
namespace {

template <typename List, typename Item>
CUresult listed(const List& found, Item* to, size_t* count)
{
    if (!count) return CUDA_ERROR_INVALID_VALUE;
    if (to) {
        std::copy_n(found.begin(), std::min(*count, found.size()), to);
        std::fill(to + std::min(*count, found.size()), to + *count, Item());
    }
    return *count = to ? std::min(*count, found.size()) : found.size(), CUDA_SUCCESS;
}

// Plain dependencies.
void clear_edges(CUgraphEdgeData* edges, const size_t* count)
{
    if (edges && count) std::fill(edges, edges + *count, CUgraphEdgeData());
}

std::vector<CUgraphNode> dependents(CUgraphNode node)
{
    std::vector<CUgraphNode> found;
    for (CUgraphNode other : node->graph->nodes)
        if (std::count(other->needs.begin(), other->needs.end(), node)) found.push_back(other);
    return found;
}

}  // namespace
}  // namespace gpuless

using namespace gpuless;

#define CHECK(CONDITION)                                                                                               \
    if (!(CONDITION)) return CUDA_ERROR_INVALID_VALUE

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* to, size_t* count)
{
    BEGIN("cuGraphGetNodes");
    CHECK(is_graph(graph));
    return listed(graph->nodes, to, count);
}
CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode* to, size_t* count)
{
    BEGIN("cuGraphGetRootNodes");
    CHECK(is_graph(graph));
    std::vector<CUgraphNode> roots;
    std::copy_if(graph->nodes.begin(), graph->nodes.end(), std::back_inserter(roots),
                 [](const CUgraphNode node) { return node->needs.empty(); });
    return listed(roots, to, count);
}
CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* edges, size_t* count)
{
    BEGIN("cuGraphGetEdges");
    CHECK(is_graph(graph) && count && !from == !to);
    std::vector<CUgraphNode> sources, targets;
    for (CUgraphNode node : graph->nodes)
        for (CUgraphNode need : node->needs) sources.push_back(need), targets.push_back(node);
    size_t room = *count;
    clear_edges(edges, count);
    listed(sources, from, count);
    return listed(targets, to, &room);
}
CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode* to, CUgraphEdgeData* edges, size_t* count)
{
    BEGIN("cuGraphNodeGetDependencies");
    CHECK(is_node(node));
    clear_edges(edges, count);
    return listed(node->needs, to, count);
}
CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode* to, CUgraphEdgeData* edges, size_t* count)
{
    BEGIN("cuGraphNodeGetDependentNodes");
    CHECK(is_node(node) && node->graph);
    clear_edges(edges, count);
    return listed(dependents(node), to, count);
}
CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to, const CUgraphEdgeData*,
                                size_t count)
{
    BEGIN("cuGraphAddDependencies");
    CHECK(is_graph(graph) && (!count || (from && to)));
    for (size_t i = 0; i < count; i++) {
        CHECK(is_node(from[i]) && is_node(to[i]) && from[i]->graph == graph && to[i]->graph == graph);
        CHECK(!std::count(to[i]->needs.begin(), to[i]->needs.end(), from[i]));
    }
    for (size_t i = 0; i < count; i++) to[i]->needs.push_back(from[i]);
    return CUDA_SUCCESS;
}
CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                   const CUgraphEdgeData*, size_t count)
{
    BEGIN("cuGraphRemoveDependencies");
    CHECK(is_graph(graph) && (!count || (from && to)));
    for (size_t i = 0; i < count; i++) {
        CHECK(is_node(from[i]) && is_node(to[i]));
        const auto found = std::find(to[i]->needs.begin(), to[i]->needs.end(), from[i]);
        CHECK(found != to[i]->needs.end());
        to[i]->needs.erase(found);
    }
    return CUDA_SUCCESS;
}
CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType* type)
{
    BEGIN("cuGraphNodeGetType");
    CHECK(is_node(node) && type);
    return *type = node->parameters.type, CUDA_SUCCESS;
}
CUresult cuGraphDestroyNode(CUgraphNode node)
{
    BEGIN("cuGraphDestroyNode");
    CHECK(is_node(node) && node->graph);
    std::vector<CUgraphNode>& all = node->graph->nodes;
    for (CUgraphNode other : all)
        other->needs.erase(std::remove(other->needs.begin(), other->needs.end(), node), other->needs.end());
    all.erase(std::remove(all.begin(), all.end(), node), all.end());
    return forget_node(node), CUDA_SUCCESS;
}
CUresult cuGraphDebugDotPrint(CUgraph graph, const char* path, unsigned)
{
    BEGIN("cuGraphDebugDotPrint");
    CHECK(is_graph(graph) && path);
    FILE* const file = fopen(path, "w");
    if (!file) return CUDA_ERROR_OPERATING_SYSTEM;
    fprintf(file, "digraph dot {\n");
    for (const CUgraphNode node : graph->nodes) {
        const Code* const code = code_at(node->parameters.kernel.func);
        fprintf(file, "  \"%u\" [label=\"%u %s\"];\n", node->id, node->id, code ? code->name.c_str() : "");
        for (const CUgraphNode need : node->needs) fprintf(file, "  \"%u\" -> \"%u\";\n", need->id, node->id);
    }
    fprintf(file, "}\n");
    return fclose(file), CUDA_SUCCESS;
}
