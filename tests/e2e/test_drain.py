"""What was released and not yet durable when its ckpt-runs died is written again by the cluster itself."""
import os
import signal

from cluster import alive, wait_for
from test_cluster import cluster, hold_at, let_go, submit, wait_state  # noqa: F401 (the fixture)
from test_failures import events, runs_of


def test_a_copy_whose_ckpt_run_died_becomes_durable_while_the_job_is_suspended(cluster, reference, tmp_path):
    want = reference(2, steps=120, hidden=256)
    hold_at(cluster, "engine.write.block")  # so that it still writes when it is killed
    cluster.start_agent("a", 2, "512MiB")
    submit(cluster, want, tmp_path, "train", 2)
    wait_state(cluster, "train", "running", step=10)
    assert cluster.run_ctl("suspend", "train", "--wait").returncode == 0

    def newest():
        return cluster.job("train")["copies"][0]

    assert newest()["staged_gang"] and not newest()["durable"]
    writers = [pid for _, _, pid in runs_of(cluster, "train")]
    assert writers
    for pid in writers:
        os.kill(pid, signal.SIGKILL)
    wait_for("they are gone", lambda: not any(alive(pid) for pid in writers), 30)
    let_go(cluster)
    wait_for("the copy is durable", lambda: newest()["durable"], 60)
    assert events(cluster, "train", "drain_started")
    job = cluster.job("train")
    assert job["state"] == "suspended" and "(durable)" in job["reason"] and not job.get("drain"), job
    assert cluster.run_ctl("verify", cluster.out / "store" / "train").returncode == 0
    assert cluster.run_ctl("resume", "train", "--wait").returncode == 0
    wait_state(cluster, "train", "finished", seconds=120)
    want.check(tmp_path)
    assert cluster.job("train")["lost_gpu_seconds"] == 0
