"""Train a small Llama to write text, byte by byte, with Hugging Face's Trainer and RowACMo.

Nothing is downloaded: the model is made from a config, and the text is the language reference that comes with Python,
unless you give another. --resume continues a stopped training from its last checkpoint.

    pip install . transformers accelerate      # in the clone
    python examples/hf_trainer.py --steps 300
    python examples/hf_trainer.py --steps 300 --resume
"""

import argparse
import gzip
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, PrinterCallback, Trainer, TrainerCallback, TrainingArguments

import acmo

WINDOW = 64  # bytes that the model sees at once


class Bytes(Dataset[dict[str, Tensor]]):
    """A text, cut into windows; a token is a byte."""

    def __init__(self, text: bytes) -> None:
        self.rows = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
        self.rows = self.rows[: len(text) // WINDOW * WINDOW].view(-1, WINDOW)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {"input_ids": self.rows[i], "labels": self.rows[i]}  # the model shifts the labels itself


class Angles(TrainerCallback):
    """Print what RowACMo reports of its last step each time the Trainer logs."""

    def on_log(self, args, state, control, *, optimizer, logs, **_):  # type: ignore[no-untyped-def]
        if "loss" in logs:
            shown = optimizer.optimizer.telemetry()  # the Trainer's own wrapper, then RowACMo
            print(
                f"step {state.global_step:5d}  loss {float(logs['loss']):.3f}  ‖g‖ {shown['grad_norm']:.3f}  "
                f"cos(m, g) {shown['cos_update_grad']:.3f}"
            )


def read(path: Path | None) -> tuple[Bytes, Bytes]:
    """The text, its first nine tenths to train on and the rest to evaluate on."""
    if path is None:
        text = "\n".join(topics.values()).encode()
    else:
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    cut = len(text) * 9 // 10
    return Bytes(text[:cut]), Bytes(text[cut:][: 1000 * WINDOW])


def build_trainer(args: argparse.Namespace) -> Trainer:
    torch.manual_seed(args.seed)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=args.width,
        intermediate_size=4 * args.width,
        num_hidden_layers=args.layers,
        num_attention_heads=4,
        max_position_embeddings=WINDOW,
    )
    train, evaluate = read(args.text)
    model = LlamaForCausalLM(config)
    # The table and the head go by column, all other matrices by row; biases and norms do not decay.
    opt = acmo.RowACMo(acmo.param_groups(model, weight_decay=0.1, scopes=True), lr=args.lr)
    trainer = Trainer(
        model,
        TrainingArguments(
            str(args.output),
            max_steps=args.steps,
            per_device_train_batch_size=32,
            lr_scheduler_type="cosine",
            warmup_steps=args.steps // 10,
            max_grad_norm=0.0,  # clipping has no effect on unit steps
            save_steps=max(1, args.steps // 2),
            logging_steps=max(1, args.steps // 10),
            seed=args.seed,
            report_to=[],
            disable_tqdm=True,
            dataloader_pin_memory=torch.accelerator.is_available(),
        ),
        train_dataset=train,
        eval_dataset=evaluate,
        optimizers=(opt, None),  # the Trainer makes the schedule
        callbacks=[Angles()],
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def main() -> None:
    """Read the options, train, compare the loss on text that was not trained on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, help="a file, .gz or plain (default: Python's language reference)")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=Path("runs/hf_trainer"), help="where checkpoints go")
    parser.add_argument("--resume", action="store_true", help="resume from the last checkpoint there")
    args = parser.parse_args()

    trainer = build_trainer(args)
    before = trainer.evaluate()["eval_loss"]
    trainer.train(resume_from_checkpoint=args.resume or None)
    after = trainer.evaluate()["eval_loss"]
    print(f"loss a byte on held-out text: {before:.3f} untrained, {after:.3f} after {trainer.state.global_step} steps")


if __name__ == "__main__":
    main()
