// The types of cooperative groups, for signatures: kernels are compiled with CUDA's header.
#pragma once

namespace cooperative_groups {

struct thread_group {};
struct thread_block : thread_group {};
struct coalesced_group : thread_group {};
struct grid_group : thread_group {};
struct cluster_group : thread_group {};
struct multi_grid_group : thread_group {};
template <unsigned Size, class Parent = void> struct thread_block_tile : thread_group {};
template <class T> struct plus {};
template <class T> struct less {};
template <class T> struct greater {};
template <class T> struct bit_and {};
template <class T> struct bit_or {};
template <class T> struct bit_xor {};

}  // namespace cooperative_groups
