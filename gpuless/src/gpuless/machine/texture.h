// Textures and surfaces, as the machine reads them. The driver describes each object once and gives its kernels the
// number that it gets for it: code takes the lower 32 bits of a cudaTextureObject_t or cudaSurfaceObject_t.
#pragma once
#include <stdint.h>

// Memory of an array or a pitched matrix: rows of texels, one behind the other. Numbers of enumerations are CUDA's.
struct rung_texture
{
    uint64_t address;                // of the first texel
    uint64_t pitch, slice;           // bytes from row to row; from layer to layer, or from depth to depth
    uint32_t width, height, depth;   // in texels; height and depth are 1 where there are none; depth counts layers, too
    uint8_t channels, channel_bits;  // 1, 2 or 4; 8, 16 or 32
    uint8_t kind;                    // cudaChannelFormatKind: 0 signed, 1 unsigned, 2 float
    uint8_t address_mode[3];         // cudaTextureAddressMode: 0 wrap, 1 clamp, 2 mirror, 3 border
    uint8_t filter;                  // cudaTextureFilterMode: 0 point, 1 linear
    uint8_t reads_normalized;        // cudaTextureReadMode: 1: integers are read as numbers from 0 or -1 to 1
    uint8_t normalized;              // coordinates go from 0 to 1
    float border[4];
};

extern "C" {
uint32_t rung_machine_add_texture(const rung_texture* texture);  // its number, above 0
void rung_machine_remove_texture(uint32_t number);
}
