#!/usr/bin/env python3
"""Rejects an #include that the layer table of docs/ARCHITECTURE.md does not allow.

The table below is that table. A file belongs to the layer with the longest matching folder. Tests (*_test.cc, *_fuzz.cc,
*_bench.cc, *_world.h: what a conformance suite runs in) may use libckpt/testing and the in-memory parts besides what their
layer may. Vendor headers may appear only in the folders listed for them.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PUBLIC = "libckpt/include"
ALL_OF_LIBCKPT = ["libckpt/" + layer for layer in (
    "base os format codec plan device device/host device/cuda comm comm/local comm/nccl storage storage/file storage/memory wire engine session"
).split()]
L = {
    "libckpt/base": [],
    "libckpt/os": ["libckpt/base"],
    "libckpt/os/uring": ["libckpt/base", "libckpt/os"],  # for programs: the library may not include it
    "libckpt/format": ["libckpt/base"],
    "libckpt/codec": ["libckpt/base"],
    "libckpt/plan": ["libckpt/base", "libckpt/format"],
    "libckpt/device": ["libckpt/base"],
    "libckpt/device/host": ["libckpt/base", "libckpt/os", "libckpt/device"],
    "libckpt/device/cuda": ["libckpt/base", "libckpt/device"],
    "libckpt/comm": ["libckpt/base"],
    "libckpt/comm/local": ["libckpt/base", "libckpt/os", "libckpt/comm"],
    "libckpt/comm/nccl": ["libckpt/base", "libckpt/os", "libckpt/comm", "libckpt/device", "libckpt/device/cuda"],
    "libckpt/storage": ["libckpt/base", "libckpt/format"],
    "libckpt/storage/file": ["libckpt/base", "libckpt/format", "libckpt/os", "libckpt/storage"],
    "libckpt/storage/memory": ["libckpt/base", "libckpt/format", "libckpt/os", "libckpt/storage"],
    "libckpt/wire": ["libckpt/base", "libckpt/os", "libckpt/format"],
    "libckpt/engine": ["libckpt/base", "libckpt/plan", "libckpt/format", "libckpt/codec", "libckpt/device", "libckpt/comm",
                       "libckpt/storage"],
    "libckpt/session": ["libckpt/base", "libckpt/engine", "libckpt/plan", "libckpt/format", "libckpt/wire", "libckpt/os",
                        "libckpt/device", "libckpt/comm", "libckpt/storage"],
    "libckpt/api": ALL_OF_LIBCKPT + [PUBLIC],
    "libckpt/include": [],
    "libckpt/testing": ALL_OF_LIBCKPT,
    "coordinator/core": ["libckpt/base"],
    "coordinator/gang": ["libckpt/base"],
    "coordinator/store": ["coordinator/core", "libckpt/base", "libckpt/os"],
    "coordinator/ckptd": ["coordinator/core", "coordinator/store", "libckpt/base", "libckpt/os", "proto"],
    "coordinator/run": ["coordinator/gang", "libckpt/base", "libckpt/engine", "libckpt/plan", "libckpt/format", "libckpt/codec",
                        "libckpt/storage", "libckpt/storage/file", "libckpt/wire", "libckpt/os", "libckpt/os/uring", "proto"],
    # engine: the header of a staging region that is served to a peer or handed to a new ckpt-run
    "coordinator/agent": ["libckpt/base", "libckpt/os", "libckpt/wire", "libckpt/engine", "proto"],
    # engine and the directory store: what works on checkpoints needs no coordinator; os: a job file is read
    "coordinator/ckptctl": ["libckpt/base", "libckpt/format", "libckpt/codec", "libckpt/device", "libckpt/engine",
                            "libckpt/storage", "libckpt/storage/file", "libckpt/os", "libckpt/os/uring", "proto"],
    "integrations": [PUBLIC, "proto"],
    "examples": [PUBLIC, "integrations", "proto"],
    "bench": None,  # measures any layer
    "tests": None,
}
TEST_EXTRA = ["libckpt/testing", "libckpt/storage/memory", "libckpt/device/host", "libckpt/comm/local"]
VENDOR = {  # header pattern -> folders that may include it
    r"grpc": ["coordinator/ckptd", "coordinator/run", "coordinator/agent", "coordinator/ckptctl", "tests"],
    r"sqlite3\.h": ["coordinator/store"],
    r"xxhash\.h": ["libckpt/base", "bench"],
    r"zstd\.h": ["libckpt/codec", "bench"],
    r"nlohmann/": ["libckpt/format", "coordinator/ckptctl", "coordinator/run", "tests"],
    r"yaml-cpp/": ["coordinator/ckptctl"],
    r"CLI/": ["coordinator/ckptd", "coordinator/run", "coordinator/agent", "coordinator/ckptctl"],
    r"spdlog/": ["coordinator/ckptd", "coordinator/run", "coordinator/agent"],
    r"liburing\.h": ["libckpt/os/uring", "bench"],
    r"cuda|nccl|nvml": ["libckpt/device/cuda", "libckpt/comm/nccl", "integrations/nccl", "tests"],
}
HEAVY = r"nlohmann/|grpc|CLI/|spdlog/|yaml-cpp/"  # not in headers of libckpt


def layer_of(path):
    best = ""
    for layer in L:
        if (path + "/").startswith(layer + "/") and len(layer) > len(best):
            best = layer
    return best


def check_file(path, problems):
    rel = path.relative_to(ROOT).as_posix()
    layer = layer_of(rel)
    is_test = re.search(r"(_test|_fuzz|_bench|_soak)\.cc$|_world\.h$", rel) is not None
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        match = re.match(r'\s*#\s*include\s*([<"])([^>"]+)[>"]', line)
        if not match:
            continue
        bracket, target = match.groups()
        where = f"{rel}:{number}"
        for pattern, folders in VENDOR.items():
            if bracket == "<" and re.match(pattern, target) and not any(rel.startswith(f + "/") for f in folders):
                problems.append(f"{where}: <{target}> may appear only in {', '.join(folders)}")
        if rel.startswith("libckpt/") and rel.endswith(".h") and re.match(HEAVY, target):
            problems.append(f"{where}: <{target}> is too heavy for a header of libckpt")
        if target.startswith("ckpt/v1/"):
            target_layer = "proto"
        elif target.startswith("ckpt/"):
            target_layer = PUBLIC
        elif bracket == '"' and "/" in target:
            target_layer = layer_of(target)
        else:
            if bracket == '"' and not target.startswith("ckpt/"):
                problems.append(f"{where}: include \"{target}\" from the root of the repository")
            continue
        allowed = L.get(layer)
        if allowed is None or target_layer == layer or target_layer in allowed:
            continue
        if layer == "libckpt/testing" or (is_test and target_layer in TEST_EXTRA):
            continue
        if any((target_layer + "/").startswith(a + "/") for a in allowed if a in ("integrations", "examples")):
            continue
        problems.append(f"{where}: layer {layer} may not include {target} (layer {target_layer or 'none'})")


def main():
    problems = []
    files = [p for top in ("libckpt", "coordinator", "integrations", "examples")
             for suffix in ("*.h", "*.cc", "*.hpp") for p in sorted((ROOT / top).rglob(suffix))]
    for path in files:
        check_file(path, problems)
    print("\n".join(problems) if problems else f"layers: {len(files)} files, clean")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
