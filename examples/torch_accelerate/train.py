"""A classifier under Accelerate: what accelerator.prepare() returns is given to ckpt.open as it is.

    python train.py --steps 200
"""

import argparse
import hashlib

import torch
from accelerate import Accelerator
from torch import nn

import libckpt.torch as ckpt  # 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", default="runs/classifier")
    parser.add_argument("--steps", type=int, default=200)
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(1)
    x = torch.randn(128, 10)
    data = torch.utils.data.TensorDataset(x, (x @ torch.randn(10, 3)).argmax(1))
    accelerator = Accelerator(cpu=True)
    model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    loader = torch.utils.data.DataLoader(data, batch_size=16, shuffle=True)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)

    losses = {"all": []}
    run = ckpt.open(args.path, model=model, optim=optimizer, scheduler=scheduler, loader=loader, extra=losses)  # 2
    while run.global_step < args.steps:
        for inputs, classes in loader:
            loss = nn.functional.cross_entropy(model(inputs), classes)
            accelerator.backward(loss)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            losses["all"].append(accelerator.reduce(loss.detach(), "mean").item())
            run.step(loss=loss)  # 3
            if run.global_step >= args.steps:
                break
    run.finish()

    digest = hashlib.sha256()
    for value in [*model.state_dict().values(), *(s["exp_avg_sq"] for s in optimizer.state.values())]:
        digest.update(value.contiguous().numpy().tobytes())
    for step, value in enumerate(losses["all"], 1):
        print("logged", step, value.hex())
    print("loss", losses["all"][-1], "random", torch.rand(1).item().hex(), "weights", digest.hexdigest())


if __name__ == "__main__":
    main()
