"""Each rung of the ladder with the real trainer: stopped at any step, it must come back bit for bit."""
import os
import random
import re
import signal
import socket
import subprocess
import sys

import pytest
from cluster import wait_for
from conftest import ROOT

SEED = int(os.environ.get("CKPT_TEST_SEED", random.randrange(1 << 30)))


def steps_done(folder):
    try:
        return sum(1 for _ in open(folder / "loss"))
    except FileNotFoundError:
        return 0


def start(bin_dir, reference, folder, *flags, save_every=0, faults=""):
    train = reference.argv("train", folder) + (["--save-every", str(save_every)] if save_every else [])
    log = open(folder / "ckpt-run.log", "ab")
    return subprocess.Popen([str(bin_dir / "ckpt-run"), "--job", "train", "--store", str(folder / "store"),
                             "--log-dir", str(folder / "logs"), *flags, "--", *train], stdout=log, stderr=log,
                            env=dict(os.environ, **({"CKPT_FAULT_AT": faults} if faults else {})))


def descendants_of(job_folder):
    marker = str(job_folder / "store")
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if marker in open(f"/proc/{pid}/environ").read():
                found.append(int(pid))
        except OSError:
            pass
    return found


def test_sigterm_then_run_again_goes_on(bin_dir, reference, tmp_path):
    """Stopped three times at random steps; each time exit 75, no process left, durable; then equal to the uninterrupted run."""
    print("seed", SEED)
    rng = random.Random(SEED)
    want = reference(4)
    for _ in range(3):
        before = steps_done(tmp_path)
        run = start(bin_dir, want, tmp_path, "--ranks", "4")
        goal = before + rng.randrange(10, 60)
        wait_for("the job trains", lambda: steps_done(tmp_path) >= goal or run.poll() is not None, 60)
        run.send_signal(signal.SIGTERM)
        assert run.wait(60) == 75, (tmp_path / "ckpt-run.log").read_text()
        assert descendants_of(tmp_path) == []
    run = start(bin_dir, want, tmp_path, "--ranks", "4")
    assert run.wait(120) == 0, (tmp_path / "ckpt-run.log").read_text()
    want.check(tmp_path)


def test_sigterm_to_one_rank_stops_all_at_one_step(bin_dir, reference, tmp_path):
    want = reference(4)
    run = start(bin_dir, want, tmp_path, "--ranks", "4")
    wait_for("the job trains", lambda: steps_done(tmp_path) >= 15, 60)
    ranks = {}
    for pid in descendants_of(tmp_path):
        env = dict(v.split("=", 1) for v in open(f"/proc/{pid}/environ").read().split("\0") if "=" in v)
        if "RANK" in env and "train" in os.readlink(f"/proc/{pid}/exe"):
            ranks[int(env["RANK"])] = pid
    os.kill(ranks[2], signal.SIGTERM)
    assert run.wait(60) == 75, (tmp_path / "ckpt-run.log").read_text()
    listed = subprocess.run([str(bin_dir / "ckptctl"), "ls", str(tmp_path / "store")], capture_output=True, text=True)
    assert listed.returncode == 0 and re.search(r"s\d+\.e1\.a\d+", listed.stdout), listed.stdout + listed.stderr
    second_reader = subprocess.run([sys.executable, str(ROOT / "tests" / "format" / "read_v1.py"), str(tmp_path / "store")],
                                   capture_output=True, text=True)
    assert second_reader.returncode == 0, second_reader.stdout[-2000:] + second_reader.stderr
    assert start(bin_dir, want, tmp_path, "--ranks", "4").wait(120) == 0
    want.check(tmp_path)


def test_two_ckpt_runs_form_one_gang_without_a_coordinator(bin_dir, reference, tmp_path):
    want = reference(4)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"

    def both():
        return [start(bin_dir, want, tmp_path, "--ranks", "2", "--nnodes", "2", "--node-rank", str(i), "--rendezvous", address)
                for i in (0, 1)]

    runs = both()
    goal = steps_done(tmp_path) + 20
    wait_for("the job trains", lambda: steps_done(tmp_path) >= goal, 60)
    runs[1].send_signal(signal.SIGTERM)  # one of the two is enough
    assert [run.wait(60) for run in runs] == [75, 75], (tmp_path / "ckpt-run.log").read_text()
    assert [run.wait(120) for run in both()] == [0, 0], (tmp_path / "ckpt-run.log").read_text()
    want.check(tmp_path)


def test_a_killed_rank_restarts_from_the_newest_complete_copy(bin_dir, reference, tmp_path):
    print("seed", SEED)
    rng = random.Random(SEED)
    want = reference(4)
    run = start(bin_dir, want, tmp_path, "--ranks", "4", "--restarts", "2", save_every=7)
    for goal in (25, 120):
        wait_for("the job trains", lambda: steps_done(tmp_path) >= goal, 60)
        victims = [pid for pid in descendants_of(tmp_path) if os.readlink(f"/proc/{pid}/exe").endswith("/train")]
        os.kill(rng.choice(sorted(victims)), signal.SIGKILL)
    code, said = run.wait(120), (tmp_path / "ckpt-run.log").read_text()
    assert code == 0, said
    assert said.count("was killed by signal 9; restarting") == 2, said  # named is who died, not whom that left in a collective
    want.check(tmp_path)


def test_a_damaged_byte_is_named_and_the_older_checkpoint_is_taken(bin_dir, reference, tmp_path):
    want = reference(2)
    run = start(bin_dir, want, tmp_path, "--ranks", "2", save_every=20)
    wait_for("the job trains", lambda: steps_done(tmp_path) >= 70, 60)
    run.send_signal(signal.SIGTERM)
    assert run.wait(60) == 75
    ctl = lambda *a: subprocess.run([str(bin_dir / "ckptctl"), *a], capture_output=True, text=True)
    newest = sorted((tmp_path / "store").glob("s*.e1.a*/COMMIT"), key=lambda p: int(p.parent.name.split(".")[0][1:]))[-1].parent
    assert ctl("verify", str(newest)).returncode == 0
    shard = max(newest.glob("*.safetensors"), key=lambda p: p.stat().st_size)
    damaged = bytearray(shard.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    shard.write_bytes(damaged)
    found = ctl("verify", str(newest))
    assert found.returncode == 4
    assert shard.name in found.stdout + found.stderr and re.search(r"(weights|moment[12])/", found.stdout + found.stderr)
    assert "chunk" in found.stdout + found.stderr
    assert start(bin_dir, want, tmp_path, "--ranks", "2").wait(120) == 0, (tmp_path / "ckpt-run.log").read_text()
    assert newest.name in (tmp_path / "ckpt-run.log").read_text() or any(
        newest.name in p.read_text() for p in (tmp_path / "logs").rglob("*.log")), "the fallback must be said"
    want.check(tmp_path)


@pytest.mark.parametrize("text", ["/nowhere/text", "empty"])
def test_a_text_that_is_absent_or_empty(bin_dir, tmp_path, text):
    path = tmp_path / "empty"
    path.touch()
    text = str(path) if text == "empty" else text
    done = subprocess.run([str(bin_dir / "train_plain"), "--text", text], capture_output=True, text=True)
    assert done.returncode == 2 and text in done.stderr
    demo = subprocess.run([sys.executable, str(ROOT / "examples" / "demo" / "demo.py"), "--text", text], capture_output=True, text=True)
    assert demo.returncode == 2 and text in demo.stderr


@pytest.mark.parametrize("rebuild", ["works", "fails", "is late"])
def test_a_stop_that_goes_back_after_barrier_two_builds_gloo_again(bin_dir, reference, tmp_path, rebuild):
    """The store does not take the mark when all communicators are down. They are built again, and training goes on; if they cannot be,
    or not in time, the gang ends and goes on from the copy of that stop."""
    want = reference(4)
    faults = "store.draining.after_mark=fail"
    if rebuild != "works":
        faults += ",session.comms.rebuild@1=" + ("fail" if rebuild == "fails" else "sleep60000")
    run = start(bin_dir, want, tmp_path, "--ranks", "4", "--grace", "10", faults=faults)
    wait_for("the job trains", lambda: steps_done(tmp_path) >= 20 or run.poll() is not None, 60)
    run.send_signal(signal.SIGTERM)
    code = run.wait(90)
    said = (tmp_path / "ckpt-run.log").read_text()
    assert "fault point store.draining.after_mark: fail" in said, said
    assert code == (75 if rebuild == "works" else 1), said
    if rebuild == "works":
        assert "this try to stop failed" in said, said
    else:
        assert re.search(r"the gang ends: .*; s\d+\.e1\.a\d+ stands", said), said
    assert descendants_of(tmp_path) == []
    run = start(bin_dir, want, tmp_path, "--ranks", "4")
    assert run.wait(120) == 0, (tmp_path / "ckpt-run.log").read_text()
    assert re.search(r"epoch 2: 4 ranks, resuming from", (tmp_path / "ckpt-run.log").read_text())
    want.check(tmp_path)
