// Coverage counters of a kernel: how often each condition was true and false, and how many iterations loops had.
// branches.py inserts the calls.
extern "C" __attribute__((visibility("default"))) unsigned rung_counts[][4];

namespace rung_emulator {

inline void count(unsigned& n) { n += n != ~0u; }

// 0: false, 1: true, 3: constant at compile time
inline __attribute__((always_inline)) bool took(int site, bool yes, bool known)
{
    count(rung_counts[site][yes]);
    if (known) rung_counts[site][3] = 1;
    return yes;
}

// 0, 1, 2: exited after no iteration, one, several; 3: constant at compile time: 2 its start, 1 its end as well
struct Turns
{
    int site;
    unsigned turns = 0;
    bool entered = false;

    inline __attribute__((always_inline)) Turns(int site_, bool begin, bool end) : site(site_)
    {
        rung_counts[site][3] = begin && end ? 1 : begin ? 2 : 0;
    }
    ~Turns() { count(rung_counts[site][turns < 2 ? turns : 2]); }
    bool once() { return entered ? false : entered = true; }
    bool turn(bool yes) { return turns += yes, yes; }
};

}  // namespace rung_emulator
