// Included before every file of a program: CUDA C++ for g++, and the runtime's host functions.
#pragma once
#include "keywords.h"

#include "rung_emulator/everything.h"

#include "launching.h"

#ifndef RUNG_CU  // a file of plain C++
#undef __CUDACC__
#undef __CUDA_ARCH__
#endif

inline void cudaGridDependencySynchronize(RungSite site = here())
{
    static void* parsed;
    rung_ptx(&parsed, "griddepcontrol.wait;", nullptr, 0, site);
}
inline void cudaTriggerProgrammaticLaunchCompletion(RungSite site = here())
{
    static void* parsed;
    rung_ptx(&parsed, "griddepcontrol.launch_dependents;", nullptr, 0, site);
}
