"""The ``acmo`` command. What is wrong is said in one sentence, with exit code 2; Ctrl-C ends with 130."""

import os
import signal
import sys
from typing import Any, NoReturn

from acmo.lab.errors import LabError, missing_extra


def main() -> None:
    """Run the command line."""
    signal.signal(signal.SIGTERM, _interrupt)  # a batch system's way of Ctrl-C
    try:
        try:
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


def _fail(sentence: str, code: int) -> NoReturn:
    print(f"acmo: {_clean(sentence)}", file=sys.stderr)
    sys.exit(code)


def _clean(text: str) -> str:
    """One line, without any password that came in by a flag or the environment."""
    from acmo.lab.redaction import redact_passwords

    urls = [word.partition("=")[2] if word.startswith("--storage=") else word for word in sys.argv if "://" in word]
    for url in [*urls, os.environ.get("ACMO_STORAGE", "")]:
        text = redact_passwords(text, url)
    return " ".join(text.split())


def _interrupt(signum: int, frame: Any) -> NoReturn:
    raise KeyboardInterrupt
