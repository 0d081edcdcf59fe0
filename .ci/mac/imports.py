"""Prints what a program for a Mac takes from libraries, a name a line: imports.py PROGRAM"""

import struct
import sys

with open(sys.argv[1], "rb") as file:
    program = file.read()
# A header of 32 bytes, then commands: one of them says where the names are.
magic, _, _, _, commands = struct.unpack_from("<5I", program)
assert magic == 0xFEEDFACF, "no program for a Mac"
at = 32
for _ in range(commands):
    command, size = struct.unpack_from("<2I", program, at)
    if command == 2:
        symbols, count, names, _ = struct.unpack_from("<4I", program, at + 8)
        for symbol in range(symbols, symbols + 16 * count, 16):
            name, kind = struct.unpack_from("<IB", program, symbol)
            # External, and of no section.
            if kind & 0xEF == 1:
                print(program[names + name : program.index(0, names + name)].decode())
    at += size
