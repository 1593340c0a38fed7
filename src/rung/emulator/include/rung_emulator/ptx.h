// Inline PTX: emulator/inline_ptx.py turns each asm statement into a call of rung_ptx with these operands.
#pragma once

namespace rung_emulator {

struct PtxOperand
{
    void* target;  // null: read-only
    unsigned long long low, high;
    unsigned char bytes;
    bool read;
};

template <class T>
inline PtxOperand ptx_out(const char* constraint, T& x)
{
    static_assert(sizeof(T) <= 16, "a register of PTX has at most 16 bytes");
    PtxOperand operand = {const_cast<void*>(static_cast<const volatile void*>(&x)), 0, 0, sizeof(T), constraint[0] == '+'};
    if (operand.read) memcpy(&operand.low, operand.target, sizeof(T));
    return operand;
}

// Integers narrower than the register are sign-extended if signed, as the compiler does.
template <class T>
inline PtxOperand ptx_in(const char*, T x)
{
    PtxOperand operand = {nullptr, 0, 0, sizeof(T), true};
    if constexpr (T(-1) < T(0) && T(0.5) == T(0) && sizeof(T) < 8) {
        const long long wide = (long long)x;
        memcpy(&operand.low, &wide, 8);
    } else {
        memcpy(&operand.low, &x, sizeof(T));
    }
    return operand;
}
template <class T>
inline PtxOperand ptx_in(const char*, T* x) { return {nullptr, (unsigned long long)(size_t)x, 0, 8, true}; }
inline PtxOperand ptx_in(const char*, unsigned __int128 x) { return {nullptr, (unsigned long long)x, (unsigned long long)(x >> 64), 16, true}; }

}  // namespace rung_emulator

extern "C" RUNG_API void rung_ptx(void** program, const char* text, rung_emulator::PtxOperand* operands, unsigned count,
                                  rung_emulator::Site site);

inline size_t __cvta_generic_to_shared(const void* address, rung_emulator::Site site = rung_emulator::here())
{
    return rung_shared_address(address, site);
}
inline void* __cvta_shared_to_generic(size_t address, rung_emulator::Site site = rung_emulator::here())
{
    return rung_shared_pointer(unsigned(address), site);
}
inline size_t __cvta_generic_to_global(const void* address) { return reinterpret_cast<size_t>(address); }
inline void* __cvta_global_to_generic(size_t address) { return reinterpret_cast<void*>(address); }
