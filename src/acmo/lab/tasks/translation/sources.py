"""Where the parallel texts come from, if no folder is given: the official archives, with their checksums."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from acmo.lab.tasks.downloads import fetch, unpacked
from acmo.lab.tasks.translation.corpus import Text, find

LANGUAGES = ("en", "de")


class Archive(NamedTuple):
    """An archive on the web, and the names, without language, of the texts in it."""

    url: str
    checksum: str
    names: tuple[str, ...]
    folder: str  # where it is unpacked in the cache


class Files(NamedTuple):
    """A text on the web as one gzipped file per language."""

    url: str  # without language and ending
    checksums: Mapping[str, str]


# The authors' own repository, with the checksums that torchtext 0.9 shipped. The host of the shared task of 2016, which
# others name, is down more often than not, and its text differs in places.
_TASK1 = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
MULTI30K = {
    "train": (
        Files(
            f"{_TASK1}/train",
            {"en": "md5:0065d13af80720a55ca8153d126e6627", "de": "md5:81ff90b99829c0cd4b1b587d394afd39"},
        ),
    ),
    "valid": (
        Files(
            f"{_TASK1}/val",
            {"en": "md5:2b69aa9253948ac9f67e94917272dd40", "de": "md5:6e0e229eb049e3fc99a1ef02fb2d5f91"},
        ),
    ),
    "test": (
        Files(
            f"{_TASK1}/test_2016_flickr",
            {"en": "md5:ff2c0fcb4893a13bd73414306bc250ae", "de": "md5:efd67d314d98489b716b145475101932"},
        ),
    ),
}
# As tensorflow_datasets and others that fetch them give their checksums.
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


def downloaded(wanted: Sequence[Archive | Files], languages: tuple[str, str]) -> list[Text]:
    """Return these texts, downloaded if they are not there yet."""
    texts: list[Text] = []
    for one in wanted:
        if isinstance(one, Files):
            texts.append(Text(*(fetch(f"{one.url}.{code}.gz", one.checksums[code]) for code in languages)))
            continue
        names = "|".join(name.replace(".", r"\.") for name in one.names)
        members = rf"(?:.*/)?(?:{names})\.(?:{'|'.join(languages)})"
        texts += find(unpacked(one.url, one.checksum, members, one.folder), ["+".join(one.names)], languages)
    return texts
