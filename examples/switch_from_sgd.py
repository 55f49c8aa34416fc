"""Switch a running SGD training to ACMo: load the state, raise the rate, train.

SGD and ACMo keep the same one tensor per parameter, `momentum_buffer`, so ACMo loads SGD's state dict as it is. At
momentum 0.9 SGD's moment grows to ten times a steady gradient; ACMo's is at most 1.9 times as long as the gradient.
So the rate, which is loaded as well, must be raised: by 3, as a start.

Four trainings share their first epochs: SGD continues; ACMo takes over; ACMo takes over with SGD's rate; ACMo starts
with no moment. The net and the data are those of digits.py, beside this file.

    pip install . scikit-learn rich      # in the clone
    python examples/switch_from_sgd.py
"""

import argparse
import copy

import torch
from digits import Epoch, build_cnn, load, train

from acmo import ACMo


def main() -> None:
    """Train with SGD, branch, print the losses side by side."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=int, default=4, metavar="EPOCHS", help="with SGD")
    parser.add_argument("--after", type=int, default=6, metavar="EPOCHS", help="after the switch")
    parser.add_argument("--lr", type=float, default=0.02, help="of SGD")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)  # batches this small: more threads would mostly wait for each other
    data = load(args.seed)

    model = build_cnn(args.seed)
    sgd = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    before = list(train(model, sgd, data, args.before, args.seed))
    # What a checkpoint of a training holds. Copied, because SGD continues with the originals.
    saved = copy.deepcopy({"model": model.state_dict(), "optimizer": sgd.state_dict()})

    def switched(raise_lr: float, *, take_moment: bool = True) -> list[Epoch]:
        """Resume the training with ACMo."""
        model.load_state_dict(saved["model"])
        opt = ACMo(model.parameters())
        state = saved["optimizer"] if take_moment else {**saved["optimizer"], "state": {}}
        opt.load_state_dict(state)  # SGD's: the moment, and its lr, momentum and weight_decay
        for group in opt.param_groups:
            group["lr"] *= raise_lr
        return list(train(model, opt, data, args.after, args.seed + 1))

    runs = {
        "SGD": list(train(model, sgd, data, args.after, args.seed + 1)),
        "ACMo": switched(3),
        "ACMo, lr as it was": switched(1),
        "ACMo, no moment": switched(3, take_moment=False),
    }

    print("training loss, mean over the epoch\n")
    print("epoch  " + "  ".join(f"{name:>18}" for name in runs))
    for number, epoch in enumerate(before, start=1):
        print(f"{number:5d}  {epoch.train_loss:18.4f}  (SGD, before the switch)")
    for number, epochs in enumerate(zip(*runs.values(), strict=True), start=args.before + 1):
        print(f"{number:5d}  " + "  ".join(f"{epoch.train_loss:18.4f}" for epoch in epochs))
    print("valid  " + "  ".join(f"{epochs[-1].val_accuracy:18.1%}" for epochs in runs.values()))


if __name__ == "__main__":
    main()
