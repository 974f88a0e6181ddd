"""The coordinator, agents and gangs together, on loopback."""
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as tree

import pytest
from cluster import Cluster, alive, wait_for
from conftest import ROOT


@pytest.fixture
def cluster(bin_dir, tmp_path):
    made = Cluster(bin_dir, tmp_path / "cluster")
    made.out.mkdir()
    made.start_ckptd()
    yield made
    made.stop()


def hold_at(cluster, point):
    """What is started from here on waits at this fault point until let_go()."""
    cluster.env["CKPT_FAULT_AT"] = f"{point}=wait:{cluster.out}/go"


def let_go(cluster):
    (cluster.out / "go").touch()


def submit(cluster, reference, folder, name, ranks, *flags, save_every=0):
    """It takes some seconds however fast the machine is: what a test does to it comes before its end."""
    pause_ms = min(20, 5000 // reference.steps)
    command = reference.argv("train", folder) + ["--pause-ms", str(pause_ms)]
    command += ["--save-every", str(save_every)] if save_every else []
    done = cluster.run_ctl("submit", "--name", name, "--ranks", ranks, *flags, "--", *command)
    assert done.returncode == 0, done.stderr
    return done


def wait_state(cluster, name, *states, step=0, seconds=90):
    return wait_for(f"{name} is {' or '.join(states)}",
                    lambda: (j := cluster.job(name))["state"] in states and j["step"] >= step and j, seconds)


def pids_of(cluster, job):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            env = open(f"/proc/{pid}/environ").read().split("\0")
            if f"CKPT_SERVER={cluster.socket}" in env and f"CKPT_JOB={job}" in env and any(v.startswith("RANK=") for v in env):
                found.append(int(pid))
        except OSError:
            pass
    return found


def test_kill_of_ckptd_in_the_middle_of_a_preemption(cluster, reference, tmp_path):
    """The transaction goes on after the restart, nothing is lost, the gang comes back bit for bit."""
    want = reference(4, steps=800)
    for node in ("a", "b"):
        cluster.start_agent(node, 2, "512MiB")
    submit(cluster, want, tmp_path, "train", 4, "--priority", 1, "--class", "training")
    wait_state(cluster, "train", "running", step=20)
    small = reference(2, steps=60)
    folder = tmp_path / "urgent"
    folder.mkdir()
    submit(cluster, small, folder, "urgent", 2, "--priority", 100, "--class", "realtime")
    plan = cluster.ctl("quote", "urgent")["id"]
    cluster.ctl("apply", plan)
    cluster.programs["ckptd"].kill()
    cluster.programs["ckptd"].wait()
    cluster.start_ckptd()
    wait_state(cluster, "urgent", "finished")
    small.check(folder)
    wait_state(cluster, "train", "finished", seconds=150)
    want.check(tmp_path)
    assert cluster.job("train")["preempted_count"] == 1


def test_after_the_grant_no_victim_is_left_while_its_copy_is_in_ram_only(cluster, reference, tmp_path):
    want = reference(2, steps=5000)
    cluster.start_agent("a", 2, "512MiB")
    submit(cluster, want, tmp_path, "train", 2, "--priority", 1)
    wait_state(cluster, "train", "running", step=10)
    victims = pids_of(cluster, "train")
    assert len(victims) == 2
    done = cluster.run_ctl("submit", "--name", "urgent", "--ranks", 1, "--priority", 9, "--", "sleep", 300)
    assert done.returncode == 0, done.stderr
    plan = cluster.ctl("quote", "urgent")["id"]
    done = cluster.run_ctl("apply", plan, "--wait")
    assert done.returncode == 0, done.stderr
    assert not any(alive(pid) for pid in victims)
    job = cluster.job("train")
    assert job["state"] == "preempted" and job["copies"][0]["staged_gang"]
    assert "in RAM" in cluster.run_ctl("job", "train").stdout
    wait_for("the copy is durable", lambda: cluster.job("train")["copies"][0]["durable"])
    cluster.ctl("cancel", "train")
    cluster.ctl("cancel", "urgent")


def test_operator_suspends_and_resumes(cluster, reference, tmp_path):
    want = reference(2, steps=500)
    cluster.start_agent("a", 2, "512MiB")
    submit(cluster, want, tmp_path, "train", 2)
    wait_state(cluster, "train", "running", step=10)
    assert cluster.run_ctl("suspend", "train", "--wait").returncode == 0
    wait_state(cluster, "train", "suspended")
    assert pids_of(cluster, "train") == []
    again = cluster.run_ctl("suspend", "train", "--wait")  # twice: nothing breaks
    assert again.returncode == 0 and "already suspended" in again.stdout, again.stdout + again.stderr
    assert cluster.job("train")["state"] == "suspended"
    assert cluster.run_ctl("resume", "train").returncode == 0
    wait_state(cluster, "train", "finished", seconds=120)
    want.check(tmp_path)


BAD = [
    (["submit", "--name", "x", "--ranks", "9", "--", "true"], "9"),                  # larger than the cluster
    (["submit", "--name", "train", "--ranks", "1", "--", "true"], "in use"),         # a name in use
    (["quote", "nobody"], "nobody"),
    (["migrate", "train", "--from", "a", "--to", "nowhere"], "nowhere"),             # an agent that is not there
    (["resume", "train"], "running"),
    (["apply", "no-such-plan"], "no-such-plan"),
]


def test_bad_input_is_refused_before_anything_is_stopped(cluster, reference, tmp_path):
    want = reference(2, steps=5000)
    cluster.start_agent("a", 2, "512MiB")
    submit(cluster, want, tmp_path, "train", 2)
    wait_state(cluster, "train", "running", step=5)
    pids = pids_of(cluster, "train")
    for argv, names in BAD:
        done = cluster.run_ctl(*argv)
        assert done.returncode == 1 and names in done.stderr, (argv, done.returncode, done.stdout, done.stderr)
    for text, names in (("name: y\nranks: 1\ncommand: [a]\ncolour: red\n", "colour"), ("ranks: 1\ncommand: [a]\n", "name")):
        (tmp_path / "job.yaml").write_text(text)
        done = cluster.run_ctl("submit", tmp_path / "job.yaml")
        assert done.returncode in (1, 2) and names in done.stderr, done.stderr
    assert cluster.run_ctl("no-such-verb").returncode == 2
    assert sorted(pids_of(cluster, "train")) == sorted(pids) and all(alive(p) for p in pids)
    assert cluster.run_ctl("cancel", "train").returncode == 0
    wait_for("its processes are gone", lambda: not pids_of(cluster, "train"), 30)


def test_a_staging_budget_too_small_refuses_the_suspend_and_the_job_runs_on(cluster, reference, tmp_path):
    want = reference(2, steps=5000)
    cluster.start_agent("a", 2, "64KiB")
    submit(cluster, want, tmp_path, "train", 2)
    before = wait_state(cluster, "train", "running", step=5)
    done = cluster.run_ctl("suspend", "train", "--wait")
    assert done.returncode == 1 and "budget" in done.stderr, done.stderr
    wait_state(cluster, "train", "running", step=before["step"] + 5)
    cluster.ctl("cancel", "train")


def test_no_coordinator_in_reach(bin_dir, tmp_path):
    done = subprocess.run([str(bin_dir / "ckptctl"), "--server", f"unix:{tmp_path}/none.sock", "jobs"], capture_output=True, text=True)
    assert done.returncode == 3 and "none.sock" in done.stderr


def test_a_port_in_use(bin_dir, tmp_path):
    import socket
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run([str(bin_dir / "ckptd"), "--listen", f"127.0.0.1:{port}", "--data", str(tmp_path / "d")],
                              capture_output=True, text=True, timeout=30)
    assert done.returncode == 1 and str(port) in done.stderr


def test_the_demo(bin_dir, tmp_path):
    """The whole demo with a small model; the big one is ./run demo."""
    out = tmp_path / "demo"
    done = subprocess.run([sys.executable, str(ROOT / "examples" / "demo" / "demo.py"), "--bin", str(bin_dir), "--out", str(out),
                           "--hidden", "256", "--steps", "1200"], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    assert "equal bit for bit" in done.stdout and re.search(r"preemption +\d+ ms", done.stdout)
    for stop in ("preemption", "migration"):
        assert re.search(rf"^{stop} .*[0-9] MiB +0\.0$", done.stdout, re.M), "a stop loses no work: " + done.stdout[-2000:]
    picture = tree.parse(out / "timeline.svg").getroot()
    assert sum(1 for _ in picture.iter("{http://www.w3.org/2000/svg}rect")) > 10


def test_ranks_are_told_where_their_leader_is(cluster):
    """MASTER_ADDR is the address of the leading node, not of whoever reads it."""
    for i, node in enumerate(("a", "b"), 5):
        cluster.start(f"agent-{node}", cluster.bin / "ckpt-agent", "--name", node, "--coordinator", cluster.socket, "--slots", 1,
                      "--address", f"127.0.0.{i}", "--state-dir", cluster.out / "nodes" / node)
    wait_for("both nodes are up", lambda: len(cluster.nodes()) == 2)
    done = cluster.run_ctl("submit", "--name", "shell", "--ranks", 2, "--", "sh", "-c", "echo at $MASTER_ADDR")
    assert done.returncode == 0, done.stderr
    job = wait_state(cluster, "shell", "finished")
    leader = {"a": "127.0.0.5", "b": "127.0.0.6"}[job["placement"]["nodes"][0]["node"]]
    for rank in range(2):
        assert f"at {leader}" in cluster.run_ctl("logs", "shell", "--rank", rank).stdout
