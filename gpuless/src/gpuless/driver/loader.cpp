// Images become module files in a process of Python's (load.py), which starts with the first image that the cache does
// not hold and serves until this process ends.
#include "modules.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace gpuless {
namespace {

struct Loader
{
    pid_t owner = 0;
    FILE *to = nullptr, *from = nullptr;
};
auto& loader = *new Loader;

const char* given(const char* name, const char* otherwise)
{
    const char* const value = getenv(name);
    return value && *value ? value : otherwise;
}

// The environment of the loader: nothing of it is judged, and it finds this package.
std::vector<std::string> environment()
{
    std::vector<std::string> found;
    for (char** one = environ; *one; one++)
        if (strncmp(*one, "LD_PRELOAD=", 11) && strncmp(*one, "GPULESS_REPORT=", 15) &&
            strncmp(*one, "GPULESS_COUNTS=", 15) && strncmp(*one, "PYTHONPATH=", 11) &&
            strncmp(*one, "PYTHONHOME=", 11))
            found.push_back(*one);
    found.push_back(std::string("PYTHONPATH=") + given("GPULESS_PYTHONPATH", GPULESS_DEFAULT_PATH));
    return found;
}

bool start()
{
    if (loader.to && loader.owner == getpid()) return true;
    loader = {};
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC)) return false;
    if (pipe2(out, O_CLOEXEC)) return close(in[0]), close(in[1]), false;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], 0);
    posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    const char* const python = given("GPULESS_PYTHON", GPULESS_DEFAULT_PYTHON);
    const char* const words[] = {python, "-P", "-m", "gpuless.driver.load", nullptr};
    const std::vector<std::string> settings = environment();
    std::vector<char*> variables;
    for (const std::string& one : settings) variables.push_back(const_cast<char*>(one.c_str()));
    variables.push_back(nullptr);
    pid_t child = 0;
    const int wrong =
        posix_spawnp(&child, python, &actions, nullptr, const_cast<char* const*>(words), variables.data());
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]), close(out[1]);
    if (wrong) {
        close(in[1]), close(out[0]);
        fprintf(stderr, "gpuless: the loader does not start: %s: %s (GPULESS_PYTHON names a Python)\n", python,
                strerror(wrong));
        return false;
    }
    loader = {getpid(), fdopen(in[1], "w"), fdopen(out[0], "r")};
    return true;
}

bool make_folders(const std::string& path)
{
    for (size_t at = path.find('/', 1);; at = path.find('/', at + 1)) {
        const std::string part = path.substr(0, at);
        if (mkdir(part.c_str(), 0755) && errno != EEXIST) return false;
        if (at == std::string::npos) return access(path.c_str(), W_OK) == 0;
    }
}

}  // namespace

std::string in_json(const std::string& text)
{
    std::string out = "\"";
    for (const unsigned char c : text)
        if (c == '"' || c == '\\')
            out += '\\', out += char(c);
        else if (c < 32) {
            char code[8];
            snprintf(code, sizeof code, "\\u%04x", c);
            out += code;
        } else
            out += char(c);
    return out + "\"";
}

std::string from_json(const std::string& text)  // of a string
{
    std::string out;
    for (size_t i = text.find('"') + 1; i < text.size() && text[i] != '"'; i++) {
        if (text[i] != '\\')
            out += text[i];
        else if (text[++i] == 'n')
            out += '\n';
        else if (text[i] == 'u')
            i += 4, out += '?';
        else
            out += text[i];
    }
    return out;
}

CUresult load_request(const std::string& request, std::string* answer)
{
    struct sigaction ignore = {}, before;
    ignore.sa_handler = SIG_IGN;
    sigaction(SIGPIPE, &ignore, &before);
    static char line[1 << 16];
    const bool answered = start() && fprintf(loader.to, "%s\n", request.c_str()) > 0 && !fflush(loader.to) &&
                          fgets(line, sizeof line, loader.from);
    sigaction(SIGPIPE, &before, nullptr);
    if (!answered) return *answer = "the loader has ended", loader = {}, CUDA_ERROR_JIT_COMPILER_NOT_FOUND;
    *answer = from_json(line);
    return CUresult(atoi(line));
}

const std::string& cache_folder()
{
    static const auto& found = *[] {
        const char* const home = given("HOME", "/tmp");
        const std::string base = given("GPULESS_CACHE", "");
        const std::string usual = std::string(given("XDG_CACHE_HOME", (std::string(home) + "/.cache").c_str()));
        std::string folder = (base.empty() ? usual + "/gpuless" : base) + "/module";
        char fresh[] = "/tmp/gpuless-XXXXXX";
        if (!make_folders(folder)) folder = mkdtemp(fresh) ? fresh : "/tmp";
        return new std::string(folder);
    }();
    return found;
}

}  // namespace gpuless
