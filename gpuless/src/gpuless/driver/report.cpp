// What went wrong, as it happens: a sentence on standard error, and a record, a line of JSON in the file that
// GPULESS_REPORT names. A summary follows at the end.
#include "driver.h"
#include "modules.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <tuple>

namespace gpuless {
namespace {

struct Tally
{
    unsigned long launches, checked, atomics, blocks, threads, instructions;
    double seconds;
};

pid_t owner;
volatile sig_atomic_t launching, asked_to_end;  // a kernel runs; the signal that came meanwhile
int worst;
size_t faults;
auto &names = *new std::vector<std::string>, &notes = *new std::vector<std::string>,
     &of_failure = *new std::vector<std::string>;
auto& tallies = *new std::map<std::string, Tally>;
struct Lost
{
    Place store;
    rung_machine_error error;
};
auto& lost = *new std::map<std::tuple<std::string, std::string, int>, Lost>;  // by kernel and line
auto& noted = *new std::set<std::string>;
auto& told_at = *new std::set<const void*>;  // calls

std::string json_of(const Place& place)
{
    std::string out;
    const auto add = [&](const char* name, const std::string& value) {
        out += (out.empty() ? "{" : ", ") + in_json(name) + ": " + value;
    };
    if (!place.file.empty()) add("file", in_json(place.file)), add("line", std::to_string(place.line));
    if (!place.kernel.empty()) add("kernel", in_json(place.kernel));
    for (const auto& [name, index] : {std::pair("block", &place.block), std::pair("thread", &place.thread)})
        if (index->size() == 3)
            add(name, "[" + std::to_string((*index)[0]) + ", " + std::to_string((*index)[1]) + ", " +
                          std::to_string((*index)[2]) + "]");
    return out.empty() ? "{}" : out + "}";
}

const char* from_environment(const char* name, const char* otherwise)
{
    const char* const given = getenv(name);
    return given && *given ? given : otherwise;
}
int number_from(const char* name, int otherwise)
{ return atoi(from_environment(name, std::to_string(otherwise).c_str())); }
double seconds_from(const char* name, double otherwise)
{ return atof(from_environment(name, std::to_string(otherwise).c_str())); }

// Several processes may write to one file: a record is one write behind its end.
void record(const std::string& line)
{
    const char* const path = from_environment("GPULESS_REPORT", nullptr);
    if (!path) return;
    const int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (file < 0) return;
    const std::string whole = line + "\n";
    if (write(file, whole.data(), whole.size()) < 0) fprintf(stderr, "gpuless: %s cannot be written\n", path);
    close(file);
}

void record_end(int status)
{
    std::string line = "{\"record\": \"end\", \"pid\": " + std::to_string(getpid()) +
                       ", \"exit\": " + std::to_string(status) + ", \"faults\": " + std::to_string(faults) +
                       ", \"kernels\": [";
    for (const std::string& name : names) {
        const Tally& t = tallies[name];
        char figures[300];
        snprintf(figures, sizeof figures,
                 ", \"launches\": %lu, \"race_checked\": %lu, \"atomics\": %lu, \"blocks\": %lu, \"threads\": %lu, "
                 "\"instructions\": %lu, \"seconds\": %.6f}",
                 t.launches, t.checked, t.atomics, t.blocks, t.threads, t.instructions, t.seconds);
        line += (&name == &names[0] ? "{\"kernel\": " : ", {\"kernel\": ") + in_json(name) + figures;
    }
    line += "], \"notes\": [";
    for (const std::string& note : notes) line += (&note == &notes[0] ? "" : ", ") + in_json(note);
    static char fidelity[1 << 16];
    rung_machine_fidelity(fidelity, sizeof fidelity);
    record(line + "], \"fidelity\": " + fidelity + "}");
}

// For each line that stores numbers the one that has lost most, the worst line first.
void tell_precision()
{
    std::vector<Lost> sorted;
    for (const auto& [_, one] : lost) sorted.push_back(one);
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const Lost& a, const Lost& b) { return a.error.relative > b.error.relative; });
    for (const Lost& one : sorted) {
        const rung_machine_error& e = one.error;
        char figures[200];
        snprintf(figures, sizeof figures,
                 ", \"error\": %.9g, \"stored\": %.9g, \"exact\": %.17g, \"arose\": ", e.relative, e.value, e.exact);
        record("{\"record\": \"precision\", \"pid\": " + std::to_string(getpid()) +
               ", \"place\": " + json_of(one.store) + figures + in_json(e.arose) + "}");
        if (settings().quiet) continue;
        fprintf(stderr,
                "gpuless: precision: kernel '%s', thread (%u, %u, %u) of block (%u, %u, %u), %s:%d: stores %.9g for "
                "%.9g, a relative error of %.2g, which arises at %s\n",
                one.store.kernel.c_str(), one.store.thread[0], one.store.thread[1], one.store.thread[2],
                one.store.block[0], one.store.block[1], one.store.block[2], one.store.file.c_str(), one.store.line,
                e.value, e.exact, e.relative, *e.arose ? e.arose : "the start");
    }
}

void summarize()
{
    Tally all = {};
    for (const auto& [_, t] : tallies)
        all.launches += t.launches, all.checked += t.checked, all.blocks += t.blocks, all.seconds += t.seconds;
    const auto plural = [](size_t count, const char* ending) { return count == 1 ? "" : ending; };
    fprintf(stderr, "gpuless: %zu kernel%s, %lu launch%s, %lu block%s in %.2f s; races checked in %lu launch%s; ",
            names.size(), plural(names.size(), "s"), all.launches, plural(all.launches, "es"), all.blocks,
            plural(all.blocks, "s"), all.seconds, all.checked, plural(all.checked, "es"));
    fprintf(stderr, "%zu fault%s\n", faults, plural(faults, "s"));
    for (const std::string& note : notes) fprintf(stderr, "gpuless: note: %s\n", note.c_str());
}

void at_end(int status, void*)
{
    static bool ended;
    if (getpid() != owner || ended) return;
    ended = true;
    if (!asked_to_end) wait_for_all();
    if (!status) tell_shorts();  // else it noticed
    if (const std::string kept = kept_allocations(); !kept.empty()) note_once(kept);
    if (worst || status)
        for (const std::string& text : of_failure) note_once(text);
    fflush(nullptr);
    if (counting()) write_counts();
    tell_precision();
    if (!settings().quiet && (faults || !names.empty() || asked_to_end)) summarize();
    const int code = worst && number_from("GPULESS_EXIT", 1) ? worst : status;
    record_end(code);
    if (code != status) _exit(code);
}

// A terminal's line is replaced; elsewhere lines follow each other, further apart.
constexpr double SILENCE = 2, IN_PLACE = 0.5, APART = 10, KNOWN = 1;  // the last: a launch before its end is guessed
struct Progress
{
    std::string kernel;
    double began = 0, due = 0;
    bool shown = false;
};
auto& progress = *new Progress;

void clear_line()
{
    if (progress.shown) fprintf(stderr, "\r\033[K");
    progress.shown = false;
}

}  // namespace

static Settings read_settings()
{
    return {number_from("GPULESS_ORDER", 0),      unsigned(number_from("GPULESS_SEED", 0)),
            number_from("GPULESS_RACES", 1),      number_from("GPULESS_RACE_INSTRUCTIONS", 10000000),
            seconds_from("GPULESS_SECONDS", 60),  uint64_t(number_from("GPULESS_INSTRUCTIONS", 0)),
            number_from("GPULESS_QUIET", 0) != 0, number_from("GPULESS_STOP", 0) != 0,
            number_from("GPULESS_NAN", 0) != 0,   number_from("GPULESS_PRECISION", 0) != 0};
}
static Settings& chosen()
{
    static Settings read = read_settings();
    return read;
}
const Settings& settings() { return chosen(); }

// What is told once is told once in each period.
static unsigned periods;
unsigned period() { return periods; }
void begin_period() { periods++, told_at.clear(), chosen() = read_settings(); }

void tell(ExitCode code, const Told& what)
{
    if (!worst || code < worst) worst = code;
    faults++, told_at.insert(what.site.address);
    Place place = what.place;
    const Place site = place_of(what.site);
    if (place.kernel.empty() && place.file.empty()) place = site;
    record("{\"record\": \"fault\", \"pid\": " + std::to_string(getpid()) + ", \"kind\": " + in_json(what.kind) +
           ", \"exit\": " + std::to_string(code) + ", \"text\": " + in_json(what.text) +
           ", \"place\": " + json_of(place) + ", \"related\": " + json_of(what.other) +
           ", \"call\": " + in_json(what.site.function ? what.site.function : "") + ", \"called\": " + json_of(site) +
           ", \"memory\": " + in_json(what.memory) + "}");
    fflush(stdout);
    clear_line();
    fprintf(stderr, "gpuless: %s: %s.\n", what.kind.c_str(), what.text.c_str());
    if (site.line && !what.place.kernel.empty())
        fprintf(stderr, "gpuless:   launched at %s:%d\n", site.file.c_str(), site.line);
    if (settings().stop) at_end(code, nullptr), _exit(code);
}

void note_launch(const Ran& ran)
{
    if (!tallies.count(ran.name)) names.push_back(ran.name);
    Tally& t = tallies[ran.name];
    t.launches++, t.checked += ran.checked, t.atomics += ran.atomics, t.blocks += ran.blocks, t.threads += ran.threads,
        t.instructions += ran.instructions, t.seconds += ran.seconds;
}

void note_error(const Place& store, const rung_machine_error& error)
{
    const auto [at, added] = lost.emplace(std::tuple(store.kernel, store.file, store.line), Lost{store, error});
    if (!added && error.relative > at->second.error.relative) at->second = {store, error};
}

double seconds_now()
{
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

void begin_progress(const char* kernel)
{
    launching = 1;
    progress.began = seconds_now(), progress.kernel = kernel, progress.due = progress.began + SILENCE;
}

void tell_progress(uint64_t ended, uint64_t all)
{
    const double now = seconds_now();
    if (!asked_to_end && (settings().quiet || now < progress.due)) return;
    static const bool in_place = isatty(2);
    char count[200], left[60] = "";
    snprintf(count, sizeof count, ": %llu of %llu blocks after %.0f s", (unsigned long long)ended,
             (unsigned long long)all, now - progress.began);
    if (ended && now - progress.began > KNOWN)
        snprintf(left, sizeof left, ", about %.0f s left",
                 (now - progress.began) / double(ended) * double(all - ended));
    const std::string text = progress.kernel + count + left;
    if (asked_to_end) {
        clear_line();
        note_once("the program was ended by a signal in " + text);
        at_end(128 + asked_to_end, nullptr);
        _exit(128 + asked_to_end);
    }
    progress.due = now + (in_place ? IN_PLACE : APART), progress.shown = in_place;
    fflush(stdout);
    fprintf(stderr, "%sgpuless: %s%s", in_place ? "\r\033[K" : "", text.c_str(), in_place ? "" : "\n");
    fflush(stderr);
}

void end_progress() { launching = 0, clear_line(); }

void note_once(const std::string& text)
{
    if (noted.insert(text).second) notes.push_back(text);
}

void note_if_failed(const std::string& text) { of_failure.push_back(text); }

// A program's own handlers of signals stay. Ending it in the midst of a launch is left to the launch.
static void take_signals()
{
    struct sigaction before;
    if (!sigaction(SIGABRT, nullptr, &before) && before.sa_handler == SIG_DFL)
        signal(SIGABRT, [](int) {  // of an uncaught exception, or a failed assert of the host
            signal(SIGABRT, SIG_DFL);
            at_end(128 + SIGABRT, nullptr);
        });
    for (int number : {SIGINT, SIGTERM})
        if (!sigaction(number, nullptr, &before) && before.sa_handler == SIG_DFL)
            signal(number, [](int number) {
                if (launching && !asked_to_end)
                    asked_to_end = number;
                else
                    signal(number, SIG_DFL), raise(number);
            });
}

__attribute__((constructor)) static void begin()
{
    owner = getpid();
    on_exit(at_end, nullptr);
    take_signals();
}

// A child of fork has its own end, and nothing of its parent's faults.
void begin_child()
{
    owner = getpid();
    worst = 0, faults = 0;
    names.clear(), notes.clear(), of_failure.clear(), tallies.clear(), lost.clear(), noted.clear(), told_at.clear();
    rung_machine_fidelity(nullptr, 0);
}

}  // namespace gpuless

// For a library above this one: a fault of its own kind, at a call that it has seen; `text` goes on behind the call. A
// call has one fault: that it also fails, and nobody asks, is no second one.
EXPORTED void gpuless_fault(const char* kind, const char* text, const char* function, const void* caller)
{
    using namespace gpuless;
    if (!told_at.count(caller)) tell(MISUSED, {kind, called({function, caller}) + " " + text, {function, caller}});
}
EXPORTED void gpuless_note(const char* text) { gpuless::note_once(text); }
