// What nvcc includes before every source.
#pragma once
#include "math.h"
#include "stdint.h"
typedef unsigned int uint;
typedef unsigned short ushort;
typedef unsigned long ulong;
namespace std {}
