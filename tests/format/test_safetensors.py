"""Upstream safetensors opens our raw shards. Skips loudly where the package is not installed."""

import glob
import json
import os
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "golden", "v1")

try:
    import safetensors
except ImportError:
    safetensors = None


@unittest.skipIf(safetensors is None, "SKIPPED: the package 'safetensors' is not installed (pip install safetensors)")
class TestUpstream(unittest.TestCase):
    def shards(self):
        directories = [GOLDEN] + [d for d in os.environ.get("CKPT_CHECKPOINT_DIR", "").split(":") if d]
        found = [path for directory in directories
                 for path in glob.glob(os.path.join(directory, "**", "*.safetensors"), recursive=True)]
        self.assertGreaterEqual(len(found), 2)
        return found

    def test_opens_every_shard_with_the_same_bytes(self):
        for path in self.shards():
            with open(path, "rb") as file:
                data = file.read()
            length = int.from_bytes(data[:8], "little")
            header = json.loads(data[8:8 + length])
            header.pop("__metadata__")
            tensors = safetensors.deserialize(data)
            self.assertEqual({name for name, _ in tensors}, set(header))
            for name, tensor in tensors:
                begin, end = header[name]["data_offsets"]
                self.assertEqual(list(tensor["shape"]), header[name]["shape"], name)
                self.assertEqual(bytes(tensor["data"]), data[8 + length + begin:8 + length + end], name)

    def test_safe_open_lists_metadata_and_keys(self):
        for path in self.shards():
            try:
                opened = safetensors.safe_open(path, framework="numpy")
            except ImportError as error:
                self.skipTest(f"SKIPPED: {error}")
            with opened as shard:
                self.assertEqual(shard.metadata(), {"ckpt": "1", "format": "pt"})
                self.assertGreater(len(list(shard.keys())), 0)


if __name__ == "__main__":
    unittest.main()
