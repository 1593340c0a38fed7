// The part of CUB that runs inside a kernel: reductions, scans, loads, stores, exchanges and sorts of a block or a warp.
// A result that CUB gives to one thread only is a NaN in the others. Storage is used as in CUB: a second call with the same
// storage needs a barrier in between, and the race check finds one that is missing.
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

inline int RowMajorTid(int x, int y, int) { return int((threadIdx.z * y + threadIdx.y) * x + threadIdx.x); }
inline unsigned LaneId() { return unsigned(rung_lane()); }

namespace rung_detail {

inline int rank() { return int((threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x); }

template <class T>
inline T no_result()
{
    T value;
    memset(static_cast<void*>(&value), 0xff, sizeof value);
    return value;
}

// The first `count` items, combined as a tree.
template <class T, class Op>
inline T combined(const T* items, int count, Op op)
{
    if (count <= 1) return items[0];
    const int half = count / 2;
    return op(combined(items, half, op), combined(items + half, count - half, op));
}

// The lane's value, of any size, 8 bytes at a time.
template <class T>
inline T from_lane(unsigned mask, const T& value, unsigned lane, rung_emulator::Site site)
{
    T result;
    for (size_t at = 0; at < sizeof(T); at += 8) {
        unsigned long long piece = 0;
        const size_t bytes = sizeof(T) - at < 8 ? sizeof(T) - at : 8;
        memcpy(&piece, reinterpret_cast<const char*>(&value) + at, bytes);
        piece = rung_emulator::shuffle_from(mask, piece, lane, "a primitive of cub", site);
        memcpy(reinterpret_cast<char*>(&result) + at, &piece, bytes);
    }
    return result;
}

template <class T, int N>
struct Items
{
    T items[N];
};
struct Nothing {};

}  // namespace rung_detail

#define RUNG_SITE rung_emulator::Site site = rung_emulator::here()

// ---- warps ------------------------------------------------------------------------------------------------------

template <class T, int Lanes = 32, int = 0>
class WarpReduce
{
public:
    typedef rung_detail::Nothing TempStorage;
    explicit WarpReduce(TempStorage&) {}

    template <class Op>
    T Reduce(T value, Op op, int valid = Lanes, RUNG_SITE)
    {
        const unsigned lane = LaneId(), first = lane / Lanes * Lanes;
        const unsigned mask = Lanes == 32 ? ~0u : ((1u << Lanes % 32) - 1) << first;
        T items[Lanes];
        for (unsigned i = 0; i < Lanes; i++) items[i] = rung_detail::from_lane(mask, value, first + i, site);
        return lane == first ? rung_detail::combined(items, valid, op) : rung_detail::no_result<T>();
    }
    T Sum(T value, RUNG_SITE) { return Reduce(value, cub::Sum(), Lanes, site); }
    T Sum(T value, int valid, RUNG_SITE) { return Reduce(value, cub::Sum(), valid, site); }
    T Max(T value, RUNG_SITE) { return Reduce(value, cub::Max(), Lanes, site); }
    T Min(T value, RUNG_SITE) { return Reduce(value, cub::Min(), Lanes, site); }
};

template <class T, int Lanes = 32, int = 0>
class WarpScan
{
public:
    typedef rung_detail::Nothing TempStorage;
    explicit WarpScan(TempStorage&) {}

    template <class Op>
    void InclusiveScan(T in, T& out, Op op, RUNG_SITE) { T all; InclusiveScan(in, out, op, all, site); }
    template <class Op>
    void InclusiveScan(T in, T& out, Op op, T& all, RUNG_SITE)
    {
        T items[Lanes];
        const int lane = take(in, items, site);
        for (int i = 1; i < Lanes; i++) items[i] = op(items[i - 1], items[i]);
        out = items[lane], all = items[Lanes - 1];
    }
    template <class Op>
    void ExclusiveScan(T in, T& out, T initial, Op op, RUNG_SITE) { T all; ExclusiveScan(in, out, initial, op, all, site); }
    template <class Op>
    void ExclusiveScan(T in, T& out, T initial, Op op, T& all, RUNG_SITE)
    {
        InclusiveScan(in, in, op, all, site);
        T before[Lanes];
        const int lane = take(in, before, site);
        out = lane ? op(initial, before[lane - 1]) : initial;
    }
    void InclusiveSum(T in, T& out, RUNG_SITE) { InclusiveScan(in, out, Sum(), site); }
    void InclusiveSum(T in, T& out, T& all, RUNG_SITE) { InclusiveScan(in, out, Sum(), all, site); }
    void ExclusiveSum(T in, T& out, RUNG_SITE) { ExclusiveScan(in, out, T(0), Sum(), site); }
    void ExclusiveSum(T in, T& out, T& all, RUNG_SITE) { ExclusiveScan(in, out, T(0), Sum(), all, site); }
    T Broadcast(T value, unsigned lane, RUNG_SITE)
    {
        T items[Lanes];
        take(value, items, site);
        return items[lane];
    }

private:
    static int take(T value, T (&items)[Lanes], rung_emulator::Site site)
    {
        const unsigned lane = LaneId(), first = lane / Lanes * Lanes;
        const unsigned mask = Lanes == 32 ? ~0u : ((1u << Lanes % 32) - 1) << first;
        for (unsigned i = 0; i < Lanes; i++) items[i] = rung_detail::from_lane(mask, value, first + i, site);
        return int(lane - first);
    }
};

// ---- blocks -----------------------------------------------------------------------------------------------------

template <class T, int X, BlockReduceAlgorithm = BLOCK_REDUCE_WARP_REDUCTIONS, int Y = 1, int Z = 1, int = 0>
class BlockReduce
{
public:
    typedef rung_detail::Items<T, X * Y * Z> TempStorage;
    explicit BlockReduce(TempStorage& storage) : storage(storage) {}

    template <class Op>
    T Reduce(T value, Op op, int valid = X * Y * Z, RUNG_SITE)
    {
        storage.items[rung_detail::rank()] = value;
        __syncthreads(site);
        if (rung_detail::rank() != 0) return rung_detail::no_result<T>();
        return rung_detail::combined(storage.items, valid < X * Y * Z ? valid : X * Y * Z, op);
    }
    template <int N, class Op>
    T Reduce(T (&values)[N], Op op, RUNG_SITE) { return Reduce(rung_detail::combined(values, N, op), op, X * Y * Z, site); }
    T Sum(T value, RUNG_SITE) { return Reduce(value, cub::Sum(), X * Y * Z, site); }
    T Sum(T value, int valid, RUNG_SITE) { return Reduce(value, cub::Sum(), valid, site); }
    template <int N>
    T Sum(T (&values)[N], RUNG_SITE) { return Reduce(values, cub::Sum(), site); }

private:
    TempStorage& storage;
};

template <class T, int X, BlockScanAlgorithm = BLOCK_SCAN_RAKING, int Y = 1, int Z = 1, int = 0>
class BlockScan
{
    static constexpr int THREADS = X * Y * Z;

public:
    typedef rung_detail::Items<T, THREADS> TempStorage;
    explicit BlockScan(TempStorage& storage) : storage(storage) {}

    // Of items before this thread's; `first` means that there are none. Gives the whole block's result too.
    template <class Op>
    T before(T value, Op op, bool& first, T& all, rung_emulator::Site site)
    {
        const int rank = rung_detail::rank();
        storage.items[rank] = value;
        __syncthreads(site);
        first = rank == 0;
        all = rung_detail::combined(storage.items, THREADS, op);
        return first ? value : rung_detail::combined(storage.items, rank, op);
    }
    template <class Op>
    void InclusiveScan(T in, T& out, Op op, RUNG_SITE) { T all; InclusiveScan(in, out, op, all, site); }
    template <class Op>
    void InclusiveScan(T in, T& out, Op op, T& all, RUNG_SITE)
    {
        bool first;
        const T prefix = before(in, op, first, all, site);
        out = first ? in : op(prefix, in);
    }
    template <class Op>
    void ExclusiveScan(T in, T& out, T initial, Op op, RUNG_SITE) { T all; ExclusiveScan(in, out, initial, op, all, site); }
    template <class Op>
    void ExclusiveScan(T in, T& out, T initial, Op op, T& all, RUNG_SITE)
    {
        bool first;
        const T prefix = before(in, op, first, all, site);
        out = first ? initial : op(initial, prefix);
    }
    template <int N, class Op>
    void InclusiveScan(T (&in)[N], T (&out)[N], Op op, RUNG_SITE) { T all; InclusiveScan(in, out, op, all, site); }
    template <int N, class Op>
    void InclusiveScan(T (&in)[N], T (&out)[N], Op op, T& all, RUNG_SITE)
    {
        bool first;
        T total = before(rung_detail::combined(in, N, op), op, first, all, site);
        for (int i = 0; i < N; i++) out[i] = total = first && i == 0 ? in[i] : op(total, in[i]);
    }
    template <int N, class Op>
    void ExclusiveScan(T (&in)[N], T (&out)[N], T initial, Op op, RUNG_SITE) { T all; ExclusiveScan(in, out, initial, op, all, site); }
    template <int N, class Op>
    void ExclusiveScan(T (&in)[N], T (&out)[N], T initial, Op op, T& all, RUNG_SITE)
    {
        bool first;
        const T prefix = before(rung_detail::combined(in, N, op), op, first, all, site);
        T total = first ? initial : op(initial, prefix);
        for (int i = 0; i < N; i++) {
            const T own = in[i];
            out[i] = total;
            total = op(total, own);
        }
    }
    template <class V> void InclusiveSum(V& in, V& out, RUNG_SITE) { InclusiveScan(in, out, cub::Sum(), site); }
    template <class V> void InclusiveSum(V& in, V& out, T& all, RUNG_SITE) { InclusiveScan(in, out, cub::Sum(), all, site); }
    void InclusiveSum(const T& in, T& out, RUNG_SITE) { InclusiveScan(in, out, cub::Sum(), site); }
    void InclusiveSum(const T& in, T& out, T& all, RUNG_SITE) { InclusiveScan(in, out, cub::Sum(), all, site); }
    template <class V> void ExclusiveSum(V& in, V& out, RUNG_SITE) { ExclusiveScan(in, out, T(0), cub::Sum(), site); }
    template <class V> void ExclusiveSum(V& in, V& out, T& all, RUNG_SITE) { ExclusiveScan(in, out, T(0), cub::Sum(), all, site); }
    void ExclusiveSum(const T& in, T& out, RUNG_SITE) { ExclusiveScan(in, out, T(0), cub::Sum(), site); }
    void ExclusiveSum(const T& in, T& out, T& all, RUNG_SITE) { ExclusiveScan(in, out, T(0), cub::Sum(), all, site); }

private:
    TempStorage& storage;
};

template <class T, int N, class From>
inline void LoadDirectBlocked(int thread, From from, T (&items)[N], int valid = 0x7fffffff)
{
    for (int i = 0; i < N; i++)
        if (thread * N + i < valid) items[i] = from[thread * N + i];
}
template <int Threads, class T, int N, class From>
inline void LoadDirectStriped(int thread, From from, T (&items)[N], int valid = 0x7fffffff)
{
    for (int i = 0; i < N; i++)
        if (thread + i * Threads < valid) items[i] = from[thread + i * Threads];
}
template <class T, int N, class To>
inline void StoreDirectBlocked(int thread, To to, T (&items)[N], int valid = 0x7fffffff)
{
    for (int i = 0; i < N; i++)
        if (thread * N + i < valid) to[thread * N + i] = items[i];
}
template <int Threads, class T, int N, class To>
inline void StoreDirectStriped(int thread, To to, T (&items)[N], int valid = 0x7fffffff)
{
    for (int i = 0; i < N; i++)
        if (thread + i * Threads < valid) to[thread + i * Threads] = items[i];
}

template <class T, int X, int N, BlockLoadAlgorithm How = BLOCK_LOAD_DIRECT, int Y = 1, int Z = 1, int = 0>
class BlockLoad
{
public:
    typedef rung_detail::Nothing TempStorage;
    BlockLoad() = default;
    explicit BlockLoad(TempStorage&) {}
    template <class From>
    void Load(From from, T (&items)[N], int valid = 0x7fffffff)
    {
        if constexpr (How == BLOCK_LOAD_STRIPED) LoadDirectStriped<X * Y * Z>(rung_detail::rank(), from, items, valid);
        else LoadDirectBlocked(rung_detail::rank(), from, items, valid);
    }
    template <class From, class Default>
    void Load(From from, T (&items)[N], int valid, Default otherwise)
    {
        for (int i = 0; i < N; i++) items[i] = otherwise;
        Load(from, items, valid);
    }
};

template <class T, int X, int N, BlockStoreAlgorithm How = BLOCK_STORE_DIRECT, int Y = 1, int Z = 1, int = 0>
class BlockStore
{
public:
    typedef rung_detail::Nothing TempStorage;
    BlockStore() = default;
    explicit BlockStore(TempStorage&) {}
    template <class To>
    void Store(To to, T (&items)[N], int valid = 0x7fffffff)
    {
        if constexpr (How == BLOCK_STORE_STRIPED) StoreDirectStriped<X * Y * Z>(rung_detail::rank(), to, items, valid);
        else StoreDirectBlocked(rung_detail::rank(), to, items, valid);
    }
};

template <class T, int X, int N, bool = false, int Y = 1, int Z = 1, int = 0>
class BlockExchange
{
    static constexpr int THREADS = X * Y * Z;

public:
    typedef rung_detail::Items<T, THREADS * N> TempStorage;
    explicit BlockExchange(TempStorage& storage) : storage(storage) {}
    void StripedToBlocked(const T (&in)[N], T (&out)[N], RUNG_SITE)
    {
        for (int i = 0; i < N; i++) storage.items[rung_detail::rank() + i * THREADS] = in[i];
        __syncthreads(site);
        for (int i = 0; i < N; i++) out[i] = storage.items[rung_detail::rank() * N + i];
    }
    void BlockedToStriped(const T (&in)[N], T (&out)[N], RUNG_SITE)
    {
        for (int i = 0; i < N; i++) storage.items[rung_detail::rank() * N + i] = in[i];
        __syncthreads(site);
        for (int i = 0; i < N; i++) out[i] = storage.items[rung_detail::rank() + i * THREADS];
    }

private:
    TempStorage& storage;
};

struct NullType {};

template <class K, int X, int N, class V = NullType, int = 4, bool = true, BlockScanAlgorithm = BLOCK_SCAN_WARP_SCANS, int = 0, int Y = 1, int Z = 1, int = 0>
class BlockRadixSort
{
    static constexpr int COUNT = X * Y * Z * N;

public:
    struct TempStorage
    {
        K keys[COUNT], sorted[COUNT];
        V values[COUNT];
    };
    explicit BlockRadixSort(TempStorage& storage) : storage(storage) {}
    void Sort(K (&keys)[N], int = 0, int = 8 * sizeof(K), RUNG_SITE) { V none[N]; place(keys, none, false, site); }
    void Sort(K (&keys)[N], V (&values)[N], int = 0, int = 8 * sizeof(K), RUNG_SITE) { place(keys, values, false, site); }
    void SortDescending(K (&keys)[N], int = 0, int = 8 * sizeof(K), RUNG_SITE) { V none[N]; place(keys, none, true, site); }
    void SortDescending(K (&keys)[N], V (&values)[N], int = 0, int = 8 * sizeof(K), RUNG_SITE) { place(keys, values, true, site); }

private:
    // Stable: each item goes to the place that the number of items before it gives.
    void place(K (&keys)[N], V (&values)[N], bool descending, rung_emulator::Site site)
    {
        const int first = rung_detail::rank() * N;
        for (int i = 0; i < N; i++) storage.keys[first + i] = keys[i];
        __syncthreads(site);
        for (int i = 0; i < N; i++) {
            int at = 0;
            for (int other = 0; other < COUNT; other++) {
                const K key = storage.keys[other];
                const bool before = descending ? keys[i] < key : key < keys[i];
                at += before || (other < first + i && !(descending ? key < keys[i] : keys[i] < key));
            }
            storage.sorted[at] = keys[i], storage.values[at] = values[i];
        }
        __syncthreads(site);
        for (int i = 0; i < N; i++) keys[i] = storage.sorted[first + i], values[i] = storage.values[first + i];
    }
    TempStorage& storage;
};

#undef RUNG_SITE

}  // namespace cub
