"""Where the parallel texts come from, if no folder is given: the official archives, with their checksums."""

from pathlib import Path
from typing import NamedTuple

from acmo.lab.tasks.downloads import unpacked
from acmo.lab.translation.corpus import Text, find

LANGUAGES = ("en", "de")


class Archive(NamedTuple):
    """An archive on the web, and the names, without language, of the texts in it."""

    url: str
    checksum: str
    names: tuple[str, ...]
    folder: str  # where it is unpacked in the cache


_MMT = "http://www.quest.dcs.shef.ac.uk/wmt16_files_mmt"
# The checksums are those that torchtext and tensorflow_datasets ship.
MULTI30K = {
    "train": (
        Archive(
            f"{_MMT}/training.tar.gz",
            "sha256:20140d013d05dd9a72dfde46478663ba05737ce983f478f960c1123c6671be5e",
            ("train",),
            "multi30k-train",
        ),
    ),
    "valid": (
        Archive(
            f"{_MMT}/validation.tar.gz",
            "sha256:a7aa20e9ebd5ba5adce7909498b94410996040857154dab029851af3a866da8c",
            ("val",),
            "multi30k-valid",
        ),
    ),
    "test": (
        Archive(
            f"{_MMT}/mmt16_task1_test.tar.gz",
            "sha256:0681be16a532912288a91ddd573594fbdd57c0fbb81486eff7c55247e35326c2",
            ("test",),
            "multi30k-test",
        ),
    ),
}
WMT14 = {
    "train": (
        Archive(
            "https://www.statmt.org/wmt13/training-parallel-europarl-v7.tgz",
            "sha256:0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7",
            ("europarl-v7.de-en",),
            "wmt14-europarl-v7",
        ),
        Archive(
            "https://www.statmt.org/wmt13/training-parallel-commoncrawl.tgz",
            "sha256:c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5",
            ("commoncrawl.de-en",),
            "wmt14-commoncrawl",
        ),
        Archive(
            "https://www.statmt.org/wmt14/training-parallel-nc-v9.tgz",
            "sha256:cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485",
            ("news-commentary-v9.de-en",),
            "wmt14-news-commentary-v9",
        ),
    ),
    # As plain text; WMT's own test archive has it as SGML.
    "valid": (
        Archive(
            "https://data.statmt.org/wmt17/translation-task/dev.tgz",
            "sha256:9d5ff04a28496b7796904ea65e50e3837bab14dbdca88b1e063105f17513dca9",
            ("newstest2013",),
            "wmt14-newstest2013",
        ),
    ),
    "test": (
        Archive(
            "https://storage.googleapis.com/tf-perf-public/official_transformer/test_data/newstest2014.tgz",
            "sha256:1d07bf20db2f4607bb5f3c228e24c1fa17bdfb66d650cc5e713353606fde0800",
            ("newstest2014",),
            "wmt14-newstest2014",
        ),
    ),
}


def downloaded(archives: tuple[Archive, ...], languages: tuple[str, str]) -> list[Text]:
    """The texts of these archives, downloaded if they are not there yet."""
    texts: list[Text] = []
    for archive in archives:
        names = "|".join(name.replace(".", r"\.") for name in archive.names)
        folder: Path = unpacked(
            archive.url, archive.checksum, rf"(?:.*/)?(?:{names})\.(?:{'|'.join(languages)})", archive.folder
        )
        texts += find(folder, ["+".join(archive.names)], languages)
    return texts
