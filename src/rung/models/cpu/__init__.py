"""A few tokens through a whole GPT-2 in one call of compiled code, if there is a C++ compiler."""
