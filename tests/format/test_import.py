"""`ckptctl import` of files that upstream safetensors writes, and `ckptctl export` that it reads again; what is imported is
read by the second reader too. Skips loudly where the package is not installed."""

import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
CKPTCTL = pathlib.Path(os.environ.get("CKPT_BIN", HERE.parent.parent / "build" / "test" / "bin")) / "ckptctl"

try:
    import safetensors
except ImportError:
    safetensors = None

# As upstream spells them where it writes, where it reads, and their bytes.
DTYPES = [("bool", "BOOL", 1), ("uint8", "U8", 1), ("int8", "I8", 1), ("float8_e4m3fn", "F8_E4M3", 1),
          ("float8_e5m2", "F8_E5M2", 1), ("uint16", "U16", 2), ("int16", "I16", 2), ("float16", "F16", 2),
          ("bfloat16", "BF16", 2), ("uint32", "U32", 4), ("int32", "I32", 4), ("float32", "F32", 4),
          ("uint64", "U64", 8), ("int64", "I64", 8), ("float64", "F64", 8)]


def tensors_of(seed):
    rng = random.Random(seed)
    tensors = {}
    for written, read, width in DTYPES:
        for shape in ([], [0, 3], [7], [3, 2, 5], [1000]):
            count = width
            for dim in shape:
                count *= dim
            data = bytes(rng.getrandbits(1) for _ in range(count)) if written == "bool" else rng.randbytes(count)
            tensors[f"layer.{seed}.{written}.{len(shape)}.{count}"] = (written, read, shape, data)
    return tensors


def write(path, tensors, metadata):
    given = {name: {"dtype": written, "shape": shape, "data": data}
             for name, (written, _, shape, data) in tensors.items()}
    safetensors.serialize_file(given, str(path), metadata)


def read(path):
    data = path.read_bytes()
    return {name: (tensor["dtype"], list(tensor["shape"]), bytes(tensor["data"]))
            for name, tensor in safetensors.deserialize(data)}


def metadata_of(path):
    data = path.read_bytes()
    return json.loads(data[8:8 + int.from_bytes(data[:8], "little")]).get("__metadata__")


@unittest.skipIf(safetensors is None, "SKIPPED: the package 'safetensors' is not installed (pip install safetensors)")
class TestImport(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)

    def ckptctl(self, *words, code=0):
        done = subprocess.run([CKPTCTL, "-o", "json", *map(str, words)], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done

    def test_what_upstream_writes_goes_in_and_comes_out_again(self):
        parts = [tensors_of(1), tensors_of(2)]
        model = self.root / "model"
        model.mkdir()
        names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
        for name, tensors in zip(names, parts):
            write(model / name, tensors, {"format": "pt", "made by": "a test", "part": name})
        index = {"metadata": {"total_size": 1},
                 "weight_map": {tensor: name for name, tensors in zip(names, parts) for tensor in tensors}}
        (model / "model.safetensors.index.json").write_text(json.dumps(index, indent=2))
        said = json.loads(self.ckptctl("import", model, self.root / "checkpoint").stdout)
        self.assertEqual(said["tensors"], len(parts[0]) + len(parts[1]))
        # The second reader shares no code with the writer.
        second = subprocess.run([sys.executable, "-B", HERE / "read_v1.py", self.root / "checkpoint"],
                                capture_output=True, text=True, timeout=120)
        self.assertEqual(second.returncode, 0, second.stdout + second.stderr)
        # And upstream opens the shard itself.
        wanted = {name: (dtype, shape, data) for part in parts for name, (_, dtype, shape, data) in part.items()}
        self.assertEqual(read(self.root / "checkpoint" / "shard-00000.safetensors"), wanted)
        self.ckptctl("export", self.root / "checkpoint", self.root / "out")
        self.assertEqual(read(self.root / "out" / "model.safetensors"), wanted)
        # What the files say alike comes back.
        self.assertEqual(metadata_of(self.root / "out" / "model.safetensors"), {"format": "pt", "made by": "a test"})

    def test_a_download_that_broke_off_is_refused_by_name(self):
        write(self.root / "m.safetensors", tensors_of(3), None)
        whole = (self.root / "m.safetensors").read_bytes()
        for size in (0, 7, 8, 100, len(whole) // 2, len(whole) - 1):
            (self.root / "m.safetensors").write_bytes(whole[:size])
            done = self.ckptctl("import", self.root / "m.safetensors", self.root / "checkpoint", code=4)
            self.assertIn("m.safetensors", done.stderr)
            self.assertFalse((self.root / "checkpoint").exists())


if __name__ == "__main__":
    unittest.main()
