"""Looks for texts wherever a program in a box can look: environments, command lines and memory of every process it can see,
and every file it can read below the places it is given.

usage: hunt.py PLACE,… NAME FRONT BACK…    prints `NAME: WHERE` for each find. A text is given in two halves, so that
whoever looks for it does not hold it.
"""

import os
import sys

PLACES = sys.argv[1].split(",")
WORDS = sys.argv[2:]
NEEDLES = [(name, front.encode(), back.encode()) for name, front, back in zip(WORDS[::3], WORDS[1::3], WORDS[2::3])]
BLOCK = 1 << 20


def look(data, where):
    for name, front, back in NEEDLES:
        at = data.find(front)
        while at >= 0:
            # Compared in place: joining the halves would put the text into memory.
            if memoryview(data)[at + len(front) : at + len(front) + len(back)] == back:
                print(f"{name}: {where}", flush=True)
                break
            at = data.find(front, at + 1)


def look_at_file(path, where):
    try:
        with open(path, "rb", buffering=0) as file:
            rest = b""
            while block := file.read(BLOCK):
                look(rest + block, where)
                rest = block[-256:]
    except OSError:
        pass


def look_at_memory(pid):
    try:
        with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
            for line in maps:
                bounds, rights = line.split()[:2]
                start, end = (int(bound, 16) for bound in bounds.split("-"))
                if "r" not in rights:
                    continue
                for at in range(start, end, BLOCK):
                    try:
                        memory.seek(at)
                        # What a text that lies across two blocks needs.
                        look(memory.read(min(BLOCK + 256, end - at)), f"memory of {describe(pid)}")
                    except (OSError, OverflowError, ValueError):
                        pass
    except OSError as error:
        print(f"shut: memory of {describe(pid)}: {error}", flush=True)


def describe(pid):
    return "self" if int(pid) == os.getpid() else f"process {pid}"


def main():
    # The first is looked for also where it is not listed.
    for pid in {"1", *filter(str.isdigit, os.listdir("/proc"))}:
        for name in ("environ", "cmdline", "auxv"):
            look_at_file(f"/proc/{pid}/{name}", f"{name} of {describe(pid)}")
        look_at_memory(pid)
    look("\n".join(f"{name}={value}" for name, value in os.environ.items()).encode(), "own variables")
    for place in PLACES:
        for directory, _, files in os.walk(place):
            for file in files:
                path = os.path.join(directory, file)
                if os.path.isfile(path):
                    look_at_file(path, f"file {path}")
    print("looked", flush=True)
    # Whoever runs this may look at it, too, before it ends.
    sys.stdin.read()


main()
