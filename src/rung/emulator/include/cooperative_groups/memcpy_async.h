// cg::memcpy_async: a copy to shared memory, split among the group's threads and complete after cg::wait.
#pragma once
#include "../cooperative_groups.h"

namespace cooperative_groups {

template <class Group>
inline void memcpy_async(const Group& group, void* to, const void* from, size_t bytes, Site site = here())
{
    const size_t all = reinterpret_cast<size_t>(to) | reinterpret_cast<size_t>(from) | bytes;
    const size_t piece = all % 16 == 0 ? 16 : all % 4 == 0 ? 4 : 1;
    for (size_t at = group.thread_rank() * piece; at < bytes; at += group.num_threads() * piece)
        rung_copy_async(static_cast<char*>(to) + at, static_cast<const char*>(from) + at, int(piece), true, site);
    rung_copy_commit();
}

template <class Group, class T>
inline void memcpy_async(const Group& group, T* to, const T* from, size_t bytes, Site site = here())
{
    memcpy_async(group, static_cast<void*>(to), static_cast<const void*>(from), bytes, site);
}

template <class Group>
inline void wait(const Group& group, Site site = here())
{
    rung_copy_wait(0);
    group.sync(site);
}

template <unsigned Left, class Group>
inline void wait_prior(const Group& group, Site site = here())
{
    rung_copy_wait(Left);
    group.sync(site);
}

}  // namespace cooperative_groups
