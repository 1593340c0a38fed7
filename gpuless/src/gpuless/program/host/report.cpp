// What a program's kernels did wrong, as it happens, and a summary at the end; as a JSON document too
// (show/document.schema.json).
#include "host.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <set>

namespace rung_host {
namespace {

struct Tally
{
    unsigned long launches, checked, blocks, threads;
    double seconds;
};

pid_t owner;
volatile sig_atomic_t launching, asked_to_end;  // a kernel runs; the signal that came meanwhile
int worst;
auto& told = *new std::vector<Told>;
auto &names = *new std::vector<std::string>, &notes = *new std::vector<std::string>,
     &of_failure = *new std::vector<std::string>;
auto& tallies = *new std::map<std::string, Tally>;
auto& noted = *new std::set<std::string>;

std::string quoted(const std::string& text)
{
    std::string out = "\"";
    for (unsigned char c : text) {
        if (c == '"' || c == '\\')
            out += '\\', out += char(c);
        else if (c < 32) {
            char code[8];
            snprintf(code, sizeof code, "\\u%04x", c);
            out += code;
        } else
            out += char(c);
    }
    return out + "\"";
}

std::string json_of(const Place& place)
{
    std::string out;
    const auto add = [&](const char* name, const std::string& value) {
        out += (out.empty() ? "{" : ", ") + quoted(name) + ": " + value;
    };
    if (!place.file.empty()) add("file", quoted(place.file)), add("line", std::to_string(place.line));
    if (!place.kernel.empty()) add("kernel", quoted(place.kernel));
    for (const auto& [name, index] : {std::pair("block", &place.block), std::pair("thread", &place.thread)})
        if (index->size() == 3)
            add(name, "[" + std::to_string((*index)[0]) + ", " + std::to_string((*index)[1]) + ", " +
                          std::to_string((*index)[2]) + "]");
    return out.empty() ? out : out + "}";
}

int number_from(const char* name, int otherwise) { return getenv(name) ? atoi(getenv(name)) : otherwise; }
double seconds_from(const char* name, double otherwise) { return getenv(name) ? atof(getenv(name)) : otherwise; }

void write_json(const char* path, int status)
{
    FILE* const file = fopen(path, "w");
    if (!file) return;
    const char *const orders[] = {"forward", "reverse", "shuffled"}, *const races[] = {"no", "auto", "yes"};
    if (told.empty() && status) told.push_back({"exit", "the program ends with exit code " + std::to_string(status)});
    fprintf(file,
            "{\"schema\": \"rung/1\", \"verb\": \"run\", \"verdict\": \"%s\", \"exit\": %d,\n \"how\": {\"order\": "
            "\"%s\", \"seed\": %u, "
            "\"races\": \"%s\"},\n \"findings\": [",
            status ? "failed" : "ok", status, orders[settings().order % 3], settings().seed,
            races[settings().races % 3]);
    for (size_t i = 0; i < told.size(); i++) {
        fprintf(file, "%s\n  {\"kind\": %s, \"text\": %s", i ? "," : "", quoted(told[i].kind).c_str(),
                quoted(told[i].text).c_str());
        if (const std::string place = json_of(told[i].place); !place.empty())
            fprintf(file, ", \"place\": %s", place.c_str());
        if (told[i].other.line) fprintf(file, ", \"related\": [%s]", json_of(told[i].other).c_str());
        if (told[i].launched.file) fprintf(file, ", \"launched\": %s", quoted(place_of_call(told[i].launched)).c_str());
        fprintf(file, "}");
    }
    fprintf(file, "],\n \"results\": [");
    for (size_t i = 0; i < names.size(); i++) {
        const Tally& t = tallies[names[i]];
        fprintf(file,
                "%s\n  {\"kernel\": %s, \"launches\": %lu, \"race_checked\": %lu, \"blocks\": %lu, \"threads\": %lu, "
                "\"seconds\": %.6f}",
                i ? "," : "", quoted(names[i]).c_str(), t.launches, t.checked, t.blocks, t.threads, t.seconds);
    }
    fprintf(file, "],\n \"notes\": [");
    for (size_t i = 0; i < notes.size(); i++) fprintf(file, "%s%s", i ? ", " : "", quoted(notes[i]).c_str());
    fprintf(file, "]}\n");
    fclose(file);
}

void at_end(int status, void*)
{
    static bool ended;
    if (getpid() != owner || ended) return;
    ended = true;
    if (!asked_to_end) wait_for_all();
    if (!status) tell_unasked(), tell_shorts();  // else it noticed
    if (const std::string kept = kept_allocations(); !kept.empty()) note_once(kept);
    if (worst || status)
        for (const std::string& text : of_failure) note_once(text);
    fflush(nullptr);
    if (counting()) write_counts();
    if (!settings().quiet) {
        Tally all = {};
        for (const auto& [_, t] : tallies)
            all.launches += t.launches, all.checked += t.checked, all.blocks += t.blocks, all.seconds += t.seconds;
        if (!names.empty())
            fprintf(stderr,
                    "rung: %zu kernel%s, %lu launch%s, %lu blocks in %.2f s; races looked for in %lu launch%s; %zu "
                    "fault%s\n",
                    names.size(), names.size() == 1 ? "" : "s", all.launches, all.launches == 1 ? "" : "es", all.blocks,
                    all.seconds, all.checked, all.checked == 1 ? "" : "es", told.size(), told.size() == 1 ? "" : "s");
        else
            fprintf(stderr, "rung: no kernel has run; %zu fault%s\n", told.size(), told.size() == 1 ? "" : "s");
        for (const std::string& note : notes) fprintf(stderr, "rung: note: %s\n", note.c_str());
    }
    if (const char* path = getenv("RUNG_REPORT")) write_json(path, worst ? worst : status);
    if (worst) _exit(worst);
}

}  // namespace

const Settings& settings()
{
    static const Settings chosen = {number_from("RUNG_ORDER", 0),     unsigned(number_from("RUNG_SEED", 0)),
                                    number_from("RUNG_RACES", 1),     seconds_from("RUNG_RACE_SECONDS", 3),
                                    seconds_from("RUNG_SECONDS", 60), number_from("RUNG_QUIET", 0) != 0};
    return chosen;
}

std::string shown(const char* path)
{
    char here[PATH_MAX];
    if (!getcwd(here, sizeof here)) return path;
    const size_t length = strlen(here);
    return !strncmp(path, here, length) && path[length] == '/' ? path + length + 1 : path;
}

std::string place_of_call(RungSite site) { return shown(site.file) + ":" + std::to_string(site.line); }

// A terminal's line is replaced; elsewhere lines follow each other, further apart.
constexpr double SILENCE = 2, IN_PLACE = 0.5, APART = 10, KNOWN = 1;  // the last: a launch before its end is guessed
struct Progress
{
    std::string kernel;
    double began = 0, due = 0;
    bool shown = false;
};
static auto& progress = *new Progress;
static uint64_t apart[2],
    *watched = apart;  // how many launches have begun, and whether one runs: running.py reads it meanwhile

static void clear_line()
{
    if (progress.shown) fprintf(stderr, "\r\033[K");
    progress.shown = false;
}

void tell(ExitCode kind, const Told& what)
{
    if (!worst || kind < worst) worst = kind;
    told.push_back(what);
    if (what.place.kernel.empty() && what.launched.file)
        told.back().place.file = shown(what.launched.file), told.back().place.line = what.launched.line;
    fflush(stdout);
    clear_line();
    fprintf(stderr, "rung: %s: %s.\n", what.kind.c_str(), what.text.c_str());
    if (what.launched.file && !what.place.kernel.empty())
        fprintf(stderr, "rung:   launched at %s\n", place_of_call(what.launched).c_str());
}

bool told_at(RungSite site)
{
    return std::any_of(told.begin(), told.end(), [&](const Told& one) {
        return one.launched.file == site.file && one.launched.line == site.line;
    });
}

void not_modelled(const char* function, const char* place)
{
    fflush(stdout);
    fprintf(stderr, "rung: %s is not modelled by the emulator (%s).\n", function, place);
    exit(2);
}

void note_launch(const Ran& ran)
{
    if (!tallies.count(ran.name)) names.push_back(ran.name);
    Tally& t = tallies[ran.name];
    t.launches++, t.checked += ran.checked, t.blocks += ran.blocks, t.threads += ran.threads, t.seconds += ran.seconds;
}

double seconds_now()
{
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return double(now.tv_sec) + 1e-9 * double(now.tv_nsec);
}

void begin_progress(const char* kernel, RungSite launched)
{
    launching = 1;
    watched[0]++, watched[1] = 1;
    progress.began = seconds_now();
    progress.kernel = std::string(kernel) + (launched.file ? ", launched at " + place_of_call(launched) : "");
    if (progress.due == 0) progress.due = progress.began + SILENCE;
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
        snprintf(left, sizeof left, ", some %.0f s left", (now - progress.began) / double(ended) * double(all - ended));
    const std::string text = progress.kernel + count + left;
    if (asked_to_end) {
        clear_line();
        note_once("the program was ended by a signal in " + text);
        at_end(128 + asked_to_end, nullptr);
        _exit(128 + asked_to_end);
    }
    progress.due = now + (in_place ? IN_PLACE : APART), progress.shown = in_place;
    fflush(stdout);
    fprintf(stderr, "%srung: %s%s", in_place ? "\r\033[K" : "", text.c_str(), in_place ? "" : "\n");
    fflush(stderr);
}

void end_progress() { launching = 0, watched[1] = 0, clear_line(); }

void note_once(const std::string& text)
{
    if (noted.insert(text).second) notes.push_back(text);
}

void note_if_failed(const std::string& text) { of_failure.push_back(text); }

void begin_program()
{
    static const int registered = on_exit(at_end, nullptr);
    (void)registered;
}

__attribute__((constructor)) static void begin()
{
    owner = getpid();
    if (const int file = getenv("RUNG_LAUNCHED") ? open(getenv("RUNG_LAUNCHED"), O_RDWR | O_CLOEXEC) : -1; file >= 0) {
        void* const mapped = mmap(nullptr, sizeof apart, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (mapped != MAP_FAILED) watched = static_cast<uint64_t*>(mapped);
        close(file);
    }
    on_exit(at_end, nullptr);  // of a program without kernels
    signal(SIGABRT, [](int) {  // of an uncaught exception, or a failed assert of the host
        signal(SIGABRT, SIG_DFL);
        at_end(128 + SIGABRT, nullptr);
    });
    for (int number : {SIGINT, SIGTERM})
        if (signal(number, [](int number) {
                if (launching && !asked_to_end)
                    asked_to_end = number;
                else
                    signal(number, SIG_DFL), raise(number);
            }) == SIG_IGN)
            signal(number, SIG_IGN);
}

}  // namespace rung_host
