// assert, on the host and in kernels; without a guard, as NDEBUG may change.
#include <features.h>
#undef assert
#ifdef NDEBUG
#define assert(condition) ((void)0)
#else
extern "C" [[noreturn]] void rung_assert_failed(const char* condition, const char* file, unsigned line, const char* function);
extern "C" __attribute__((noreturn)) void __assert_fail(const char*, const char*, unsigned, const char*) noexcept(true);
#define assert(...) ((__VA_ARGS__) ? (void)0 : rung_assert_failed(#__VA_ARGS__, __FILE__, __LINE__, __func__))
#endif
#if !defined(static_assert) && !defined(__cplusplus)
#define static_assert _Static_assert
#endif
