// What the emulator's headers see of a whole program: the standard library is there, and launches are rewritten.
#pragma once
#define RUNG_PROGRAM 1
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <math.h>
#include <time.h>
