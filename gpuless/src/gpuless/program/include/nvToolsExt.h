// The name that older programs include.
#pragma once
#include "nvtx3/nvToolsExt.h"
