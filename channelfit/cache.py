"""Where compiled code and what was learned about this machine are kept."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """CHANNELFIT_CACHE, or the platform's cache folder; all of it may be deleted at any time."""
    return Path(os.environ.get("CHANNELFIT_CACHE") or platformdirs.user_cache_dir("channelfit"))
