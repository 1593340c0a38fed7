// CUB's operators, and the types of what kernels use of it, for signatures: kernels are compiled with CUB.
#pragma once

namespace cub {

// ---- operators --------------------------------------------------------------------------------------------------

struct Sum { template <class T> T operator()(const T& a, const T& b) const { return a + b; } };
struct Difference { template <class T> T operator()(const T& a, const T& b) const { return a - b; } };
struct Max { template <class T> T operator()(const T& a, const T& b) const { return a < b ? b : a; } };
struct Min { template <class T> T operator()(const T& a, const T& b) const { return b < a ? b : a; } };
struct ArgMax { template <class P> P operator()(const P& a, const P& b) const { return b.value > a.value || (a.value == b.value && b.key < a.key) ? b : a; } };
struct ArgMin { template <class P> P operator()(const P& a, const P& b) const { return b.value < a.value || (a.value == b.value && b.key < a.key) ? b : a; } };

template <class K, class V>
struct KeyValuePair
{
    typedef K Key;
    typedef V Value;
    K key;
    V value;
};

enum BlockReduceAlgorithm { BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY, BLOCK_REDUCE_RAKING, BLOCK_REDUCE_WARP_REDUCTIONS };
enum BlockScanAlgorithm { BLOCK_SCAN_RAKING, BLOCK_SCAN_RAKING_MEMOIZE, BLOCK_SCAN_WARP_SCANS };
enum BlockLoadAlgorithm
{
    BLOCK_LOAD_DIRECT, BLOCK_LOAD_STRIPED, BLOCK_LOAD_VECTORIZE, BLOCK_LOAD_TRANSPOSE, BLOCK_LOAD_WARP_TRANSPOSE
};
enum BlockStoreAlgorithm
{
    BLOCK_STORE_DIRECT, BLOCK_STORE_STRIPED, BLOCK_STORE_VECTORIZE, BLOCK_STORE_TRANSPOSE, BLOCK_STORE_WARP_TRANSPOSE
};

#define RUNG_COLLECTIVE_OF(NAME) template <class T, int N, auto... A> struct NAME { struct TempStorage {}; };
RUNG_COLLECTIVE_OF(BlockLoad) RUNG_COLLECTIVE_OF(BlockStore) RUNG_COLLECTIVE_OF(BlockReduce) RUNG_COLLECTIVE_OF(BlockScan)
RUNG_COLLECTIVE_OF(BlockExchange) RUNG_COLLECTIVE_OF(BlockHistogram) RUNG_COLLECTIVE_OF(BlockDiscontinuity)
template <class K, int N, int Items, class... V> struct BlockRadixSort { struct TempStorage {}; };
template <class K, int N, int Items, class... V> struct BlockMergeSort { struct TempStorage {}; };
template <class T, int N = 32> struct WarpReduce { struct TempStorage {}; };
template <class T, int N = 32> struct WarpScan { struct TempStorage {}; };
#undef RUNG_COLLECTIVE_OF

}  // namespace cub
