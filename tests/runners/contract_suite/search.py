"""A program for the inside of a container: where words are, of all that its user can look at."""

from __future__ import annotations

SEARCH = r"""
import json, os, re, sys
words = [word[::-1].encode() for word in sys.argv[1:]]
found = [set() for _ in words]

def look(data, where):
    for word, places in zip(words, found):
        if word in data:
            places.add(where)

def look_into(path, where):
    try:
        with open(path, "rb") as file:
            look(file.read(), where)
    except OSError:
        pass

PAGE, SPAN = 4096, 1 << 26
THERE = re.compile(rb"[\x40-\xff]+")

def look_at_memory(pid):
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", 0) as memory, \
            open(f"/proc/{pid}/pagemap", "rb", 0) as pages:
        for line in maps:
            span, rights, *_ = line.split()
            start, end = (int(part, 16) for part in span.split("-"))
            for at in range(start, end, SPAN) if rights.startswith("rw") else ():
                pages.seek(at // PAGE * 8)
                tops = pages.read(min(SPAN, end - at) // PAGE * 8)[7::8]
                for run in THERE.finditer(tops):  # pages that have ever been written
                    try:
                        memory.seek(at + run.start() * PAGE)
                        look(memory.read((run.end() - run.start()) * PAGE), "memory")
                    except (OSError, OverflowError, ValueError):
                        break

for pid in filter(str.isdigit, os.listdir("/proc")):
    if int(pid) != os.getpid():
        look_into(f"/proc/{pid}/environ", "environ")
        look_into(f"/proc/{pid}/cmdline", "cmdline")
        try:
            look_at_memory(pid)
        except OSError:
            continue
with open("/proc/mounts") as mounts:
    places = [line.split()[1] for line in mounts if line.split()[3].startswith("rw")]
for place in places:
    if not place.startswith(("/proc", "/sys", "/dev")):
        for folder, _, names in os.walk(place):
            for path in (os.path.join(folder, name) for name in names):
                if os.path.isfile(path) and not os.path.islink(path):
                    look_into(path, "file")
print(json.dumps([sorted(each) for each in found]))
"""
"""Its arguments are the words backwards, so that no other process gets to know them by it; it tells
in which kinds of places it found each.
"""
