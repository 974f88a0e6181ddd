"""Weights out of a run and back: equal bit for bit, ties kept, nothing unpickled that could run code."""

import json
import pickle

import pytest
import torch
import torch.distributed.checkpoint as dcp

import libckpt.torch as ckpt
from libckpt.__main__ import main


class Net(torch.nn.Module):
    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.embed = torch.nn.Embedding(11, 6)
        self.norm = torch.nn.BatchNorm1d(6)
        self.half = torch.nn.Linear(6, 6, dtype=torch.bfloat16)
        self.head = torch.nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight


@pytest.fixture
def saved(tmp_path):
    model = Net(1)
    run = ckpt.open(tmp_path / "run", model=model, extra={"x": 1})
    run.step()
    run.finish(save=True)
    return model


def same(tensors, model, without=()):
    expected = {name: value for name, value in model.state_dict().items() if name not in without}
    assert set(tensors) == set(expected)
    for name, value in expected.items():
        assert tensors[name].dtype == value.dtype and torch.equal(tensors[name], value), name


def back(folder, given, model, *more):
    assert main(["import", str(given), str(folder / "back"), "--step", "9", *more]) == 0
    other = Net(2)
    assert ckpt.load(folder / "back", model=other) == 9
    same(other.state_dict(), model)
    opened = Net(3)
    run = ckpt.open(folder / "back", model=opened, rng=False)
    assert run.resumed_from == 9
    same(opened.state_dict(), model)
    run.finish()


def test_pt(tmp_path, saved):
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "w.pt")]) == 0
    loaded = torch.load(tmp_path / "w.pt", weights_only=True)
    same(loaded, saved)
    assert loaded["head.weight"].data_ptr() == loaded["embed.weight"].data_ptr()
    back(tmp_path, tmp_path / "w.pt", saved)


@pytest.mark.parametrize("shard_gb,files", [("5", 1), ("2e-7", 4)])
def test_hugging_face(tmp_path, saved, shard_gb, files):
    safetensors = pytest.importorskip("safetensors.torch")
    out = tmp_path / "hf"
    assert main(["export", str(tmp_path / "run"), str(out), "--shard-gb", shard_gb]) == 0
    shards = sorted(out.glob("*.safetensors"))
    tensors = {name: tensor for file in shards for name, tensor in safetensors.load_file(file).items()}
    same(tensors, saved, without=["head.weight"])
    if files == 1:
        assert [file.name for file in shards] == ["model.safetensors"]
    else:
        index = json.loads((out / "model.safetensors.index.json").read_text())
        assert len(shards) > 1 and set(index["weight_map"]) == set(tensors)
        assert index["metadata"]["total_size"] == sum(t.numel() * t.element_size() for t in tensors.values())
        for name, file in index["weight_map"].items():
            assert name in safetensors.load_file(out / file)
    back(tmp_path, out, saved)


def test_transformers_reads_it(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=32, n_positions=8, n_embd=8, n_layer=1, n_head=2)
    model = transformers.GPT2LMHeadModel(config)
    run = ckpt.open(tmp_path / "run", model=model)
    run.step()
    run.finish(save=True)
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "hf"), "--shard-gb", "2e-6"]) == 0
    config.save_pretrained(tmp_path / "hf")
    same(transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "hf").state_dict(), model)


def test_dcp(tmp_path, saved):
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "dcp"), "--format", "dcp"]) == 0
    target = {name: torch.zeros_like(value) for name, value in saved.state_dict().items()}
    dcp.load(target, checkpoint_id=str(tmp_path / "dcp"), no_dist=True)
    same(target, saved)
    back(tmp_path, tmp_path / "dcp", saved, "--tie", "head.weight=embed.weight")
    assert main(["import", str(tmp_path / "dcp"), str(tmp_path / "none"), "--tie", "norm.weight=norm.bias"]) == 1


def test_dcp_of_a_training(tmp_path, saved, capsys):
    """As others write it: nested, several files, with an optimizer and a number in it. Only what describes tensors is unpickled."""
    optimizer = torch.optim.Adam(saved.parameters())
    writer = dcp.FileSystemWriter(tmp_path / "dcp", single_file_per_rank=False)
    dcp.save({"model": saved.state_dict(), "optim": optimizer.state_dict(), "step": 3}, storage_writer=writer, no_dist=True)
    assert main(["import", str(tmp_path / "dcp"), str(tmp_path / "back"), "--prefix", "model.",
                 "--tie", "head.weight=embed.weight"]) == 0
    other = Net(2)
    ckpt.load(tmp_path / "back", model=other)
    same(other.state_dict(), saved)
    assert main(["import", str(tmp_path / "dcp"), str(tmp_path / "none"), "--prefix", "nobody."]) == 1
    (tmp_path / "dcp" / ".metadata").write_bytes(pickle.dumps(Evil()))
    capsys.readouterr()
    assert main(["import", str(tmp_path / "dcp"), str(tmp_path / "none")]) == 1
    said = capsys.readouterr()
    assert "builtins.print" in said.err and "run" not in said.out
    assert not (tmp_path / "none").exists()


class Evil:
    def __reduce__(self):
        return (print, ("run",))


def test_refused(tmp_path, saved, capsys):
    (tmp_path / "evil.pt").write_bytes(pickle.dumps({"a": Evil()}))
    torch.save({"epoch": 3, "model": {}}, tmp_path / "mixed.pt")
    assert main(["import", str(tmp_path / "evil.pt"), str(tmp_path / "back")]) == 1
    assert "not unpickled" in capsys.readouterr().err
    assert main(["import", str(tmp_path / "mixed.pt"), str(tmp_path / "back")]) == 1
    assert "'epoch' is a int" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "mixed.pt")]) == 1
    assert "exists" in capsys.readouterr().err
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "x.pt"), "--part", "optim"]) == 1
    assert main(["import", str(tmp_path / "mixed.pt"), str(tmp_path / "run")]) == 1
    assert not (tmp_path / "back").exists() and not (tmp_path / "x.pt").exists()
