"""Agents and ckptd are restarted, frozen and talked to by strangers; jobs and copies do not notice."""
import json
import os
import signal
import socket
import subprocess
import time

import pytest
from cluster import alive, wait_for
from test_cluster import cluster, hold_at, let_go, pids_of, submit, wait_state  # noqa: F401 (the fixture)
from test_failures import endless, events, runs_of


def restart_agent(cluster, node, slots, how):
    agent = cluster.programs[f"agent-{node}"]
    agent.send_signal(how)
    agent.wait(90)
    cluster.start_agent(node, slots, "512MiB")


def test_agents_are_restarted_one_after_the_other(cluster, reference, tmp_path):
    """Two jobs run, one is suspended and its copy is in RAM only: no step and no copy is lost, however an agent ends."""
    want = reference(2, steps=300)
    hold_at(cluster, "engine.write.block")  # what is suspended is still being written
    for node in ("a", "b", "c"):
        cluster.start_agent(node, 2, "512MiB")
    for name in ("one", "two", "held"):
        (tmp_path / name).mkdir()
        submit(cluster, want, tmp_path / name, name, 2)
        wait_state(cluster, name, "running", step=5)
    assert cluster.run_ctl("suspend", "held", "--wait").returncode == 0
    for node, how in (("a", signal.SIGTERM), ("b", signal.SIGKILL), ("c", signal.SIGKILL)):
        restart_agent(cluster, node, 2, how)
    wait_for("held is known again", lambda: cluster.job("held")["state"] == "suspended", 60)
    copy = cluster.job("held")["copies"][0]
    assert copy["staged_gang"] and not copy["durable"] and not copy.get("lost"), copy
    assert cluster.run_ctl("resume", "held", "--wait").returncode == 0
    let_go(cluster)
    for name in ("one", "two", "held"):
        wait_state(cluster, name, "finished", seconds=150)
        want.check(tmp_path / name)
        job = cluster.job(name)
        assert job["restart_count"] == 0 and job["lost_gpu_seconds"] == 0, job
        assert job["epoch"] == (2 if name == "held" else 1)
        assert sum(1 for _ in open(tmp_path / name / "loss")) == want.steps  # none was computed twice
    assert not events(cluster, "held", "copy_lost")


def test_an_agent_that_alone_holds_a_copy_ends_when_it_is_being_written(cluster, reference, tmp_path):
    want = reference(2, steps=120, hidden=256)
    hold_at(cluster, "engine.write.block")
    cluster.start_agent("a", 2, "512MiB")
    submit(cluster, want, tmp_path, "train", 2)
    wait_state(cluster, "train", "running", step=10)
    assert cluster.run_ctl("suspend", "train", "--wait").returncode == 0
    ckptd, agent = cluster.programs["ckptd"], cluster.programs["agent-a"]
    ckptd.send_signal(signal.SIGSTOP)  # so that no drain is ordered yet
    writers = [pid for _, _, pid in runs_of(cluster, "train")]
    for pid in writers:
        os.kill(pid, signal.SIGKILL)
    wait_for("they are gone", lambda: not any(alive(pid) for pid in writers), 30)
    let_go(cluster)
    log = cluster.out / "agent-a.log"
    wait_for("the agent has seen it", lambda: "ckpt-run killed" in log.read_text() or "ckpt-run ended" in log.read_text()
             or "signal 9" in log.read_text(), 30)
    agent.terminate()
    wait_for("it says what it waits for", lambda: "only this agent holds job train" in log.read_text(), 30)
    assert agent.poll() is None
    ckptd.send_signal(signal.SIGCONT)
    assert agent.wait(60) == 0
    assert "takes with it" not in log.read_text()
    cluster.start_agent("a", 2, "512MiB")
    wait_for("the copy is durable", lambda: cluster.job("train")["copies"][0]["durable"], 60)
    assert not events(cluster, "train", "copy_lost")
    assert cluster.run_ctl("resume", "train", "--wait").returncode == 0
    wait_state(cluster, "train", "finished", seconds=120)
    want.check(tmp_path)


def test_ckptd_is_restarted_while_three_suspends_run(cluster, reference, tmp_path):
    """None is lost, none is carried out twice."""
    small = reference(1, steps=40)
    cluster.start_agent("a", 3, "512MiB")
    names = ("x", "y", "z")
    for name in names:
        endless(cluster, small, tmp_path / name, name)
    for name in names:
        wait_state(cluster, name, "running", step=5)
    frozen = [pid for name in names for pid in pids_of(cluster, name)]
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)  # the suspends are under way and do not end yet
    try:
        for name in names:
            cluster.ctl("suspend", name, "--deadline", "90s")
        cluster.programs["ckptd"].kill()
        cluster.programs["ckptd"].wait()
        cluster.start_ckptd()
        for name in names:
            wait_state(cluster, name, "suspending")  # "unknown" until the agent is back
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
    for name in names:
        job = wait_state(cluster, name, "suspended")
        assert job["epoch"] == 1 and job["lost_gpu_seconds"] == 0 and len(events(cluster, name, "released")) == 1
    assert not any(alive(pid) for pid in frozen)


def test_who_waits_goes_on_waiting_when_ckptd_ends_and_comes_back(cluster, reference, tmp_path):
    """A coordinator that ends cancels what it is being asked: that is no Ctrl-C."""
    cluster.start_agent("a", 1, "512MiB")
    endless(cluster, reference(1, steps=40), tmp_path / "x", "x")
    wait_state(cluster, "x", "running", step=5)
    frozen = pids_of(cluster, "x")
    for pid in frozen:
        os.kill(pid, signal.SIGSTOP)
    waits = subprocess.Popen([str(cluster.bin / "ckptctl"), "suspend", "x", "--deadline", "90s", "--durable"], env=cluster.env,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        wait_state(cluster, "x", "suspending")
        for _ in range(3):
            cluster.programs["ckptd"].terminate()
            cluster.programs["ckptd"].wait()
            assert waits.poll() is None, waits.communicate()[0]
            cluster.start_ckptd()
    finally:
        for pid in frozen:
            os.kill(pid, signal.SIGCONT)
    out, _ = waits.communicate(timeout=90)
    assert waits.returncode == 0 and "is durable" in out, out


def test_an_agent_that_is_silent_for_15_seconds_costs_its_job_nothing(cluster, reference, tmp_path):
    want = reference(2, steps=1500)
    cluster.start_agent("a", 2, "512MiB")
    submit(cluster, want, tmp_path, "train", 2)
    wait_state(cluster, "train", "running", step=5)
    agent = cluster.programs["agent-a"]
    agent.send_signal(signal.SIGSTOP)
    time.sleep(15)
    assert cluster.job("train")["state"] in ("unknown", "running")
    agent.send_signal(signal.SIGCONT)
    job = wait_state(cluster, "train", "finished", seconds=120)
    assert job["epoch"] == 1 and job["restart_count"] == 0 and job["lost_gpu_seconds"] == 0
    want.check(tmp_path)
    assert sum(1 for _ in open(tmp_path / "loss")) == want.steps


def test_a_cancel_does_not_wait_for_a_job_that_ignores_its_notice(cluster):
    cluster.start_agent("a", 1, "512MiB")
    script = "trap '' TERM INT HUP USR1 USR2; echo deaf; while :; do sleep 1; done"
    assert cluster.run_ctl("submit", "--name", "deaf", "--ranks", 1, "--", "sh", "-c", script).returncode == 0
    wait_for("it is deaf", lambda: "deaf" in cluster.run_ctl("logs", "deaf").stdout, 60)
    pids = pids_of(cluster, "deaf")
    cluster.run_ctl("suspend", "deaf", "--deadline", "600s")  # ignored
    assert cluster.run_ctl("cancel", "deaf", "--wait").returncode == 0
    wait_for("its processes are gone", lambda: not any(alive(pid) for pid in pids), 30)
    assert cluster.job("deaf")["state"] == "cancelled"


def test_a_second_agent_of_a_name_or_of_a_folder_is_refused(cluster):
    cluster.start_agent("a", 1, "512MiB")
    argv = [cluster.bin / "ckpt-agent", "--name", "a", "--coordinator", cluster.socket, "--slots", 1, "--state-dir"]
    same = subprocess.run([str(v) for v in argv + [cluster.out / "nodes" / "a"]], capture_output=True, text=True, timeout=60)
    assert same.returncode == 1 and "nodes/a" in same.stderr and "in use by another ckpt-agent" in same.stderr, same.stderr
    cluster.start("agent-twin", *argv, cluster.out / "nodes" / "twin")
    log = cluster.out / "agent-twin.log"
    wait_for("it is told", lambda: "node a is already there" in log.read_text() and "--name" in log.read_text(), 60)
    nodes = cluster.nodes()
    assert len(nodes) == 1 and nodes[0]["connected"]
    assert nodes[0]["info"]["data_address"] in log.read_text()
    cluster.programs["agent-a"].kill()
    cluster.programs["agent-a"].wait()
    wait_for("the other is let in", lambda: "connected" in log.read_text() and cluster.nodes()[0].get("connected"), 60)


def test_a_log_does_not_fill_the_disk(cluster):
    cluster.start("agent-a", cluster.bin / "ckpt-agent", "--name", "a", "--coordinator", cluster.socket, "--slots", 1,
                  "--state-dir", cluster.out / "nodes" / "a", "--log-limit", "1MiB")
    wait_for("node a is up", lambda: len(cluster.nodes()) == 1)
    script = "for i in $(seq 12); do seq -f 'line %.0f' ${i}00000 ${i}99999; sleep 0.3; done; echo the end; sleep 600"
    assert cluster.run_ctl("submit", "--name", "loud", "--ranks", 1, "--", "sh", "-c", script).returncode == 0
    log = cluster.out / "nodes" / "a" / "logs" / "loud" / "e1" / "rank0.log"
    wait_for("it has said all", lambda: log.exists() and log.read_bytes().endswith(b"the end\n"), 120)
    wait_for("the log is small", lambda: log.stat().st_blocks * 512 <= 1 << 20, 30)
    shown = cluster.run_ctl("logs", "loud")
    assert shown.returncode == 0 and "\0" not in shown.stdout
    lines = shown.stdout.splitlines()
    assert "no longer kept" in lines[0] and lines[-1] == "the end" and lines[-2] == "line 1299999", lines[-3:]
    assert cluster.run_ctl("cancel", "loud", "--wait").returncode == 0


def strangers(connect):
    """Connections that say nothing, half a request, noise, HTTP/1, a huge message; they stay open."""
    made = []
    frame = (64 << 20).to_bytes(4, "little")
    for words in (b"", b"PRI * HTTP/2.0\r\n", os.urandom(4096), b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", frame + bytes(1 << 20)):
        made.append(connect())
        try:
            made[-1].sendall(words)
        except OSError:
            pass  # it was hung up on
    return made


def test_strangers_at_the_doors_harm_nobody(cluster, reference, tmp_path):
    want = reference(2, steps=500)
    cluster.start_agent("a", 2, "512MiB")
    submit(cluster, want, tmp_path, "train", 2)
    wait_state(cluster, "train", "running", step=5)
    host, port = cluster.nodes()[0]["info"]["data_address"].rsplit(":", 1)

    def unix(path, kind):
        def connect():
            s = socket.socket(socket.AF_UNIX, kind)
            s.settimeout(5)
            s.connect(str(path))
            return s
        return connect

    def resident(name):
        status = open(f"/proc/{cluster.programs[name].pid}/status").read()
        return int(status.split("VmRSS:")[1].split()[0]) >> 10

    before = {name: resident(name) for name in ("ckptd", "agent-a")}
    made = []
    for _ in range(20):
        made += strangers(unix(cluster.socket.removeprefix("unix:"), socket.SOCK_STREAM))
        made += strangers(unix(cluster.out / "nodes" / "a" / "agent.sock", socket.SOCK_SEQPACKET))
        made += strangers(lambda: socket.create_connection((host, int(port)), 5))
    assert cluster.run_ctl("suspend", "train", "--wait").returncode == 0  # while they are there
    assert cluster.run_ctl("resume", "train", "--wait").returncode == 0
    for s in made:
        s.close()
    wait_state(cluster, "train", "finished", seconds=120)
    want.check(tmp_path)
    for name, mib in before.items():
        assert cluster.check(name) and resident(name) < mib + 128
    huge = subprocess.run([str(cluster.bin / "ckptctl"), "submit", "--name", "huge", "--ranks", "1", "--env",
                           "X=" + "x" * 120_000, "--", "true"], env=cluster.env, capture_output=True, text=True, timeout=60)
    assert huge.returncode in (0, 1)
    assert cluster.run_ctl("jobs").returncode == 0


def test_a_command_that_is_not_there_is_tried_again_and_why_says_so(cluster):
    cluster.start_agent("a", 2, "512MiB")
    assert cluster.run_ctl("submit", "--name", "typo", "--ranks", 1, "--", "/no/such/program").returncode == 0
    why = wait_for("it is tried again", lambda: "is tried again by itself" in (text := cluster.run_ctl("why", "typo").stdout) and text, 60)
    assert "waits for capacity" not in why and "/no/such/program" in why, why
    assert "`ckptctl resume typo`: tries again now" in why, why


@pytest.mark.parametrize("damage", [os.urandom, lambda size: b""], ids=["garbage", "empty"])
def test_an_agent_whose_records_are_damaged_loses_no_job(cluster, reference, tmp_path, damage):
    """It cannot know its launches any more: they end, and the job goes on from its newest copy."""
    want = reference(2, steps=400)
    cluster.start_agent("a", 2, "256MiB")
    submit(cluster, want, tmp_path, "train", 2, save_every=50)
    wait_state(cluster, "train", "running", step=60)
    agent = cluster.programs["agent-a"]
    agent.kill()
    agent.wait()
    records = [path for path in (cluster.out / "nodes" / "a" / "jobs").rglob("*") if path.is_file()]
    assert records
    for path in records:
        path.write_bytes(damage(path.stat().st_size))
    cluster.start_agent("a", 2, "256MiB")
    wait_state(cluster, "train", "finished", seconds=150)
    want.check(tmp_path)
    assert all(node["slots_free"] == node["info"]["slots"] for node in cluster.nodes())


def test_events_are_followed_over_a_restart_of_ckptd(cluster):
    """Each once, also those that were there before; and without a coordinator it ends with 3, as all verbs do."""
    ctl = [str(cluster.bin / "ckptctl"), "--server", cluster.socket, "events", "--follow", "-o", "json"]
    cluster.start_agent("a", 1, "256MiB")
    with open(cluster.out / "followed", "w") as out, open(cluster.out / "said", "w") as err:
        following = subprocess.Popen(ctl, stdout=out, stderr=err)
    kinds = lambda: [json.loads(line)["kind"] for line in open(cluster.out / "followed")]  # noqa: E731
    assert cluster.run_ctl("submit", "--name", "one", "--ranks", 1, "--", "true").returncode == 0
    wait_for("it is told", lambda: kinds().count("submitted") == 1, 60)
    cluster.programs["ckptd"].kill()
    cluster.programs["ckptd"].wait()
    cluster.start_ckptd()
    assert cluster.run_ctl("submit", "--name", "two", "--ranks", 1, "--", "true").returncode == 0
    wait_for("the next one is told", lambda: kinds().count("submitted") == 2, 60)
    revisions = [json.loads(line)["revision"] for line in open(cluster.out / "followed")]
    assert revisions == sorted(set(revisions))
    cluster.programs["ckptd"].kill()
    cluster.programs["ckptd"].wait()
    assert following.wait(120) == 3, open(cluster.out / "said").read()
    cluster.start_ckptd()


def test_a_daemon_without_standard_streams_writes_no_log_into_its_own_files(cluster, tmp_path):
    socket_path = f"unix:{tmp_path}/c.sock"
    run = subprocess.Popen(["sh", "-c", 'exec "$0" "$@" <&- >&- 2>&-', str(cluster.bin / "ckptd"), "--listen", socket_path,
                            "--data", str(tmp_path / "data")])
    try:
        wait_for("it listens", lambda: (tmp_path / "c.sock").exists(), 60)
        assert [os.readlink(f"/proc/{run.pid}/fd/{fd}") for fd in (1, 2)] == ["/dev/null"] * 2
    finally:
        run.terminate()
        run.wait(60)
