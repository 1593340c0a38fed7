// In a process of Python's: the line of the user's own file that is being executed.
#include "driver.h"

#include <dlfcn.h>
#include <string.h>

namespace gpuless {
namespace {

// The stable part of Python's C interface, from the interpreter that has loaded this library, if any.
struct Python
{
    int (*is_initialized)();
    int (*is_finalizing)();
    void* (*this_state)();
    int (*ensure)();
    void (*release)(int);
    void* (*frame)();
    void* (*back)(void*);
    void* (*code)(void*);
    int (*line)(void*);
    void* (*attribute)(void*, const char*);
    const char* (*text)(void*);
    void (*drop)(void*);
    bool found;
};

const Python& python()
{
    static const auto& found = *[] {
        Python* const p = new Python;
        const auto look = [](auto& to, const char* name) {
            return to = reinterpret_cast<std::remove_reference_t<decltype(to)>>(dlsym(RTLD_DEFAULT, name)),
                   to != nullptr;
        };
        look(p->is_finalizing, "Py_IsFinalizing") || look(p->is_finalizing, "_Py_IsFinalizing");
        p->found = look(p->is_initialized, "Py_IsInitialized") & look(p->this_state, "PyGILState_GetThisThreadState") &
                   look(p->ensure, "PyGILState_Ensure") & look(p->release, "PyGILState_Release") &
                   look(p->frame, "PyEval_GetFrame") & look(p->back, "PyFrame_GetBack") &
                   look(p->code, "PyFrame_GetCode") & look(p->line, "PyFrame_GetLineNumber") &
                   look(p->attribute, "PyObject_GetAttrString") & look(p->text, "PyUnicode_AsUTF8") &
                   look(p->drop, "Py_DecRef");
        return p;
    }();
    return found;
}

bool is_of_packages(const char* file)
{
    return strstr(file, "/lib/python3") || strstr(file, "/site-packages/") || strstr(file, "/dist-packages/") ||
           *file == '<' || strstr(file, "/gpuless/");
}

}  // namespace

// The innermost line outside of installed packages; null if there is none.
const Place* python_line()
{
    static auto& places = *new std::map<std::pair<std::string, int>, Place>;
    const Python& p = python();
    if (!p.found || !p.is_initialized() || !p.this_state() || (p.is_finalizing && p.is_finalizing())) return nullptr;
    const int held = p.ensure();
    const Place* found = nullptr;
    void* owned = nullptr;
    for (void* frame = p.frame(); frame && !found;) {
        void* const code = p.code(frame);
        void* const name = p.attribute(code, "co_filename");
        const char* const file = name ? p.text(name) : nullptr;
        if (file && !is_of_packages(file)) {
            Place& place = places[{file, p.line(frame)}];
            if (!place.line) place.file = shown(file), place.line = p.line(frame);
            found = &place;
        }
        if (name) p.drop(name);
        p.drop(code);
        void* const next = p.back(frame);
        if (owned) p.drop(owned);
        frame = owned = next;
    }
    if (owned) p.drop(owned);
    p.release(held);
    return found;
}

}  // namespace gpuless
