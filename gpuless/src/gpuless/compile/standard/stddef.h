// The compiler has what kernels use of this header.
#pragma once
