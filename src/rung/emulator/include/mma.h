// nvcuda::wmma. CUDA leaves the layout of fragments unspecified. Here it is that of mma.sync, from which the hardware makes
// these products, so that lanes read and write the same addresses as there; lanes have two copies where the hardware keeps two.
#pragma once
#include "cuda_bf16.h"
#include "cuda_fp16.h"

namespace nvcuda { namespace wmma {

struct row_major {};
struct col_major {};
struct matrix_a {};
struct matrix_b {};
struct accumulator {};
namespace precision { struct tf32 {}; }
enum layout_t { mem_row_major, mem_col_major };

inline float __float_to_tf32(float x)
{
    const unsigned bits = __float_as_uint(x);
    return (bits & 0x7f800000u) == 0x7f800000u ? x : __uint_as_float((bits + 0x1000u) & 0xffffe000u);
}

namespace shapes {

template <class Use, int M, int N, int K> struct Extent;
template <int M, int N, int K> struct Extent<matrix_a, M, N, K> { static constexpr int rows = M, columns = K; };
template <int M, int N, int K> struct Extent<matrix_b, M, N, K> { static constexpr int rows = K, columns = N; };
template <int M, int N, int K> struct Extent<accumulator, M, N, K> { static constexpr int rows = M, columns = N; };

template <int M, int N, int K, class T> struct Legal
{
    static constexpr bool value = sizeof(T) <= 2 && K == 16 && ((M == 16 && N == 16) || (M == 32 && N == 8) || (M == 8 && N == 32));
};
template <int M, int N, int K> struct Legal<M, N, K, precision::tf32>
{
    static constexpr bool value = M == 16 && N == 16 && K == 8;
};
template <int M, int N, int K> struct Legal<M, N, K, float>
{
    static constexpr bool value = Legal<M, N, K, __half>::value || Legal<M, N, K, precision::tf32>::value;
};
template <int M, int N, int K> struct Legal<M, N, K, int>
{
    static constexpr bool value = Legal<M, N, K, __half>::value;
};

template <class T> struct Stored { typedef T type; };
template <> struct Stored<precision::tf32> { typedef float type; };

// The hardware keeps two copies of __half operands in a warp's registers.
template <class Use, class T> struct Copies { static constexpr int value = 1; };
template <> struct Copies<matrix_a, __half> { static constexpr int value = 2; };
template <> struct Copies<matrix_b, __half> { static constexpr int value = 2; };

template <class Layout> struct IsColumnMajor { static constexpr bool value = false; };
template <> struct IsColumnMajor<col_major> { static constexpr bool value = true; };

}  // namespace shapes

namespace shapes {

struct Element { int row, column; };

// Element i of a lane, in tiles of mma.sync: 16 x 8 products of operands that are 16 x DEPTH and DEPTH x 8.
template <int DEPTH> inline Element of_a(int lane, int i)
{
    constexpr int PAIR = DEPTH == 16 ? 2 : 1, OWN = DEPTH / 2;
    const int tile = i / OWN, r = i % OWN / PAIR, high = i % PAIR;
    return {tile * 16 + lane / 4 + r % 2 * 8, lane % 4 * PAIR + high + r / 2 * (DEPTH / 2)};
}
template <int DEPTH> inline Element of_b(int lane, int i)
{
    constexpr int PAIR = DEPTH == 16 ? 2 : 1, OWN = DEPTH / 4;
    const int tile = i / OWN, r = i % OWN / PAIR, high = i % PAIR;
    return {lane % 4 * PAIR + high + r * (DEPTH / 2), tile * 8 + lane / 4};
}
template <int N> inline Element of_sums(int lane, int i)
{
    const int tile = i / 4, e = i % 4;
    return {tile / (N / 8) * 16 + lane / 4 + e / 2 * 8, tile % (N / 8) * 8 + lane % 4 * 2 + e % 2};
}
inline Element turned(Element e) { return {e.column, e.row}; }

// A tile of 8 rows is the transposed product.
template <class Use, int M, int N, int K> struct Places;
template <int M, int N, int K> struct Places<matrix_a, M, N, K>
{
    static Element at(int lane, int i) { return M == 8 ? turned(of_b<K>(lane, i)) : of_a<K>(lane, i); }
};
template <int M, int N, int K> struct Places<matrix_b, M, N, K>
{
    static Element at(int lane, int i) { return M == 8 ? turned(of_a<K>(lane, i)) : of_b<K>(lane, i); }
};
template <int M, int N, int K> struct Places<accumulator, M, N, K>
{
    static Element at(int lane, int i) { return M == 8 ? turned(of_sums<8>(lane, i)) : of_sums<N>(lane, i); }
};

}  // namespace shapes

template <class Use, int M, int N, int K, class T, class Layout = void>
struct fragment
{
    static_assert(shapes::Legal<M, N, K, T>::value, "wmma has no tile of this shape and type");
    typedef typename shapes::Stored<T>::type element_type;
    typedef element_type storage_element_type;
    static constexpr int rows = shapes::Extent<Use, M, N, K>::rows, columns = shapes::Extent<Use, M, N, K>::columns;
    static constexpr int own = rows * columns / 32;
    enum { num_elements = own * (rows * columns == 256 ? shapes::Copies<Use, T>::value : 1), num_storage_elements = num_elements };
    element_type x[num_elements];
    static shapes::Element place(int lane, int i) { return shapes::Places<Use, M, N, K>::at(lane, i % own); }
};

template <class Use, int M, int N, int K, class T, class Layout, class V>
inline void fill_fragment(fragment<Use, M, N, K, T, Layout>& f, const V& value)
{
    for (int i = 0; i < f.num_elements; i++) f.x[i] = value;
}

namespace shapes {

// A lane reads its own elements: writes by other lanes of the warp need a __syncwarp first.
template <class F, class T>
inline void load(F& f, const T* from, unsigned stride, bool column_major, rung_emulator::Site site)
{
    if (reinterpret_cast<size_t>(from) % 16 || stride * sizeof(T) % 8)
        rung_fault(rung_emulator::FaultKind::Bounds, site, "wmma wants an address that is a multiple of 16 bytes and rows of a multiple of 8");
    const int lane = rung_lane();
    for (int i = 0; i < f.num_elements; i++) {
        if (i >= f.own) {  // the second copy
            f.x[i] = f.x[i - f.own];
            continue;
        }
        const Element e = f.place(lane, i);
        f.x[i] = from[column_major ? e.row + e.column * stride : e.row * stride + e.column];
    }
}

}  // namespace shapes

template <class Use, int M, int N, int K, class T, class Layout, class V>
inline void load_matrix_sync(fragment<Use, M, N, K, T, Layout>& f, const V* from, unsigned stride,
                             rung_emulator::Site site = rung_emulator::here())
{
    shapes::load(f, from, stride, shapes::IsColumnMajor<Layout>::value, site);
}

template <int M, int N, int K, class T, class V>
inline void load_matrix_sync(fragment<accumulator, M, N, K, T>& f, const V* from, unsigned stride, layout_t layout,
                             rung_emulator::Site site = rung_emulator::here())
{
    shapes::load(f, from, stride, layout == mem_col_major, site);
}

template <int M, int N, int K, class T, class V>
inline void store_matrix_sync(V* to, const fragment<accumulator, M, N, K, T>& f, unsigned stride, layout_t layout,
                              rung_emulator::Site site = rung_emulator::here())
{
    if (reinterpret_cast<size_t>(to) % 16 || stride * sizeof(V) % 8)
        rung_fault(rung_emulator::FaultKind::Bounds, site, "wmma wants an address that is a multiple of 16 bytes and rows of a multiple of 8");
    const int lane = rung_lane();
    for (int i = 0; i < f.num_elements; i++) {
        const shapes::Element e = f.place(lane, i);
        to[layout == mem_col_major ? e.row + e.column * stride : e.row * stride + e.column] = f.x[i];
    }
}

namespace shapes {

// Tensor cores read the upper 19 bits of a tf32 operand, whether it was rounded or not.
inline float operand(float x, precision::tf32) { return __uint_as_float(__float_as_uint(x) & 0xffffe000u); }
template <class S, class T> inline float operand(S x, T) { return float(x); }

template <class D, class A, class B, class C> struct Product
{
    D* d;
    const A* a;
    const B* b;
    const C* c;
};

template <int M, int N, int K, class TA, class D, class A, class B, class C>
inline void multiply(void* const* data, unsigned lanes)
{
    if (lanes != 0xffffffffu)
        rung_fault(rung_emulator::FaultKind::Barrier, rung_emulator::here(), "mma_sync wants all 32 lanes of the warp");
    typedef Product<D, A, B, C> P;
    float a[M][K], b[K][N];
    for (int lane = 0; lane < 32; lane++) {
        const P& p = *static_cast<P*>(data[lane]);
        for (int i = 0; i < A::own; i++) {
            const Element e = A::place(lane, i);
            a[e.row][e.column] = operand(p.a->x[i], TA());
        }
        for (int i = 0; i < B::own; i++) {
            const Element e = B::place(lane, i);
            b[e.row][e.column] = operand(p.b->x[i], TA());
        }
    }
    for (int lane = 0; lane < 32; lane++) {
        const P& p = *static_cast<P*>(data[lane]);
        float sum[D::own] = {};
        for (int k = 0; k < K; k++)
            for (int i = 0; i < D::own; i++) sum[i] += a[D::place(lane, i).row][k] * b[k][D::place(lane, i).column];
        for (int i = 0; i < D::own; i++) p.d->x[i] = float(p.c->x[i]) + sum[i];
    }
}

}  // namespace shapes

template <int M, int N, int K, class T, class LA, class LB, class TC, class TD>
inline void mma_sync(fragment<accumulator, M, N, K, TD>& d, const fragment<matrix_a, M, N, K, T, LA>& a,
                     const fragment<matrix_b, M, N, K, T, LB>& b, const fragment<accumulator, M, N, K, TC>& c,
                     bool /*saturate*/ = false, rung_emulator::Site site = rung_emulator::here())
{
    typedef fragment<accumulator, M, N, K, TD> D;
    typedef fragment<matrix_a, M, N, K, T, LA> A;
    typedef fragment<matrix_b, M, N, K, T, LB> B;
    typedef fragment<accumulator, M, N, K, TC> C;
    shapes::Product<D, A, B, C> product{&d, &a, &b, &c};
    rung_meet_lanes(0xffffffffu, shapes::multiply<M, N, K, T, D, A, B, C>, &product, "mma_sync", site);
}

} }  // namespace nvcuda::wmma
