// The pipeline primitives: cp.async under another name.
#pragma once

inline void __pipeline_memcpy_async(void* to, const void* from, size_t bytes, size_t zeros = 0,
                                    rung_emulator::Site site = rung_emulator::here())
{
    if (zeros != 0 && zeros != bytes)
        rung_fault(rung_emulator::FaultKind::Unsupported, site, "__pipeline_memcpy_async with a part of zeros is not modelled");
    rung_copy_async(to, from, int(bytes), zeros == 0, site);
}
inline void __pipeline_commit() { rung_copy_commit(); }
inline void __pipeline_wait_prior(size_t left) { rung_copy_wait(int(left)); }
