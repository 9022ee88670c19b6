"""Does one of everything that names a file, and prints what it did: deed, tab, path, one a line.

It knows what it did, so whoever watched it can be held to it.
"""

import ctypes
import os
import socket
import subprocess
import sys
import threading

work = os.getcwd()
libc = ctypes.CDLL(None, use_errno=True)
done = []


def did(deed, path):
    done.append((deed, os.path.normpath(os.path.join(work, path))))


def touch(path, text="x"):
    with open(path, "w") as file:
        file.write(text)
    did("write", path)


# Plain, relative, through a directory's descriptor, through links.
touch("plain.txt")
touch(os.path.join(work, "absolute.txt"))
os.mkdir("sub")
did("write", "sub")
directory = os.open("sub", os.O_RDONLY | os.O_DIRECTORY)
did("read", "sub")
os.close(os.open("by-descriptor.txt", os.O_CREAT | os.O_WRONLY, dir_fd=directory))
did("write", "sub/by-descriptor.txt")
os.symlink("sub", "link-to-sub")
did("write", "link-to-sub")
with open("link-to-sub/through-link.txt", "w") as file:
    did("write", "sub/through-link.txt")
os.symlink("sub/made-through-link.txt", "link-to-nothing")
did("write", "link-to-nothing")
with open("link-to-nothing", "w") as file:
    did("write", "sub/made-through-link.txt")
with open("sub/../sub/./dotted.txt", "w") as file:
    did("write", "sub/dotted.txt")
os.chdir("sub")
did("look", "sub")
touch("sub/after-chdir.txt"[4:])
done[-1] = ("write", os.path.join(work, "sub/after-chdir.txt"))
os.chdir("..")
with open("/proc/self/cwd/through-proc.txt", "w") as file:
    did("write", "through-proc.txt")
again = os.open("/dev/fd/%d" % directory, os.O_RDONLY | os.O_DIRECTORY)
os.close(os.open("by-second-descriptor.txt", os.O_CREAT | os.O_WRONLY, dir_fd=again))
did("write", "sub/by-second-descriptor.txt")

# Reading, asking.
with open("main.txt") as file:
    file.read()
did("read", "main.txt")
with open("../notes.txt") as file:
    file.read()
did("read", "../notes.txt")
os.stat("../other/readme.txt")
did("look", "../other/readme.txt")
os.access(".git/HEAD", os.R_OK)
did("look", ".git/HEAD")
os.listdir("tools")
did("read", "tools")

# Changing without opening.
touch("gone.txt")
os.unlink("gone.txt")
did("write", "gone.txt")
touch("old-name.txt")
os.rename("old-name.txt", "new-name.txt")
did("write", "old-name.txt")
did("write", "new-name.txt")
os.link("new-name.txt", "second-name.txt")
did("write", "second-name.txt")
os.truncate("absolute.txt", 0)
did("write", "absolute.txt")
os.chmod("plain.txt", 0o600)
did("write", "plain.txt")
os.mkdir("emptied")
os.rmdir("emptied")
did("write", "emptied")
for name in ("timed.txt", "mode.txt", "reopened.txt"):
    with open(name, "w"):
        pass
os.utime("timed.txt", (1, 1))
did("write", "timed.txt")
held = os.open("mode.txt", os.O_RDONLY)
os.fchmod(held, 0o640)
did("write", "mode.txt")
os.utime(held, (1, 1))
os.mkfifo("pipe")
did("write", "pipe")
try:
    os.setxattr("reopened.txt", "user.x", b"1")
except OSError:
    pass
did("write", "reopened.txt")
os.close(os.open(".", os.O_TMPFILE | os.O_WRONLY, 0o600))
did("write", ".")
server = socket.socket(socket.AF_UNIX)
server.bind("bound.sock")
did("write", "bound.sock")
server.close()

# The calls that libraries no longer use.
if os.uname().machine == "x86_64":
    for number, path in ((2, b"by-open.txt"), (85, b"by-creat.txt")):
        flags = os.O_CREAT | os.O_WRONLY if number == 2 else 0o600
        libc.syscall(number, ctypes.c_char_p(path), flags, 0o600)
        did("write", path.decode())
    libc.syscall(83, ctypes.c_char_p(b"by-mkdir"), 0o700)
    did("write", "by-mkdir")
    libc.syscall(82, ctypes.c_char_p(b"by-mkdir"), ctypes.c_char_p(b"by-rename"))
    did("write", "by-rename")
    libc.syscall(4, ctypes.c_char_p(b"../other/readme.txt"), ctypes.create_string_buffer(512))

# In a thread, in a child, in another program; where a page ends.
thread = threading.Thread(target=touch, args=("by-thread.txt",))
thread.start()
thread.join()
child = os.fork()
if child == 0:
    with open("by-child.txt", "w"):
        os._exit(0)
os.waitpid(child, 0)
did("write", "by-child.txt")
subprocess.run(["/bin/cp", "main.txt", "by-program.txt"], check=True)
did("execute", os.path.realpath("/bin/cp"))
did("write", "by-program.txt")
with open("script.sh", "w") as file:
    file.write("#!/bin/sh\n: > by-script.txt\n")
os.chmod("script.sh", 0o755)
subprocess.run(["./script.sh"], check=True)
did("execute", "script.sh")
did("write", "by-script.txt")

sys.stdout.write("".join("%s\t%s\n" % one for one in done))
