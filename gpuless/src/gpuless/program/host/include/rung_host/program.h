// Included before every file of a program: what the host's part needs of CUDA C++, and the runtime's host functions.
#pragma once
#define __CUDA_RUNTIME_H__  // CUDA's own guard: helpers that other headers offer ask for it
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace rung_emulator {

// A place in the program's source; as a default argument, the caller's.
struct Site { const char* file; int line; };
inline constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) { return {file, line}; }

}  // namespace rung_emulator

#include "keywords.h"

#include "vectors.h"

#include "arithmetic.h"
#include "device.h"

#include "../cuda_bf16.h"
#include "../cuda_fp16.h"
#include "../math_constants.h"

#include "launching.h"

#ifndef RUNG_CU  // a file of plain C++
#undef __CUDACC__
#endif
