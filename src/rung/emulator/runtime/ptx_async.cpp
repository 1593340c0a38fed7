// Instructions that start asynchronous work, and those that wait for it: mbarrier, cp.async, bulk and tensor copies.
#include "ptx.h"

#include "../include/rung_emulator/tensor_map.h"

#include <math.h>

#include "../include/rung_emulator/round16.h"

namespace rung_emulator {
namespace {

const char* name_of(const Instruction& i) { return i.text.c_str(); }

// A barrier's address: in shared memory, or generic.
Place barrier_place(Machine& m, const Instruction& i, const Argument& a)
{
    if (i.space == Space::Generic && i.is(0, "mbarrier"_w)) {
        Place place;
        if (!place_of(reinterpret_cast<void*>(m.address(a)), place))
            fault(FaultKind::Bounds, "%s (%s:%d): the barrier is not in shared memory", name_of(i), m.site.file, m.site.line);
        return place;
    }
    return m.shared(a, 8, i);
}

ByteBarrier& barrier(Machine& m, const Instruction& i, const Argument& a)
{
    return barrier_at(barrier_place(m, i, a), name_of(i), m.site);
}

void mbarrier(Machine& m, const Instruction& i)
{
    const unsigned long long what = i.hashes[1];
    const auto number = [&](unsigned k, unsigned long long otherwise) { return i.args.size() > k ? m.number(i.args[k]) : otherwise; };
    if (what == "init"_w) return init_bytes(barrier_place(m, i, i.args[0]), unsigned(number(1, 1)), m.site);
    if (what == "inval"_w) return invalidate_bytes(barrier_place(m, i, i.args[0]), name_of(i), m.site);
    if (what == "expect_tx"_w) return expect_bytes(barrier(m, i, i.args[0]), long(number(1, 0)), name_of(i), m.site);
    if (what == "complete_tx"_w) return complete_bytes(barrier(m, i, i.args[0]), long(number(1, 0)), name_of(i), m.site);
    if (what == "pending_count"_w) return m.set(i.args[0], m.number(i.args[1]) >> 32);
    if (what == "arrive"_w || what == "arrive_drop"_w) {
        const bool bare = i.args[0].kind == Kind::Address;  // the state is discarded
        const unsigned first = bare ? 0 : 1;
        ByteBarrier& b = barrier(m, i, i.args[first]);
        if (b.place.block != running->block && !bare && i.args[0].kind != Kind::Sink)
            m.refuse(i, "returns no state for another block's barrier: take _");
        unsigned count = 1;
        if (i.has("expect_tx"_w)) {
            b.bytes += long(number(first + 1, 0));  // and the arrival, in one
            if (b.bytes >= 1 << 20) expect_bytes(b, 0, name_of(i), m.site);
        } else count = unsigned(number(first + 1, 1));
        if (what == "arrive_drop"_w) b.expected -= count;
        const unsigned long long phase = arrive_bytes(b, count, !i.has("relaxed"_w), name_of(i), m.site);
        if (!bare) m.set(i.args[0], phase | (unsigned long long)b.pending << 32);
        return;
    }
    if (what == "test_wait"_w || what == "try_wait"_w) {
        ByteBarrier& b = barrier(m, i, i.args[1]);
        if (b.place.block != running->block) m.refuse(i, "waits for another block's barrier, which only its own block may");
        const bool parity = i.has("parity"_w);
        const unsigned phase = unsigned(number(2, 0));
        bool done;
        if (what == "try_wait"_w) done = wait_bytes(b, parity, phase, "mbarrier.try_wait", m.site);
        else {
            done = test_bytes(b, parity, phase);
            if (done) learn_bytes(b);
            else poll(&b, b.phase * 0x10001ull + b.pending, running->caller);
        }
        return m.set(i.args[0], done);
    }
    m.refuse(i, "is not modelled");
}

// ---- cp.async ---------------------------------------------------------------------------------------------------------

void copy(Machine& m, const Instruction& i)  // cp.async.cg.shared.global [to], [from], bytes, taken
{
    const int bytes = int(m.number(i.args[2]));
    int taken = bytes;
    if (i.args.size() > 3 && i.args[3].kind != Kind::None && !i.has("L2::cache_hint"_w)) taken = int(m.number(i.args[3]));
    if (i.args.size() > 4) taken = int(m.number(i.args[3]));
    if ((bytes != 4 && bytes != 8 && bytes != 16) || taken < 0 || taken > bytes) m.refuse(i, "copies 4, 8 or 16 bytes");
    const char* from = reinterpret_cast<const char*>(m.address(i.args[1]));
    if (taken) static_cast<void>(*reinterpret_cast<const volatile char*>(from)), static_cast<void>(*reinterpret_cast<const volatile char*>(from + taken - 1));
    copy_async(m.shared(i.args[0], unsigned(bytes), i), from, bytes, taken, m.site, running->caller);
}

void commit(Machine&, const Instruction&) { rung_copy_commit(); }
void wait(Machine& m, const Instruction& i)
{
    if (i.has("wait_all"_w)) rung_copy_commit();
    rung_copy_wait(i.has("wait_all"_w) ? 0 : int(m.number(i.args[0])));
}

void arrive_when_copied(Machine& m, const Instruction& i)
{
    arrive_after_copies(barrier(m, i, i.args[0]), !i.has("noinc"_w), name_of(i), m.site);
}

// ---- bulk -------------------------------------------------------------------------------------------------------------

void bulk_commit(Machine&, const Instruction&) { running->bulk_committed++; }
void bulk_wait(Machine& m, const Instruction& i) { wait_copies_out(unsigned(m.number(i.args[0])), i.has("read"_w)); }

template <class T, class F>
void each(void* to, const void* from, unsigned bytes, F f)
{
    for (unsigned at = 0; at + sizeof(T) <= bytes; at += sizeof(T)) {
        T a, b;
        memcpy(&a, static_cast<char*>(to) + at, sizeof(T));
        memcpy(&b, static_cast<const char*>(from) + at, sizeof(T));
        a = f(a, b);
        memcpy(static_cast<char*>(to) + at, &a, sizeof(T));
    }
}
template <class T> void add(void* to, const void* from, unsigned bytes) { each<T>(to, from, bytes, [](T a, T b) { return T(a + b); }); }
template <class T> void least(void* to, const void* from, unsigned bytes) { each<T>(to, from, bytes, [](T a, T b) { return b < a ? b : a; }); }
template <class T> void most(void* to, const void* from, unsigned bytes) { each<T>(to, from, bytes, [](T a, T b) { return a < b ? b : a; }); }
void add_half(void* to, const void* from, unsigned bytes)
{
    each<unsigned short>(to, from, bytes, [](unsigned short a, unsigned short b) { return half_bits(half_value(a) + half_value(b)); });
}
void add_bfloat(void* to, const void* from, unsigned bytes)
{
    each<unsigned short>(to, from, bytes,
                         [](unsigned short a, unsigned short b) { return bfloat16_bits(bfloat16_value(a) + bfloat16_value(b)); });
}

typedef void (*Reduction)(void*, const void*, unsigned);
Reduction reduction(Machine& m, const Instruction& i)
{
    const Type t = i.type;
    const bool sign = t.kind == 's';
    if (i.has("add"_w)) {
        if (t.kind == 'f') return t.bytes == 2 ? add_half : t.bytes == 4 ? add<float> : add<double>;
        if (t.kind == 'h') return add_bfloat;
        return t.bytes == 4 ? add<unsigned> : add<unsigned long long>;
    }
    if (i.has("min"_w) && t.kind != 'f' && t.kind != 'h') return t.bytes == 8 ? (sign ? least<long long> : least<unsigned long long>) : sign ? least<int> : least<unsigned>;
    if (i.has("max"_w) && t.kind != 'f' && t.kind != 'h') return t.bytes == 8 ? (sign ? most<long long> : most<unsigned long long>) : sign ? most<int> : most<unsigned>;
    m.refuse(i, "reduces in a way that is not modelled");
}

Span shared_span(Place place, unsigned bytes)
{
    Span span = {};
    span.shared = place, span.bytes = bytes;
    return span;
}
Span global_span(const void* at, unsigned bytes)
{
    Span span = {};
    span.global = static_cast<char*>(const_cast<void*>(at)), span.bytes = bytes;
    return span;
}

void touch(const char* at, unsigned bytes)  // made here, so that a fault names this line
{
    static_cast<void>(*static_cast<const volatile char*>(at));
    static_cast<void>(static_cast<const volatile char*>(at)[bytes - 1]);
}

Pending* begin(Machine& m, const Instruction& i, Async kind)
{
    Pending* operation = new Pending{};
    operation->kind = kind;
    operation->what = i.text.c_str();
    operation->site = m.site;
    operation->group = running->bulk_committed;
    return operation;
}

// To one block, or by a mask to several: the same place in each, and the same barrier.
void send(Machine& m, const Instruction& i, Pending* operation, Place to, unsigned bytes, unsigned swizzle, const Argument& at_barrier,
          const Argument* mask)
{
    ByteBarrier& first = barrier_at(m.shared(at_barrier, 8, i), name_of(i), m.site);
    operation->bytes = bytes;
    if (mask) {
        Block* block = running->block - running->block->cluster_rank;
        const unsigned blocks_there = volume(launch->cluster), wanted = unsigned(m.number(*mask)) & 0xffff;
        if (!wanted || wanted >> blocks_there)
            fault(FaultKind::Async, "%s (%s:%d) to the blocks 0x%x of a cluster of %u", name_of(i), m.site.file, m.site.line, wanted, blocks_there);
        for (unsigned rank = 0; rank < blocks_there; rank++)
            if (wanted >> rank & 1) {
                operation->to.push_back(shared_span({block + rank, to.offset}, bytes));
                operation->barriers.push_back(&barrier_at({block + rank, first.place.offset}, name_of(i), m.site));
            }
    } else {
        operation->to.push_back(shared_span(to, bytes));
        operation->barriers.push_back(&first);
    }
    for (Span& span : operation->to) span.swizzle = swizzle;
    issue(operation);
}

void bulk(Machine& m, const Instruction& i)
{
    if (i.has("prefetch"_w)) return;
    const unsigned bytes = unsigned(m.number(i.args[2]));
    const bool out = i.has("bulk_group"_w), reduce = i.is(0, "cp"_w) && i.is(1, "reduce"_w);
    const unsigned long long to = m.address(i.args[0]), from = m.address(i.args[1]);
    if (to % 16 || from % 16 || bytes % 16 || !bytes)
        fault(FaultKind::Bounds, "%s (%s:%d) of %u bytes, from 0x%llx to 0x%llx: all must be multiples of 16", name_of(i), m.site.file,
              m.site.line, bytes, from, to);
    Pending* operation = begin(m, i, out ? Async::CopyOut : Async::Copy);
    if (reduce) operation->reduce = reduction(m, i), atomics++;
    if (out) {
        touch(reinterpret_cast<char*>(to), bytes);
        operation->from.push_back(shared_span(m.shared(i.args[1], bytes, i), bytes));
        operation->to.push_back(global_span(reinterpret_cast<void*>(to), bytes));
        return issue(operation);
    }
    if (i.has("global"_w)) {
        touch(reinterpret_cast<char*>(from), bytes);
        operation->from.push_back(global_span(reinterpret_cast<void*>(from), bytes));
    } else {
        operation->from.push_back(shared_span(m.shared(i.args[1], bytes, i), bytes));
    }
    send(m, i, operation, m.shared(i.args[0], bytes, i), bytes, 0, i.args[3], i.has("multicast::cluster"_w) ? &i.args[4] : nullptr);
}

// ---- tensors ----------------------------------------------------------------------------------------------------------

const TensorMapFields& map_at(Machine& m, const Instruction& i, const Argument& a)
{
    const TensorMapFields& map = *reinterpret_cast<const TensorMapFields*>(m.address(a));
    if (map.magic != TENSOR_MAP_MAGIC || map.rank < 1 || map.rank > 5)
        fault(FaultKind::Async, "%s (%s:%d): there is no tensor map at 0x%llx", name_of(i), m.site.file, m.site.line, m.address(a));
    if (map.rank != unsigned(i.words[word_of_dimensions(i)][0] - '0'))
        fault(FaultKind::Async, "%s (%s:%d) with a map of %u dimensions", name_of(i), m.site.file, m.site.line, map.rank);
    const Argument& coordinates = a.parts[0];
    if (coordinates.parts.size() != map.rank)
        fault(FaultKind::Async, "%s (%s:%d) takes %u coordinates", name_of(i), m.site.file, m.site.line, map.rank);
    const unsigned inner = map.box[0] * map.element_bytes;
    if (map.swizzle && inner != 16u << map.swizzle)
        fault(FaultKind::Unsupported, "%s (%s:%d): boxes of %u bytes in the first dimension with a swizzle of %u are not modelled; "
              "make them equal", name_of(i), m.site.file, m.site.line, inner, 16u << map.swizzle);
    if (inner % 16)
        fault(FaultKind::Async, "%s (%s:%d): a box of %u bytes in the first dimension is no multiple of 16", name_of(i), m.site.file, m.site.line, inner);
    return map;
}

// The box at these coordinates, piece by piece in the order of the tile: in the tensor, or outside of it.
unsigned box_pieces(Machine& m, const TensorMapFields& map, const Argument& coordinates, std::vector<Span>& pieces)
{
    long long at[5] = {};
    unsigned count[5] = {1, 1, 1, 1, 1};
    for (unsigned d = 0; d < map.rank; d++) {
        at[d] = int(unsigned(m.number(coordinates.parts[d])));
        count[d] = (map.box[d] + map.element_strides[d] - 1) / map.element_strides[d];
    }
    static const unsigned NANS[] = {0, 0x7f7f7f7f, 0x7fff7fff, 0, 0x7fffffff};
    const unsigned value = map.fill && map.is_float ? NANS[map.element_bytes <= 4 ? map.element_bytes : 4] : 0;
    unsigned total = 0;
    const auto add = [&](bool inside, long long address, unsigned elements) {
        const unsigned bytes = elements * map.element_bytes;
        Span span = {};
        span.bytes = bytes, span.fill = !inside;
        span.value = value, span.value_bytes = 4;
        if (inside) span.global = reinterpret_cast<char*>(address);
        Span* last = pieces.empty() ? nullptr : &pieces.back();
        if (last && last->fill == span.fill && (span.fill || last->global + last->bytes == span.global)) last->bytes += bytes;
        else pieces.push_back(span);
        total += bytes;
    };
    unsigned k[5] = {};
    for (k[4] = 0; k[4] < count[4]; k[4]++)
        for (k[3] = 0; k[3] < count[3]; k[3]++)
            for (k[2] = 0; k[2] < count[2]; k[2]++)
                for (k[1] = 0; k[1] < count[1]; k[1]++) {
                    bool inside = true;
                    long long row = (long long)map.address;
                    for (unsigned d = 1; d < map.rank; d++) {
                        const long long c = at[d] + (long long)k[d] * map.element_strides[d];
                        inside &= c >= 0 && c < (long long)map.dims[d];
                        row += c * (long long)map.strides[d - 1];
                    }
                    const unsigned step = map.element_strides[0];
                    if (step == 1) {
                        const long long first = at[0] < 0 ? (-at[0] < (long long)count[0] ? -at[0] : count[0]) : 0;
                        long long end = (long long)map.dims[0] - at[0];
                        end = end < first ? first : end > (long long)count[0] ? count[0] : end;
                        if (!inside) end = first;
                        if (first) add(false, 0, unsigned(first));
                        if (end > first) add(true, row + (at[0] + first) * map.element_bytes, unsigned(end - first));
                        if (end < (long long)count[0]) add(false, 0, unsigned(count[0] - end));
                    } else {
                        for (unsigned e = 0; e < count[0]; e++) {
                            const long long c = at[0] + (long long)e * step;
                            add(inside && c >= 0 && c < (long long)map.dims[0], row + c * map.element_bytes, 1);
                        }
                    }
                }
    return total;
}

void tensor(Machine& m, const Instruction& i)
{
    if (i.has("prefetch"_w)) return;
    if (i.has("im2col"_w) || i.has("tile::gather4"_w) || i.has("tile::scatter4"_w) || i.has("im2col::w"_w)) m.refuse(i, "is not modelled");
    const bool out = i.has("bulk_group"_w), reduce = i.is(1, "reduce"_w);
    const Argument &at_map = i.args[out ? 0 : 1], &at_tile = i.args[out ? 1 : 0];
    const TensorMapFields& map = map_at(m, i, at_map);
    Pending* operation = begin(m, i, out ? Async::CopyOut : Async::Copy);
    std::vector<Span>& pieces = out ? operation->to : operation->from;
    const unsigned bytes = box_pieces(m, map, at_map.parts[0], pieces);
    for (const Span& piece : pieces)
        if (!piece.fill) touch(piece.global, piece.bytes);
    const Place tile = m.shared(at_tile, bytes, i);
    if ((address_of(tile) & 0xffffff) % 128)
        fault(FaultKind::Bounds, "%s (%s:%d): the tile begins at no multiple of 128 bytes", name_of(i), m.site.file, m.site.line);
    if (out) {
        if (reduce) {
            Instruction typed = i;  // the numbers' type is the map's
            typed.type = map.is_float ? (map.element_bytes == 2 ? Type{'h', 2} : Type{'f', map.element_bytes}) : Type{'u', map.element_bytes};
            operation->reduce = reduction(m, typed), atomics++;
        }
        Span from = shared_span(tile, bytes);
        from.swizzle = map.swizzle;
        operation->from.push_back(from);
        return issue(operation);
    }
    send(m, i, operation, tile, bytes, map.swizzle, i.args[2], i.has("multicast::cluster"_w) ? &i.args[3] : nullptr);
}

// ---- st.async, red.async ------------------------------------------------------------------------------------------------

void store_async(Machine& m, const Instruction& i)  // [to], value or {values}, [barrier]
{
    const unsigned bytes = i.type.bytes * i.lanes;
    Pending* operation = begin(m, i, Async::Store);
    const auto take = [&](const Argument& a) {
        const Value v = m.value(a);
        const char* raw = reinterpret_cast<const char*>(&v);
        operation->data.insert(operation->data.end(), raw, raw + i.type.bytes);
    };
    if (i.args[1].kind == Kind::Vector)
        for (const Argument& a : i.args[1].parts) take(a);
    else take(i.args[1]);
    operation->read = true;
    const bool reduce = i.is(0, "red"_w);
    if (reduce) operation->reduce = i.has("inc"_w) || i.has("dec"_w) ? (m.refuse(i, "is not modelled"), nullptr) : reduction(m, i);
    send(m, i, operation, m.shared(i.args[0], bytes, i), bytes, 0, i.args[2], nullptr);
}

}  // namespace

// The word with the number of dimensions: cp.async.bulk.tensor.2d, cp.reduce.async.bulk.tensor.2d.
unsigned word_of_dimensions(const Instruction& i)
{
    for (unsigned k = 0; k + 1 < i.words.size(); k++)
        if (i.words[k] == "tensor") return k + 1;
    return 0;
}

Handler asynchronous_handler(const Instruction& i)
{
    const std::string& name = i.words[0];
    if (name == "mbarrier") return mbarrier;
    if ((name == "st" || name == "red") && i.words.size() > 1 && i.is(1, "async"_w)) return store_async;
    if (name != "cp") return nullptr;
    if (i.has("tensor"_w)) return tensor;
    if (i.has("bulk"_w)) return i.has("commit_group"_w) ? bulk_commit : i.has("wait_group"_w) ? bulk_wait : bulk;
    if (i.has("commit_group"_w)) return commit;
    if (i.has("wait_group"_w) || i.has("wait_all"_w)) return wait;
    if (i.has("mbarrier"_w)) return arrive_when_copied;
    return i.has("async"_w) ? copy : nullptr;
}

}  // namespace rung_emulator
