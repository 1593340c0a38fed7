// Tensor cores: wgmma, which is asynchronous, and the synchronous mma.sync, ldmatrix and stmatrix. Each of the four warps
// of a wgmma has 16 of the 64 rows, and a product of its own.
#include "ptx.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <initializer_list>

#include "../include/rung_emulator/round16.h"

namespace rung_emulator {

namespace {

float small(unsigned bits, unsigned exponents, unsigned mantissas)
{
    const unsigned exponent = bits >> mantissas & ((1u << exponents) - 1), mantissa = bits & ((1u << mantissas) - 1);
    const float sign = bits & 0x80 ? -1.0f : 1.0f;
    const int bias = (1 << (exponents - 1)) - 1;
    if (exponents == 5 && exponent == 31) return mantissa ? NAN : sign * INFINITY;
    if (exponents == 4 && (bits & 0x7f) == 0x7f) return NAN;
    if (!exponent) return sign * ldexpf(float(mantissa), 1 - bias - int(mantissas));
    return sign * ldexpf(float((1u << mantissas) + mantissa), int(exponent) - bias - int(mantissas));
}

constexpr unsigned bytes_of(Number n) { return n == Number::Tf32 ? 4 : n == Number::Half || n == Number::Bfloat ? 2 : 1; }

// The 256 values of a format of 8 bits.
struct Small
{
    float value[256];
    Small(unsigned exponents, unsigned mantissas)
    {
        for (unsigned bits = 0; bits < 256; bits++) value[bits] = small(bits, exponents, mantissas);
    }
};
const Small e4m3(4, 3), e5m2(5, 2);

template <Number n>
float number(const char* at)
{
    unsigned bits = 0;
    memcpy(&bits, at, bytes_of(n));
    if constexpr (n == Number::Half) return half_value((unsigned short)bits);
    if constexpr (n == Number::Bfloat) return bfloat16_value((unsigned short)bits);
    if constexpr (n == Number::Tf32) return bits_as<float>(bits & 0xffffe000u);  // tensor cores read the upper 19 bits
    if constexpr (n == Number::E4m3) return e4m3.value[bits];
    if constexpr (n == Number::E5m2) return e5m2.value[bits];
    if constexpr (n == Number::S8) return float((signed char)bits);
    return float(bits);
}

// Copies contiguous numbers to places `step` apart.
template <Number n>
void numbers(const char* from, unsigned count, float* to, unsigned step)
{
    for (unsigned i = 0; i < count; i++) to[i * step] = number<n>(from + i * bytes_of(n));
}

typedef void (*Reader)(const char* from, unsigned count, float* to, unsigned step);
Reader reader_of(Number n)
{
    static const Reader READERS[] = {numbers<Number::Half>, numbers<Number::Bfloat>, numbers<Number::Tf32>, numbers<Number::E4m3>,
                                     numbers<Number::E5m2>, numbers<Number::S8>, numbers<Number::U8>};
    return READERS[unsigned(n)];
}

bool number_named(const std::string& word, Number& n)
{
    static const struct { const char* name; Number n; } NAMES[] = {{"f16", Number::Half}, {"bf16", Number::Bfloat}, {"tf32", Number::Tf32},
        {"e4m3", Number::E4m3}, {"e5m2", Number::E5m2}, {"s8", Number::S8}, {"u8", Number::U8}};
    for (const auto& entry : NAMES)
        if (word == entry.name) return n = entry.n, true;
    return false;
}

// The layout of an operand's rows, as its descriptor gives it.
struct Descriptor
{
    unsigned start, leading, stride, chunks;  // of 16 bytes in a row of the swizzle's pattern; 1: none
    bool across;                              // rows run along the other dimension: "transposed"

    static Descriptor of(unsigned long long bits, bool across)
    {
        static const unsigned CHUNKS[] = {1, 8, 4, 2};
        return {unsigned(bits & 0x3fff) << 4, unsigned(bits >> 16 & 0x3fff) << 4, unsigned(bits >> 32 & 0x3fff) << 4, CHUNKS[bits >> 62], across};
    }
    // Of element (row, k), whose size is `bytes`.
    unsigned address(unsigned row, unsigned k, unsigned bytes) const
    {
        const unsigned each = 16 / bytes, eight = chunks == 1 ? 16 : chunks * 16;
        unsigned at;
        if (!across) {
            const unsigned chunk = k / each, within = k % each * bytes;
            at = start + row / 8 * stride + row % 8 * eight + (chunks == 1 ? chunk * leading : chunk * 16) + within;
        } else {
            const unsigned chunk = row / each, within = row % each * bytes;
            at = chunks == 1 ? start + chunk * stride + k % 8 * 16 + k / 8 * leading + within
                             : start + chunk % chunks * 16 + chunk / chunks * leading + k % 8 * eight + k / 8 * stride + within;
        }
        return at ^ (at >> 7 & (chunks - 1)) << 4;
    }
};

struct Product
{
    Warp* warp;
    unsigned columns, depth, rows_from;
    Number a_number, b_number;
    char result;                     // 'f', 'h' (f16) or 's'
    bool from_registers, add, computed;
    float a_sign, b_sign;
    Descriptor a, b;
    unsigned a_words[WARP][4];
    std::vector<char*> targets;      // [lane][register]
    std::vector<unsigned> words;     // [lane][register]: what was there, then the result
    Product* before;                 // pending, and adds to the same registers
    unsigned group;
    unsigned long serial;
    Site site;

    unsigned registers() const { return columns / (result == 'h' ? 4 : 2); }
};

}  // namespace

struct WarpProducts
{
    std::vector<Product*> under_way, done;  // the last of these that wrote certain registers
};

namespace {

unsigned long serials;

// Numbers of an operand as floats: [row][k] or [k][row]; read in contiguous pieces of 16 bytes.
void read_operand(const Product& p, const Descriptor& d, Number n, unsigned rows, unsigned first, float* out, bool by_depth)
{
    Block& block = *p.warp->lanes[0]->block;
    const char* memory = memory_of(block);
    const unsigned origin = address_of({&block, 0}) & 0xffffff, size = shared_bytes(), bytes = bytes_of(n), each = 16 / bytes;
    const unsigned to_row = by_depth ? 1 : p.depth, to_k = by_depth ? rows : 1;
    const Reader read = reader_of(n);
    for (unsigned row = 0; row < rows; row += d.across ? each : 1)
        for (unsigned k = 0; k < p.depth; k += d.across ? 1 : each) {
            const unsigned left = d.across ? rows - row : p.depth - k, count = left < each ? left : each;
            const unsigned offset = d.address(first + row, k, bytes) - origin;
            if (offset > size || count * bytes > size - offset)
                fault(FaultKind::Bounds, "wgmma (%s:%d) reads byte %d of shared memory, which has %u: its descriptor is wrong",
                      p.site.file, p.site.line, int(offset > size ? offset : size), size);
            read(memory + offset, count, out + row * to_row + k * to_k, d.across ? to_row : to_k);
        }
}

void read_registers(const Product& p, float* out)
{
    const unsigned bytes = bytes_of(p.a_number), each = 4 / bytes;
    const Reader read = reader_of(p.a_number);
    for (unsigned lane = 0; lane < WARP; lane++)
        for (unsigned r = 0; r < 4; r++)
            read(reinterpret_cast<const char*>(&p.a_words[lane][r]), each,
                 out + (lane / 4 + r % 2 * 8) * p.depth + lane % 4 * each + r / 2 * (p.depth / 2), 1);
}

// 16 rows by `columns`, which are a multiple of 8; each sum in the order of the depth.
void multiply(const float* a, const float* b, float* sums, unsigned columns, unsigned depth)
{
    typedef float Eight __attribute__((vector_size(32), aligned(4)));
    for (unsigned c = 0; c < columns; c += 8)
        for (unsigned first = 0; first < 16; first += 8) {
            Eight sum[8] = {};
            for (unsigned k = 0; k < depth; k++) {
                const Eight right = *reinterpret_cast<const Eight*>(b + k * columns + c);
                for (unsigned r = 0; r < 8; r++) sum[r] += a[(first + r) * depth + k] * right;
            }
            for (unsigned r = 0; r < 8; r++) *reinterpret_cast<Eight*>(sums + (first + r) * columns + c) = sum[r];
        }
}

void compute(Product& p)
{
    if (p.computed) return;
    p.computed = true;
    if (p.before) {
        compute(*p.before);
        p.words = p.before->words;
    }
    std::vector<float> a(16 * p.depth), b(p.depth * p.columns), sums(16 * p.columns);
    if (p.from_registers) read_registers(p, a.data());
    else read_operand(p, p.a, p.a_number, 16, p.rows_from, a.data(), false);
    read_operand(p, p.b, p.b_number, p.columns, 0, b.data(), true);
    multiply(a.data(), b.data(), sums.data(), p.columns, p.depth);
    const float sign = p.a_sign * p.b_sign;
    const unsigned registers = p.registers();
    for (unsigned lane = 0; lane < WARP; lane++)
        for (unsigned i = 0; i < p.columns / 2; i++) {
            const unsigned row = lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
            const float sum = sign * sums[row * p.columns + column];
            if (p.result == 'h') {
                unsigned& word = p.words[lane * registers + i / 2];
                const unsigned shift = 16 * (i % 2);
                const float old = p.add ? half_value((unsigned short)(word >> shift)) : 0.0f;
                word = (word & ~(0xffffu << shift)) | unsigned(half_bits(old + sum)) << shift;
            } else {
                unsigned& word = p.words[lane * registers + i];
                if (p.result == 's') word = (p.add ? word : 0) + unsigned(int(sum));
                else word = bits_as<unsigned>(p.add ? bits_as<float>(word) + sum : sum);
            }
        }
}

struct Call
{
    Machine* machine;
    const Instruction* instruction;
};

// The operands of wgmma.mma_async in the order of the manual.
void issue_product(void* const* data, unsigned lanes)
{
    const Call& first = *static_cast<Call*>(data[__builtin_ctz(lanes)]);
    const Instruction& i = *first.instruction;
    Machine& m = *first.machine;
    Warp& warp = *running->warp;
    if (lanes != ~0u) fault(FaultKind::Barrier, "wgmma (%s:%d) wants all 32 lanes of the warp", m.site.file, m.site.line);
    Product* p = new Product{};
    p->warp = &warp;
    p->site = m.site;
    p->serial = ++serials;
    const ProductKind& kind = i.product;
    p->columns = kind.columns, p->depth = kind.depth, p->result = kind.result, p->a_number = kind.a, p->b_number = kind.b;
    if (kind.numbers != 2 || !p->columns || p->columns > 256 || p->columns % 8 || p->depth * bytes_of(p->a_number) != 32) m.refuse(i, "is not modelled");
    const unsigned registers = p->registers();
    if (i.args.size() < 4 || i.args[0].parts.size() != registers) m.refuse(i, "has the wrong number of registers");
    p->from_registers = i.args[1].kind == Kind::Vector;
    p->rows_from = warp.lanes[0]->rank / WARP % 4 * 16;
    p->add = m.predicate(i.args[3]);
    const auto argument = [&](unsigned k, long long otherwise) { return i.args.size() > k ? (long long)m.number(i.args[k]) : otherwise; };
    p->a_sign = argument(4, 1) == -1 ? -1.0f : 1.0f, p->b_sign = argument(5, 1) == -1 ? -1.0f : 1.0f;
    const bool a_across = !p->from_registers && argument(6, 0), b_across = argument(p->from_registers ? 6 : 7, 0);
    if (!p->from_registers) p->a = Descriptor::of(m.number(i.args[1]), a_across);
    p->b = Descriptor::of(m.number(i.args[2]), b_across);
    if ((p->from_registers ? 0 : m.number(i.args[1]) >> 49 & 7) || m.number(i.args[2]) >> 49 & 7) m.refuse(i, "with a base offset is not modelled");

    if (!warp.products) warp.products = new WarpProducts;
    WarpProducts& all = *warp.products;
    p->targets.reserve(WARP * registers), p->words.reserve(WARP * registers);
    char* key = nullptr;
    for (unsigned lane = 0; lane < WARP; lane++) {
        Machine& at = *static_cast<Call*>(data[lane])->machine;
        for (unsigned r = 0; r < registers; r++) {
            const Argument& d = i.args[0].parts[r];
            if (d.kind != Kind::Register || d.reg >= at.program.operands || !at.operands[d.reg].target) m.refuse(i, "wants its sums in variables");
            p->targets.push_back(static_cast<char*>(at.operands[d.reg].target));
            p->words.push_back(unsigned(at.registers[d.reg].low));
        }
        if (p->from_registers)
            for (unsigned r = 0; r < 4; r++) p->a_words[lane][r] = unsigned(at.number(i.args[1].parts[r]));
    }
    key = p->targets[0];
    for (Product* other : all.under_way)
        if (other->targets[0] == key) p->before = other;
    Thread& lane0 = *warp.lanes[0];
    p->group = lane0.products_committed;
    bool untouched = p->before && p->before->columns == p->columns;
    if (p->before && !untouched) m.refuse(i, "changes the shape of sums that are under way");
    for (Product* other : all.done)
        if (other->targets[0] == key && other->columns == p->columns) untouched |= other->words == p->words;
    const bool needs = p->from_registers || (p->add && !untouched) || !lane0.products_begun;
    if (needs && !lane0.registers_ordered)
        fault(FaultKind::Async, "wgmma (%s:%d) takes registers that the warp has written, with no wgmma.fence between", m.site.file, m.site.line);
    all.under_way.push_back(p);
    const unsigned agent = agent_of_warp(warp);
    if (watching) {  // every 16 bytes that are read
        Block& block = *lane0.block;
        const unsigned origin = address_of({&block, 0}) & 0xffffff;
        const auto note = [&](const Descriptor& d, Number n, unsigned rows, unsigned from) {
            const unsigned each = 16 / bytes_of(n);
            for (unsigned row = 0; row < rows; row += d.across ? each : 1)
                for (unsigned k = 0; k < p->depth; k += d.across ? 1 : each) {
                    const unsigned offset = d.address(from + row, k, bytes_of(n)) - origin;
                    if (offset + 16 <= shared_bytes()) note_operand(*running, {&block, offset}, 16, agent, p->serial);
                }
        };
        if (!p->from_registers) note(p->a, p->a_number, 16, p->rows_from);
        note(p->b, p->b_number, p->columns, 0);
    }
    if (launch->order == int(Order::Reverse)) compute(*p);
}

void multiply_async(Machine& m, const Instruction& i)
{
    Call call = {&m, &i};
    rung_meet_lanes(0xffffffffu, issue_product, &call, "wgmma.mma_async", m.site);
    for (const Argument& d : i.args[0].parts) m.set(d, 0x7fffffffull);  // until the wait: neither the old sums nor the new
}

struct Wait
{
    unsigned left;
};

void finish_products(void* const* data, unsigned lanes)
{
    Warp& warp = *running->warp;
    const unsigned left = static_cast<Wait*>(data[__builtin_ctz(lanes)])->left;
    if (!warp.products) return;
    WarpProducts& all = *warp.products;
    const unsigned committed = warp.lanes[0]->products_committed;
    while (!all.under_way.empty() && all.under_way[0]->group + left < committed) {
        Product* p = all.under_way[0];
        compute(*p);
        all.under_way.erase(all.under_way.begin());
        bool last = true;
        for (Product* other : all.under_way) {
            if (other->before == p) {
                if (!other->computed) other->words = p->words;
                other->before = nullptr;
            }
            last &= other->targets[0] != p->targets[0];
        }
        if (last)
            for (size_t k = 0; k < p->targets.size(); k++) memcpy(p->targets[k], &p->words[k], 4);
        for (size_t k = 0; k < all.done.size(); k++)
            if (all.done[k]->targets[0] == p->targets[0] || all.done.size() > 4) {
                delete all.done[k];
                all.done.erase(all.done.begin() + long(k));
                break;
            }
        all.done.push_back(p);
        const unsigned agent = agent_of_warp(warp);
        Thread* const before = running;
        for (unsigned lane = 0; lane < WARP; lane++)
            if (lanes >> lane & 1) {
                running = warp.lanes[lane];
                running->registers_ordered = false;
                agent_known(agent, p->serial);
            }
        running = before;
    }
}

void wait_products(Machine& m, const Instruction& i)
{
    Wait wait = {unsigned(m.number(i.args[0]))};
    m.store_operands();
    rung_meet_lanes(0xffffffffu, finish_products, &wait, "wgmma.wait_group", m.site);
    m.reload_operands();
}

void fence_products(Machine& m, const Instruction&)
{
    rung_meet_lanes(0xffffffffu, nullptr_collective, nullptr, "wgmma.fence", m.site);
    running->registers_ordered = running->products_begun = true;
}

void commit_products(Machine& m, const Instruction&)
{
    rung_meet_lanes(0xffffffffu, nullptr_collective, nullptr, "wgmma.commit_group", m.site);
    running->products_committed++;
}

// ---- mma.sync, ldmatrix, stmatrix -----------------------------------------------------------------------------------------

void multiply_now(void* const* data, unsigned lanes)
{
    const Call& first = *static_cast<Call*>(data[__builtin_ctz(lanes)]);
    const Instruction& i = *first.instruction;
    Machine& m = *first.machine;
    if (lanes != ~0u) fault(FaultKind::Barrier, "mma (%s:%d) wants all 32 lanes of the warp", m.site.file, m.site.line);
    const ProductKind& kind = i.product;
    const unsigned depth = kind.depth;
    const char result = kind.result;
    const unsigned bytes = bytes_of(kind.a), each = 4 / bytes;
    if (kind.rows != 16 || kind.columns != 8 || !depth || kind.numbers < 2 || !i.has("row"_w) || !i.has("col"_w)) m.refuse(i, "is not modelled");
    const unsigned a_words = unsigned(i.args[1].parts.size()), b_words = unsigned(i.args[2].kind == Kind::Vector ? i.args[2].parts.size() : 1);
    const bool sparse = i.has("sp"_w) || i.has("sp::ordered_metadata"_w);  // a holds two of every four columns; of halves, 32 deep
    const unsigned held = sparse ? depth / 2 : depth;
    if (sparse && (depth != 32 || each != 2)) m.refuse(i, "is not modelled");
    if (a_words * WARP * each != 16 * held || b_words * WARP * each != 8 * depth) m.refuse(i, "is not modelled");
    std::vector<float> a(16 * depth), b(8 * depth);
    const Reader read_a = reader_of(kind.a), read_b = reader_of(kind.b);
    for (unsigned lane = 0; lane < WARP; lane++) {
        const Machine& at = *static_cast<Call*>(data[lane])->machine;
        const unsigned g = lane / 4, t = lane % 4;
        for (unsigned r = 0; r < a_words; r++) {
            const unsigned word = unsigned(at.number(i.args[1].parts[r]));
            read_a(reinterpret_cast<const char*>(&word), each, &a[(g + r % 2 * 8) * held + t * each + r / 2 * 4 * each], 1);
        }
        for (unsigned r = 0; r < b_words; r++) {
            const unsigned word = unsigned(at.number(i.args[2].kind == Kind::Vector ? i.args[2].parts[r] : i.args[2]));
            read_b(reinterpret_cast<const char*>(&word), each, &b[g * depth + t * each + r * 4 * each], 1);
        }
    }
    if (sparse) {
        std::vector<float> whole(16 * depth);
        const unsigned selector = unsigned(m.number(i.args[5]));
        for (unsigned row = 0; row < 16; row++)
            for (unsigned k = 0; k < held; k++) {
                const Machine& at = *static_cast<Call*>(data[row % 8 * 4 + 2 * selector + k / 8])->machine;
                const unsigned pair = unsigned(at.number(i.args[4])) >> (row / 8 * 16 + k % 8 / 2 * 4) & 15, lower = pair & 3, upper = pair >> 2;
                if (lower >= upper) m.refuse(i, "with places out of order is not modelled");
                whole[row * depth + k / 2 * 4 + (k % 2 ? upper : lower)] = a[row * held + k];
            }
        a = whole;
    }
    for (unsigned lane = 0; lane < WARP; lane++) {
        Machine& at = *static_cast<Call*>(data[lane])->machine;
        float sums[4];
        for (unsigned k = 0; k < 4; k++) {
            const unsigned row = lane / 4 + k / 2 * 8, column = lane % 4 * 2 + k % 2;
            sums[k] = 0;
            for (unsigned j = 0; j < depth; j++) sums[k] += a[row * depth + j] * b[column * depth + j];
        }
        for (unsigned k = 0; k < (result == 'h' ? 2u : 4u); k++) {
            const unsigned old = unsigned(at.number(i.args[3].parts[k]));
            unsigned fresh;
            if (result == 'h')
                fresh = half_bits(half_value((unsigned short)old) + sums[2 * k]) | unsigned(half_bits(half_value((unsigned short)(old >> 16)) + sums[2 * k + 1])) << 16;
            else if (result == 's') fresh = old + unsigned(int(sums[k]));
            else fresh = bits_as<unsigned>(bits_as<float>(old) + sums[k]);
            at.set(i.args[0].parts[k], fresh);
        }
    }
}

void multiply_sync(Machine& m, const Instruction& i)
{
    Call call = {&m, &i};
    rung_meet_lanes(0xffffffffu, multiply_now, &call, "mma.sync", m.site);
}

struct Rows
{
    char* row;
    unsigned words[4];
    unsigned matrices;
    bool across;
};

void load_rows(void* const* data, unsigned lanes)
{
    const Rows& first = *static_cast<Rows*>(data[__builtin_ctz(lanes)]);
    for (unsigned k = 0; k < first.matrices; k++) {
        unsigned short matrix[8][8] = {};
        for (unsigned row = 0; row < 8; row++)
            if (lanes >> (8 * k + row) & 1) memcpy(matrix[row], static_cast<Rows*>(data[8 * k + row])->row, 16);
        for (unsigned lane = 0; lane < WARP; lane++) {
            if (!(lanes >> lane & 1)) continue;
            const unsigned g = lane / 4, t = lane % 4 * 2;
            static_cast<Rows*>(data[lane])->words[k] = first.across ? matrix[t][g] | unsigned(matrix[t + 1][g]) << 16
                                                                    : matrix[g][t] | unsigned(matrix[g][t + 1]) << 16;
        }
    }
}

void store_rows(void* const* data, unsigned lanes)
{
    const Rows& first = *static_cast<Rows*>(data[__builtin_ctz(lanes)]);
    for (unsigned k = 0; k < first.matrices; k++) {
        unsigned short matrix[8][8] = {};
        for (unsigned lane = 0; lane < WARP; lane++) {
            if (!(lanes >> lane & 1)) continue;
            const unsigned g = lane / 4, t = lane % 4 * 2, word = static_cast<Rows*>(data[lane])->words[k];
            (first.across ? matrix[t][g] : matrix[g][t]) = (unsigned short)word;
            (first.across ? matrix[t + 1][g] : matrix[g][t + 1]) = (unsigned short)(word >> 16);
        }
        for (unsigned row = 0; row < 8; row++)
            if (lanes >> (8 * k + row) & 1) memcpy(static_cast<Rows*>(data[8 * k + row])->row, matrix[row], 16);
    }
}

void matrices(Machine& m, const Instruction& i)
{
    const bool loads = i.is(0, "ldmatrix"_w);
    const Argument &at = i.args[loads ? 1 : 0], &registers = i.args[loads ? 0 : 1];
    const std::vector<Argument> alone = {registers};
    const std::vector<Argument>& words = registers.kind == Kind::Vector ? registers.parts : alone;
    if (!i.has("m8n8"_w) || !i.has("b16"_w)) m.refuse(i, "is not modelled");
    Rows rows = {nullptr, {}, unsigned(words.size()), i.has("trans"_w)};
    if (running->lane < 8 * rows.matrices) {
        rows.row = i.space == Space::Generic ? reinterpret_cast<char*>(m.address(at)) : memory_at(m.shared(at, 16, i));
        if (size_t(rows.row) % 16) fault(FaultKind::Bounds, "%s (%s:%d): a row begins at no multiple of 16 bytes", i.text.c_str(), m.site.file, m.site.line);
        note_access(rows.row, 16, !loads, false, running->caller);
    }
    if (!loads)
        for (size_t k = 0; k < words.size(); k++) rows.words[k] = unsigned(m.number(words[k]));
    rung_meet_lanes(0xffffffffu, loads ? load_rows : store_rows, &rows, loads ? "ldmatrix" : "stmatrix", m.site);
    if (loads)
        for (size_t k = 0; k < words.size(); k++) m.set(words[k], rows.words[k]);
}

}  // namespace

// Results are lost when their thread ends without waiting for them.
void end_products(Thread& thread)
{
    Warp& warp = *thread.warp;
    if (warp.products && !warp.products->under_way.empty()) {
        const Product& p = *warp.products->under_way[0];
        fault(FaultKind::Async, "a thread ends while its wgmma (%s:%d) is under way: wait with wgmma.wait_group", p.site.file, p.site.line);
    }
}

void free_products(Warp& warp)
{
    if (!warp.products) return;
    for (std::vector<Product*>* list : {&warp.products->under_way, &warp.products->done})
        for (Product* p : *list) delete p;
    delete warp.products;
    warp.products = nullptr;
}

Handler product_handler(Instruction& i)
{
    const std::string& name = i.words[0];
    ProductKind& kind = i.product;
    for (const std::string& w : i.words) {
        Number n;
        if (sscanf(w.c_str(), "m%un%uk%u", &kind.rows, &kind.columns, &kind.depth) == 3) continue;
        if (!kind.result && (w == "f32" || w == "s32" || w == "f16")) kind.result = w == "f32" ? 'f' : w == "s32" ? 's' : 'h';
        else if (number_named(w, n) && ++kind.numbers <= 2) (kind.numbers == 2 ? kind.b : kind.a) = n;
    }
    if (name == "mma") return multiply_sync;
    if (name == "ldmatrix" || name == "stmatrix") return matrices;
    if (name != "wgmma" || i.words.size() < 2) return nullptr;
    if (i.is(1, "fence"_w)) return fence_products;
    if (i.is(1, "commit_group"_w)) return commit_products;
    if (i.is(1, "wait_group"_w)) return wait_products;
    return i.is(1, "mma_async"_w) ? multiply_async : nullptr;
}

}  // namespace rung_emulator
