// Included before the source of every emulated kernel: CUDA C++ for g++.
#pragma once
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "keywords.h"
#include "runtime.h"
#include "vectors.h"

#include "arithmetic.h"
#include "memory.h"
#include "threads.h"
#include "warp.h"
#include "ptx.h"
#include "tensor_map.h"

namespace std {}  // so that `using namespace std` compiles
