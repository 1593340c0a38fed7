// Cooperative groups: block, tiles of a warp, coalesced threads, cluster, grid.
#pragma once

namespace cooperative_groups {

using rung_emulator::here;
using rung_emulator::Site;

inline unsigned rank_in_block() { return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x; }
inline unsigned threads_of_block() { return blockDim.x * blockDim.y * blockDim.z; }
inline unsigned blocks_of_grid() { return gridDim.x * gridDim.y * gridDim.z; }
inline unsigned rank_of_block() { return (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x; }

// ---- block ------------------------------------------------------------------------------------------------------

struct thread_block
{
    static void sync(Site site = here()) { rung_meet_block(0, rung_emulator::Vote::Count, "thread_block.sync()", site); }
    void barrier_wait(Site site = here()) const { sync(site); }
    void barrier_arrive() const {}
    static unsigned thread_rank() { return rank_in_block(); }
    static unsigned size() { return threads_of_block(); }
    static unsigned num_threads() { return threads_of_block(); }
    static dim3 group_index() { return dim3(blockIdx); }
    static dim3 thread_index() { return dim3(threadIdx); }
    static dim3 group_dim() { return blockDim; }
    static dim3 dim_threads() { return blockDim; }
};
inline thread_block this_thread_block() { return {}; }

// ---- some lanes of a warp ---------------------------------------------------------------------------------------

// Lanes of a mask, in ascending order: the common part of tiles and coalesced groups.
struct lanes_group
{
    unsigned mask;
    unsigned rank, count;

    unsigned thread_rank() const { return rank; }
    unsigned size() const { return count; }
    unsigned num_threads() const { return count; }
    void sync(Site site = here()) const { rung_meet_lanes(mask, nullptr, nullptr, "tile.sync()", site); }

    template <class T> T shfl(T value, unsigned source, Site site = here()) const { return move(value, source % count, "tile.shfl()", site); }
    template <class T> T shfl_up(T value, unsigned delta, Site site = here()) const
    {
        return move(value, rank >= delta ? rank - delta : rank, "tile.shfl_up()", site);
    }
    template <class T> T shfl_down(T value, unsigned delta, Site site = here()) const
    {
        return move(value, rank + delta < count ? rank + delta : rank, "tile.shfl_down()", site);
    }
    template <class T> T shfl_xor(T value, unsigned bits, Site site = here()) const
    {
        return move(value, (rank ^ bits) < count ? rank ^ bits : rank, "tile.shfl_xor()", site);
    }
    int any(int predicate, Site site = here()) const { return ballot(predicate, site) != 0; }
    int all(int predicate, Site site = here()) const
    {
        const unsigned long long votes = rung_emulator::vote(mask, predicate, "tile.all()", site);
        return unsigned(votes) == unsigned(votes >> 32);
    }
    unsigned ballot(int predicate, Site site = here()) const
    {
        return compact(unsigned(rung_emulator::vote(mask, predicate, "tile.ballot()", site)));
    }
    template <class T> unsigned match_any(T value, Site site = here()) const { return compact(__match_any_sync(mask, value, site)); }

    // The warp's lane that has rank `wanted` in the group.
    unsigned lane_of(unsigned wanted) const
    {
        for (unsigned lane = 0; lane < 32; lane++)
            if (mask >> lane & 1 && wanted-- == 0) return lane;
        return unsigned(rung_lane());
    }
    unsigned compact(unsigned lanes) const
    {
        unsigned bits = 0, at = 0;
        for (unsigned lane = 0; lane < 32; lane++)
            if (mask >> lane & 1) bits |= (lanes >> lane & 1) << at++;
        return bits;
    }
    template <class T> T move(T value, unsigned source, const char* what, Site site) const
    {
        const unsigned lane = lane_of(source);
        T result;
        for (size_t at = 0; at < sizeof(T); at += 8) {  // values of any size, 8 bytes at a time
            unsigned long long piece = 0;
            const size_t bytes = sizeof(T) - at < 8 ? sizeof(T) - at : 8;
            memcpy(&piece, reinterpret_cast<const char*>(&value) + at, bytes);
            piece = rung_emulator::shuffle_from(mask, piece, lane, what, site);
            memcpy(reinterpret_cast<char*>(&result) + at, &piece, bytes);
        }
        return result;
    }
};

struct coalesced_group : lanes_group
{
    unsigned meta_group_rank() const { return 0; }
    unsigned meta_group_size() const { return 1; }
};

inline lanes_group group_of_mask(unsigned mask)
{
    const unsigned lane = unsigned(rung_lane());
    return {mask, unsigned(__builtin_popcount(mask & ((1u << lane) - 1))), unsigned(__builtin_popcount(mask))};
}
inline coalesced_group coalesced_threads() { return {group_of_mask(__activemask())}; }

template <unsigned Size, class Parent = void>
struct thread_block_tile : lanes_group
{
    static_assert(Size <= 32 && (Size & (Size - 1)) == 0, "a tile of the emulator has 1, 2, 4, 8, 16 or 32 threads");
    thread_block_tile() : thread_block_tile(thread_block()) {}
    template <class Group> thread_block_tile(const Group&) : lanes_group{mask_of(), unsigned(rung_lane()) % Size, Size} {}

    static constexpr unsigned size() { return Size; }
    static constexpr unsigned num_threads() { return Size; }
    unsigned meta_group_rank() const { return rank_in_block() / Size; }
    unsigned meta_group_size() const { return (threads_of_block() + Size - 1) / Size; }

private:
    static unsigned mask_of() { return Size == 32 ? ~0u : ((1u << Size % 32) - 1) << (unsigned(rung_lane()) / Size * Size); }
};

template <unsigned Size, class Parent>
inline thread_block_tile<Size, Parent> tiled_partition(const Parent& parent) { return thread_block_tile<Size, Parent>(parent); }

inline coalesced_group tiled_partition(const thread_block&, unsigned size)
{
    return {group_of_mask(size >= 32 ? ~0u : ((1u << size) - 1) << (unsigned(rung_lane()) / size * size))};
}
template <class Group>
inline coalesced_group binary_partition(const Group& group, bool predicate, Site site = here())
{
    const unsigned yes = unsigned(rung_emulator::vote(group.mask, predicate, "binary_partition", site));
    return {group_of_mask(predicate ? yes : group.mask & ~yes)};
}
template <class Group, class Label>
inline coalesced_group labeled_partition(const Group& group, Label label, Site site = here())
{
    return {group_of_mask(__match_any_sync(group.mask, label, site))};
}

// Any of the groups above, with a size known at run time.
struct thread_group
{
    enum { Block, Lanes } kind;
    lanes_group lanes;
    thread_group(const thread_block&) : kind(Block), lanes{0, 0, 0} {}
    thread_group(const lanes_group& group) : kind(Lanes), lanes(group) {}
    void sync(Site site = here()) const { kind == Block ? thread_block::sync(site) : lanes.sync(site); }
    unsigned thread_rank() const { return kind == Block ? rank_in_block() : lanes.rank; }
    unsigned size() const { return kind == Block ? threads_of_block() : lanes.count; }
    unsigned num_threads() const { return size(); }
};

// ---- cluster and grid -------------------------------------------------------------------------------------------

struct cluster_group
{
    static void sync(Site site = here()) { rung_meet_cluster(site); }
    static void barrier_arrive(Site site = here()) { rung_arrive_cluster(site); }
    static void barrier_wait(Site site = here()) { rung_wait_cluster(site); }
    static dim3 dim_blocks() { const rung_emulator::Index d = rung_cluster_dim(); return dim3(d.x, d.y, d.z); }
    static dim3 block_index() { const dim3 d = dim_blocks(); return dim3(blockIdx.x % d.x, blockIdx.y % d.y, blockIdx.z % d.z); }
    static unsigned num_blocks() { const dim3 d = dim_blocks(); return d.x * d.y * d.z; }
    static unsigned block_rank() { const dim3 d = dim_blocks(), i = block_index(); return (i.z * d.y + i.y) * d.x + i.x; }
    static unsigned thread_rank() { return block_rank() * threads_of_block() + rank_in_block(); }
    static unsigned num_threads() { return num_blocks() * threads_of_block(); }
    static unsigned size() { return num_threads(); }
    template <class T> static T* map_shared_rank(T* address, int rank)
    {
        return static_cast<T*>(rung_map_shared(const_cast<void*>(static_cast<const void*>(address)), unsigned(rank)));
    }
};
inline cluster_group this_cluster() { return {}; }

struct grid_group
{
    static bool is_valid() { return true; }
    static void sync(Site site = here()) { rung_meet_grid(site); }
    static unsigned long long thread_rank() { return (unsigned long long)rank_of_block() * threads_of_block() + rank_in_block(); }
    static unsigned long long num_threads() { return (unsigned long long)blocks_of_grid() * threads_of_block(); }
    static unsigned long long size() { return num_threads(); }
    static dim3 group_dim() { return gridDim; }
    static dim3 dim_blocks() { return gridDim; }
    static dim3 block_index() { return dim3(blockIdx); }
    static unsigned long long block_rank() { return rank_of_block(); }
    static unsigned long long num_blocks() { return blocks_of_grid(); }
};
inline grid_group this_grid() { return {}; }

template <class Group> inline void sync(const Group& group, Site site = here()) { group.sync(site); }
inline void sync(const thread_block&, Site site = here()) { thread_block::sync(site); }

}  // namespace cooperative_groups
