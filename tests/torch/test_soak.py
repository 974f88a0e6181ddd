"""Under load: two ranks of DDP that save at every step, one of them killed at random, the newest checkpoint damaged now and then.
Every line of their logs stays that of a run that was left alone. `./run soak torch --minutes M` goes on for that long; else it is
one round."""

import os
import random
import resource
import shutil
import time

import torch
from test_trajectories import STEPS, lines, straight

import libckpt.torch as ckpt

MINUTES = float(os.environ.get("CKPT_SOAK_MINUTES", "0"))
SEED = int(os.environ.get("CKPT_TEST_SEED", random.randrange(2**32)))


def rounds():
    end = time.monotonic() + MINUTES * 60
    number = 0
    while number == 0 or time.monotonic() < end:
        yield number
        number += 1


def steps_of(folder):
    return max((len(lines(folder, "split", rank)) for rank in range(2) if (folder / f"split.{rank}").exists()), default=0)


def committed(folder):
    """Newest last."""
    found = []
    for path in (folder / "store").glob("s*/COMMIT"):
        step, epoch, attempt = (int(part[1:]) for part in path.parent.name.split("."))
        found.append((epoch, step, attempt, path.parent))
    return [path for *_, path in sorted(found)]


def damage(checkpoint, chance):
    shard = max(checkpoint.glob("shard-*"), key=lambda path: path.stat().st_size)
    with open(shard, "r+b") as file:
        file.seek(shard.stat().st_size - 1 - chance.randrange(2000))
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1 << chance.randrange(8)]))


def kill_one(launch, chance, options):
    ranks = launch.start(2, *options)
    wanted = steps_of(launch.folder) + chance.randrange(1, 5)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and all(rank.running() for rank in ranks) and steps_of(launch.folder) < min(wanted, STEPS):
        time.sleep(0.005)
    victim = chance.randrange(2)
    ranks[victim].kill()
    ranks[victim].wait(30)
    assert ranks[1 - victim].wait(120) is not None, "the other rank waits for ever"


def test_killed_and_damaged(launch):
    print(f"CKPT_TEST_SEED={SEED}")
    chance = random.Random(SEED)
    expected = straight(launch, 2, "--mode", "ddp")
    for number in rounds():
        shutil.rmtree(launch.folder / "store", ignore_errors=True)
        for log in launch.folder.glob("split.*"):
            log.unlink()
        options = ["--mode", "ddp", "--path", "store", "--write", "split", "--steps", STEPS, "--save-every", 1]
        for _ in range(2):
            kill_one(launch, chance, options + chance.choice([[], ["--overlap"]]))
            whole = committed(launch.folder)
            if len(whole) > 1 and chance.random() < 0.7:
                damage(whole[-1], chance)
        assert launch.run(2, *options) == [0, 0], f"round {number}"
        assert [lines(launch.folder, "split", rank) for rank in range(2)] == expected, f"round {number}"


def test_memory_stays_flat_over_fifty_saves(tmp_path):
    model = torch.nn.Sequential(*(torch.nn.Linear(200, 200) for _ in range(4)))
    optimizer = torch.optim.Adam(model.parameters())
    run = ckpt.open(tmp_path, model=model, optim=optimizer, extra={"history": []}, save_every=1, overlap=True)
    sizes = []
    for number in rounds():
        for _ in range(60):
            model(torch.ones(2, 200)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            run.step()
            run.fence()
            run.wait()
            with open("/proc/self/statm") as statm:
                sizes.append(int(statm.read().split()[1]) * resource.getpagesize())
            for old in committed_in(tmp_path)[:-2]:
                shutil.rmtree(old)
    run.finish()
    assert max(sizes[10:]) < 1.05 * sizes[9], sizes
    assert len([entry for entry in run.history() if entry["level"] == "durable"]) >= 60


def committed_in(store):
    return sorted((path.parent for path in store.glob("s*/COMMIT")), key=lambda path: int(path.name[1:].split(".")[0]))
