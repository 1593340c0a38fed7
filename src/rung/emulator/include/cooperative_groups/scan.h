// cg::inclusive_scan and exclusive_scan over the lanes of a tile.
#pragma once
#include "reduce.h"

namespace cooperative_groups {

template <class Group, class T, class Combine>
inline T inclusive_scan(const Group& group, T value, Combine combine, Site site = here())
{
    for (unsigned offset = 1; offset < group.num_threads(); offset *= 2) {
        const T before = group.move(value, group.rank >= offset ? group.rank - offset : group.rank, "cg::inclusive_scan", site);
        if (group.rank >= offset) value = combine(before, value);
    }
    return value;
}
template <class Group, class T>
inline T inclusive_scan(const Group& group, T value, Site site = here()) { return inclusive_scan(group, value, plus<T>(), site); }

template <class Group, class T, class Combine>
inline T exclusive_scan(const Group& group, T value, Combine combine, Site site = here())
{
    const T all = inclusive_scan(group, value, combine, site);
    const T before = group.move(all, group.rank ? group.rank - 1 : 0, "cg::exclusive_scan", site);
    return group.rank ? before : T{};
}
template <class Group, class T>
inline T exclusive_scan(const Group& group, T value, Site site = here()) { return exclusive_scan(group, value, plus<T>(), site); }

}  // namespace cooperative_groups
