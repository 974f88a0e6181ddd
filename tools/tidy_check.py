#!/usr/bin/env python3
"""Small rules of the house that a formatter does not know, held as a ratchet: a number here may only go down.

- files stay under FILE_LINES_MAX, functions under FUNCTION_LINES_MAX lines (but for those counted in the ratchet);
- calls that need a wrapper stay where the wrapper is;
- every *_test.cc is in a folder that CMake reads; nothing that a user must not see is in the text;
- each test that docs/guarantees.md names is there: a promise whose test was renamed is held by nothing.
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


def missing_tests(page, sources):
    """Names in `page` that no source has: Suite.Case of GoogleTest (a '*' or '…' ends it), file.py::test of pytest."""
    cases, functions = set(), set()
    for path, text in sources:
        if path.suffix == ".py":
            functions |= {(path.name, name) for name in re.findall(r"^\s*def (test_\w+)", text, re.M)}
        else:
            cases |= {f"{suite}.{case}" for suite, case in
                      re.findall(r"TEST(?:_F|_P)?\(\s*(\w+),\s*(\w+)\)", text)}
    for word in sorted(set(re.findall(r"`([^`]*)`", page))):
        if match := re.fullmatch(r"(?:\w+/)*(\w+\.py)?::(test_\w+)(\[\w+\])?([*…]\w*)?", word):
            file, name, _, more = match.groups()
            if not any((file is None or file == f) and (n == name or (more and n.startswith(name))) for f, n in functions):
                yield word
        elif match := re.fullmatch(r"(?:(?:Of|All|Bugs)/)?([A-Z][A-Za-z0-9]+\.)([A-Z]\w*)?([*…]\w*|/\w+)?", word):
            suite, case, more = match[1], match[2] or "", match[3] or ""
            if word != "Suite.Case" and not any(c == suite + case or (more[:1] in ("*", "…") and c.startswith(suite + case))
                                                for c in cases):
                yield word


def main():
    problems, long_files, long_bodies, tests = [], [], [], []
    for path in tracked():
        rel = path.relative_to(ROOT).as_posix()
        if path.suffix not in (".cc", ".h", ".hpp", ".py", ".md", ".txt", ".cmake", ".json", ".yaml", "") or path.stat().st_size > 1 << 20:
            continue
        text = path.read_text(errors="replace")
        if rel != "tools/tidy_check.py" and (hit := WORDS.search(text)):
            problems.append(f"{rel}: holds '{hit.group(0).strip()}', which means nothing to a user")
        if path.suffix in (".cc", ".h", ".py"):
            tests.append((path, text))
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
    page = (ROOT / "docs" / "guarantees.md").read_text()
    problems += [f"docs/guarantees.md: there is no test '{name}'" for name in missing_tests(page, tests)]
    print("\n".join(problems) if problems else "tidy: clean")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
