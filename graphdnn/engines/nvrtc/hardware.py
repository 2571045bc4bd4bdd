"""What launches are shaped by: what all CUDA devices of compute capability 8.0 and newer have in common.

How many multiprocessors there are, and how fast they are, is what a Target says.  No number here is a measured one.
"""

from __future__ import annotations

from graphdnn.target import Target

WARP = 32
"""Threads that run in step, exchange registers, and together read 128 bytes of neighbours where each reads a word."""

WORD_BYTES = 4
"""Bytes of a register and of a bank of shared memory: to move less at once takes as long."""

VECTOR_BYTES = 16
"""Bytes that one instruction moves at most."""

LOADS_IN_FLIGHT = 4
"""Loads that a thread asks for before it uses the first of them.  More of them hide no more of the latency of memory,
since a multiprocessor has some 1000 to 2000 threads that wait at the same time, and each holds registers."""

BYTES_IN_FLIGHT = LOADS_IN_FLIGHT * VECTOR_BYTES
"""The same in bytes, of the widest loads."""

BLOCK = 256
"""Threads of a block where nothing asks for another number: it divides the 1536 and the 2048 threads that
multiprocessors hold, and leaves each thread up to 255 registers."""

SMALL_BLOCK = 128
"""Threads of the smallest block of which a multiprocessor is full: of the 2048 that it may hold at 16 blocks, which all
of them hold."""

MOST_THREADS = 1024
"""Threads of a block at most."""

THREADS_A_CORE = 2048
"""Threads that a multiprocessor holds at once; 1536 on those that are not made for data centres."""

REGISTERS_A_CORE = 65536
"""32-bit registers of a multiprocessor."""

PLAIN_SHARE = 0.5
"""Part of the rate of multiply-adds, which count as two operations each, that other arithmetic reaches."""


def resident_threads(target: Target) -> int:
    """Threads that a device holds at once: with fewer some of its multiprocessors idle."""
    return target.sm_count * THREADS_A_CORE
