#!/usr/bin/env python3
"""Small rules of the house that a formatter does not know, held as a ratchet: a number here may only go down.

- files stay under FILE_LINES_MAX, functions under FUNCTION_LINES_MAX lines (but for those counted in the ratchet);
- calls that need a wrapper stay where the wrapper is;
- every *_test.cc is in a folder that CMake reads; nothing that a user must not see is in the text.
"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
LONG_FUNCTIONS_ALLOWED = 0   # ratchet
LONG_FILES_ALLOWED = 0       # ratchet

BANNED = [  # pattern, where it is allowed, what to use
    (r"\bstd::(mutex|condition_variable|lock_guard|unique_lock)\b", r"^libckpt/base/mutex\.h$", "base/mutex.h"),
    (r"\b(usleep|sleep_for|sleep_until|nanosleep)\s*\(", r"^libckpt/(os|testing|device)/|^libckpt/base/fault\.cc$|_test\.cc$|^tests/|^bench/|^examples/",
     "a deadline and a condition"),
    (r"(?<![\w:.>])::?(open|openat|pwrite|pread|fsync|fdatasync|rename|unlink|mkdir)\s*\(\s*[\"\w]", r"^libckpt/os/|_test\.cc$|^tests/|^bench/",
     "libckpt/os"),
    (r"\bsystem\s*\(", r"_test\.cc$|^tests/", "os/process.h"),
]
WORDS = re.compile(r"(^|[^A-Za-z0-9_.])/(work|farm)/|pypi\.org|files\.pythonhosted|deb\.debian\.org|registry\.npmjs")


def tracked():
    out = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / line for line in out.stdout.splitlines() if (ROOT / line).is_file()]


def long_functions(lines):
    """Yields (first line, length) of bodies that open with '{' at the end of a line at column 0 or in a class, roughly."""
    start = None
    for number, line in enumerate(lines, 1):
        if start is None and re.match(r"^[A-Za-z].*\)\s*(const)?\s*(noexcept)?\s*(override)?\s*(->.*)?\{$", line):
            start = number
        elif start is not None and line.startswith("}"):
            if number - start + 1 > FUNCTION_LINES_MAX:
                yield start, number - start + 1
            start = None


def main():
    problems, long_files, long_bodies = [], [], []
    for path in tracked():
        rel = path.relative_to(ROOT).as_posix()
        if path.suffix not in (".cc", ".h", ".hpp", ".py", ".md", ".txt", ".cmake", ".json", ".yaml", "") or path.stat().st_size > 1 << 20:
            continue
        text = path.read_text(errors="replace")
        if rel != "tools/tidy_check.py" and (hit := WORDS.search(text)):
            problems.append(f"{rel}: holds '{hit.group(0).strip()}', which means nothing to a user")
        if path.suffix not in (".cc", ".h", ".hpp"):
            continue
        lines = text.splitlines()
        # ckpt.hpp: one header for a user to copy.
        if len(lines) > FILE_LINES_MAX and not re.search(r"_test\.cc$|ckpt\.hp{0,2}$", rel):
            long_files.append(f"{rel}: {len(lines)} lines")
        if not rel.endswith("_test.cc"):
            long_bodies += [f"{rel}:{start}: {length} lines" for start, length in long_functions(lines)]
        for number, line in enumerate(lines, 1):
            code = line.split("//")[0]
            for pattern, allowed, instead in BANNED:
                if re.search(pattern, code) and not re.search(allowed, rel):
                    problems.append(f"{rel}:{number}: use {instead}")
    if len(long_files) > LONG_FILES_ALLOWED:
        problems += [f"too long a file (max {FILE_LINES_MAX}): {f}" for f in long_files]
    if len(long_bodies) > LONG_FUNCTIONS_ALLOWED:
        problems += [f"too long a function (max {FUNCTION_LINES_MAX}): {f}" for f in long_bodies]
    print("\n".join(problems) if problems else "tidy: clean")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
