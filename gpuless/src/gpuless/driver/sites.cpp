// Who called: the function of the interface, and the line of the program behind it.
#include "driver.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

namespace gpuless {

const Place* python_line();

namespace {

thread_local Site named;             // by the runtime library, whose caller it is
thread_local const void* outermost;  // the caller of a per-thread variant
thread_local int per_thread;         // how deep

// A function of CUDA's headers that was put in its caller's place.
bool of_toolkit(const char* file) { return strstr(file, "/include/") && strstr(file, "/toolkits/"); }

// The line of an instruction, by its file's debug information: that of the program's file, where the instruction
// belongs to a function of CUDA's headers.
Place looked_up(const void* instruction)
{
    Place place;
    Dl_info in;
    if (!dladdr(instruction, &in) || !in.dli_fname || strchr(in.dli_fname, '\'')) return place;
    char command[4200], line[4200] = "";
    snprintf(command, sizeof command, "addr2line -i -e '%s' %#lx 2>/dev/null", in.dli_fname,
             (unsigned long)(static_cast<const char*>(instruction) - static_cast<const char*>(in.dli_fbase)));
    FILE* const found = popen(command, "r");
    if (!found) return place;
    while (fgets(line, sizeof line, found)) {
        char* const colon = strrchr(line, ':');
        if (!colon || *line == '?' || !atoi(colon + 1)) continue;
        *colon = 0;
        place.file = shown(line), place.line = atoi(colon + 1);
        if (!of_toolkit(line)) break;
    }
    pclose(found);
    return place;
}

}  // namespace

Site here(const char* function, const void* address)
{
    if (named.function) return named;
    return {function, outermost ? outermost : address, is_alone() ? nullptr : python_line()};
}

std::string number(size_t n)
{
    std::string text = std::to_string(n);
    for (int at = int(text.size()) - 3; at > 0; at -= 3) text.insert(size_t(at), ",");
    return text;
}

std::string shown(const std::string& path)
{
    char here[PATH_MAX];
    if (!getcwd(here, sizeof here)) return path;
    const size_t length = strlen(here);
    return !path.compare(0, length, here) && path[length] == '/' ? path.substr(length + 1) : path;
}

Place place_of_instruction(const void* address)
{
    static auto& known = *new std::map<const void*, Place>;
    const auto found = known.find(address);
    return found != known.end() ? found->second : known[address] = looked_up(address);
}

// A return address belongs to the instruction before it.
Place place_of(const Site& site)
{
    if (site.python) return *site.python;
    return site.address ? place_of_instruction(static_cast<const char*>(site.address) - 1) : Place();
}

std::string called(const Site& site)
{
    const Place place = place_of(site);
    const std::string name = site.function ? site.function : "a call";
    return place.line ? name + " (" + place.file + ":" + std::to_string(place.line) + ")" : name;
}

PerThread::PerThread(const void* address)
{
    if (!per_thread++) outermost = address;
}
PerThread::~PerThread()
{
    if (!--per_thread) outermost = nullptr;
}
bool per_thread_default() { return per_thread; }

}  // namespace gpuless

// A library above this one, such as the runtime's, names the function and the caller that its user knows.
EXPORTED void gpuless_enter(const char* function, const void* caller) { gpuless::named = {function, caller, nullptr}; }
EXPORTED void gpuless_leave() { gpuless::named = {}; }
