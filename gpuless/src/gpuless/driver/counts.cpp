// What launches counted, and how long they are predicted to take: a file at the end (counts/counting.py reads it).
#include "driver.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <sstream>

namespace gpuless {
namespace {

struct Request
{
    std::array<uint64_t, 12> figures = {};
    std::array<int64_t, 36> sample = {};
};
struct Sum  // over the launches of one kernel in one form
{
    const Code* code;
    std::array<unsigned, 11> form;  // grid, block, cluster, shared memory, whether it is cooperative
    unsigned long launches = 0;
    std::vector<std::array<uint64_t, 2>> tally;
    std::map<std::array<uint64_t, 3>, Request> requests;  // by instruction, memory and direction
    rung_machine_prediction made = {};
    std::vector<std::array<double, 12>> stalls;  // of each instruction
};
auto& sums = *new std::vector<Sum>;

void add_counts(const Code& code, Sum& sum)
{
    std::vector<std::array<uint64_t, 2>> tally(code.instructions);
    rung_machine_tally(code.program, reinterpret_cast<uint64_t (*)[2]>(tally.data()));
    sum.tally.resize(tally.size());
    for (size_t i = 0; i < tally.size(); i++) sum.tally[i][0] += tally[i][0], sum.tally[i][1] += tally[i][1];
    std::vector<std::array<uint64_t, 12>> figures(2 * tally.size());
    std::vector<std::array<int64_t, 36>> samples(figures.size());
    const unsigned count =
        rung_machine_memory(code.program, reinterpret_cast<uint64_t (*)[12]>(figures.data()),
                            reinterpret_cast<int64_t (*)[36]>(samples.data()), unsigned(figures.size()));
    for (unsigned i = 0; i < count; i++) {
        Request& one = sum.requests[{figures[i][0], figures[i][1], figures[i][2]}];
        std::copy_n(figures[i].begin(), 3, one.figures.begin());
        for (size_t k = 3; k < 12; k++) one.figures[k] += figures[i][k];
        if (samples[i][0] && (!one.sample[0] || samples[i][3] > one.sample[3]))
            one.sample = samples[i];  // the worse one
    }
}

Sum& sum_of(const Code& code, const Configuration& how)
{
    const unsigned *const g = how.grid, *const b = how.block, *const c = how.cluster;
    const std::array<unsigned, 11> form = {
        g[0], g[1], g[2], b[0], b[1], b[2], c[0], c[1], c[2], unsigned(how.shared), how.cooperative};
    auto found =
        std::find_if(sums.begin(), sums.end(), [&](const Sum& one) { return one.code == &code && one.form == form; });
    if (found == sums.end()) found = sums.insert(found, Sum{&code, form});
    return *found;
}

// For predictions of time: the constants of the model of time. Then only the blocks that stand for a grid are
// executed.
const std::vector<double>& constants()
{
    static const auto& given = *[] {
        std::istringstream words(getenv("GPULESS_CONSTANTS") ? getenv("GPULESS_CONSTANTS") : "");
        return new std::vector<double>(std::istream_iterator<double>(words), {});
    }();
    return given;
}
}  // namespace

bool predicting() { return !constants().empty(); }
bool counting() { return getenv("GPULESS_COUNTS") != nullptr; }

int predicted(const Code& code, const Configuration& how, const rung_machine_launch& launch, rung_machine_fault& fault)
{
    Sum& sum = sum_of(code, how);
    if (sum.launches++) return 0;  // it takes as long as the first
    const int resident = active_blocks(code, int(how.block[0] * how.block[1] * how.block[2]), how.shared);
    sum.stalls.resize(code.instructions);
    if (const char* const cold = getenv("GPULESS_COLD"); cold && *cold) rung_machine_cold();
    return rung_machine_predict(code.program, &launch, constants().data(), unsigned(std::max(1, resident)),
                                launch.shared_bytes + (unsigned(gpu().reserved_kib) << 10), HUGE_VAL, &sum.made,
                                reinterpret_cast<double (*)[12]>(sum.stalls.data()), &fault);
}

void count(const Code& code, const Configuration& how)
{
    Sum& sum = sum_of(code, how);
    sum.launches++;
    add_counts(code, sum);
}

// The file of the kernel's first line.
static std::string source_of(const Code& code)
{
    for (const std::string& place : code.places)
        if (!place.empty()) return place.substr(0, place.rfind(':'));
    return code.name;
}

// In a folder each process has a file.
static std::string counts_path()
{
    const std::string path = getenv("GPULESS_COUNTS");
    struct stat found;
    const bool folder = !stat(path.c_str(), &found) && S_ISDIR(found.st_mode);
    return folder ? path + "/" + std::to_string(getpid()) : path;
}

// A line for each form of launch, each instruction that was executed, and each row of requests.
void write_counts()
{
    FILE* const file = fopen(counts_path().c_str(), "w");
    if (!file) return;
    for (const Sum& sum : sums) {
        fprintf(file, "launch %lu", sum.launches);
        for (unsigned one : sum.form) fprintf(file, " %u", one);
        fprintf(file, "\ncode %s\n%s\n%s", sum.code->name.c_str(), sum.code->module->cubin.c_str(),
                source_of(*sum.code).c_str());
        if (predicting()) {
            fprintf(file, "\nsimulated %a %u %u %a %u", sum.made.clocks, sum.made.resident, sum.made.together,
                    sum.made.atomic_clocks, sum.made.swaps);
            for (size_t i = 0; i < sum.stalls.size(); i++)
                for (size_t why = 0; why < sum.stalls[i].size(); why++)
                    if (sum.stalls[i][why] > 0) fprintf(file, "\nstall %zu %zu %a", i, why, sum.stalls[i][why]);
        }
        for (size_t i = 0; i < sum.tally.size(); i++)
            if (sum.tally[i][0]) fprintf(file, "\ntally %zu %lu %lu", i, sum.tally[i][0], sum.tally[i][1]);
        for (const auto& [_, request] : sum.requests) {
            fprintf(file, "\nrequest");
            for (uint64_t one : request.figures) fprintf(file, " %lu", one);
            for (int64_t one : request.sample) fprintf(file, " %ld", one);
        }
        fprintf(file, "\n");
    }
    fclose(file);
}

}  // namespace gpuless

// Before the process ends: what has been counted so far.
EXPORTED void gpuless_write_counts()
{
    if (gpuless::counting()) gpuless::write_counts();
}
