"""Pickle opcodes that occur in snapshots or that are rejected as unsafe."""

from __future__ import annotations

NONE, NEWTRUE, NEWFALSE, BINFLOAT = b"N\x88\x89G"
BININT, BININT1, BININT2, LONG1, LONG4 = b"JKM\x8a\x8b"
BINUNICODE, BINUNICODE8, SHORT_BINUNICODE = b"X\x8d\x8c"
BINBYTES, BINBYTES8, SHORT_BINBYTES, BYTEARRAY8 = b"B\x8eC\x96"
EMPTY_DICT, EMPTY_LIST, EMPTY_SET, EMPTY_TUPLE = b"}]\x8f)"
ADDITEMS, APPEND, APPENDS, SETITEM, SETITEMS = b"\x90aesu"
FROZENSET, TUPLE, TUPLE1, TUPLE2, TUPLE3 = b"\x91t\x85\x86\x87"
BINGET, LONG_BINGET, BINPUT, LONG_BINPUT, MEMOIZE = b"hjqr\x94"
FRAME, MARK, PROTO, STOP = b"\x95(\x80."

_UNSAFE = "PERSID BINPERSID REDUCE BUILD GLOBAL INST OBJ NEWOBJ EXT1 EXT2 EXT4 NEWOBJ_EX STACK_GLOBAL"
_UNSAFE += " NEXT_BUFFER READONLY_BUFFER"
UNSAFE = dict(zip(b"PQRbcio\x81\x82\x83\x84\x92\x93\x97\x98", _UNSAFE.split(), strict=True))
"""Opcodes that run code, load a class or require an object from the application."""
