"""Read the angles: what ACMo knows about its own steps at no cost, and what follows for the learning rate.

At every step ACMo has the norms of the gradient g, of its moment before (m') and after (m), and from three sides of a
triangle follow the angles. `opt.telemetry()` gives them, for the last step:

  cos(g, m')   do batches agree with the path so far? Above 0: yes, and a larger rate may be faster. Around 0: noise,
               or the foot of the slope. Below 0: each step climbs the wall across the valley that the last one came
               down; a smaller rate would follow the floor. (Look at the loss as well: a training that diverges also
               keeps its direction.)
  cos(m, g)    does the step go down on this batch? Always: it is never below √(1 − β²), 0.436 for β = 0.9.
  beta_hat     what the moment is multiplied by, to make it β times as long as the gradient. Large where this gradient
               is much longer than the last ones: a batch that the net gets wrong.

The net and the data are those of digits.py, beside this file; it is trained with three rates.

    pip install . scikit-learn rich      # in the clone
    python examples/angles.py
"""

import argparse
import math

import torch
from digits import BATCH, Data, build_cnn, load
from torch.nn.functional import cross_entropy

from acmo import ACMo

BETA = 0.9
FLOOR = math.sqrt(1 - BETA**2)
BARS = "▁▂▃▄▅▆▇█"
SHOWN = {
    "cos_grad_moment": ("cos(g, m')", -1.0, 1.0),
    "cos_update_grad": ("cos(m, g)", 0.4, 1.0),
    "beta_hat": ("beta_hat", 0.0, 2.0),
}


def sparkline(values: list[float], low: float, high: float, width: int = 46) -> str:
    """The values from left to right as bars between two bounds, each the mean of its neighbours."""
    width = min(width, len(values))
    means = [part.mean().item() for part in torch.tensor(values).tensor_split(width)]
    return "".join(BARS[max(0, min(7, int(8 * (mean - low) / (high - low))))] for mean in means)


def record(lr: float, data: Data, epochs: int, seed: int) -> tuple[list[float], list[dict[str, float]]]:
    """Train; return the loss and the telemetry of every step."""
    model = build_cnn(seed)
    opt = ACMo(model.parameters(), lr=lr, momentum=BETA)
    shuffle = torch.Generator().manual_seed(seed)
    losses, shown = [], []
    for _ in range(epochs):
        for batch in torch.randperm(len(data.y_train), generator=shuffle).split(BATCH):
            opt.zero_grad()
            loss = cross_entropy(model(data.x_train[batch]), data.y_train[batch])
            loss.backward()
            opt.step()
            losses.append(loss.item())
            shown.append(opt.telemetry())  # waits for the device: on a GPU read it every hundred steps or so
    return losses, shown[1:]  # the first step has no moment before it, so no angle to it


def main() -> None:
    """Train with three rates, draw the angles, print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rates", type=float, nargs="+", default=[0.01, 0.1, 0.3])
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)  # batches this small: more threads would mostly wait for each other
    data = load(args.seed)

    rows = []
    for lr in args.rates:
        losses, shown = record(lr, data, args.epochs, args.seed)
        print(f"lr {lr:g}, {len(losses)} steps from left to right")
        for key, (name, low, high) in SHOWN.items():
            print(f"  {name:>10}  {low:4.1f} {sparkline([t[key] for t in shown], low, high)} {high:3.1f}")
        last = shown[-len(shown) // 3 :]
        means = [sum(t[key] for t in last) / len(last) for key in SHOWN]
        rows.append((lr, sum(losses[-20:]) / 20, *means, min(t["cos_update_grad"] for t in shown)))

    print(f"\nmeans of the last third; and the least cos(m, g) of all, for which √(1 − β²) = {FLOOR:.3f}")
    print("      lr    loss  cos(g, m')  cos(m, g)  beta_hat  least cos(m, g)")
    for lr, loss, agree, down, beta_hat, least in rows:
        print(f"{lr:8g}  {loss:6.3f}  {agree:10.3f}  {down:9.3f}  {beta_hat:8.3f}  {least:15.3f}")


if __name__ == "__main__":
    main()
