"""Real corpora: their counts, and the memory that large ones need."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from acmo.lab.errors import LabError
from acmo.lab.tasks import find_task
from acmo.lab.tasks.translation.corpus import held_out
from tests.support.lab_translation import REAL

CODES = ("en", "de")


@pytest.mark.skipif(not (REAL / "multi30k").is_dir(), reason="no folder with the files of multi30k")
def test_multi30k_has_the_pairs_that_its_authors_count(tmp_path, monkeypatch):
    monkeypatch.setenv("ACMO_DATA", str(tmp_path))
    task = find_task("multi30k-ende:tiny", REAL / "multi30k")
    assert [len(held_out(text)) for split in ("valid", "test") for text in task.texts(split)] == [1014, 1000]
    assert sum(1 for _ in task.texts("train")[0].pairs()) == 29_000


@pytest.mark.skipif(not (REAL / "newstest").is_dir(), reason="no folder with the files of newstest")
def test_newstest_is_read_but_without_training_data_refused():
    task = find_task("wmt14-ende:paper", REAL / "newstest")
    assert [len(held_out(text)) for split in ("valid", "test") for text in task.texts(split)] == [3000, 3003]
    with pytest.raises(LabError, match=r"has no train\.en"):
        task.texts("train")


MEASURE = """
import json, re, sys
from pathlib import Path
from acmo.lab.tasks.translation.corpus import Text
from acmo.lab.tasks.translation.store import Filters, prepared
from acmo.lab.tasks.translation.batches import bucketed, gathered
import numpy, torch

def peak_memory():  # kB; not getrusage's ru_maxrss, which starts at the peak of the process that forked this one
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

before = peak_memory()
store = prepared([Text(Path(sys.argv[1]), Path(sys.argv[2]))], 37_000, Filters(), Path(sys.argv[3]))[0]
lengths = numpy.maximum(store.source.lengths(), store.target.lengths())
batches = bucketed(lengths, 16_384, torch.Generator().manual_seed(0))
tokens = sum(int((gathered(side, b) != 0).sum()) for b in batches for side in (store.source, store.target))
peak = peak_memory()
print(json.dumps({"before": before, "peak": peak, "kept": store.counts.kept, "tokens": tokens}))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak memory from /proc")
def test_half_a_million_pairs_need_under_two_gigabytes(tmp_path):
    """Merges are learnt from half a million pairs at most; what grows beyond them is arithmetic."""
    rng = np.random.default_rng(0)
    # Zipf's law, with so heavy a tail that as many words differ as in a ninth of WMT'14: some half a million.
    letters = np.frombuffer(rng.integers(97, 123, 14 * 1_500_000, dtype=np.uint8).tobytes(), "S14").astype("U14")
    words = np.array([word[:length] for word, length in zip(letters, rng.integers(2, 15, len(letters)), strict=True)])
    used = np.zeros(len(words), bool)
    for code in CODES:
        with gzip.open(tmp_path / f"train.{code}.gz", "wt", compresslevel=1) as file:
            for _ in range(50):
                draws = np.minimum(rng.zipf(1.25, (10_000, 24)), len(words)) - 1
                used[draws] = True
                file.write("".join(" ".join(row) + "\n" for row in words[draws]))
    assert used.sum() > 450_000
    out = subprocess.run(
        [sys.executable, "-c", MEASURE, *(str(tmp_path / name) for name in ("train.en.gz", "train.de.gz", "cache"))],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    seen = json.loads(out)
    print(seen)
    assert seen["kept"] > 400_000
    # For each pair more: two starts, a length, three index arrays, and its tokens, were all of them in memory.
    per_pair = 2 * 8 + 2 + 3 * 8 + 2 * seen["tokens"] / seen["kept"]
    assert seen["peak"] + (4.5e6 - seen["kept"]) * per_pair / 1024 < 2 * 2**20  # kB
