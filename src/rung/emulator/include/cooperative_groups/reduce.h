// cg::reduce: every thread of the group receives the same sum, added in the order of the hardware's butterfly.
#pragma once
#include "../cooperative_groups.h"

namespace cooperative_groups {

template <class T> struct plus { T operator()(T a, T b) const { return a + b; } };
template <class T> struct less { T operator()(T a, T b) const { return b < a ? b : a; } };
template <class T> struct greater { T operator()(T a, T b) const { return a < b ? b : a; } };
template <class T> struct bit_and { T operator()(T a, T b) const { return a & b; } };
template <class T> struct bit_or { T operator()(T a, T b) const { return a | b; } };
template <class T> struct bit_xor { T operator()(T a, T b) const { return a ^ b; } };

template <class Group, class T, class Combine>
inline T reduce(const Group& group, T value, Combine combine, Site site = here())
{
    const unsigned count = group.num_threads();
    if ((count & (count - 1)) == 0) {
        for (unsigned offset = count / 2; offset > 0; offset /= 2)
            value = combine(value, group.move(value, group.rank ^ offset, "cg::reduce", site));
        return value;
    }
    T total = group.move(value, 0, "cg::reduce", site);
    for (unsigned other = 1; other < count; other++) total = combine(total, group.move(value, other, "cg::reduce", site));
    return total;
}

}  // namespace cooperative_groups
