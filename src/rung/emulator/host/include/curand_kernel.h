#pragma once
#include "../../../cuda/standard/curand_kernel.h"
