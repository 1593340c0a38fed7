// Linked into every program: hands its kernels on.
namespace rung_host {
struct Record;
}

extern const rung_host::Record first[] __asm__("__start_rung_modules") __attribute__((weak, visibility("hidden")));
extern const rung_host::Record last[] __asm__("__stop_rung_modules") __attribute__((weak, visibility("hidden")));

extern "C" void rung_program_begins(const rung_host::Record* first, const rung_host::Record* last);
__attribute__((constructor(101))) static void begin() { rung_program_begins(first, last); }
