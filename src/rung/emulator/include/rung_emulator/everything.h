// Every header that a kernel may include, precompiled once, before the kernel defines any macro.
#pragma once
#include "kernel.h"

#include "../cuda_bf16.h"
#include "../cuda_fp16.h"
#include "../math_constants.h"
#include "../cooperative_groups/memcpy_async.h"
#include "../cooperative_groups/scan.h"
#include "../cuda_pipeline.h"
#include "../mma.h"
#ifndef RUNG_PROGRAM
#include "../ptx_emulated.h"
#include "entry.h"
#endif
