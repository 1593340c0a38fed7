// The emulator's own assert, in rung_emulator/keywords.h, ends the launch and not the process.
#pragma once
