"""A small GPT-2 that learns bytes of licences with the Hugging Face Trainer. Stop it at any moment, and start it again.

    python train.py --steps 60
    kill -TERM its pid, or: ckpt-run -- python train.py --steps 60
"""

import argparse
import hashlib
import pathlib

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from libckpt.torch import hf  # 1


class Licences(torch.utils.data.Dataset):
    def __init__(self, window: int) -> None:
        texts = [p.read_bytes() for p in sorted(pathlib.Path("/usr/share/common-licenses").iterdir()) if p.is_file()]
        self.data = torch.frombuffer(bytearray(b"\n".join(texts)[:20000]), dtype=torch.uint8).long()
        self.window = window

    def __len__(self) -> int:
        return len(self.data) // self.window

    def __getitem__(self, i: int):
        chunk = self.data[i * self.window : (i + 1) * self.window]
        return {"input_ids": chunk, "labels": chunk}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", default="runs/gpt2")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--save-every", type=int, default=20)
    parser.add_argument("--accumulate", type=int, default=1)
    args = parser.parse_args()

    torch.set_num_threads(1)  # more cost time on a model of this size
    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=256, n_positions=32, n_embd=32, n_layer=2, n_head=2,
                                       bos_token_id=0, eos_token_id=0))
    settings = TrainingArguments("out", max_steps=args.steps, per_device_train_batch_size=32, save_strategy="no",
                                 gradient_accumulation_steps=args.accumulate, logging_steps=3, report_to=[],
                                 disable_tqdm=True, use_cpu=True, lr_scheduler_type="cosine")
    trainer = Trainer(model, settings, train_dataset=Licences(32))
    result = hf.train(trainer, args.path, save_every=args.save_every)  # 2: in the place of trainer.train()

    digest = hashlib.sha256()
    for value in [*model.state_dict().values(), *(s["exp_avg_sq"] for s in trainer.optimizer.state.values())]:
        digest.update(value.contiguous().numpy().tobytes())
    for entry in trainer.state.log_history:
        print("logged", entry["step"], entry.get("loss"), entry.get("learning_rate"), entry.get("grad_norm"))
    print("loss", result.training_loss.hex(), "random", torch.rand(1).item().hex(), "weights", digest.hexdigest())


if __name__ == "__main__":
    main()
