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
with open("after-chdir.txt", "w"):
    did("write", "sub/after-chdir.txt")
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

# Every call that names a file, each with a file of its own: `given/NAME` is there before, `made/NAME` is not.
INTEL = os.uname().machine == "x86_64"
CWD = -100
NOTHING = ctypes.create_string_buffer(4096)
VALUE = ctypes.create_string_buffer(b"1")
ATTRIBUTE = ctypes.c_char_p(b"user.x")


def call(intel, arm, *arguments):
    number = intel if INTEL else arm
    if number is None:
        return
    words = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    libc.syscall(ctypes.c_long(number), *words)


def given(name):
    did.deed and did(did.deed, "given/" + name)
    return ctypes.c_char_p(("given/" + name).encode())


def made(name):
    did("write", "made/" + name)
    return ctypes.c_char_p(("made/" + name).encode())


def held(name):
    """A descriptor for reading only, so that nothing but the call itself writes."""
    did("write", "given/" + name)
    return os.open("given/" + name, os.O_RDONLY)


did.deed = "write"
call(263, 35, CWD, given("unlinkat"), 0)
call(264, 38, CWD, given("renameat"), CWD, made("renameat"))
call(316, 276, CWD, given("renameat2"), CWD, made("renameat2"), 0)
call(265, 37, CWD, given("linkat"), CWD, made("linkat"), 0)
call(266, 36, ctypes.c_char_p(b"nowhere"), CWD, made("symlinkat"))
call(258, 34, CWD, made("mkdirat"), 0o755)
call(259, 33, CWD, made("mknodat"), 0o010644, 0)
call(76, 45, given("truncate"), 0)
call(268, 53, CWD, given("fchmodat"), 0o644)
call(260, 54, CWD, given("fchownat"), -1, -1, 0)
call(280, 88, CWD, given("utimensat"), None, 0)
call(188, 5, given("setxattr"), ATTRIBUTE, VALUE, 1, 0)
call(189, 6, given("lsetxattr"), ATTRIBUTE, VALUE, 1, 0)
call(197, 14, given("removexattr"), ATTRIBUTE)
call(198, 15, given("lremovexattr"), ATTRIBUTE)
call(91, 52, held("fchmod"), 0o644)
call(93, 55, held("fchown"), -1, -1)
call(190, 7, held("fsetxattr"), ATTRIBUTE, VALUE, 1, 0)
call(199, 16, held("fremovexattr"), ATTRIBUTE)
call(280, 88, held("futimens"), None, None, 0)
server = socket.socket(socket.AF_UNIX)
server.bind("made/bind")
did("write", "made/bind")
os.close(os.open("made/within", os.O_TMPFILE | os.O_WRONLY, 0o600))
did("write", "made/within")
did.deed = "look"
call(262, 79, CWD, given("newfstatat"), NOTHING, 0)
call(332, 291, CWD, given("statx"), 0, 0, NOTHING)
call(269, 48, CWD, given("faccessat"), 4)
call(439, 439, CWD, given("faccessat2"), 4, 0)
call(267, 78, CWD, given("readlinkat"), NOTHING, 100)
call(137, 43, given("statfs"), NOTHING)
call(191, 8, given("getxattr"), ATTRIBUTE, NOTHING, 100)
call(192, 9, given("lgetxattr"), ATTRIBUTE, NOTHING, 100)
call(194, 11, given("listxattr"), NOTHING, 100)
call(195, 12, given("llistxattr"), NOTHING, 100)
watch = libc.inotify_init()
call(254, 27, watch, given("inotify"), 1)
if INTEL:
    did.deed = "write"
    call(2, None, made("open"), os.O_CREAT | os.O_WRONLY, 0o600)
    call(85, None, made("creat"), 0o600)
    call(83, None, made("mkdir"), 0o700)
    call(84, None, made("rmdir"))
    call(87, None, given("unlink"))
    call(133, None, made("mknod"), 0o010644, 0)
    call(82, None, given("rename"), made("rename"))
    call(86, None, given("link"), made("link"))
    call(88, None, ctypes.c_char_p(b"nowhere"), made("symlink"))
    call(90, None, given("chmod"), 0o644)
    call(92, None, given("chown"), -1, -1)
    call(94, None, given("lchown"), -1, -1)
    call(132, None, given("utime"), None)
    call(235, None, given("utimes"), None)
    call(261, None, CWD, given("futimesat"), None)
    did.deed = "look"
    call(4, None, given("stat"), NOTHING)
    call(6, None, given("lstat"), NOTHING)
    call(21, None, given("access"), 4)
    call(89, None, given("readlink"), NOTHING, 100)

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
descriptor = os.open("/bin/true", os.O_RDONLY)
for directory, path, flags in ((descriptor, b"", 0x1000), (CWD, b"given/execveat", 0)):
    if os.fork() == 0:
        call(322, 281, directory, ctypes.c_char_p(path), None, None, flags)
        os._exit(1)
    os.wait()
did("execute", os.path.realpath("/bin/true"))
did("execute", "given/execveat")
did("write", "by-script.txt")

sys.stdout.write("".join("%s\t%s\n" % one for one in done))
