// Streams, events and graphs. Asynchronous work is kept until something waits for it, and then runs in an order that
// the streams and events allow: as issued, or, to find a missing event, latest first or at random.
#include "host.h"

#include <string.h>

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <unordered_map>

struct RungNode
{
    std::function<void()> work;
    std::vector<RungNode*> needs;
    cudaGraphNodeType type;
};
struct RungGraph
{
    std::vector<RungNode*> nodes;
    ~RungGraph()
    {
        for (RungNode* node : nodes) delete node;
    }
};
using Clock =
    std::map<unsigned,
             unsigned long>;  // of each agent, a stream or a node, the last of its work that is known to end before
struct RungGraphExec
{
    std::vector<RungNode*> nodes;
    std::vector<std::vector<size_t>> needs;
    std::vector<unsigned> agents;
};
static unsigned agents;
struct RungStream
{
    unsigned agent = agents++;
    Clock known;
    bool blocking = true;
    int priority = 0;
    std::vector<unsigned long> last;  // what its next work must wait for
    RungGraph* capture = nullptr;
    bool origin = false;              // of the capture
    std::vector<RungNode*> captured;  // what its next node must wait for
};
struct RungEvent
{
    unsigned flags = 0;
    unsigned long recorded = 0;  // 0: never
    Clock known;
    std::vector<RungNode*> captured;
    RungGraph* graph = nullptr;
    double time = -1;
};

namespace rung_host {
namespace {

struct Work
{
    std::function<void()> run;
    std::vector<unsigned long> needs;
    unsigned agent;
    unsigned long number;
    Clock known;
};
struct Past
{
    unsigned agent;
    unsigned long number;
    uint32_t read, written, plain;
    const std::string* what;
    RungSite site;
};
struct Unasked
{
    std::string what;
    cudaError_t error;
    RungSite site;
};

auto& pending = *new std::map<unsigned long, Work>;  // by number, from 1
unsigned long issued;
RungStream &legacy = *new RungStream, &per_thread = *new RungStream;
auto& streams = *new std::set<RungStream*>;
cudaError_t last_error, sticky;
Clock &of_host = *new Clock, &of_all = *new Clock;  // the last destructors still wait
const Work* present;
bool several;
constexpr size_t MOST_LINES = size_t(1) << 20;
auto& pasts = *new std::unordered_map<uint64_t, std::vector<Past>>;
auto& not_asked = *new std::vector<Unasked>;
auto& random_numbers = *new std::mt19937;
bool seeded, at_work;
unsigned long moments;  // pieces of work that have run, and waits
constexpr size_t MOST_PENDING = 4096;

RungStream& stream_of(cudaStream_t stream)
{
    if (!stream || stream == cudaStreamLegacy) return legacy;
    if (stream == cudaStreamPerThread) return per_thread;
    if (streams.count(stream)) return *stream;
    static auto& told = *new std::set<RungStream*>;
    if (told.insert(stream).second)
        tell(MISUSED, {"stream", "a call is given a stream that has been destroyed, or that none has made", {}});
    return legacy;
}

bool done(unsigned long number) { return !pending.count(number); }

void join(Clock& to, const Clock& from)
{
    for (const auto& [agent, number] : from) to[agent] = std::max(to[agent], number);
}

unsigned long issue(std::function<void()> run, std::vector<unsigned long> needs, unsigned agent, const Clock& known)
{
    of_all[agent] = ++issued;
    pending[issued] = {std::move(run), std::move(needs), agent, issued, known};
    return issued;
}

bool ready(const Work& work) { return std::all_of(work.needs.begin(), work.needs.end(), done); }

void run(unsigned long number)
{
    const Work work = std::move(pending[number]);
    at_work = true, present = &work;
    moments++;
    open_watched();
    if (!sticky && work.run) work.run();
    end_watch(number);
    at_work = false, present = nullptr;
    pending.erase(number);
    close_watched();
}

// One piece of pending work, as the order has it; `last`: of those issued up to this one, if issued order is kept.
bool step(unsigned long last)
{
    const Alone alone;
    if (pending.empty()) return false;
    const Settings& chosen = settings();
    if (chosen.order == 0) {
        const unsigned long first = pending.begin()->first;
        return first <= last && (run(first), true);
    }
    std::vector<unsigned long> able;
    for (const auto& [number, work] : pending)
        if (ready(work)) able.push_back(number);
    if (!seeded) seeded = true, random_numbers.seed(chosen.seed);
    run(chosen.order == 1 ? able.back() : able[random_numbers() % able.size()]);
    return true;
}

void wait_for_number(unsigned long number)
{
    const Alone alone;
    while (!done(number) && step(number)) {}
    moments++;
}

// Work of the default stream waits for that of all streams that block with it, and theirs for its.
std::vector<unsigned long> before_next(RungStream& stream)
{
    std::vector<unsigned long> needs = stream.last;
    const auto add = [&](const RungStream& other) { needs.insert(needs.end(), other.last.begin(), other.last.end()); };
    if (&stream == &legacy) {
        for (RungStream* other : streams)
            if (other->blocking) add(*other);
        add(per_thread);
    } else if (stream.blocking) {
        add(legacy);
    }
    needs.erase(std::remove_if(needs.begin(), needs.end(), done), needs.end());
    return needs;
}

Clock known_by(const RungStream& stream)
{
    Clock known = stream.known;
    join(known, of_host);
    if (&stream == &legacy) {
        for (const RungStream* other : streams)
            if (other->blocking) join(known, other->known);
        join(known, per_thread.known);
    } else if (stream.blocking)
        join(known, legacy.known);
    return known;
}

unsigned long append(RungStream& stream, std::function<void()> work)
{
    const Alone alone;
    stream.known = known_by(stream);
    const unsigned long number = issue(std::move(work), before_next(stream), stream.agent, stream.known);
    stream.last = {number}, stream.known[stream.agent] = number;
    if (pending.size() > MOST_PENDING) wait_for_number(number);
    return number;
}

void capture(RungStream& stream, std::function<void()> work, cudaGraphNodeType type)
{
    RungNode* const node = new RungNode{std::move(work), stream.captured, type};
    stream.capture->nodes.push_back(node);
    stream.captured = {node};
}

RungGraphExec* instantiated(const RungGraph& graph)
{
    RungGraphExec* const exec = new RungGraphExec;
    std::map<const RungNode*, size_t> at;
    for (size_t i = 0; i < graph.nodes.size(); i++) at[graph.nodes[i]] = i;
    for (const RungNode* node : graph.nodes) {
        exec->nodes.push_back(new RungNode(*node));
        exec->needs.emplace_back(), exec->agents.push_back(agents++);
        for (const RungNode* need : node->needs) exec->needs.back().push_back(at[need]);
    }
    return exec;
}

}  // namespace

cudaError_t failed(cudaError_t error)
{
    if (error) last_error = error;
    return error;
}

void stick(cudaError_t error)
{
    if (!sticky) sticky = error;
}

cudaError_t stuck() { return sticky; }

unsigned long moment() { return moments; }

static bool at_once;

unsigned long present_work() { return present ? present->number : 0; }

void enqueue(cudaStream_t stream, std::function<void()> work, cudaGraphNodeType type, const std::vector<Watch>& watches)
{
    const Alone alone;
    RungStream& to = stream_of(stream);
    if (to.capture)
        capture(to, std::move(work), type);
    else if (const unsigned long number = append(to, std::move(work)); !watches.empty() && pending.count(number))
        watch(number, watches);
    if (at_once && !at_work && !to.capture) wait_for_all();
}

bool capturing(cudaStream_t stream) { return stream_of(stream).capture; }

cudaError_t wait_for(cudaStream_t stream)
{
    const Alone alone;
    RungStream& one = stream_of(stream);
    if (one.capture) return failed(cudaErrorStreamCaptureUnsupported);
    for (unsigned long number : std::vector<unsigned long>(one.last)) wait_for_number(number);
    join(of_host, one.known);
    return failed(sticky);
}

void wait_for_all()
{
    const Alone alone;
    if (at_work) return;  // of a host function
    while (step(~0ul)) {}
    of_host = of_all;
    moments++;
}

static auto& one_at_a_time = *new std::recursive_mutex;
Alone::Alone() { one_at_a_time.lock(); }
Alone::~Alone() { one_at_a_time.unlock(); }

bool run_pending()
{
    const Alone alone;
    return !at_work && step(~0ul);
}

bool beside() { return several; }

void touch(const std::string& what, RungSite site, uint64_t line, uint32_t read, uint32_t written, uint32_t plain)
{
    static auto& whats = *new std::set<std::string>;
    static auto& told = *new std::set<std::pair<std::string, std::string>>;
    if (!present) return;
    if (pasts.size() >= MOST_LINES && !pasts.count(line))
        return note_once("conflicts between streams: only looked for in the first 128 MB that kernels touch");
    std::vector<Past>& here = pasts[line];
    for (Past& was : here) {
        const auto known = present->known.find(was.agent);
        if (was.agent == present->agent || (known != present->known.end() && known->second >= was.number)) {
            was.written &= ~(written & plain),
                was.read &= ~((read | written) & plain);  // what is unordered with it is so with this
            continue;
        }
        const uint32_t both = ((was.written & (read | written)) | (was.read & written)) & (was.plain | plain);
        if (!both || !told.emplace(place_of_call(was.site), place_of_call(site)).second) continue;
        const uint32_t word = both & -both;
        Told conflict = {"race",
                         what + " (" + place_of_call(site) + ") " + (written & word ? "writes" : "reads") + " what " +
                             *was.what + " (" + place_of_call(was.site) + ") " +
                             (was.written & word ? "writes" : "reads") + ", with no event or wait between: " +
                             describe(reinterpret_cast<void*>(line * 128 + 4 * unsigned(__builtin_ctz(word)))),
                         site};
        conflict.other.file = shown(was.site.file), conflict.other.line = was.site.line;
        tell(RACED, conflict);
    }
    here.erase(std::remove_if(here.begin(), here.end(), [](const Past& was) { return !(was.read | was.written); }),
               here.end());
    here.push_back({present->agent, present->number, read, written, plain, &*whats.insert(what).first, site});
}

void unasked(const std::string& what, cudaError_t error, RungSite site)
{
    const Alone alone;
    if (error && error != cudaErrorNotReady && error != sticky && !told_at(site))
        not_asked.push_back({what, error, site});
}

void ignored_error(const char* function, cudaError_t error, RungSite site) { unasked(function, error, site); }

void tell_unasked()
{
    for (const Unasked& one : not_asked)
        tell(MISUSED, {"unasked",
                       one.what + " (" + place_of_call(one.site) +
                           ") fails, and the program never asks: " + cudaGetErrorString(one.error),
                       one.site});
    not_asked.clear();
}

cudaError_t add_node(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count,
                     std::function<void()> work, cudaGraphNodeType type)
{
    *node = new RungNode{std::move(work), std::vector<RungNode*>(needs, needs + count), type};
    graph->nodes.push_back(*node);
    return cudaSuccess;
}

// The node of a call, which a stream of its own captures.
static cudaError_t captured(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count,
                            const std::function<cudaError_t(cudaStream_t)>& call)
{
    RungStream stream;
    stream.capture = graph, stream.captured.assign(needs, needs + count);
    const size_t before = graph->nodes.size();
    streams.insert(&stream);
    const cudaError_t error = call(&stream);
    streams.erase(&stream);
    if (error) return error;
    if (graph->nodes.size() == before)
        return add_node(node, graph, needs, count, nullptr, cudaGraphNodeTypeEmpty);  // of no bytes
    return *node = graph->nodes.back(), cudaSuccess;
}

}  // namespace rung_host

using namespace rung_host;

bool rung_host_at_once() { return at_once = true; }

cudaError_t cudaGetLastError()
{
    not_asked.clear();
    const cudaError_t error = sticky ? sticky : last_error;
    last_error = cudaSuccess;
    return error;
}
cudaError_t cudaPeekAtLastError() { return not_asked.clear(), sticky ? sticky : last_error; }
const char* cudaGetErrorString(cudaError_t error)
{
    switch (error) {
#define RUNG_ERROR(NAME, NUMBER, TEXT)                                                                                 \
    case NAME: return TEXT;
        RUNG_ERRORS(RUNG_ERROR)
#undef RUNG_ERROR
    }
    return "unrecognized error code";
}
const char* cudaGetErrorName(cudaError_t error)
{
    switch (error) {
#define RUNG_ERROR(NAME, NUMBER, TEXT)                                                                                 \
    case NAME: return #NAME;
        RUNG_ERRORS(RUNG_ERROR)
#undef RUNG_ERROR
    }
    return "unrecognized error code";
}

cudaError_t cudaDeviceSynchronize()
{
    for (const RungStream* stream : streams)
        if (stream->capture) return failed(cudaErrorStreamCaptureUnsupported);
    wait_for_all();
    return failed(sticky);
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, 0); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags)
{ return cudaStreamCreateWithPriority(stream, flags, 0); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority)
{
    const Alone alone;
    *stream = new RungStream;
    (*stream)->blocking = !(flags & cudaStreamNonBlocking);
    (*stream)->priority = priority;
    streams.insert(*stream), several = true;
    return failed(sticky);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    const Alone alone;
    if (!streams.count(stream)) return failed(cudaErrorInvalidResourceHandle);
    for (unsigned long number : std::vector<unsigned long>(stream->last)) wait_for_number(number);
    if (stream->blocking) join(legacy.known, stream->known);
    streams.erase(stream);
    delete stream;
    return failed(sticky);
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return wait_for(stream); }
cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    const Alone alone;
    RungStream& one = stream_of(stream);
    const auto waiting = [&] { return !std::all_of(one.last.begin(), one.last.end(), done); };
    if (waiting()) step(one.last.back());
    if (waiting()) return cudaErrorNotReady;
    join(of_host, one.known);
    return failed(sticky);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    const Alone alone;
    RungStream& one = stream_of(stream);
    if (event->graph) {
        if (!one.capture) one.captured.clear();
        one.capture = event->graph;
        one.captured.insert(one.captured.end(), event->captured.begin(), event->captured.end());
        return failed(sticky);
    }
    join(one.known, event->known);
    if (!event->recorded || done(event->recorded)) return failed(sticky);
    std::vector<unsigned long> needs = before_next(one);
    needs.push_back(event->recorded);
    one.last = {issue(nullptr, needs, one.agent, one.known)};
    return failed(sticky);
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority)
{ return *priority = stream_of(stream).priority, cudaSuccess; }
cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags)
{ return *flags = !stream_of(stream).blocking, cudaSuccess; }
cudaError_t cudaStreamSetAttribute(cudaStream_t, cudaStreamAttrID, const cudaStreamAttrValue*) { return cudaSuccess; }
cudaError_t cudaStreamAttachMemAsync(cudaStream_t, void*, size_t, unsigned) { return cudaSuccess; }
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data, unsigned)
{
    enqueue(stream, [=] { callback(stream, sticky, data); }, cudaGraphNodeTypeHost);
    return failed(sticky);
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data)
{
    enqueue(stream, [=] { function(data); }, cudaGraphNodeTypeHost);
    return failed(sticky);
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventCreate(cudaEvent_t* event, unsigned flags) { return cudaEventCreateWithFlags(event, flags); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags)
{
    *event = new RungEvent;
    (*event)->flags = flags;
    return failed(sticky);
}
cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    if (!event) return failed(cudaErrorInvalidResourceHandle);
    if (event->recorded) wait_for_number(event->recorded);
    delete event;
    return failed(sticky);
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    const Alone alone;
    if (!event) return failed(cudaErrorInvalidResourceHandle);
    RungStream& one = stream_of(stream);
    event->graph = one.capture;
    event->captured = one.captured;
    if (!one.capture) event->recorded = append(one, [event] { event->time = seconds_now(); }), event->known = one.known;
    return failed(sticky);
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned)
{ return cudaEventRecord(event, stream); }
cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    if (event->recorded) wait_for_number(event->recorded);
    join(of_host, event->known);
    return failed(sticky);
}
cudaError_t cudaEventQuery(cudaEvent_t event)
{
    const Alone alone;
    if (event->recorded && !done(event->recorded)) step(event->recorded);
    if (event->recorded && !done(event->recorded)) return cudaErrorNotReady;
    join(of_host, event->known);
    return failed(sticky);
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end)
{
    *milliseconds = 0;
    if (sticky) return sticky;
    if (!start || !end || !start->recorded || !end->recorded || (start->flags | end->flags) & cudaEventDisableTiming)
        return failed(cudaErrorInvalidResourceHandle);
    if (!done(start->recorded) || !done(end->recorded)) return failed(cudaErrorNotReady);
    *milliseconds = std::max(1e-3f, float((end->time - start->time) * 1e3));
    return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode)
{
    RungStream& one = stream_of(stream);
    if (&one == &legacy || one.capture) return failed(cudaErrorStreamCaptureUnsupported);
    one.capture = new RungGraph;
    one.origin = true;
    one.captured.clear();
    return failed(sticky);
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph)
{
    RungStream& one = stream_of(stream);
    *graph = nullptr;
    if (!one.capture || !one.origin) return failed(cudaErrorIllegalState);
    *graph = one.capture;
    bool joined = true;
    for (RungStream* other : streams)
        if (other->capture == *graph && other != &one) {
            for (RungNode* node : other->captured) {
                const auto needed = [&](const RungNode* by) {
                    return std::count(by->needs.begin(), by->needs.end(), node);
                };
                joined &= std::count(one.captured.begin(), one.captured.end(), node) ||
                          std::any_of((*graph)->nodes.begin(), (*graph)->nodes.end(), needed);
            }
            other->capture = nullptr, other->captured.clear();
        }
    one.capture = nullptr, one.origin = false, one.captured.clear();
    if (joined) return failed(sticky);
    delete *graph;
    *graph = nullptr;
    return failed(cudaErrorStreamCaptureInvalidated);
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status)
{
    *status = capturing(stream) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned) { return *graph = new RungGraph, cudaSuccess; }
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long)
{ return *exec = instantiated(*graph), failed(sticky); }
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, cudaGraphNode_t* error, char*, size_t)
{
    if (error) *error = nullptr;
    return *exec = instantiated(*graph), failed(sticky);
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long)
{ return *exec = instantiated(*graph), failed(sticky); }
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph, void*)
{
    if (exec->nodes.size() != graph->nodes.size()) return failed(cudaErrorGraphExecUpdateFailure);
    RungGraphExec* const fresh = instantiated(*graph);
    std::swap(exec->nodes, fresh->nodes), std::swap(exec->needs, fresh->needs), std::swap(exec->agents, fresh->agents);
    return cudaGraphExecDestroy(fresh);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    const Alone alone;
    RungStream& one = stream_of(stream);
    if (one.capture) {
        for (RungNode* node : exec->nodes) capture(one, node->work, node->type);
        return failed(sticky);
    }
    several = true;
    const std::vector<unsigned long> first = before_next(one);
    const Clock known = known_by(one);
    std::vector<unsigned long> numbers(exec->nodes.size());
    std::vector<Clock> after(numbers.size(), known);
    one.known = known;
    const std::function<void(size_t)> add = [&](size_t i) {
        if (numbers[i]) return;
        std::vector<unsigned long> needs = first;
        for (size_t need : exec->needs[i]) add(need), needs.push_back(numbers[need]), join(after[i], after[need]);
        numbers[i] = issue(exec->nodes[i]->work, needs, exec->agents[i], after[i]);
        after[i][exec->agents[i]] = numbers[i];
        join(one.known, after[i]);
    };
    for (size_t i = 0; i < numbers.size(); i++) add(i);
    one.last = {issue(nullptr, numbers.empty() ? first : numbers, one.agent, one.known)};
    if (pending.size() > MOST_PENDING) wait_for_number(one.last[0]);
    return failed(sticky);
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return failed(sticky); }
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return delete graph, failed(sticky); }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    for (RungNode* node : exec->nodes) delete node;
    return delete exec, failed(sticky);
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count)
{
    if (nodes)
        std::copy_n(graph->nodes.begin(), std::min(*count, graph->nodes.size()), nodes);
    else
        *count = graph->nodes.size();
    return cudaSuccess;
}
cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs,
                                     size_t count, void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                                     RungSite site)
{
    return captured(node, graph, needs, count,
                    [=](cudaStream_t stream) { return cudaMemcpyAsync(to, from, bytes, kind, stream, site); });
}
cudaError_t cudaGraphAddMemcpyNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count,
                                   const cudaMemcpy3DParms* copy, RungSite site)
{
    return captured(node, graph, needs, count,
                    [=](cudaStream_t stream) { return cudaMemcpy3DAsync(copy, stream, site); });
}
cudaError_t cudaGraphClone(cudaGraph_t* clone, cudaGraph_t graph)
{
    std::map<const RungNode*, RungNode*> of;
    *clone = new RungGraph;
    for (const RungNode* node : graph->nodes) (*clone)->nodes.push_back(of[node] = new RungNode(*node));
    for (RungNode* node : (*clone)->nodes)
        for (RungNode*& need : node->needs) need = of[need];
    return cudaSuccess;
}
cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count)
{
    std::vector<RungNode*> roots;
    std::copy_if(graph->nodes.begin(), graph->nodes.end(), std::back_inserter(roots),
                 [](const RungNode* node) { return node->needs.empty(); });
    if (nodes)
        std::copy_n(roots.begin(), std::min(*count, roots.size()), nodes);
    else
        *count = roots.size();
    return cudaSuccess;
}
cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count,
                                   const cudaMemsetParams* set, RungSite)
{
    return add_node(
        node, graph, needs, count,
        [set = *set] {
            for (size_t row = 0; row < set.height; row++)
                for (size_t i = 0; i < set.width; i++)
                    memcpy(static_cast<char*>(set.dst) + row * set.pitch + i * set.elementSize, &set.value,
                           set.elementSize);
        },
        cudaGraphNodeTypeMemset);
}
cudaError_t cudaGraphAddHostNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count,
                                 const cudaHostNodeParams* host)
{
    return add_node(node, graph, needs, count, [host = *host] { host.fn(host.userData); }, cudaGraphNodeTypeHost);
}
cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* needs, size_t count)
{ return add_node(node, graph, needs, count, nullptr, cudaGraphNodeTypeEmpty); }
