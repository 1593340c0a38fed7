// Every file of a program has what this header declares.
#pragma once
#include "rung_host/program.h"
