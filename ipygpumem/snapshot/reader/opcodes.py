"""Pickle opcodes that occur in snapshots or that are rejected as unsafe."""

from __future__ import annotations

ADDITEMS = 0x90
APPEND = 0x61
APPENDS = 0x65
BINBYTES = 0x42
BINBYTES8 = 0x8E
BINFLOAT = 0x47
BINGET = 0x68
BININT = 0x4A
BININT1 = 0x4B
BININT2 = 0x4D
BINPUT = 0x71
BINUNICODE = 0x58
BINUNICODE8 = 0x8D
BYTEARRAY8 = 0x96
EMPTY_DICT = 0x7D
EMPTY_LIST = 0x5D
EMPTY_SET = 0x8F
EMPTY_TUPLE = 0x29
FRAME = 0x95
FROZENSET = 0x91
LONG1 = 0x8A
LONG4 = 0x8B
LONG_BINGET = 0x6A
LONG_BINPUT = 0x72
MARK = 0x28
MEMOIZE = 0x94
NEWFALSE = 0x89
NEWTRUE = 0x88
NONE = 0x4E
PROTO = 0x80
SETITEM = 0x73
SETITEMS = 0x75
SHORT_BINBYTES = 0x43
SHORT_BINUNICODE = 0x8C
STOP = 0x2E
TUPLE = 0x74
TUPLE1 = 0x85
TUPLE2 = 0x86
TUPLE3 = 0x87

UNSAFE = {
    0x50: "PERSID",
    0x51: "BINPERSID",
    0x52: "REDUCE",
    0x62: "BUILD",
    0x63: "GLOBAL",
    0x69: "INST",
    0x6F: "OBJ",
    0x81: "NEWOBJ",
    0x82: "EXT1",
    0x83: "EXT2",
    0x84: "EXT4",
    0x92: "NEWOBJ_EX",
    0x93: "STACK_GLOBAL",
    0x97: "NEXT_BUFFER",
    0x98: "READONLY_BUFFER",
}
"""Opcodes that run code, load a class or require an object from the application."""
