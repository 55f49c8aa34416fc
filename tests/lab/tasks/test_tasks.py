"""Tasks: their names, their splits, their order, their augmentation."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acmo.lab.errors import LabError
from acmo.lab.tasks import TASKS, find_task
from acmo.lab.tasks.augment import crop_and_flip, draw
from acmo.lab.tasks.base import Recipe, Task
from tests.support.paths import SUPPORT

OWN = SUPPORT / "lab_tasks.py"


@pytest.mark.parametrize("name", sorted(TASKS))
def test_every_task_can_be_named_without_its_data(name):
    task = find_task(name)
    assert task.name == name
    assert isinstance(task.recipe, Recipe)
    assert type(task).__doc__ != Task.__doc__
    for size in task.sizes:
        for net in task.nets:
            named = find_task(f"{name}:{size}/{net}", seed=3)
            assert (named.size, named.net, named.seed) == (size, net, 3)


def test_the_sizes_are_the_papers_and_smaller_ones():
    paper = find_task("cifar100:paper/vgg16").recipe
    assert (paper.epochs, paper.batch_size, paper.schedule.text) == (200, 128, "steps:50:0.1")
    assert [find_task(f"cifar10:{size}").net for size in ("paper", "small", "tiny")] == [
        "resnet50",
        "resnet20",
        "resnet8",
    ]


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("cifar1", "did you mean 'cifar10'"),
        ("cifar10:papper", "did you mean 'paper'"),
        ("cifar10:tiny/resnet2", "did you mean 'resnet20'"),
        ("cifar10:", "name:size/net"),
        ("digits/resnet20", "has no net"),
        ("digits:tiny", "has no size"),
        ("zzz", "there are: digits"),
    ],
)
def test_a_name_that_is_none_brings_the_nearest(spec, words):
    with pytest.raises(LabError, match=words):
        find_task(spec)


def test_a_recipe_has_epochs_or_steps():
    with pytest.raises(LabError, match="epochs or steps"):
        Recipe()
    with pytest.raises(LabError, match="epochs or steps"):
        Recipe(epochs=1, steps=1)


def test_digits_test_set_is_fixed_and_stratified():
    tasks = [find_task("digits", seed=seed) for seed in (0, 1)]
    (x, y), (x1, y1) = (task.examples("test") for task in tasks)
    assert torch.equal(x, x1)
    assert torch.equal(y, y1)
    train = tasks[0].examples("train")[1]
    assert (len(train), len(y)) == (1437, 360)
    for labels in (train, y):
        shares = labels.bincount() / len(labels)
        assert float((shares - 0.1).abs().max()) < 0.006


@pytest.mark.parametrize("seed", [0, 1])
def test_validation_data_is_held_out_and_chosen_by_the_seed(seed):
    task, other = (find_task("digits", seed=s) for s in (seed, seed + 10))
    train, valid = task._split
    assert len(train) + len(valid) == 1437
    assert not set(train.tolist()) & set(valid.tolist())
    assert set(valid.tolist()) != set(other._split[1].tolist())
    assert float((task._train[1][valid].bincount() / len(valid) - 0.1).abs().max()) < 0.006
    again = find_task("digits", seed=seed)
    assert torch.equal(valid, again._split[1])


def test_epoch_has_every_example_once_in_its_own_order():
    task = find_task("digits", seed=5)
    first, second = (torch.cat(list(task.batches(epoch))) for epoch in (0, 1))
    assert sorted(first.tolist()) == task._split[0].tolist()
    assert sorted(second.tolist()) == task._split[0].tolist()
    assert first.tolist() != second.tolist()
    assert torch.equal(second, torch.cat(list(find_task("digits", seed=5).batches(1))))
    assert not torch.equal(second, torch.cat(list(find_task("digits", seed=6).batches(1))))


def shifted(image: torch.Tensor, top: int, left: int, flip: bool) -> torch.Tensor:
    """One image cropped from its padded self, pixel by pixel."""
    out = torch.zeros_like(image)
    size = image.shape[-1]
    for i in range(size):
        for j in range(size):
            y, x = i + top - 4, (size - 1 - j if flip else j) + left - 4
            if 0 <= y < size and 0 <= x < size:
                out[:, i, j] = image[:, y, x]
    return out


def test_an_augmented_image_is_a_shifted_and_perhaps_flipped_one():
    x = torch.randint(1, 256, (40, 2, 8, 8), dtype=torch.uint8)
    out = crop_and_flip(x, torch.arange(40), seed=0, epoch=0)
    seen = set()
    for image, result in zip(x, out, strict=True):
        matches = [
            (top, left, flip)
            for top in range(9)
            for left in range(9)
            for flip in (False, True)
            if torch.equal(shifted(image, top, left, flip), result)
        ]
        assert len(matches) == 1
        seen.update(matches)
    assert len(seen) > 25
    assert {flip for _, _, flip in seen} == {False, True}


@given(st.integers(0, 2**31 - 1), st.integers(0, 500), st.permutations(range(12)))
def test_what_an_image_gets_does_not_depend_on_its_batch(seed, epoch, order):
    x = torch.arange(12 * 64).reshape(12, 1, 8, 8)
    whole = crop_and_flip(x, torch.arange(12), seed, epoch)
    picked = torch.tensor(order[:5])
    assert torch.equal(crop_and_flip(x[picked], picked, seed, epoch), whole[picked])


def test_epochs_and_seeds_draw_differently():
    x = torch.arange(50 * 64).reshape(50, 1, 8, 8)
    draws = [crop_and_flip(x, torch.arange(50), seed, epoch) for seed, epoch in ((0, 0), (0, 1), (1, 0), (1, 1))]
    for i, a in enumerate(draws):
        for b in draws[:i]:
            same = (a == b).flatten(1).all(1).float().mean()
            assert float(same) < 0.15


def test_draws_are_even_and_do_not_follow_each_other():
    numbers = torch.stack([draw(torch.arange(20_000), 9, 0, epoch) for epoch in range(4)])
    counts = numbers.flatten().bincount(minlength=9).double()
    expected = counts.sum() / 9
    assert float(((counts - expected) ** 2 / expected).sum()) < 26.1  # χ² of 8 degrees, one in a thousand
    centred = numbers.double() - numbers.double().mean()
    between_epochs = (centred[0] * centred[1]).mean() / centred.var()
    between_neighbours = (centred[:, 1:] * centred[:, :-1]).mean() / centred.var()
    assert abs(float(between_epochs)) < 0.03
    assert abs(float(between_neighbours)) < 0.015


def test_class_that_lacks_a_method_is_refused_by_its_name(tmp_path):
    file = tmp_path / "half.py"
    file.write_text(
        "from acmo.lab.tasks.classification import Classification\n"
        "class Half(Classification):\n    name = 'half'\n    def model(self): ...\n"
    )
    with pytest.raises(LabError, match="lacks examples"):
        find_task(f"{file}:Half")
    file2 = tmp_path / "broken.py"
    file2.write_text("import no_such_module\n")
    with pytest.raises(LabError, match=r"importing .*broken\.py failed: ModuleNotFoundError"):
        find_task(f"{file2}:Task")
