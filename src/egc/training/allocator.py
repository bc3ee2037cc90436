"""Keep freed memory for the next step.

By default glibc gives the memory of every large tensor back to the system when it is freed, and
gets it again, page fault by page fault, a moment later. A training step frees and allocates the
same tensors over and over, EGC's several times as many as DDPM's.
"""

from __future__ import annotations

import ctypes
import platform

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST_THRESHOLD = 32 << 20
"""bytes; glibc refuses more"""


def keep_freed_memory() -> bool:
    """Ask glibc to hold on to freed memory; elsewhere than on glibc, do nothing."""
    if platform.libc_ver()[0] != "glibc":
        return False
    libc = ctypes.CDLL(None)
    mapped = libc.mallopt(M_MMAP_THRESHOLD, LARGEST_THRESHOLD)
    trimmed = libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    return bool(mapped and trimmed)
