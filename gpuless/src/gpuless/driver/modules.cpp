// Modules and libraries: code and variables of an image.
#include "modules.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cxxabi.h>
#include <fstream>

struct CUmod_st : gpuless::Module
{ std::map<std::string, CUfunction> functions; };
struct CUfunc_st
{
    gpuless::Code* code;
    CUmodule module;
};
struct CUlib_st
{
    CUmodule module;
    std::map<std::string, CUkernel> kernels;
};
struct CUkern_st
{
    gpuless::Code* code;
    CUlibrary library;
    CUfunction function;
};

namespace gpuless {

uint64_t module_changes;

namespace {

// A kernel's name as its source has it, with a template's arguments and without parameters.
std::string title_of(std::string name)
{
    unsigned length = 0;
    int digits = 0;  // a static one: __nv_static_LENGTH_, so many letters of its file, _ and the name
    if (sscanf(name.c_str(), "__nv_static_%u_%n", &length, &digits) == 1 && name.size() > digits + length + 1)
        name.erase(0, digits + length + 1);
    int failed = 0;
    char* const whole = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &failed);
    if (failed || !whole) return name;
    std::string text = whole;
    free(whole);
    // Numba writes a digest of its options into a name, and <locals> as Python's scopes have it.
    for (size_t at; (at = text.find("[abi:")) != std::string::npos;) text.erase(at, text.find(']', at) - at + 1);
    for (size_t at; (at = text.find("::_3clocals_3e")) != std::string::npos;) text.erase(at, 14);
    int depth = 0;
    for (size_t i = 0; i < text.size(); i++) {  // "void k<int>(int*)": up to the parenthesis, without the result's type
        const bool anonymous = !text.compare(i, 21, "(anonymous namespace)");
        if (anonymous)
            i += 20;
        else if (text[i] == '<')
            depth++;
        else if (text[i] == '>')
            depth--;
        else if (text[i] == '(' && !depth) {
            text.resize(i);
            break;
        }
    }
    depth = 0;
    for (size_t i = 0; i < text.size(); i++) {
        if (!text.compare(i, 21, "(anonymous namespace)"))
            i += 20;
        else if (text[i] == '<')
            depth++;
        else if (text[i] == '>')
            depth--;
        else if (text[i] == ' ' && !depth)
            return text.substr(i + 1);
    }
    return text;
}

auto& all = *new std::set<Module*>;
auto& handles = *new std::map<const void*, char>;  // of living modules, functions, libraries and kernels: their kind

// Bytes at an address, of an image whose size only its content tells.
size_t size_of(const char* image)
{
    uint32_t magic = 0;
    memcpy(&magic, image, 4);
    if (!memcmp(image, "\177ELF", 4)) {
        uint64_t sections = 0, programs = 0;
        uint16_t program_size = 0, program_count = 0, section_size = 0, section_count = 0;
        memcpy(&programs, image + 32, 8), memcpy(&sections, image + 40, 8);
        memcpy(&program_size, image + 54, 2), memcpy(&program_count, image + 56, 2);
        memcpy(&section_size, image + 58, 2), memcpy(&section_count, image + 60, 2);
        size_t end = std::max(sections + section_size * section_count, programs + program_size * program_count);
        for (unsigned i = 0; i < section_count; i++) {
            const char* const header = image + sections + i * section_size;
            uint32_t type = 0;
            uint64_t offset = 0, size = 0;
            memcpy(&type, header + 4, 4), memcpy(&offset, header + 24, 8), memcpy(&size, header + 32, 8);
            if (type != 8) end = std::max(end, size_t(offset + size));
        }
        return end;
    }
    if (magic == 0xba55ed50) {
        uint16_t head = 0;
        uint64_t size = 0;
        memcpy(&head, image + 6, 2), memcpy(&size, image + 8, 8);
        return head + size;
    }
    return strlen(image);
}

std::string digest_of(const char* data, size_t bytes)
{
    uint64_t a = 0xcbf29ce484222325ull, b = 0x9e3779b97f4a7c15ull ^ bytes;
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t word = 0;
        memcpy(&word, data + i, std::min<size_t>(8, bytes - i));
        a = (a ^ word) * 0x100000001b3ull, a ^= a >> 29;
        b = (b + word) * 0xbf58476d1ce4e5b9ull, b ^= b >> 31;
    }
    char text[40];
    snprintf(text, sizeof text, "%016llx%016llx", (unsigned long long)a, (unsigned long long)b);
    return text;
}

std::string content_of(const std::string& path)
{
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

char* memory_of(const std::string& data)
{
    const size_t bytes = (data.size() / PAGE + 1) * PAGE;
    void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return static_cast<char*>(memcpy(memory, data.data(), data.size()));
}

// Addresses of variables that code names: 32@lo(SECTION+OFFSET).
void fill_in(std::string& text, const Module& module)
{
    for (size_t at = 0; (at = text.find("32@", at)) != std::string::npos;) {
        char half = 0, number[24];
        unsigned section = 0, length = 0;
        size_t offset = 0;
        if (sscanf(&text[at], "32@%c%*c(%u+%zu)%n", &half, &section, &offset, &length) == 3 && section < 4) {
            const uint64_t address = uint64_t(module.sections[section]) + offset;
            snprintf(number, sizeof number, "%#x", uint32_t(half == 'l' ? address : address >> 32));
            text.replace(at, length, number);
        } else
            at += 3;
    }
}

void read_kernel(Reader& read, Module& module)
{
    const std::string name = read.word();
    Code& code = module.codes[name];
    code.module = &module, code.name = name, code.title = title_of(name), code.refused = read.line();
    code.later = code.refused == "+";
    if (code.refused != "-") return;
    code.refused.clear();
    code.start = read.small(), code.constants = read.small(), code.shared = read.small(), code.local = read.small();
    code.stack = read.small();
    code.registers = read.small(), code.threads = read.small();
    for (unsigned& one : code.cluster) one = read.small();
    for (size_t i = read.number(); i; i--)
        code.parameters.emplace_back(read.small(), 0), code.parameters.back().second = read.small();
    for (size_t i = read.number(); i; i--)
        code.shared_names.emplace_back(read.small(), ""), code.shared_names.back().second = read.word();
    code.text = read.piece(), code.lines = read.piece(), code.table = read.piece();
    fill_in(code.text, module);
}

void read_module(const std::string& file, Module& module)
{
    Reader read(file);
    unsigned sections = 0;
    for (std::string kind; read.word(kind);) {
        if (kind == "arch")
            module.arch = int(read.number());
        else if (kind == "section") {
            const std::string data = read.piece();
            module.sections[sections] = memory_of(data), module.sizes[sections++] = data.size();
        } else if (kind == "variable") {
            char* const section = module.sections[read.number()];
            const size_t offset = read.number(), size = read.number();
            module.variables[read.word()] = {section + offset, size};
        } else if (kind == "place") {
            char* const to = module.sections[read.number()];
            const size_t offset = read.number();
            const bool relative = read.word() == "section";
            size_t value = read.number();
            if (relative) value += size_t(module.sections[read.number()]);
            memcpy(to + offset, &value, sizeof value);
        } else if (kind == "kernel")
            read_kernel(read, module);
    }
}

CUresult make_file(const std::string& path, const char* image, size_t bytes, std::string* log)
{
    const std::string source = path + "." + std::to_string(getpid()) + ".image";
    std::ofstream(source, std::ios::binary).write(image, std::streamsize(bytes));
    const int arch = 10 * gpu().major + gpu().minor;
    const CUresult error =
        load_request("[\"module\", " + std::to_string(arch) + ", " + in_json(source) + ", " + in_json(path) + "]", log);
    remove(source.c_str());
    return error;
}

bool lives(const void* handle, char kind)
{
    const auto found = handles.find(handle);
    return found != handles.end() && found->second == kind;
}

CUfunction function_of(CUmodule module, const std::string& name)
{
    const auto code = module->codes.find(name);
    if (code == module->codes.end()) return nullptr;
    CUfunction& one = module->functions[name];
    if (!one) one = new CUfunc_st{&code->second, module}, handles[one] = 'f';
    return one;
}

// A kernel of a large cubin gets its code when it is first used.
Code* ready(Code* code)
{
    if (!code->later) return code;
    Module& module = *code->module;
    const std::string path = module.cubin + "-" + digest_of(code->name.data(), code->name.size());
    const std::string words = in_json(module.cubin) + ", " + in_json(code->name) + ", " + in_json(path);
    for (int trial = 0; code->later && trial < 2; trial++) try {
            std::string log;
            if (access(path.c_str(), R_OK) && load_request("[\"kernel\", 0, " + words + "]", &log))
                throw std::runtime_error(log);
            const std::string file = content_of(path);
            Reader read(file);
            if (read.word() == "kernel") read_kernel(read, module);
        } catch (const std::exception& problem) {
            code->refused = problem.what(), remove(path.c_str());
        }
    code->later = false;
    return code;
}

Code* code_of(CUfunction function)
{
    if (lives(function, 'f')) return ready(function->code);
    const CUkernel kernel = reinterpret_cast<CUkernel>(function);
    return lives(kernel, 'k') ? ready(kernel->code) : nullptr;
}

// An error of the loader, told once: the interface has no other place for its words.
CUresult loaded(CUresult error, const std::string& log)
{
    if (error && !log.empty()) fprintf(stderr, "gpuless: %s\n", log.c_str());
    return error;
}

}  // namespace

const std::set<Module*>& modules() { return all; }

bool is_variable(const void* address)
{
    for (const Module* module : all)
        for (const auto& [_, one] : module->variables)
            if (address >= one.address && address < one.address + one.bytes) return true;
    return false;
}

CUresult load_image(const void* image, CUmodule* module, std::string* log)
{
    const char* at = static_cast<const char*>(image);
    uint32_t magic = 0;
    memcpy(&magic, at, 4);
    if (magic == 0x466243b1) memcpy(&at, at + 8, sizeof at);  // nvcc's wrapper
    const size_t bytes = size_of(at);
    const std::string path = cache_folder() + "/" + digest_of(at, bytes) + "-" + GPULESS_VERSION + "-" +
                             std::to_string(10 * gpu().major + gpu().minor);
    for (int trial = 0; trial < 2; trial++) {
        std::string file = content_of(path);
        if (file.empty()) {
            if (const CUresult error = make_file(path, at, bytes, log)) return error;
            file = content_of(path);
        }
        CUmodule const made = new CUmod_st;
        try {
            read_module(file, *made);
        } catch (const std::exception& problem) {
            delete made, *log = problem.what(), remove(path.c_str());
            continue;
        }
        made->cubin = path + ".cubin";
        all.insert(made), handles[made] = 'm', module_changes++;
        return *module = made, CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_IMAGE;
}

void end_module(CUmodule module)
{
    for (const auto& [_, one] : module->functions) handles.erase(one), delete one;
    for (size_t i = 0; i < 4; i++)
        if (module->sections[i]) munmap(module->sections[i], (module->sizes[i] / PAGE + 1) * PAGE);
    all.erase(module), handles.erase(module), module_changes++;
    for (auto& [_, code] : module->codes)
        if (code.program && !counting()) rung_machine_free(code.program);
    if (!counting()) delete module;
}

void unload_all()
{
    for (Module* module : std::set<Module*>(all)) {
        bool kept = false;  // by a library, which outlives contexts
        for (const auto& [handle, kind] : handles)
            kept |= kind == 'l' && static_cast<const CUlib_st*>(handle)->module == module;
        if (!kept) end_module(static_cast<CUmodule>(module));
    }
}

}  // namespace gpuless

using namespace gpuless;

CUresult cuModuleLoadData(CUmodule* module, const void* image)
{
    BEGIN("cuModuleLoadData");
    if (!module || !image) return CUDA_ERROR_INVALID_VALUE;
    std::string log;
    return loaded(load_image(image, module, &log), log);
}
static void give_log(unsigned count, CUjit_option* options, void** values, const std::string& log)
{
    char* buffer = nullptr;
    for (unsigned i = 0; i < count; i++)
        if (options[i] == CU_JIT_ERROR_LOG_BUFFER) buffer = static_cast<char*>(values[i]);
    for (unsigned i = 0; i < count; i++)
        if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES && buffer && values[i]) {
            const size_t room = size_t(values[i]), used = std::min(room - 1, log.size());
            memcpy(buffer, log.data(), used), buffer[used] = 0;
            values[i] = reinterpret_cast<void*>(used);
        } else if (options[i] == CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES)
            values[i] = nullptr;
}
CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned count, CUjit_option* options, void** values)
{
    BEGIN("cuModuleLoadDataEx");
    if (!module || !image) return CUDA_ERROR_INVALID_VALUE;
    std::string log;
    const CUresult error = load_image(image, module, &log);
    give_log(count, options, values, log);
    return loaded(error, log);
}
CUresult cuModuleLoadFatBinary(CUmodule* module, const void* image) { return cuModuleLoadData(module, image); }
CUresult cuModuleLoad(CUmodule* module, const char* path)
{
    BEGIN("cuModuleLoad");
    if (!module || !path) return CUDA_ERROR_INVALID_VALUE;
    const std::string image = content_of(path);
    if (image.empty()) return CUDA_ERROR_FILE_NOT_FOUND;
    return cuModuleLoadData(module, image.c_str());
}
CUresult cuModuleUnload(CUmodule module)
{
    BEGIN("cuModuleUnload");
    if (!lives(module, 'm')) return CUDA_ERROR_INVALID_HANDLE;
    wait_for_all();
    return end_module(module), CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name)
{
    BEGIN("cuModuleGetFunction");
    if (!function || !name) return CUDA_ERROR_INVALID_VALUE;
    if (!lives(module, 'm')) return CUDA_ERROR_INVALID_HANDLE;
    *function = function_of(module, name);
    return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
static CUresult global(CUdeviceptr* pointer, size_t* bytes, CUmodule module, const char* name)
{
    if (!name || (!pointer && !bytes)) return CUDA_ERROR_INVALID_VALUE;
    const auto found = module->variables.find(name);
    if (found == module->variables.end()) return CUDA_ERROR_NOT_FOUND;
    if (pointer) *pointer = device_pointer(found->second.address);
    if (bytes) *bytes = found->second.bytes;
    return CUDA_SUCCESS;
}
CUresult cuModuleGetGlobal(CUdeviceptr* pointer, size_t* bytes, CUmodule module, const char* name)
{
    BEGIN("cuModuleGetGlobal");
    return lives(module, 'm') ? global(pointer, bytes, module, name) : CUDA_ERROR_INVALID_HANDLE;
}
CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) { return *mode = CU_MODULE_EAGER_LOADING, CUDA_SUCCESS; }
CUresult cuModuleGetFunctionCount(unsigned* count, CUmodule module)
{
    BEGIN("cuModuleGetFunctionCount");
    if (!lives(module, 'm')) return CUDA_ERROR_INVALID_HANDLE;
    return *count = unsigned(module->codes.size()), CUDA_SUCCESS;
}
CUresult cuModuleEnumerateFunctions(CUfunction* functions, unsigned room, CUmodule module)
{
    BEGIN("cuModuleEnumerateFunctions");
    if (!lives(module, 'm')) return CUDA_ERROR_INVALID_HANDLE;
    for (const auto& [name, _] : module->codes)
        if (room) *functions++ = function_of(module, name), room--;
    return CUDA_SUCCESS;
}

// ---- libraries: code without a context ------------------------------------------------------------------------------
CUresult cuLibraryLoadData(CUlibrary* library, const void* image, CUjit_option* options, void** values, unsigned count,
                           CUlibraryOption*, void**, unsigned)
{
    const Alone alone;
    if (const CUresult error = initialized()) return error;
    if (stuck()) return stuck();
    if (!library || !image) return CUDA_ERROR_INVALID_VALUE;
    CUmodule module = nullptr;
    std::string log;
    const CUresult error = load_image(image, &module, &log);
    give_log(count, options, values, log);
    if (error) return loaded(error, log);
    *library = new CUlib_st{module, {}};
    return handles[*library] = 'l', CUDA_SUCCESS;
}
CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* path, CUjit_option* options, void** values,
                               unsigned count, CUlibraryOption* more, void** more_values, unsigned more_count)
{
    const std::string image = path ? content_of(path) : "";
    if (image.empty()) return path ? CUDA_ERROR_FILE_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
    return cuLibraryLoadData(library, image.c_str(), options, values, count, more, more_values, more_count);
}
#define LIBRARY                                                                                                        \
    const Alone alone;                                                                                                 \
    if (const CUresult error = initialized()) return error;                                                            \
    if (!lives(library, 'l')) return CUDA_ERROR_INVALID_HANDLE
CUresult cuLibraryUnload(CUlibrary library)
{
    LIBRARY;
    wait_for_all();
    for (const auto& [_, kernel] : library->kernels) handles.erase(kernel), delete kernel;
    end_module(library->module);
    handles.erase(library);
    return delete library, CUDA_SUCCESS;
}
static CUkernel kernel_of(CUlibrary library, const std::string& name)
{
    const auto code = library->module->codes.find(name);
    if (code == library->module->codes.end()) return nullptr;
    CUkernel& one = library->kernels[name];
    if (!one) one = new CUkern_st{&code->second, library, function_of(library->module, name)}, handles[one] = 'k';
    return one;
}
CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name)
{
    LIBRARY;
    if (!kernel || !name) return CUDA_ERROR_INVALID_VALUE;
    *kernel = kernel_of(library, name);
    return *kernel ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
CUresult cuLibraryGetKernelCount(unsigned* count, CUlibrary library)
{
    LIBRARY;
    return *count = unsigned(library->module->codes.size()), CUDA_SUCCESS;
}
CUresult cuLibraryEnumerateKernels(CUkernel* kernels, unsigned room, CUlibrary library)
{
    LIBRARY;
    for (const auto& [name, _] : library->module->codes)
        if (room) *kernels++ = kernel_of(library, name), room--;
    return CUDA_SUCCESS;
}
CUresult cuLibraryGetModule(CUmodule* module, CUlibrary library)
{
    LIBRARY;
    return *module = library->module, CUDA_SUCCESS;
}
CUresult cuLibraryGetGlobal(CUdeviceptr* pointer, size_t* bytes, CUlibrary library, const char* name)
{
    LIBRARY;
    return global(pointer, bytes, library->module, name);
}
CUresult cuLibraryGetManaged(CUdeviceptr* pointer, size_t* bytes, CUlibrary library, const char* name)
{
    LIBRARY;
    return global(pointer, bytes, library->module, name);
}
CUresult cuLibraryGetUnifiedFunction(void**, CUlibrary library, const char*)
{
    LIBRARY;
    return CUDA_ERROR_NOT_FOUND;
}
#define KERNEL                                                                                                         \
    const Alone alone;                                                                                                 \
    if (const CUresult error = initialized()) return error;                                                            \
    if (!lives(kernel, 'k')) return CUDA_ERROR_INVALID_HANDLE
CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel)
{
    KERNEL;
    return *function = kernel->function, CUDA_SUCCESS;
}
CUresult cuKernelGetLibrary(CUlibrary* library, CUkernel kernel)
{
    KERNEL;
    return *library = kernel->library, CUDA_SUCCESS;
}
CUresult cuKernelGetName(const char** name, CUkernel kernel)
{
    KERNEL;
    return *name = kernel->code->name.c_str(), CUDA_SUCCESS;
}
static CUresult parameter(const Code& code, size_t index, size_t* offset, size_t* size)
{
    if (index >= code.parameters.size()) return CUDA_ERROR_INVALID_VALUE;
    if (offset) *offset = code.parameters[index].first;
    if (size) *size = code.parameters[index].second;
    return CUDA_SUCCESS;
}
CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t* offset, size_t* size)
{
    KERNEL;
    if (!current()) return CUDA_ERROR_INVALID_CONTEXT;
    return parameter(*ready(kernel->code), index, offset, size);
}
#define FUNCTION                                                                                                       \
    const Alone alone;                                                                                                 \
    if (const CUresult error = initialized()) return error;                                                            \
    Code* const code = code_of(function);                                                                              \
    if (!code) return CUDA_ERROR_INVALID_HANDLE
CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t* offset, size_t* size)
{
    FUNCTION;
    return parameter(*code, index, offset, size);
}
CUresult cuFuncGetName(const char** name, CUfunction function)
{
    FUNCTION;
    return *name = code->name.c_str(), CUDA_SUCCESS;
}
CUresult cuFuncGetModule(CUmodule* module, CUfunction function)
{
    FUNCTION;
    return *module = static_cast<CUmodule>(code->module), CUDA_SUCCESS;
}
CUresult cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction function)
{
    FUNCTION;
    return *state = CU_FUNCTION_LOADING_STATE_LOADED, CUDA_SUCCESS;
}
CUresult cuFuncLoad(CUfunction function)
{
    FUNCTION;
    return CUDA_SUCCESS;
}

namespace gpuless {
Code* code_at(CUfunction function) { return code_of(function); }
}  // namespace gpuless
