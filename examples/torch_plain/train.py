"""A small transformer that learns to write licences. Stop it at any moment (Ctrl-C, kill, kill -9) and start it again.

    python train.py --steps 300
    kill -TERM its pid, or: ckpt-run -- python train.py --steps 300
"""

import argparse
import hashlib
import logging
import pathlib
import signal

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import libckpt.torch as ckpt  # 1


class Licences(Dataset):
    """Windows of bytes out of the licences that every Debian system holds."""

    def __init__(self, window: int) -> None:
        texts = [p.read_bytes() for p in sorted(pathlib.Path("/usr/share/common-licenses").iterdir()) if p.is_file()]
        data = b"\n".join(texts) or b"All work and no play makes Jack a dull boy. " * 2000
        self.data = torch.frombuffer(bytearray(data), dtype=torch.uint8).long()
        self.window = window

    def __len__(self) -> int:
        return (len(self.data) - 1) // self.window

    def __getitem__(self, i: int):
        at = i * self.window
        chunk = self.data[at : at + self.window + 1]
        return chunk[:-1], chunk[1:]


class Writer(nn.Module):
    def __init__(self, width: int, depth: int, window: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.place = nn.Parameter(torch.randn(window, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, 256, bias=False)
        self.head.weight = self.embed.weight  # tied
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(window))

    def forward(self, x):
        return self.head(self.blocks(self.embed(x) + self.place[: x.shape[1]], mask=self.mask, is_causal=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", default="runs/licences")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--save-every", type=int, default=50)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--losses", help="append 'step loss' lines here")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")

    torch.set_num_threads(1)  # more cost time on a model of this size
    torch.manual_seed(1)
    model = Writer(args.width, 2, args.window)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    loader = DataLoader(Licences(args.window), batch_size=16, shuffle=True)

    run = ckpt.open(args.path, model=model, optim=optimizer, scheduler=scheduler, loader=loader,  # 2
                    save_every=args.save_every, signals=[signal.SIGTERM, signal.SIGINT])
    losses = open(args.losses, "a") if args.losses else None
    while run.global_step < args.steps:
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            if losses:
                print(run.global_step + 1, loss.item().hex(), file=losses, flush=True)
            if (run.global_step + 1) % 20 == 0:
                print(f"step {run.global_step + 1} loss {loss.item():.4f}", flush=True)
            run.step(loss=loss)  # 3
            if run.global_step >= args.steps:
                break
    run.finish(save=True)
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(value.contiguous().numpy().tobytes() if value.numel() else b"")
    print("weights", digest.hexdigest())


if __name__ == "__main__":
    main()
