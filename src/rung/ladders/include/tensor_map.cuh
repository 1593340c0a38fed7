// What the copy engine knows of a tensor: address, sizes, strides, box, swizzle. The driver encodes it on a GPU, and the
// emulator has an encoding of its own; a kernel takes it as `const __grid_constant__ TensorMap name` and hands on its address.
#pragma once

struct alignas(64) TensorMap
{
    char opaque[128];
};
