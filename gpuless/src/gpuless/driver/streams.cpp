// Asynchronous work is kept until something waits for it, or the host makes no call for a while, and then runs in an
// order that the streams and events allow: as issued, or, to find a missing event, latest first or at random.
#include "graphs.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>
#include <unordered_map>

namespace gpuless {
namespace {

struct Item
{
    Work run;
    std::vector<unsigned long> needs;
    unsigned agent;
    unsigned long number;
    Clock known;
    std::function<bool()> when;  // it may run; none: always
};
struct Past
{
    unsigned agent;
    unsigned long number;
    uint32_t read, written, plain;
    const std::string* what;
    Site site;
};

unsigned agents;

CUstream_st* named_stream(unsigned long long id)
{
    CUstream_st* const one = new CUstream_st;
    return one->id = id, one;
}

auto& pending = *new std::map<unsigned long, Item>;  // by number, from 1
unsigned long issued;
CUstream_st &legacy = *named_stream(1), &per_thread = *named_stream(2);
auto &streams = *new std::set<CUstream>, &destroyed = *new std::set<CUstream>;
unsigned long long stream_ids = 2;
Clock &of_host = *new Clock, &of_all = *new Clock;  // the last destructors still wait
const Item* present;
bool several;
constexpr size_t MOST_LINES = size_t(1) << 20;
auto& pasts = *new std::unordered_map<uint64_t, std::vector<Past>>;
auto& random_numbers = *new std::mt19937;
bool seeded, at_work;
std::thread::id worker;  // who is at work
unsigned long moments;   // pieces of work that have run, and waits
constexpr size_t MOST_PENDING = 4096;
std::atomic<double> last_call;
std::atomic<bool> progressing;
constexpr double IDLE = 0.05;        // seconds without a call, until work runs by itself
constexpr double MOST_WAITING = 20;  // seconds for a value that nobody writes

bool done(unsigned long number) { return !pending.count(number); }

bool ready(const Item& work)
{ return std::all_of(work.needs.begin(), work.needs.end(), done) && (!work.when || work.when()); }

void run(unsigned long number)
{
    const Item work = std::move(pending[number]);
    at_work = true, present = &work, worker = std::this_thread::get_id();
    moments++;
    open_watched();
    if (!stuck() && work.run) work.run();
    end_watch(number);
    at_work = false, present = nullptr;
    pending.erase(number);
    close_watched();
}

bool working_here() { return at_work && worker == std::this_thread::get_id(); }  // a host function

// One piece of pending work, as the order has it; `last`: of those issued up to this one, if issued order is kept.
bool step(unsigned long last)
{
    const Alone alone;
    if (at_work) return false;
    const Settings& chosen = settings();
    if (chosen.order == 0) {
        for (auto one = pending.begin(); one != pending.end() && one->first <= last; ++one)
            if (ready(one->second)) return run(one->first), true;
        for (const auto& [number, work] : pending)  // what writes the value that an earlier one waits for
            if (number > last && ready(work)) return run(number), true;
        return false;
    }
    std::vector<unsigned long> able;
    for (const auto& [number, work] : pending)
        if (ready(work)) able.push_back(number);
    if (able.empty()) return false;
    if (!seeded) seeded = true, random_numbers.seed(chosen.seed);
    run(chosen.order == 1 ? able.back() : able[random_numbers() % able.size()]);
    return true;
}

// Work that nobody waits for runs once the host has made no call for a while, as it would on a GPU: the host may be
// waiting for a callback, or for a value in memory.
void progress()
{
    for (of_library = true;;) {
        usleep(useconds_t(IDLE * 0.4e6));
        if (seconds_now() - last_call < IDLE) continue;
        {
            const Alone alone;
            if (pending.empty()) {
                progressing = false;
                return;
            }
            if (at_work) continue;
            while (seconds_now() - last_call >= IDLE && step(~0ul)) {}
        }
    }
}

void begin_progressing()
{
    if (!progressing.exchange(true)) std::thread(progress).detach();
}

}  // namespace

unsigned new_agent() { return agents++; }
void note_call() { last_call = seconds_now(); }
void begin_several() { several = true; }
bool beside() { return several; }
unsigned long moment() { return moments; }
unsigned long present_work() { return present ? present->number : 0; }

void forget_streams()  // in a child of fork
{ pending.clear(), at_work = false, present = nullptr, progressing = false; }

void join(Clock& to, const Clock& from)
{
    for (const auto& [agent, number] : from) to[agent] = std::max(to[agent], number);
}

CUstream_st* stream_of(CUstream stream)
{
    if (!stream) return per_thread_default() ? &per_thread : &legacy;
    if (stream == CU_STREAM_LEGACY) return &legacy;
    if (stream == CU_STREAM_PER_THREAD) return &per_thread;
    return streams.count(stream) ? stream : nullptr;
}

CUresult check_stream(CUstream stream)
{
    CUstream_st* const one = stream_of(stream);
    if (one && one->broken) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (one == &legacy)  // it would wait for what is being captured
        for (CUstream other : streams)
            if (other->capture && other->origin && other->blocking && other->mode != CU_STREAM_CAPTURE_MODE_RELAXED)
                return other->broken = true, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    if (one) return CUDA_SUCCESS;
    if (destroyed.erase(stream)) tell(MISUSED, {"stream", "a call is given a stream that has been destroyed", {}});
    return CUDA_ERROR_INVALID_HANDLE;
}

unsigned long issue(Work run, std::vector<unsigned long> needs, unsigned agent, const Clock& known,
                    std::function<bool()> when)
{
    of_all[agent] = ++issued;
    pending[issued] = {std::move(run), std::move(needs), agent, issued, known, std::move(when)};
    begin_progressing();
    return issued;
}

// Runs what is issued up to this one.
static void run_up_to(unsigned long number)
{
    for (double since = 0; !done(number) && !working_here();) {
        if (at_work) {
            let_others([] { usleep(100); });
            continue;
        }
        if (step(number)) {
            since = 0;
            continue;
        }
        const double now = seconds_now();  // it waits for a value
        if (since == 0) since = now;
        if (now - since > MOST_WAITING) {
            tell(FAULTED, {"deadlock", "a stream waits for a value in memory that nobody writes", {}});
            stick(CUDA_ERROR_LAUNCH_TIMEOUT), pending.clear();
            break;
        }
        let_others([] { usleep(1000); });
    }
}

void wait_for_number(unsigned long number)
{
    const Alone alone;
    run_up_to(number);
    moments++;
}

// Work of the default stream waits for that of all streams that block with it, and theirs for its.
std::vector<unsigned long> before_next(CUstream_st& stream)
{
    std::vector<unsigned long> needs = stream.last;
    const auto add = [&](const CUstream_st& other) { needs.insert(needs.end(), other.last.begin(), other.last.end()); };
    if (&stream == &legacy) {
        for (CUstream other : streams)
            if (other->blocking) add(*other);
        add(per_thread);
    } else if (stream.blocking) {
        add(legacy);
    }
    needs.erase(std::remove_if(needs.begin(), needs.end(), done), needs.end());
    return needs;
}

Clock known_by(const CUstream_st& stream)
{
    Clock known = stream.known;
    join(known, of_host);
    if (&stream == &legacy) {
        for (const CUstream_st* other : streams)
            if (other->blocking) join(known, other->known);
        join(known, per_thread.known);
    } else if (stream.blocking)
        join(known, legacy.known);
    return known;
}

void wait_where_many()
{
    if (pending.size() > MOST_PENDING) wait_for_number(issued);
}

unsigned long append(CUstream_st& stream, Work work, std::function<bool()> when)
{
    const Alone alone;
    stream.known = known_by(stream);
    const unsigned long number =
        issue(std::move(work), before_next(stream), stream.agent, stream.known, std::move(when));
    stream.last = {number}, stream.known[stream.agent] = number;
    wait_where_many();
    return number;
}

void enqueue(CUstream stream, Work work, const NodeParameters& node, const std::vector<Watch>& watches)
{
    const Alone alone;
    CUstream_st& to = *stream_of(stream);
    if (to.capture)
        capture(to, std::move(work), node);
    else if (const unsigned long number = append(to, std::move(work)); !watches.empty() && pending.count(number))
        watch(number, watches);
}

bool capturing(CUstream stream) { return stream_of(stream)->capture; }

CUresult wait_for(CUstream stream)
{
    const Alone alone;
    CUstream_st& one = *stream_of(stream);
    if (one.capture) return one.broken = true, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    for (unsigned long number : std::vector<unsigned long>(one.last)) wait_for_number(number);
    join(of_host, one.known);
    return stuck();
}

void wait_for_all()
{
    const Alone alone;
    if (working_here()) return;
    while (!pending.empty()) run_up_to(pending.begin()->first);
    of_host = of_all;
    moments++;
}

CUresult wait_for_all_streams()
{
    for (CUstream stream : streams)
        if (stream->capture && stream->mode != CU_STREAM_CAPTURE_MODE_RELAXED)
            return stream->broken = true, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    wait_for_all();
    return stuck();
}

bool run_pending()
{
    const Alone alone;
    return !at_work && step(~0ul);
}

void touch(const std::string& what, const Site& site, uint64_t line, uint32_t read, uint32_t written, uint32_t plain)
{
    static auto& whats = *new std::set<std::string>;
    static auto& told = *new std::set<std::tuple<unsigned, std::string, std::string>>;
    if (!present) return;
    if (pasts.size() >= MOST_LINES && !pasts.count(line))
        return note_once("conflicts between streams: only looked for in the first 128 MB that kernels touch");
    std::vector<Past>& here = pasts[line];
    const auto who = [](const std::string& what, const Site& site) {
        const Place place = place_of(site);
        return what + (place.line ? " (" + place.file + ":" + std::to_string(place.line) + ")" : "");
    };
    for (Past& was : here) {
        const auto known = present->known.find(was.agent);
        if (was.agent == present->agent || (known != present->known.end() && known->second >= was.number)) {
            was.written &= ~(written & plain),
                was.read &= ~((read | written) & plain);  // what is unordered with it is so with this
            continue;
        }
        const uint32_t both = ((was.written & (read | written)) | (was.read & written)) & (was.plain | plain);
        if (!both || !told.emplace(period(), who(*was.what, was.site), who(what, site)).second) continue;
        const uint32_t word = both & -both;
        Told conflict = {"race",
                         who(what, site) + " " + (written & word ? "writes" : "reads") + " what " +
                             who(*was.what, was.site) + " " + (was.written & word ? "writes" : "reads") +
                             ", with no event or wait between: " +
                             describe(reinterpret_cast<void*>(line * 128 + 4 * unsigned(__builtin_ctz(word)))),
                         site};
        conflict.other = place_of(was.site);
        tell(RACED, conflict);
    }
    here.erase(std::remove_if(here.begin(), here.end(), [](const Past& was) { return !(was.read | was.written); }),
               here.end());
    here.push_back({present->agent, present->number, read, written, plain, &*whats.insert(what).first, site});
}

}  // namespace gpuless

using namespace gpuless;

CUstream_st::CUstream_st() : agent(new_agent()) {}

CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int priority)
{
    BEGIN("cuStreamCreateWithPriority");
    if (!stream || flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    *stream = new CUstream_st;
    (*stream)->blocking = !(flags & CU_STREAM_NON_BLOCKING);
    (*stream)->priority = std::max(-5, std::min(0, priority));
    (*stream)->context = current(), (*stream)->id = ++stream_ids;
    destroyed.erase(*stream), streams.insert(*stream), several = true;
    return CUDA_SUCCESS;
}
CUresult cuStreamCreate(CUstream* stream, unsigned flags) { return cuStreamCreateWithPriority(stream, flags, 0); }
CUresult cuStreamDestroy(CUstream stream)
{
    BEGIN("cuStreamDestroy");
    if (!streams.count(stream)) return CUDA_ERROR_INVALID_HANDLE;
    for (unsigned long number : std::vector<unsigned long>(stream->last)) wait_for_number(number);
    if (stream->blocking) join(legacy.known, stream->known);
    streams.erase(stream), destroyed.insert(stream);
    delete stream;
    return stuck();
}
CUresult cuStreamSynchronize(CUstream stream)
{
    BEGIN("cuStreamSynchronize");
    if (const CUresult error = check_stream(stream)) return error;
    return wait_for(stream);
}
CUresult cuStreamQuery(CUstream stream)
{
    BEGIN("cuStreamQuery");
    if (const CUresult error = check_stream(stream)) return error;
    CUstream_st& one = *stream_of(stream);
    if (one.capture) return one.broken = true, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    const auto waiting = [&] { return !std::all_of(one.last.begin(), one.last.end(), done); };
    if (waiting()) step(one.last.back());
    if (waiting()) return CUDA_ERROR_NOT_READY;
    join(of_host, one.known);
    return stuck();
}
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned)
{
    BEGIN("cuStreamWaitEvent");
    if (const CUresult error = check_stream(stream)) return error;
    if (!is_event(event)) return CUDA_ERROR_INVALID_HANDLE;
    CUstream_st& one = *stream_of(stream);
    if (event->graph) {
        if (one.capture && one.capture != event->graph) return CUDA_ERROR_STREAM_CAPTURE_MERGE;
        if (!one.capture) one.captured.clear(), one.origin = false, one.capture_id = event->capture_id;
        one.capture = event->graph;
        one.captured.insert(one.captured.end(), event->captured.begin(), event->captured.end());
        return CUDA_SUCCESS;
    }
    if (one.capture) return one.broken = true, CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    join(one.known, event->known);
    if (!event->recorded || done(event->recorded)) return CUDA_SUCCESS;
    std::vector<unsigned long> needs = before_next(one);
    needs.push_back(event->recorded);
    one.last = {issue(nullptr, needs, one.agent, one.known)};
    return CUDA_SUCCESS;
}
CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void* data, unsigned)
{
    STREAM("cuStreamAddCallback");
    if (one.capture) return one.broken = true, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    enqueue(
        stream, [=] { let_others([=] { callback(stream, stuck(), data); }); }, NodeParameters(CU_GRAPH_NODE_TYPE_HOST));
    return CUDA_SUCCESS;
}
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data)
{
    STREAM("cuLaunchHostFunc");
    if (!function) return CUDA_ERROR_INVALID_VALUE;
    NodeParameters node(CU_GRAPH_NODE_TYPE_HOST);
    node.host = {function, data};
    enqueue(stream, [=] { let_others([=] { function(data); }); }, node);
    return CUDA_SUCCESS;
}

// ---- events ---------------------------------------------------------------------------------------------------------
static auto& events = *new std::set<CUevent>;
bool gpuless::is_event(CUevent event) { return events.count(event); }

CUresult cuEventCreate(CUevent* event, unsigned flags)
{
    BEGIN("cuEventCreate");
    if (!event || flags & ~7u) return CUDA_ERROR_INVALID_VALUE;
    if (flags & CU_EVENT_INTERPROCESS) return CUDA_ERROR_NOT_SUPPORTED;
    *event = new CUevent_st;
    (*event)->flags = flags;
    return events.insert(*event), CUDA_SUCCESS;
}
CUresult cuEventDestroy(CUevent event)
{
    BEGIN("cuEventDestroy");
    if (!events.count(event)) return CUDA_ERROR_INVALID_HANDLE;
    if (event->recorded) wait_for_number(event->recorded);
    events.erase(event);
    delete event;
    return stuck();
}
CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned)
{
    BEGIN("cuEventRecord");
    if (const CUresult error = check_stream(stream)) return error;
    if (!events.count(event)) return CUDA_ERROR_INVALID_HANDLE;
    CUstream_st& one = *stream_of(stream);
    event->graph = one.capture, event->captured = one.captured, event->capture_id = one.capture_id;
    if (one.capture) return CUDA_SUCCESS;
    const double idle_since = before_next(one).empty() ? seconds_now() : 0;  // then it is recorded now
    event->recorded = append(one, [=] { event->time = idle_since > 0 ? idle_since : seconds_now(); });
    event->known = one.known;
    return CUDA_SUCCESS;
}
CUresult cuEventRecord(CUevent event, CUstream stream) { return cuEventRecordWithFlags(event, stream, 0); }
CUresult cuEventSynchronize(CUevent event)
{
    BEGIN("cuEventSynchronize");
    if (!events.count(event)) return CUDA_ERROR_INVALID_HANDLE;
    if (event->recorded) wait_for_number(event->recorded);
    join(of_host, event->known);
    return stuck();
}
CUresult cuEventQuery(CUevent event)
{
    BEGIN("cuEventQuery");
    if (!events.count(event)) return CUDA_ERROR_INVALID_HANDLE;
    if (event->recorded && !done(event->recorded)) step(event->recorded);
    if (event->recorded && !done(event->recorded)) return CUDA_ERROR_NOT_READY;
    join(of_host, event->known);
    return stuck();
}
CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end)
{
    BEGIN("cuEventElapsedTime");
    if (!milliseconds) return CUDA_ERROR_INVALID_VALUE;
    *milliseconds = 0;
    if (!events.count(start) || !events.count(end) || !start->recorded || !end->recorded ||
        (start->flags | end->flags) & CU_EVENT_DISABLE_TIMING)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!done(start->recorded) || !done(end->recorded)) return CUDA_ERROR_NOT_READY;
    *milliseconds = std::max(1e-3f, float((end->time - start->time) * 1e3));
    return CUDA_SUCCESS;
}
CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode)
{
    static thread_local CUstreamCaptureMode now = CU_STREAM_CAPTURE_MODE_GLOBAL;
    return std::swap(*mode, now), CUDA_SUCCESS;
}

// ---- capture --------------------------------------------------------------------------------------------------------
static CUresult begin_capture(CUstream stream, CUgraph graph, std::vector<CUgraphNode> needs, CUstreamCaptureMode mode)
{
    static unsigned long long captures;
    CUstream_st& one = *stream_of(stream);
    if (&one == &legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (one.capture) return CUDA_ERROR_ILLEGAL_STATE;
    one.own_graph = !graph, one.mode = mode, one.capture_id = ++captures;
    if (!graph)
        if (const CUresult error = cuGraphCreate(&graph, 0)) return error;
    one.capture = graph, one.origin = true, one.broken = false, one.captured = std::move(needs);
    return CUDA_SUCCESS;
}
CUresult cuStreamBeginCapture(CUstream stream, CUstreamCaptureMode mode)
{
    STREAM("cuStreamBeginCapture");
    return begin_capture(stream, nullptr, {}, mode);
}
CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode* needs, const CUgraphEdgeData*,
                                     size_t count, CUstreamCaptureMode mode)
{
    STREAM("cuStreamBeginCaptureToGraph");
    if (!graph) return CUDA_ERROR_INVALID_VALUE;
    return begin_capture(stream, graph, {needs, needs + count}, mode);
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph)
{
    STREAM("cuStreamEndCapture");
    if (!graph) return CUDA_ERROR_INVALID_VALUE;
    *graph = nullptr;
    if (!one.capture) return CUDA_ERROR_ILLEGAL_STATE;
    if (!one.origin) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    CUgraph const whole = one.capture;
    bool joined = true, broken = one.broken;
    for (CUstream other : streams)
        if (other->capture == whole && other != &one) {
            for (CUgraphNode node : other->captured) {
                const auto needed = [&](const CUgraphNode by) {
                    return std::count(by->needs.begin(), by->needs.end(), node);
                };
                joined &= std::count(one.captured.begin(), one.captured.end(), node) ||
                          std::any_of(whole->nodes.begin(), whole->nodes.end(), needed);
            }
            broken |= other->broken;
            other->capture = nullptr, other->broken = false, other->captured.clear();
        }
    for (CUevent event : events)
        if (event->graph == whole) event->graph = nullptr, event->captured.clear();
    one.capture = nullptr, one.origin = false, one.broken = false, one.captured.clear();
    if (joined && !broken) return *graph = whole, CUDA_SUCCESS;
    if (one.own_graph) delete whole;
    return broken ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
}
static CUstreamCaptureStatus capture_status(const CUstream_st& one)
{
    return one.broken    ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
           : one.capture ? CU_STREAM_CAPTURE_STATUS_ACTIVE
                         : CU_STREAM_CAPTURE_STATUS_NONE;
}
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status)
{
    STREAM("cuStreamIsCapturing");
    if (&one == &legacy)
        if (const CUresult error = check_stream(stream)) return error;
    return *status = capture_status(one), CUDA_SUCCESS;
}
CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                const CUgraphNode** needs, const CUgraphEdgeData** edges, size_t* count)
{
    STREAM("cuStreamGetCaptureInfo");
    *status = capture_status(one);
    if (!one.capture) return CUDA_SUCCESS;
    if (id) *id = one.capture_id;
    if (graph) *graph = one.capture;
    if (needs) *needs = one.captured.data();
    one.edges.assign(one.captured.size() + 1, {});
    if (edges) *edges = one.edges.data();
    if (count) *count = one.captured.size();
    return CUDA_SUCCESS;
}
CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode* needs, const CUgraphEdgeData*, size_t count,
                                           unsigned flags)
{
    STREAM("cuStreamUpdateCaptureDependencies");
    if (!one.capture) return CUDA_ERROR_ILLEGAL_STATE;
    if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) one.captured.clear();
    one.captured.insert(one.captured.end(), needs, needs + count);
    return CUDA_SUCCESS;
}
