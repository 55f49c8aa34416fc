"""Fine-tune a small text classifier with ACMo: which package of Python's standard library is a docstring from?

Nothing is downloaded; the docstrings come with Python. A small transformer first learns from docstrings without labels:
it is shown one half of each of 64 texts, and has to find the other half among those of all. Then it gets a classifier's
head, and twenty labelled docstrings of each package. The same net without the first part is trained beside it on the
same labels, for comparison. Both are scored on docstrings that neither has seen. The sizes were chosen with a look at
that score, so the few points between the two are an illustration, no result.

    pip install .                        # in the clone
    python examples/text_classifier.py
"""

import argparse
import ast
import random
import re
import sysconfig
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize
from torch.optim.lr_scheduler import LambdaLR

from acmo import ACMo, param_groups

PACKAGES = ("asyncio", "email", "http", "importlib", "logging", "multiprocessing", "unittest", "xml")
WINDOW, WIDTH = 32, 64  # words that the net sees at once, numbers in a vector
PAD, UNKNOWN = 0, 1


def words(text: str) -> list[str]:
    return re.findall(r"[a-z]+|\d+|[^\sa-z\d]", text.lower())


def docstrings(package: str) -> list[str]:
    """Every docstring of a package, once."""
    folder = Path(sysconfig.get_path("stdlib"), package)
    found: dict[str, None] = {}  # a set that keeps the order
    for path in sorted(folder.rglob("*.py")):
        if "test" in path.parent.relative_to(folder).parts:  # unittest's own tests, up to Python 3.11
            continue
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node) or ""
                if len(words(text)) >= 6:
                    found[text] = None
    return list(found)


def padded(texts: Sequence[list[int]]) -> Tensor:
    """Texts below each other, cut at `WINDOW`, padded to the longest."""
    longest = min(WINDOW, max(map(len, texts)))
    return torch.tensor([(text + [PAD] * longest)[:longest] for text in texts])


class Encoder(nn.Module):
    """One vector for a text."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.word = nn.Embedding(vocabulary, WIDTH)
        # Small, as BERT's. A word is seen now and then only; where vectors are small its few steps turn them further.
        nn.init.normal_(self.word.weight, std=0.05)
        self.place = nn.Parameter(0.05 * torch.randn(WINDOW, WIDTH))
        block = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.1, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, 2, nn.LayerNorm(WIDTH), enable_nested_tensor=False)

    def forward(self, texts: Tensor) -> Tensor:
        padding = texts == PAD
        each = self.blocks(self.word(texts) + self.place[: texts.shape[1]], src_key_padding_mask=padding)
        mean: Tensor = each.masked_fill(padding.unsqueeze(-1), 0.0).sum(dim=1) / (~padding).sum(dim=1, keepdim=True)
        return mean


def fit(model: nn.Module, loss_of: Callable[[], Tensor], steps: int, lr: float) -> float:
    """Train; return the mean loss of the last tenth. All that there is of ACMo is in here."""
    opt = ACMo(param_groups(model, weight_decay=1e-4), lr=lr, max_grad_norm=1.0)
    schedule = LambdaLR(opt, lambda step: min(1.0, (step + 1) / (1 + 0.1 * steps)) * (1 - step / steps))
    model.train()
    losses = []
    for _ in range(steps):
        opt.zero_grad()
        loss = loss_of()
        loss.backward()
        opt.step()
        schedule.step()
        losses.append(loss.item())
    last = losses[-max(1, steps // 10) :]
    return sum(last) / len(last)


def pretrain(encoder: Encoder, texts: Sequence[list[int]], steps: int, lr: float) -> float:
    """Let the encoder match halves: a text's first with its own second one, among those of 64 texts."""

    def loss_of() -> Tensor:
        some = [text[: 2 * WINDOW] for text in random.sample(texts, 64)]
        first, second = ([t[: len(t) // 2] for t in some], [t[len(t) // 2 :] for t in some])
        cosines = normalize(encoder(padded(first))) @ normalize(encoder(padded(second))).T
        return cross_entropy(10 * cosines, torch.arange(len(some)))

    return fit(encoder, loss_of, steps, lr)


def classify(
    encoder: Encoder, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], steps: int, lr: float
) -> tuple[float, float]:
    """Train a head on the encoder, and the encoder with it; return training loss and test accuracy."""
    model = nn.Sequential(encoder, nn.Linear(WIDTH, len(PACKAGES)))

    def loss_of() -> Tensor:
        some = torch.randint(len(train[1]), (32,))
        return cross_entropy(model(train[0][some]), train[1][some])

    loss = fit(model, loss_of, steps, lr)
    model.eval()
    with torch.no_grad():
        right = model(test[0]).argmax(dim=1) == test[1]
    return loss, right.float().mean().item()


def main() -> None:
    """Read the text, train both nets, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--labels", type=int, default=20, help="labelled docstrings of each package")
    parser.add_argument("--pretrain-steps", type=int, default=300)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--lr", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)  # batches this small: more threads would mostly wait for each other
    random.seed(args.seed)

    labelled = [(words(text), label) for label, package in enumerate(PACKAGES) for text in docstrings(package)]
    random.shuffle(labelled)
    test, rest = labelled[: len(labelled) // 4], labelled[len(labelled) // 4 :]
    few = [pair for label in range(len(PACKAGES)) for pair in [p for p in rest if p[1] == label][: args.labels]]
    counts = Counter(word for text, _ in rest for word in text)
    numbers = {word: i for i, word in enumerate((w for w, n in counts.items() if n >= 3), start=UNKNOWN + 1)}

    def texts(pairs: Sequence[tuple[list[str], int]]) -> list[list[int]]:
        return [[numbers.get(word, UNKNOWN) for word in text] for text, _ in pairs]

    def examples(pairs: Sequence[tuple[list[str], int]]) -> tuple[Tensor, Tensor]:
        return padded(texts(pairs)), torch.tensor([label for _, label in pairs])

    print(f"docstrings: {len(rest)}, {len(few)} of them with a label, and {len(test)} to test on", flush=True)
    rows = []
    for name in ("from scratch", "fine-tuned"):
        torch.manual_seed(args.seed)
        encoder = Encoder(len(numbers) + UNKNOWN + 1)
        if name == "fine-tuned":
            loss = pretrain(encoder, texts(rest), args.pretrain_steps, args.lr)
            print(f"matching halves, {args.pretrain_steps} steps: loss {loss:.2f}; by chance log 64 = 4.16", flush=True)
        torch.manual_seed(args.seed)
        rows.append((name, *classify(encoder, examples(few), examples(test), args.steps, args.lr)))
    most = max(Counter(label for _, label in test).values()) / len(test)

    print("\n                    training loss  test accuracy")
    print(f"the largest class   {'':13}  {most:13.1%}")
    for name, loss, accuracy in rows:
        print(f"{name:18}  {loss:13.3f}  {accuracy:13.1%}")


if __name__ == "__main__":
    main()
