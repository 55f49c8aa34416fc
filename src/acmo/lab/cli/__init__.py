"""The ``acmo`` command. Errors of users are one sentence, with exit code 2; Ctrl-C ends with 130."""

import os
import signal
import sys
import warnings
from types import FrameType
from typing import Any, NoReturn

from acmo.lab.errors import LabError, missing_extra


def main() -> None:
    """Run the command line."""
    signal.signal(signal.SIGTERM, _interrupt)  # a batch system's way of Ctrl-C
    warnings.formatwarning = _one_sentence
    try:
        try:
            _check_words(sys.argv)
            from acmo.lab.cli.app import app

            app()
        except ModuleNotFoundError as error:
            if error.name is None or error.name.startswith("acmo"):
                raise
            raise missing_extra(error.name) from None
    except LabError as error:
        _fail(str(error), 2)
    except KeyboardInterrupt:
        _fail("stopped", 130)
    except BrokenPipeError:  # the reader, head or less, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        if os.environ.get("ACMO_DEBUG"):
            raise
        _fail(f"{type(error).__name__}: {error} (this is a bug of acmo; ACMO_DEBUG=1 shows where)", 1)


def _check_words(words: list[str]) -> None:
    """Refuse what no JSON file and no database could hold: bytes that are not UTF-8."""
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise LabError(f"{word!a} is not valid UTF-8") from None


_warning_of_python = warnings.formatwarning


def _one_sentence(message: Any, category: type[Warning], *where: Any, **more: Any) -> str:
    """Return a warning of ours without the line of the source that gave it."""
    if category.__module__.startswith("acmo."):
        return f"acmo: {message}\n"
    return _warning_of_python(message, category, *where, **more)


def _fail(sentence: str, code: int) -> NoReturn:
    print(f"acmo: {_clean(sentence)}", file=sys.stderr)
    sys.exit(code)


def _clean(text: str) -> str:
    """Return one line, without any password that came in by a flag or the environment."""
    from acmo.lab.redaction import redact_passwords

    urls = [word.partition("=")[2] if word.startswith("--storage=") else word for word in sys.argv if "://" in word]
    for url in [*urls, os.environ.get("ACMO_STORAGE", "")]:
        text = redact_passwords(text, url)
    return " ".join(text.split())


def _interrupt(signum: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
