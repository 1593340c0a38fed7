#pragma once
#include "rung_host/cub_device.h"
