"""ckpt.load: only the model, of a run that is finished or goes on."""

import pytest
import torch

import libckpt.torch as ckpt


def made(seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7), torch.nn.Linear(7, 3))
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def trained(model, optimizer):
    model(torch.randn(4, 5)).sum().backward()
    optimizer.step()


def copied(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(model, expected):
    state = model.state_dict()
    return list(state) == list(expected) and all(torch.equal(state[name], value) for name, value in expected.items())


def test_only_the_model_while_the_run_goes_on(tmp_path):
    model, optimizer = made(1)
    run = ckpt.open(tmp_path / "run", model=model, optim=optimizer, extra={"epoch": 3})
    kept = []
    for _ in range(2):
        trained(model, optimizer)
        run.step()
        run.save(wait=True)
        kept.append(copied(model))
        other = made(2)[0]
        assert ckpt.load(tmp_path / "run", model=other) == run.global_step
        assert same(other, kept[-1])
    assert ckpt.load(tmp_path / "run", model=other, selector="step:1") == 1
    assert same(other, kept[0])
    trained(model, optimizer)  # the run was not taken over
    run.step()
    run.save(wait=True)
    assert [entry["step"] for entry in run.checkpoints()] == [3, 2, 1]
    assert len({entry["epoch"] for entry in run.checkpoints()}) == 1
    run.finish()


def test_one_of_several_models(tmp_path):
    (one, _), (two, _) = made(1), made(2)
    run = ckpt.open(tmp_path / "run", model={"gen": one, "dis": two})
    run.step()
    run.finish(save=True)
    other = made(3)[0]
    ckpt.load(tmp_path / "run", model={"dis": other})
    assert same(other, copied(two))


def test_what_does_not_fit_is_refused(tmp_path):
    model, _ = made(1)
    with pytest.raises(ckpt.Error) as refused:
        ckpt.load(tmp_path / "nothing", model=model)
    assert refused.value.code == "NOT_FOUND"
    run = ckpt.open(tmp_path / "run", model=model)
    run.step()
    run.finish(save=True)
    wider = torch.nn.Sequential(torch.nn.Linear(5, 8))
    with pytest.raises(ckpt.Error, match="0.weight"):
        ckpt.load(tmp_path / "run", model=wider)
    with pytest.raises(ckpt.Error, match="absent"):
        ckpt.load(tmp_path / "run", model=torch.nn.ModuleDict({"absent": torch.nn.Linear(2, 2)}))
