"""Remove passwords and home folders from text that leaves the process: logs, JSON, tables, pages, messages."""

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus, unquote

_SECRET_OPTIONS = ("password", "passwd", "pwd", "sslpassword", "passfile")
_URL = re.compile(r"(?P<head>[a-zA-Z][\w+.-]*://[^\s/:@'\"<>]*):(?P<secret>[^\s'\"<>]*)@")
_WHOLE_URL = re.compile(r"(?P<head>[a-zA-Z][\w+.-]*://[^/:@]*):(?P<secret>.*)@", re.DOTALL)  # spaces and quotes too
_OPTION = re.compile(rf"(?i)\b({'|'.join(_SECRET_OPTIONS)})=([^&\s'\"<>\\]+)")
# Anyone's, for runs may come from other machines; a backslash is doubled in JSON, and a tag or an entity ends a name.
_NAME = r"[^/\\\s:'\"<>&]+"
_HOMES = re.compile(
    rf"(?<![\w.~-])(?:/home/{_NAME}|/Users/{_NAME}|/root|[A-Z]:\\{{1,2}}Users\\{{1,2}}{_NAME})(?=[/\\\s:'\"<>&]|$)"
)


def redact(text: str, url: str | None = None) -> str:
    """Return text, plain or serialised as JSON or HTML, without passwords in URLs and without home folders.

    Args:
      text: what is about to be written or shown.
      url: of a database; its password is removed in every spelling, wherever it stands.
    """
    return redact_homes(redact_passwords(text, url))


def redact_value(value: Any) -> Any:
    """Return a value made of JSON's types as it is after it was written with `redact` and read again."""
    return json.loads(redact(json.dumps(value, ensure_ascii=False)))


def redact_homes(text: str) -> str:
    """Return text with ``~`` for this user's home folder, and for paths that look like another's."""
    home = str(Path.home())
    if len(home) > 1:
        text = re.sub(rf"(?<![\w.-]){re.escape(home)}(?=[/\\\s:'\"<>&]|$)", "~", text)
    return _HOMES.sub("~", text)


def redact_passwords(text: str, url: str | None = None) -> str:
    """Return text without passwords: that of ``url`` wherever it stands, and what looks like one in any URL."""
    if url:
        safe = redact_url(url)
        secrets = sorted(_secrets(url), key=len, reverse=True)
        # In the URL itself the password is found by its place: the user or the database may have the same name.
        parts = re.split(f"({re.escape(url)}|{re.escape(safe)})", text)
        for i in range(0, len(parts), 2):
            for secret in secrets:
                parts[i] = re.sub(_as_a_word(secret), "***", parts[i])
        text = "".join(safe if i % 2 else part for i, part in enumerate(parts))
    return _OPTION.sub(r"\1=***", _URL.sub(r"\g<head>:***@", text))


def redact_url(url: str) -> str:
    """Return a URL without its password, whatever characters that has."""
    return _OPTION.sub(r"\1=***", _WHOLE_URL.sub(r"\g<head>:***@", url))


def _secrets(url: str) -> set[str]:
    """Return the passwords of a URL as they may be spelled: as given, decoded, encoded."""
    found = [m["secret"] for m in _WHOLE_URL.finditer(url)]
    found += [secret.partition("@")[0] for secret in found]  # if a later part of the URL has an @ as well
    found += [m[2] for m in _OPTION.finditer(url)]
    spelled = {form for s in found for form in (s, unquote(s), quote(unquote(s), safe=""), quote_plus(unquote(s)))}
    return {s for s in spelled if s and s != "***"}


def _as_a_word(secret: str) -> str:
    """Return a pattern that finds ``postgres`` in ``user "postgres"``, not in ``postgresql``."""
    before = r"(?<![A-Za-z0-9])" if secret[0].isalnum() else ""
    after = r"(?![A-Za-z0-9])" if secret[-1].isalnum() else ""
    return before + re.escape(secret) + after
