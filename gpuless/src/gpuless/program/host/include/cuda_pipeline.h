// What kernels call of it, rung_host/device.h declares.
#pragma once
