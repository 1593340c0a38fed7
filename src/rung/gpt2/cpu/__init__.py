"""A few tokens through a whole GPT-2 in one call of compiled code, where a C++ compiler is at hand."""
