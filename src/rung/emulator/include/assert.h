// The emulator's assert (rung_emulator/keywords.h) ends the launch, not the process.
#pragma once
