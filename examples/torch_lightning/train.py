"""A small network that guesses the next letter of licences, under Lightning. Stop it at any moment, and start it again.

    python train.py --steps 200
    kill -TERM its pid, or: ckpt-run -- python train.py --steps 200, or on two ranks: torchrun --nproc-per-node 2 train.py
"""

import argparse
import hashlib
import logging
import os
import pathlib
import warnings

import lightning.pytorch as pl
import torch
from torch import nn

from libckpt.torch.lightning import Checkpoint  # 1


class Guesser(pl.LightningModule):
    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.net = nn.Sequential(nn.Embedding(256, 12), nn.Flatten(), nn.Dropout(0.1), nn.Linear(12 * 8, 64), nn.BatchNorm1d(64),
                                 nn.ReLU(), nn.Linear(64, 256))
        self.losses = []

    def training_step(self, batch, number):
        windows, letters = batch
        loss = nn.functional.cross_entropy(self.net(windows), letters)
        self.note(self.global_step, loss)
        return loss

    def validation_step(self, batch, number):
        self.note("validation", nn.functional.cross_entropy(self.net(batch[0]), batch[1]))

    def note(self, when, loss):
        self.losses.append((when, self.trainer.strategy.reduce(loss.detach()).item().hex()))  # of all ranks: it is saved once

    def get_extra_state(self):
        return {"losses": self.losses}

    def set_extra_state(self, state):
        self.losses = state["losses"]

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=self.steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def licences(begin: int, end: int) -> torch.utils.data.Dataset:
    texts = [p.read_bytes() for p in sorted(pathlib.Path("/usr/share/common-licenses").iterdir()) if p.is_file()]
    letters = torch.frombuffer(bytearray(b"\n".join(texts)[begin:end]), dtype=torch.uint8).long()
    windows = letters.unfold(0, 9, 9)
    return torch.utils.data.TensorDataset(windows[:, :8], windows[:, 8])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", default="runs/guesser")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--accumulate", type=int, default=1)
    args = parser.parse_args()
    warnings.filterwarnings("ignore", module="lightning")
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)

    torch.set_num_threads(1)
    pl.seed_everything(1, verbose=False)
    model = Guesser(args.steps)
    loader = torch.utils.data.DataLoader(licences(0, 2880), batch_size=32, shuffle=True)  # ten batches
    validation = torch.utils.data.DataLoader(licences(2880, 3600), batch_size=40)
    checkpoint = Checkpoint(args.path, save_every=args.save_every)  # 2
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    trainer = pl.Trainer(max_steps=args.steps, accelerator="cpu", devices=ranks, strategy="ddp" if ranks > 1 else "auto",
                         logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                         accumulate_grad_batches=args.accumulate, callbacks=[checkpoint])
    trainer.fit(model, loader, validation)

    digest = hashlib.sha256()
    for value in [*model.net.state_dict().values(), *(s["exp_avg_sq"] for s in trainer.optimizers[0].state.values())]:
        digest.update(value.contiguous().numpy().tobytes())
    for step, loss in model.losses:
        print("logged", step, loss)
    print("loss", model.losses[-1][1], "random", torch.rand(1).item().hex(), "weights", digest.hexdigest())


if __name__ == "__main__":
    main()
