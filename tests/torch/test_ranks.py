"""What several ranks agree on, and what they are told when they do not."""

import textwrap


def run(launch, world, code):
    codes = launch.run(world, textwrap.dedent(code), script="snippet.py")
    return codes, [rank.out.read_text() for rank in launch.ranks[-world:]]


def test_plain_tensors_that_differ_are_refused(launch):
    codes, out = run(launch, 2, """
        torch.manual_seed(rank)
        model = torch.nn.Linear(3, 3)
        run = ckpt.open("store", model=model)
        try:
            run.step()
        except ckpt.Error as error:
            print("REFUSED", error)
        run._give_up()
    """)
    assert codes == [0, 0]
    assert all("REFUSED" in text and "model/weight" in text and "per_rank" in text for text in out)


def test_values_that_differ_are_told(launch):
    codes, out = run(launch, 2, """
        run = ckpt.open("store", extra={"loss": rank / 2}, save_every=1)
        try:
            for _ in range(200):
                run.step()
        except ckpt.Error as error:
            print("REFUSED", error)
        run._give_up()
    """)
    assert codes == [0, 0]
    assert all("REFUSED" in text and "extra" in text for text in out)


def test_each_rank_has_its_own(launch):
    codes, out = run(launch, 2, """
        state = {"loss": 0.0, "cache": torch.zeros(3000), "shared": None}
        run = ckpt.open("store", extra=ckpt.per_rank(state))
        state.update(loss=rank + 0.5)
        state["cache"].fill_(rank)
        run.step()
        run.save(wait=True)
        run.finish()
        again = {"cache": torch.zeros(3000)}
        cache = again["cache"]
        run = ckpt.open("store", extra=ckpt.per_rank(again))
        assert again["loss"] == rank + 0.5 and again["cache"] is cache and cache.eq(rank).all()
        run.finish()
    """)
    assert codes == [0, 0]
    codes, out = run(launch, 1, """
        ckpt.open("store", extra=ckpt.per_rank({}))
    """)
    assert codes == [1] and "one for each rank of 2, this job has 1" in out[0]


def test_pipeline_stages(launch):
    code = """
        torch.manual_seed(3)
        stage = torch.nn.Linear(4 + rank, 4 + rank)
        optimizer = torch.optim.Adam(stage.parameters())
        run = ckpt.open("store", model={f"stage{rank}": stage}, optim=optimizer)
        if run.resumed_from is None:
            stage(torch.ones(4 + rank)).sum().backward()
            optimizer.step()
            run.step()
            run.save(wait=True)
        print("RANK", rank, run.global_step, stage.weight.detach().sum().item().hex(), len(optimizer.state))
        run.finish()
    """
    first, out = run(launch, 2, code)
    second, again = run(launch, 2, code)
    assert first == second == [0, 0]
    pick = [[line for line in text.splitlines() if line.startswith("RANK")] for text in (*out, *again)]
    assert pick[:2] == pick[2:] and all(pick)


def test_uneven_experts(launch):
    """Three experts on rank 0, one on rank 1, a router that both have; then all four on one rank."""
    code = """
        torch.manual_seed(3)
        mine = {2: [[0, 1, 2], [3]], 1: [[0, 1, 2, 3]]}[world][rank]
        model = torch.nn.ModuleDict({"router": torch.nn.Linear(4, 4)})
        model.update({f"expert{i}": torch.nn.Linear(4, 4 + i) for i in mine})
        optimizer = torch.optim.Adam(model.parameters())
        run = ckpt.open("store", model=model, optim=optimizer, rng=False)
        if run.resumed_from is None:
            for name, part in model.items():
                torch.nn.init.constant_(part.weight, len(name) + part.out_features)
                part(torch.ones(4)).sum().backward()
            optimizer.step()
            run.step()
            run.save(wait=True)
        for name, part in model.items():
            print("PART", name, part.weight.detach().sum().item().hex(), optimizer.state[part.weight]["exp_avg"].sum().item().hex())
        run.finish()
    """
    first, out = run(launch, 2, code)
    second, again = run(launch, 2, code)
    third, alone = run(launch, 1, code)
    assert (first, second, third) == ([0, 0], [0, 0], [0])
    pick = [sorted({line for text in texts for line in text.splitlines() if line.startswith("PART")}) for texts in (out, again, alone)]
    assert pick[0] == pick[1] == pick[2] and len(pick[0]) == 5


def test_damage_seen_by_one_rank_moves_all_to_an_older_one(launch):
    codes, _ = run(launch, 2, """
        model = torch.nn.Linear(200, 200)
        torch.nn.init.ones_(model.weight)
        run = ckpt.open("store", model=torch.nn.parallel.DistributedDataParallel(model))
        for _ in range(2):
            with torch.no_grad():
                model.weight += 1
            run.step()
            run.save(wait=True)
        run.finish()
    """)
    assert codes == [0, 0]
    shard = next(launch.folder.glob("store/s2.*/shard-00001.safetensors"))
    with open(shard, "r+b") as file:
        file.seek(shard.stat().st_size - 100)
        file.write(b"damage")
    codes, out = run(launch, 2, """
        model = torch.nn.Linear(200, 200)
        run = ckpt.open("store", model=torch.nn.parallel.DistributedDataParallel(model))
        assert run.resumed_from == 1 and model.weight.eq(2).all()
        run.finish()
    """)
    assert codes == [0, 0]


def test_a_forward_in_evaluation_leaves_nothing_unsharded(launch):
    codes, _ = run(launch, 2, """
        from torch.distributed.fsdp import fully_shard
        model = fully_shard(torch.nn.Linear(6, 6))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run = ckpt.open("store", model=model, optim=optimizer)
        model(torch.ones(2, 6)).sum().backward()
        optimizer.step()
        with torch.no_grad():
            model(torch.ones(2, 6))
        run.step()
        run.save(wait=True)
        run.finish()
        expected = [p.full_tensor() for p in model.parameters()]
        fresh = fully_shard(torch.nn.Linear(6, 6))
        optimizer = torch.optim.SGD(fresh.parameters(), lr=0.1)
        with torch.no_grad():
            fresh(torch.ones(2, 6))
        ckpt.open("store", model=fresh, optim=optimizer).finish()
        assert all(torch.equal(a, b.full_tensor()) for a, b in zip(expected, fresh.parameters()))
    """)
    assert codes == [0, 0]
