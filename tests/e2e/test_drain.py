"""What was released and not yet durable when its ckpt-runs died is written again by the cluster itself."""
import os
import signal

from cluster import alive, wait_for
from test_cluster import cluster, submit, wait_state  # noqa: F401 (the fixture)
from test_failures import events, runs_of


def suspended_in_ram(cluster, reference, folder, nodes=("a",), ranks=2, steps=120):
    """A job that is suspended while its store takes nothing; returns what an uninterrupted run gives."""
    want = reference(ranks, steps=steps, hidden=256)
    store = cluster.out / "store"
    for node in nodes:
        cluster.start_agent(node, ranks // len(nodes), "512MiB")
    submit(cluster, want, folder, "train", ranks)
    wait_state(cluster, "train", "running", step=10)
    for pid in (pid for _, _, pid in runs_of(cluster, "train")):
        os.kill(pid, 0)
    done = cluster.run_ctl("suspend", "train", "--wait")
    assert done.returncode == 0, done.stderr
    return want, store


def newest(cluster):
    copies = cluster.job("train")["copies"]
    return copies[0] if copies else None


def kill_writers(cluster):
    """Until none is left: returns how many were still writing."""
    killed = [pid for _, _, pid in runs_of(cluster, "train")]
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    wait_for("the ckpt-runs are gone", lambda: not any(alive(pid) for pid in killed), 30)
    return len(killed)


def hold_writers(cluster, env):
    """Agents started from here on give their ckpt-runs a fault that keeps the copy from being written."""
    cluster.env["CKPT_FAULT_AT"] = env


def test_a_copy_whose_ckpt_run_died_becomes_durable_while_the_job_is_suspended(cluster, reference, tmp_path):
    hold_writers(cluster, "engine.write.block=sleep6000")
    want, _ = suspended_in_ram(cluster, reference, tmp_path)
    assert not newest(cluster)["durable"] and newest(cluster)["staged_gang"]
    assert kill_writers(cluster) >= 1
    wait_for("its copy is durable", lambda: newest(cluster)["durable"], 60)
    assert events(cluster, "train", "drain_started")
    job = cluster.job("train")
    assert job["state"] == "suspended" and "durable" in job["reason"] and not job.get("drain"), job
    assert cluster.run_ctl("verify", cluster.out / "store" / "train").returncode == 0
    assert cluster.run_ctl("resume", "train", "--wait").returncode == 0
    wait_state(cluster, "train", "finished", seconds=120)
    want.check(tmp_path)
    assert cluster.job("train")["lost_gpu_seconds"] == 0
