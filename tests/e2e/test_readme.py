"""What the README shows is compiled and run as it stands there; only names of programs, texts and folders are the test's."""
import os
import re
import signal
import subprocess

from cluster import wait_for
from conftest import ROOT
from test_cluster import cluster, wait_state  # noqa: F401 (the fixture)
from test_ladder import steps_done


def block(language, containing):
    for text in re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), re.S):
        if containing in text:
            return text
    raise AssertionError(f"the README has no {language} block with {containing}")


def commands(containing):
    return [line.split("#")[0].strip() for line in block("sh", containing).splitlines() if line.strip()]


def test_the_cpp_example_runs_and_goes_on(tmp_path):
    build = os.environ.get("CKPT_BUILD", str(ROOT / "build" / "test"))
    source = tmp_path / "example.cc"
    source.write_text(block("cpp", "int main()"))
    subprocess.run(["g++", "-std=c++20", "-Wall", "-Werror", f"-I{ROOT}/libckpt/include", str(source), "-o",
                    str(tmp_path / "example"), f"-L{build}/lib", "-lckpt", f"-Wl,-rpath,{build}/lib"], check=True)
    env = dict(os.environ, CKPT_STORE=str(tmp_path / "store"))
    for _ in range(2):
        done = subprocess.run([str(tmp_path / "example")], env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
    listed = subprocess.run([f"{build}/bin/ckptctl", "ls", str(tmp_path / "store"), "-o", "json"], capture_output=True, text=True)
    assert '"step": 1000' in listed.stdout or '"step":1000' in listed.stdout, listed.stdout


def test_the_project_commands_exist():
    usage = (ROOT / "run").read_text()
    shown = [line.split()[1] for line in commands("./run demo")]
    assert shown and all(re.search(rf"\b{word}\b", usage) for word in shown)


def test_the_gang_example_is_stopped_and_goes_on(bin_dir, reference, tmp_path):
    want = reference(4)
    (tmp_path / "corpus.txt").symlink_to(want.text)
    extra = want.argv("train", tmp_path)[3:]  # all but the program and the text, which the README names
    (tmp_path / "train").write_text(f'#!/bin/sh\nexec {bin_dir}/train "$@" {" ".join(extra)}\n')
    (tmp_path / "train").chmod(0o755)
    line, = commands("ckpt-run --ranks 4")
    env = dict(os.environ, PATH=f"{bin_dir}:{os.environ['PATH']}")
    log = open(tmp_path / "log", "ab")
    run = subprocess.Popen(f"exec {line}", shell=True, cwd=tmp_path, env=env, stdout=log, stderr=log)
    wait_for("the job trains", lambda: steps_done(tmp_path) >= 15, 60)
    run.send_signal(signal.SIGTERM)
    assert run.wait(60) == 75, (tmp_path / "log").read_text()
    again = subprocess.run(f"exec {line}", shell=True, cwd=tmp_path, env=env, stdout=log, stderr=log, timeout=150)
    assert again.returncode == 0, (tmp_path / "log").read_text()
    want.check(tmp_path)


def test_the_cluster_example_runs_in_its_order(cluster, reference, tmp_path):
    """A gang `train` on alpha and beta is what the README has running; gamma joins before the move."""
    want = reference(4, steps=1500)
    for node in ("alpha", "beta"):
        cluster.start_agent(node, 2, "512MiB")
    train = tmp_path / "train"
    train.mkdir()
    done = cluster.run_ctl("submit", "--name", "train", "--ranks", 4, "--priority", 1, "--", *want.argv("train", train))
    assert done.returncode == 0, done.stderr
    wait_state(cluster, "train", "running", step=10)
    urgent = want.argv("train", tmp_path)
    urgent[urgent.index("--steps") + 1] = "30"
    (tmp_path / "urgent.yaml").write_text(f"name: urgent\nranks: 2\npriority: 100\ncommand: [{', '.join(map(repr, urgent))}]\n")
    env = dict(cluster.env, PATH=f"{cluster.bin}:{os.environ['PATH']}")
    names = {"PLAN": None, "/data/ckpt": str(cluster.out / "store")}

    def run(verb):
        line, = [text for text in commands("ckptctl submit") if text.split()[1] == verb]
        for name, value in names.items():
            line = line.replace(name, str(value))
        done = subprocess.run(line, shell=True, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, line + ": " + done.stdout + done.stderr
        return done.stdout

    assert [text.split()[1] for text in commands("ckptctl submit")] == ["submit", "quote", "apply", "job", "migrate", "verify"]
    said = run("submit")
    assert "pending" in said.lower() and "slot" in said, said
    said = run("quote")
    names["PLAN"] = re.search(r"ckptctl apply (\S+)|plan (\S+)", said)[0].split()[-1].rstrip(":,")
    assert "train" in said and cluster.job("train")["state"] == "running"
    assert "granted" in run("apply").lower()
    assert re.search(r"in RAM of alpha beta", run("job"))
    wait_state(cluster, "urgent", "finished")
    wait_state(cluster, "train", "running", step=1)
    cluster.start_agent("gamma", 2, "512MiB")
    run("migrate")
    job = wait_for("it runs on gamma", lambda: (j := cluster.job("train"))["epoch"] == 3 and j, 60)
    assert [n["node"] for n in job["placement"]["nodes"]].count("gamma") == 1
    wait_for("a copy is durable", lambda: any(c["durable"] for c in cluster.job("train")["copies"]), 60)
    run("verify")
    wait_state(cluster, "train", "finished", seconds=150)
    want.check(train)
