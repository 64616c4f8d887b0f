#!/usr/bin/env python3
"""Checks that the libraries load where the environment is older, or of another distribution: old-libc.py LIBRARY...

They may need libc and its libdl and nothing else, by symbol versions that glibc had by 2.17 (2012), and must not ask for an
executable stack or for relocations in their text.
"""
import re
import subprocess
import sys

NEWEST = (2, 17)
NEEDED = {"libc.so.6", "libdl.so.2", "ld-linux-aarch64.so.1", "libpthread.so.0"}


def problems(path):
    out = subprocess.run(["objdump", "-p", path], capture_output=True, text=True, check=True).stdout
    for name in re.findall(r"NEEDED\s+(\S+)", out):
        if name not in NEEDED:
            yield f"needs {name}"
    versions = re.findall(r"\bGLIBC_([0-9.]+)", out)
    if not versions:
        yield "has no symbol versions, so nothing can be said"
    for version in versions:
        if tuple(map(int, version.split("."))) > NEWEST:
            yield f"needs glibc {version}"
    if re.search(r"TEXTREL", out):
        yield "has relocations in its text"
    if re.search(r"STACK.*\n.*flags rwx", out):
        yield "asks for an executable stack"


def main():
    found = [f"{path} {what}" for path in sys.argv[1:] for what in problems(path)]
    print("\n".join(found) if found else f"{len(sys.argv) - 1} libraries keep to glibc {'.'.join(map(str, NEWEST))}")
    return 1 if found or len(sys.argv) < 2 else 0


if __name__ == "__main__":
    sys.exit(main())
