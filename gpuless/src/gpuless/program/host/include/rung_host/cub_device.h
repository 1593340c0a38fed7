// CUB's device-wide functions, computed on the CPU in the stream's order, over any iterators. A call without memory asks how much is
// needed, as in CUB. What is not declared here is refused by name.
#pragma once
#include "cub_block.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <numeric>
#include <vector>

#define RUNG_TEMPORARY void *temporary, size_t &bytes
#define RUNG_LATER(...) return rung_detail::later(temporary, bytes, stream, [=]() mutable { __VA_ARGS__ })
#define CubDebug(error) cub::Debug((error), __FILE__, __LINE__)
#define CubDebugExit(error) \
    if (cub::Debug((error), __FILE__, __LINE__)) exit(1)
namespace cub {
inline cudaError_t Debug(cudaError_t error, const char* file, int line)
{
    if (error) fprintf(stderr, "CUDA error %d [%s, %d]: %s\n", int(error), file, line, cudaGetErrorString(error));
    return error;
}

struct CachingDeviceAllocator  // without a cache
{
    template <class... How> explicit CachingDeviceAllocator(How...) {}
    cudaError_t DeviceAllocate(void** pointer, size_t bytes, cudaStream_t = nullptr, RungSite site = here()) { return cudaMalloc(pointer, bytes, site); }
    cudaError_t DeviceFree(void* pointer, RungSite site = here()) { return cudaFree(pointer, site); }
    cudaError_t FreeAllCached() { return cudaSuccess; }
};

namespace rung_detail {

constexpr size_t TEMPORARY = 256;

template <class F> cudaError_t later(void* temporary, size_t& bytes, cudaStream_t stream, F work)
{
    if (!temporary) return bytes = TEMPORARY, cudaSuccess;
    if (bytes < TEMPORARY) return cudaErrorInvalidValue;
    const auto run = [](void* held) { (*static_cast<std::function<void()>*>(held))(); };
    return cudaLaunchHostFunc(stream, run, new std::function<void()>(std::move(work)));
}
template <class I> using Value = typename std::iterator_traits<I>::value_type;

// As a tree, whose rounding is a GPU's in size.
template <class T, class I, class Op> T reduced(I in, long long count, Op op)
{
    if (count == 1) return T(in[0]);
    return T(op(reduced<T>(in, count / 2, op), reduced<T>(in + count / 2, count - count / 2, op)));
}
template <class T, class I, class Op> T reduced(I in, long long count, Op op, T init) { return count ? T(op(init, reduced<T>(in, count, op))) : init; }

// Bits in the order of the keys, which are integers or floating-point numbers.
template <class K> unsigned long long radix(K key, int begin, int end)
{
    unsigned long long bits = 0;
    constexpr int all = sizeof(K) * 8;
    if (std::is_floating_point<K>::value && key == K(0)) key = K(0);  // -0 is 0
    memcpy(&bits, &key, sizeof key);
    const unsigned long long sign = 1ull << (all - 1);
    if (std::is_integral<K>::value) bits ^= std::is_signed<K>::value ? sign : 0;
    else bits = bits & sign ? ~bits : bits | sign;
    const int length = std::min(end, all) - begin;
    return bits >> begin & (length >= 64 ? ~0ull : (1ull << length) - 1);
}
template <class K> std::vector<size_t> sorted(const K* keys, long long count, int begin, int end, bool descending)
{
    std::vector<size_t> order(size_t(count), 0);
    std::iota(order.begin(), order.end(), size_t(0));
    std::stable_sort(order.begin(), order.end(), [=](size_t a, size_t b) {
        const auto x = radix(keys[a], begin, end), y = radix(keys[b], begin, end);
        return descending ? y < x : x < y;
    });
    return order;
}
template <class T, class O> void ordered(const T* from, O to, const std::vector<size_t>& order, long long count)
{
    const std::vector<T> held(from, from + count);
    for (size_t i = 0; i < order.size(); i++) to[i] = held[order[i]];
}

struct Lowest { template <class T> static constexpr T of() { return std::numeric_limits<T>::lowest(); } };
struct Highest { template <class T> static constexpr T of() { return std::numeric_limits<T>::max(); } };

}  // namespace rung_detail

template <class T> struct DoubleBuffer
{
    T* d_buffers[2];
    int selector = 0;
    DoubleBuffer() : d_buffers{} {}
    DoubleBuffer(T* current, T* alternate) : d_buffers{current, alternate} {}
    T* Current() const { return d_buffers[selector]; }
    T* Alternate() const { return d_buffers[selector ^ 1]; }
};

// ---- iterators -------------------------------------------------------------------------------------------------------------------

template <class Self, class T> struct RungIterator
{
    typedef std::random_access_iterator_tag iterator_category;
    typedef T value_type, reference;
    typedef ptrdiff_t difference_type;
    typedef void pointer;
    T operator[](ptrdiff_t i) const { return static_cast<const Self*>(this)->at(i); }
    T operator*() const { return (*this)[0]; }
    Self operator+(ptrdiff_t n) const { return static_cast<const Self*>(this)->moved(n); }
    Self& operator++() { return static_cast<Self&>(*this) = *this + 1; }
};
template <class T, class O = ptrdiff_t> struct CountingInputIterator : RungIterator<CountingInputIterator<T, O>, T>
{
    T first;
    explicit CountingInputIterator(T first) : first(first) {}
    T at(ptrdiff_t i) const { return T(first + T(i)); }
    CountingInputIterator moved(ptrdiff_t n) const { return CountingInputIterator(at(n)); }
};
template <class T, class O = ptrdiff_t> struct ConstantInputIterator : RungIterator<ConstantInputIterator<T, O>, T>
{
    T value;
    explicit ConstantInputIterator(T value) : value(value) {}
    T at(ptrdiff_t) const { return value; }
    ConstantInputIterator moved(ptrdiff_t) const { return *this; }
};
template <class T, class Op, class I, class O = ptrdiff_t> struct TransformInputIterator : RungIterator<TransformInputIterator<T, Op, I, O>, T>
{
    I in;
    Op op;
    TransformInputIterator(I in, Op op) : in(in), op(op) {}
    T at(ptrdiff_t i) const { return op(in[i]); }
    TransformInputIterator moved(ptrdiff_t n) const { return TransformInputIterator(in + n, op); }
};

// ---- functions -------------------------------------------------------------------------------------------------------------------

struct DeviceReduce
{
    template <class I, class O, class Op, class T>
    static cudaError_t Reduce(RUNG_TEMPORARY, I in, O out, long long count, Op op, T init, cudaStream_t stream = 0)
    {
        using A = std::decay_t<decltype(op(init, in[0]))>;
        RUNG_LATER(*out = rung_detail::reduced<A>(in, count, op, A(init)););
    }
    template <class I, class O, class Op, class Map, class T>
    static cudaError_t TransformReduce(RUNG_TEMPORARY, I in, O out, long long count, Op op, Map map, T init, cudaStream_t stream = 0)
    {
        return Reduce(temporary, bytes, TransformInputIterator<std::decay_t<decltype(map(in[0]))>, Map, I>(in, map), out, count, op, init, stream);
    }
#define RUNG_REDUCE(NAME, OP, INIT) \
    template <class I, class O> static cudaError_t NAME(RUNG_TEMPORARY, I in, O out, long long count, cudaStream_t stream = 0) \
    { \
        using T = rung_detail::Value<I>; \
        return Reduce(temporary, bytes, in, out, count, OP(), INIT, stream); \
    }
    RUNG_REDUCE(Sum, cub::Sum, T{})
    RUNG_REDUCE(Min, cub::Min, rung_detail::Highest::of<T>())
    RUNG_REDUCE(Max, cub::Max, rung_detail::Lowest::of<T>())
#undef RUNG_REDUCE
#define RUNG_ARGUMENT(NAME, BETTER) \
    template <class I, class O> static cudaError_t NAME(RUNG_TEMPORARY, I in, O out, int count, cudaStream_t stream = 0) \
    { \
        RUNG_LATER(int best = 0; for (int i = 1; i < count; i++) if (BETTER) best = i; \
                   *out = KeyValuePair<int, rung_detail::Value<I>>{best, in[best]};); \
    }
    RUNG_ARGUMENT(ArgMin, in[i] < in[best])
    RUNG_ARGUMENT(ArgMax, in[best] < in[i])
#undef RUNG_ARGUMENT
    template <class K, class U, class V, class A, class N, class Op>
    static cudaError_t ReduceByKey(RUNG_TEMPORARY, K keys, U unique, V values, A sums, N runs, Op op, long long count, cudaStream_t stream = 0)
    {
        RUNG_LATER(
            long long run = -1;
            for (long long i = 0; i < count; i++)
                if (i && keys[i] == keys[i - 1]) sums[run] = op(sums[run], values[i]);
                else unique[++run] = keys[i], sums[run] = values[i];
            *runs = run + 1;);
    }
};

struct DeviceScan
{
    template <class I, class O, class Op, class T>
    static cudaError_t ExclusiveScan(RUNG_TEMPORARY, I in, O out, Op op, T init, long long count, cudaStream_t stream = 0)
    {
        using A = std::decay_t<decltype(op(init, in[0]))>;
        RUNG_LATER(A sum = init; for (long long i = 0; i < count; i++) { const A next = op(sum, in[i]); out[i] = sum, sum = next; });
    }
    template <class I, class O, class Op>
    static cudaError_t InclusiveScan(RUNG_TEMPORARY, I in, O out, Op op, long long count, cudaStream_t stream = 0)
    {
        using A = rung_detail::Value<I>;
        RUNG_LATER(if (count) { A sum = in[0]; out[0] = sum; for (long long i = 1; i < count; i++) out[i] = sum = op(sum, in[i]); });
    }
    template <class I, class O, class Op, class T>
    static cudaError_t InclusiveScanInit(RUNG_TEMPORARY, I in, O out, Op op, T init, long long count, cudaStream_t stream = 0)
    {
        RUNG_LATER(T sum = init; for (long long i = 0; i < count; i++) out[i] = sum = op(sum, in[i]););
    }
    template <class I, class O> static cudaError_t ExclusiveSum(RUNG_TEMPORARY, I in, O out, long long count, cudaStream_t stream = 0)
    {
        return ExclusiveScan(temporary, bytes, in, out, Sum(), rung_detail::Value<I>{}, count, stream);
    }
    template <class I, class O> static cudaError_t InclusiveSum(RUNG_TEMPORARY, I in, O out, long long count, cudaStream_t stream = 0)
    {
        return InclusiveScan(temporary, bytes, in, out, Sum(), count, stream);
    }
    template <class I> static cudaError_t ExclusiveSum(RUNG_TEMPORARY, I data, long long count, cudaStream_t stream = 0)
    {
        return ExclusiveSum(temporary, bytes, data, data, count, stream);
    }
    template <class I> static cudaError_t InclusiveSum(RUNG_TEMPORARY, I data, long long count, cudaStream_t stream = 0)
    {
        return InclusiveSum(temporary, bytes, data, data, count, stream);
    }
    template <class K, class I, class O>
    static cudaError_t ExclusiveSumByKey(RUNG_TEMPORARY, K keys, I in, O out, long long count, cudaStream_t stream = 0)
    {
        using A = rung_detail::Value<I>;
        RUNG_LATER(A sum{}; for (long long i = 0; i < count; i++) { if (i && !(keys[i] == keys[i - 1])) sum = A{}; const A next = sum + in[i]; out[i] = sum, sum = next; });
    }
    template <class K, class I, class O>
    static cudaError_t InclusiveSumByKey(RUNG_TEMPORARY, K keys, I in, O out, long long count, cudaStream_t stream = 0)
    {
        using A = rung_detail::Value<I>;
        RUNG_LATER(A sum{}; for (long long i = 0; i < count; i++) { if (i && !(keys[i] == keys[i - 1])) sum = A{}; out[i] = sum = sum + in[i]; });
    }
};

struct DeviceRadixSort
{
    static constexpr int ALL = 1 << 16;  // bits
#define RUNG_SORT(SUFFIX, DESCENDING) \
    template <class K> \
    static cudaError_t SortKeys##SUFFIX(RUNG_TEMPORARY, const K* in, K* out, long long count, int begin = 0, int end = ALL, cudaStream_t stream = 0) \
    { \
        RUNG_LATER(rung_detail::ordered(in, out, rung_detail::sorted(in, count, begin, end, DESCENDING), count);); \
    } \
    template <class K, class V> \
    static cudaError_t SortPairs##SUFFIX(RUNG_TEMPORARY, const K* in, K* out, const V* values, V* to, long long count, int begin = 0, int end = ALL, \
                                         cudaStream_t stream = 0) \
    { \
        RUNG_LATER(const auto order = rung_detail::sorted(in, count, begin, end, DESCENDING); \
                   rung_detail::ordered(in, out, order, count); rung_detail::ordered(values, to, order, count);); \
    } \
    template <class K> \
    static cudaError_t SortKeys##SUFFIX(RUNG_TEMPORARY, DoubleBuffer<K>& keys, long long count, int begin = 0, int end = ALL, cudaStream_t stream = 0) \
    { \
        const K* const in = keys.Current(); \
        if (temporary) keys.selector ^= 1; \
        return SortKeys##SUFFIX(temporary, bytes, in, keys.Current(), count, begin, end, stream); \
    } \
    template <class K, class V> \
    static cudaError_t SortPairs##SUFFIX(RUNG_TEMPORARY, DoubleBuffer<K>& keys, DoubleBuffer<V>& values, long long count, int begin = 0, int end = ALL, \
                                         cudaStream_t stream = 0) \
    { \
        const K* const in = keys.Current(); \
        const V* const from = values.Current(); \
        if (temporary) keys.selector ^= 1, values.selector ^= 1; \
        return SortPairs##SUFFIX(temporary, bytes, in, keys.Current(), from, values.Current(), count, begin, end, stream); \
    }
    RUNG_SORT(, false)
    RUNG_SORT(Descending, true)
#undef RUNG_SORT
};

struct DeviceMergeSort
{
    template <class I, class Op> static cudaError_t SortKeys(RUNG_TEMPORARY, I keys, long long count, Op before, cudaStream_t stream = 0)
    {
        RUNG_LATER(std::stable_sort(keys, keys + count, before););
    }
    template <class I, class V, class Op> static cudaError_t SortPairs(RUNG_TEMPORARY, I keys, V values, long long count, Op before, cudaStream_t stream = 0)
    {
        RUNG_LATER(
            std::vector<std::pair<rung_detail::Value<I>, rung_detail::Value<V>>> pairs;
            for (long long i = 0; i < count; i++) pairs.emplace_back(keys[i], values[i]);
            std::stable_sort(pairs.begin(), pairs.end(), [&](const auto& a, const auto& b) { return before(a.first, b.first); });
            for (long long i = 0; i < count; i++) keys[i] = pairs[size_t(i)].first, values[i] = pairs[size_t(i)].second;);
    }
    template <class... A> static cudaError_t StableSortKeys(RUNG_TEMPORARY, A... rest) { return SortKeys(temporary, bytes, rest...); }
    template <class... A> static cudaError_t StableSortPairs(RUNG_TEMPORARY, A... rest) { return SortPairs(temporary, bytes, rest...); }
};

struct DeviceSelect
{
#define RUNG_SELECT(CONDITION) \
    RUNG_LATER(long long kept = 0; for (long long i = 0; i < count; i++) if (CONDITION) out[kept++] = in[i]; *selected = kept;)
    template <class I, class F, class O, class N>
    static cudaError_t Flagged(RUNG_TEMPORARY, I in, F flags, O out, N selected, long long count, cudaStream_t stream = 0) { RUNG_SELECT(flags[i]); }
    template <class I, class O, class N, class Op>
    static cudaError_t If(RUNG_TEMPORARY, I in, O out, N selected, long long count, Op op, cudaStream_t stream = 0) { RUNG_SELECT(op(in[i])); }
    template <class I, class N, class Op>
    static cudaError_t If(RUNG_TEMPORARY, I in, N selected, long long count, Op op, cudaStream_t stream = 0)
    {
        return If(temporary, bytes, in, in, selected, count, op, stream);
    }
    template <class I, class O, class N>
    static cudaError_t Unique(RUNG_TEMPORARY, I in, O out, N selected, long long count, cudaStream_t stream = 0) { RUNG_SELECT(!i || !(in[i] == in[i - 1])); }
#undef RUNG_SELECT
    template <class K, class V, class L, class W, class N>
    static cudaError_t UniqueByKey(RUNG_TEMPORARY, K keys, V values, L unique, W firsts, N selected, long long count, cudaStream_t stream = 0)
    {
        RUNG_LATER(long long kept = 0;
                   for (long long i = 0; i < count; i++) if (!i || !(keys[i] == keys[i - 1])) unique[kept] = keys[i], firsts[kept++] = values[i];
                   *selected = kept;);
    }
};

struct DevicePartition  // what is not selected follows from the end
{
#define RUNG_PARTITION(CONDITION) \
    RUNG_LATER(long long kept = 0; long long left = count; for (long long i = 0; i < count; i++) out[CONDITION ? kept++ : --left] = in[i]; *selected = kept;)
    template <class I, class F, class O, class N>
    static cudaError_t Flagged(RUNG_TEMPORARY, I in, F flags, O out, N selected, long long count, cudaStream_t stream = 0) { RUNG_PARTITION(flags[i]); }
    template <class I, class O, class N, class Op>
    static cudaError_t If(RUNG_TEMPORARY, I in, O out, N selected, long long count, Op op, cudaStream_t stream = 0) { RUNG_PARTITION(op(in[i])); }
#undef RUNG_PARTITION
};

struct DeviceHistogram
{
    template <class I, class C, class L>
    static cudaError_t HistogramEven(RUNG_TEMPORARY, I samples, C* bins, int levels, L lower, L upper, long long count, cudaStream_t stream = 0)
    {
        RUNG_LATER(
            std::fill(bins, bins + levels - 1, C(0));
            for (long long i = 0; i < count; i++)
                if (!(samples[i] < lower) && samples[i] < upper) bins[int((double(samples[i]) - double(lower)) * (levels - 1) / (double(upper) - double(lower)))]++;);
    }
    template <class I, class C, class L>
    static cudaError_t HistogramRange(RUNG_TEMPORARY, I samples, C* bins, int levels, const L* edges, long long count, cudaStream_t stream = 0)
    {
        RUNG_LATER(
            std::fill(bins, bins + levels - 1, C(0));
            for (long long i = 0; i < count; i++) {
                const long long bin = std::upper_bound(edges, edges + levels, L(samples[i])) - edges - 1;
                if (bin >= 0 && bin < levels - 1) bins[bin]++;
            });
    }
};

struct DeviceRunLengthEncode
{
    template <class I, class U, class C, class N>
    static cudaError_t Encode(RUNG_TEMPORARY, I in, U unique, C counts, N runs, long long count, cudaStream_t stream = 0)
    {
        return DeviceReduce::ReduceByKey(temporary, bytes, in, unique, ConstantInputIterator<int>(1), counts, runs, Sum(), count, stream);
    }
};

struct DeviceSegmentedReduce
{
    template <class I, class O, class B, class E, class Op, class T>
    static cudaError_t Reduce(RUNG_TEMPORARY, I in, O out, long long segments, B begin, E end, Op op, T init, cudaStream_t stream = 0)
    {
        using A = std::decay_t<decltype(op(init, in[0]))>;
        RUNG_LATER(for (long long s = 0; s < segments; s++) out[s] = rung_detail::reduced<A>(in + begin[s], end[s] - begin[s], op, A(init)););
    }
#define RUNG_REDUCE(NAME, OP, INIT) \
    template <class I, class O, class B, class E> \
    static cudaError_t NAME(RUNG_TEMPORARY, I in, O out, long long segments, B begin, E end, cudaStream_t stream = 0) \
    { \
        using T = rung_detail::Value<I>; \
        return Reduce(temporary, bytes, in, out, segments, begin, end, OP(), INIT, stream); \
    }
    RUNG_REDUCE(Sum, cub::Sum, T{})
    RUNG_REDUCE(Min, cub::Min, rung_detail::Highest::of<T>())
    RUNG_REDUCE(Max, cub::Max, rung_detail::Lowest::of<T>())
#undef RUNG_REDUCE
};

struct DeviceSegmentedSort
{
#define RUNG_SORT(SUFFIX, DESCENDING) \
    template <class K, class B, class E> \
    static cudaError_t SortKeys##SUFFIX(RUNG_TEMPORARY, const K* in, K* out, long long, long long segments, B begin, E end, cudaStream_t stream = 0) \
    { \
        RUNG_LATER(for (long long s = 0; s < segments; s++) { \
            const K* const from = in + begin[s]; \
            rung_detail::ordered(from, out + begin[s], rung_detail::sorted(from, end[s] - begin[s], 0, 1 << 16, DESCENDING), end[s] - begin[s]); \
        }); \
    } \
    template <class K, class V, class B, class E> \
    static cudaError_t SortPairs##SUFFIX(RUNG_TEMPORARY, const K* in, K* out, const V* values, V* to, long long, long long segments, B begin, E end, \
                                         cudaStream_t stream = 0) \
    { \
        RUNG_LATER(for (long long s = 0; s < segments; s++) { \
            const long long count = end[s] - begin[s]; \
            const auto order = rung_detail::sorted(in + begin[s], count, 0, 1 << 16, DESCENDING); \
            rung_detail::ordered(in + begin[s], out + begin[s], order, count), rung_detail::ordered(values + begin[s], to + begin[s], order, count); \
        }); \
    }
    RUNG_SORT(, false)
    RUNG_SORT(Descending, true)
#undef RUNG_SORT
};
typedef DeviceSegmentedSort DeviceSegmentedRadixSort;

#undef RUNG_TEMPORARY
#undef RUNG_LATER

}  // namespace cub
