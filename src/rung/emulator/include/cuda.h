// Device-side declarations of this header are always included; host functions are not available.
#pragma once
