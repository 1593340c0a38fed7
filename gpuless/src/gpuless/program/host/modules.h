// The kernels that a program's objects hold (emulator/device_code.py): a record for each file, with a blob and the
// addresses of the file's kernels and variables. A blob begins with the length of its text in 16 digits; data follow
// the text, in the order in which it gives their sizes:
//     lines with the cubin's name and the source's, and the cubin's size
//     symbol kernel|variable ADDRESS SIZE NAME     addresses are numbers of the record's
// and for the machine
//     section, and the size of its data: constant banks 3 and 4; __device__ variables without and with initial values
//     place SECTION OFFSET absolute|program|section VALUE [ADDRESS|SECTION]
//     constant OFFSET SIZE ADDRESS, initial SECTION OFFSET SIZE ADDRESS     of the program's own variables
//     kernel ADDRESS SIZE NAME, then a line: why it is not executed, or -; and in the latter case its constants'
//     places, shared memory, stack and registers; its parameters' and shared variables' places; and the sizes of its
//     code, lines and table
#pragma once
#include <stdlib.h>
#include <string.h>

#include <sstream>
#include <string>

namespace rung_host {

struct Record
{
    const char* blob;
    size_t bytes;
    char* const* addresses;
};

class Reader
{
    std::istringstream text;
    const char* at;

public:
    explicit Reader(const Record& record)
        : text(std::string(record.blob + 17, strtoul(record.blob, nullptr, 10))),
          at(record.blob + 17 + text.str().size())
    {
    }
    bool word(std::string& to) { return bool(text >> to); }
    std::string word()
    {
        std::string value;
        text >> value;
        return value;
    }
    size_t number()
    {
        size_t value = 0;
        text >> value;
        return value;
    }
    std::string line()
    {
        std::string value;
        std::getline(text >> std::ws, value);
        return value;
    }
    std::string piece()
    {
        const size_t size = number();
        return at += size, std::string(at - size, size);
    }
};

}  // namespace rung_host
