"""What the README shows is compiled and run as it stands there."""
import os
import re
import subprocess

from conftest import ROOT


def block(language, containing):
    for text in re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), re.S):
        if containing in text:
            return text
    raise AssertionError(f"the README has no {language} block with {containing}")


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


def test_the_commands_it_shows_exist(bin_dir):
    verbs = set(re.findall(r"^ckptctl (\w+)", block("sh", "ckptctl submit"), re.M))
    known = subprocess.run([str(bin_dir / "ckptctl"), "--help"], capture_output=True, text=True).stdout
    assert verbs and all(re.search(rf"\b{verb}\b", known) for verb in verbs), (verbs, known)
