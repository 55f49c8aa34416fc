"""What a page of the gallery holds."""

import json
import re
from pathlib import Path


def data_of(path: Path) -> dict:
    """Return the data in a page."""
    text = path.read_text(encoding="utf-8")
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S).group(1))
