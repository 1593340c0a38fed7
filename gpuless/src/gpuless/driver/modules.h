// Module files, as modules.py writes them.
#pragma once
#include "driver.h"

#include <stdlib.h>

#include <sstream>
#include <stdexcept>

namespace gpuless {

const std::string& cache_folder();
std::string in_json(const std::string& text);

constexpr char MAGIC[] = "gpuless-module-1\n";

class Reader
{
    const std::string& all;
    std::istringstream text;
    size_t at;

public:
    explicit Reader(const std::string& file) : all(file)
    {
        const size_t head = sizeof MAGIC - 1;
        if (file.compare(0, head, MAGIC)) throw std::runtime_error("no module file");
        const size_t length = strtoul(file.c_str() + head, nullptr, 10);
        at = head + 17 + length;
        if (at > file.size()) throw std::runtime_error("a module file is cut");
        text.str(file.substr(head + 17, length));
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
    unsigned small() { return unsigned(number()); }
    std::string line()
    {
        std::string value;
        std::getline(text >> std::ws, value);
        return value;
    }
    std::string piece()
    {
        const size_t size = number();
        if (at + size > all.size()) throw std::runtime_error("a module file is cut");
        return at += size, all.substr(at - size, size);
    }
};

}  // namespace gpuless
