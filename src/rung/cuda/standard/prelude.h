// What nvcc includes before every source.
#pragma once
#include "math.h"
#include "stdint.h"
namespace std {}
