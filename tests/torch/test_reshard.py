"""Saved on some ranks, loaded on others: the state is equal bit for bit, whatever held it."""

import pytest

CHAINS = {
    "fsdp 2-1-2": [("fsdp", 2), ("plain", 1), ("fsdp", 2)],
    "ddp to fsdp to plain": [("ddp", 2), ("fsdp", 2), ("plain", 1), ("ddp", 2)],
    "fsdp 4-1-2": [("fsdp", 4), ("plain", 1), ("fsdp", 2)],
    "hsdp, tensor parallel": [("hsdp", 4), ("tp", 2), ("plain", 1), ("tp", 4)],
    "two-dimensional mesh": [("fsdp_tp", 4), ("fsdp", 2), ("fsdp_tp", 4), ("plain", 1)],
}


@pytest.mark.parametrize("chain", CHAINS)
def test_chain(launch, chain):
    for step, (kind, world) in enumerate(CHAINS[chain]):
        width = 8 if "two-dimensional" in chain else 7
        options = ["--path", "store", "--kind", kind, "--width", width] + (["--expect", str(step)] if step else [])
        assert launch.run(world, *options, script="reshard_worker.py") == [0] * world, f"{kind} on {world}, after step {step}"


def test_a_layout_without_a_box_is_refused(launch):
    """FSDP over tensor parallelism of a dimension that does not divide: a rank's part is no box of the whole."""
    assert launch.run(4, "--path", "store", "--kind", "fsdp_tp", script="reshard_worker.py") == [1] * 4
    assert "divisible" in launch.ranks[0].out.read_text()
