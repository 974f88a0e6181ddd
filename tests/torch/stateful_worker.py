"""A training over torchdata's StatefulDataLoader, which says itself where it is; every batch is in what it prints."""

import argparse

import torch
from torchdata.stateful_dataloader import StatefulDataLoader

import libckpt.torch as ckpt

parser = argparse.ArgumentParser()
parser.add_argument("--path", required=True)
parser.add_argument("--workers", type=int, default=0)
args = parser.parse_args()
torch.set_num_threads(1)
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
loader = StatefulDataLoader(torch.utils.data.TensorDataset(torch.randn(64, 4)), batch_size=8, shuffle=True, num_workers=args.workers)
seen = {"lines": []}
run = ckpt.open(args.path, model=model, optim=optimizer, loader=loader, extra=seen)
while run.global_step < 18:
    for (batch,) in loader:
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen["lines"].append(f"{loss.item().hex()} {batch.sum().item().hex()}")
        run.step()
        if run.global_step >= 18:
            break
run.finish()
for line in seen["lines"]:
    print("logged", line)
print("loss", *[parameter.sum().item().hex() for parameter in model.parameters()])
