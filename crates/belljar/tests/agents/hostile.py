"""Tries to break whoever watches it: bad pointers, endless and ragged paths, paths that change while they are read, names
that would be something else in a file or on a terminal."""

import ctypes
import mmap
import os
import threading

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
OPENAT = 257 if os.uname().machine == "x86_64" else 56
RENAMEAT2 = 316 if os.uname().machine == "x86_64" else 276
BIND = 49 if os.uname().machine == "x86_64" else 200
CWD = ctypes.c_long(-100)
PAGE = mmap.PAGESIZE


def openat(pointer, directory=CWD, flags=0):
    descriptor = libc.syscall(OPENAT, directory, ctypes.c_void_p(pointer), ctypes.c_long(flags), 0)
    if descriptor >= 0:
        os.close(descriptor)
    return descriptor


# Pointers to nothing, to the kernel, to the end of all.
for pointer in (0, 1, 0xDEAD_BEEF, 0x7FFF_FFFF_F000, 0xFFFF_8000_0000_0000, 2**64 - 1):
    assert openat(pointer) == -1
    assert libc.syscall(RENAMEAT2, CWD, ctypes.c_void_p(pointer), CWD, ctypes.c_void_p(pointer), 0) == -1
    libc.syscall(BIND, 3, ctypes.c_void_p(pointer), ctypes.c_long(2**63 - 1))

# Descriptors that are none.
name = ctypes.create_string_buffer(b"main.txt")
for directory in (-1, 9999, 2**31 - 1, -(2**31), 2**40):
    openat(ctypes.addressof(name), ctypes.c_long(directory))

# Longer than a path can be, and with no end at all.
for length in (4095, 4096, 5000, 1 << 20):
    openat(ctypes.addressof(ctypes.create_string_buffer(b"/" + b"x" * length)))
    openat(ctypes.addressof(ctypes.create_string_buffer(b"./" * (length // 2))))
area = libc.mmap(None, 2 * PAGE, 3, 0x22, -1, 0)
libc.munmap(area + PAGE, PAGE)
ctypes.memset(area, ord("y"), PAGE)
assert openat(area + PAGE - 8) == -1
# A path that ends with its page is one like any other.
ending = os.path.join(os.getcwd(), "ends-with-its-page.txt").encode() + b"\0"
ctypes.memmove(area + PAGE - len(ending), ending, len(ending))
assert openat(area + PAGE - len(ending), flags=os.O_CREAT | os.O_WRONLY) >= 0

# A path that changes while it is read.
flip = ctypes.create_string_buffer(b"flip-a.txt")
stop = threading.Event()


def change():
    while not stop.is_set():
        for text in (b"flip-a.txt\0", b"/etc/shadow", b"flip-b.txt\0", b"../../../..", b"\0lip-a.txt\0"):
            ctypes.memmove(flip, text, len(text))


changing = threading.Thread(target=change)
changing.start()
for _ in range(2000):
    openat(ctypes.addressof(flip))
stop.set()
changing.join()

# Links that go around, descriptors that go away, directories that vanish.
os.symlink("around-b", "around-a")
os.symlink("around-a", "around-b")
for path in ("around-a", "around-a/x", "/proc/self/fd/9999", "/proc/self/root/etc/hostname", "/dev/stdin"):
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except OSError:
        pass
os.mkdir("vanishes")
os.chdir("vanishes")
os.rmdir("../vanishes")
try:
    open("nowhere.txt", "w")
except OSError:
    pass
os.chdir("..")

# Names with a meaning elsewhere.
for name in (
    b'a"\n    - "',
    b"b\n# c: [d]\n- e\n",
    b"network_egress_rules: []\r\n",
    b"\x1b[2J\x1b]0;title\x07",
    b"\xff\xfe not text",
    "\u202eright to left\u2028".encode(),
    b"*glob?[x]",
    b"$HOME",
    b"~root",
    b" - {domain: evil.example}",
):
    os.mkdir(name)
    with open(os.path.join(name, name), "w") as file:
        file.write("x")
print("unbroken")
