#include "machine.h"
namespace rung_machine { void add_async(Table&) {} }
