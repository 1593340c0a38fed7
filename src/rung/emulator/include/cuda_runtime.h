// What device code takes from the runtime API's header is always there; the host's functions are not.
#pragma once
