// Content of an emulated TensorMap. rung/cuda/tensor_map.py packs it as struct.pack("<QQ4Q5I5H5B5B40x", ...), in this
// order.
#pragma once

namespace rung_emulator {

struct TensorMapFields
{
    unsigned long long magic;       // TENSOR_MAP_MAGIC
    unsigned long long address;     // of element (0, ..., 0): a multiple of 16
    unsigned long long strides[4];  // in bytes, of dimensions 1 to 4: multiples of 16; dimension 0 is packed
    unsigned dims[5];               // sizes in elements, the fastest first
    unsigned short box[5];          // elements of a copy, at most 256 in a dimension
    unsigned char element_strides[5];
    unsigned char rank;           // 1 to 5; further sizes are 1, and their strides 0
    unsigned char element_bytes;  // 1, 2, 4 or 8
    unsigned char swizzle;        // 0 none, 1: 32 bytes, 2: 64 bytes, 3: 128 bytes
    unsigned char fill;           // outside the tensor: 0 zeros, 1 NaN
    unsigned char element;        // as tensormap.replace counts elemtype: from 6 on floats, from 11 on rounded to tf32
    unsigned char unused[40];
};
constexpr unsigned long long TENSOR_MAP_MAGIC = 0x50414D544E455354ull;  // "TSENTMAP" in memory
static_assert(sizeof(TensorMapFields) == 128, "a tensor map has 128 bytes");

}  // namespace rung_emulator
