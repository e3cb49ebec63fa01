"""Seeds by name: root -> stage -> cell, so that adding a cell changes the seed of no other."""

import hashlib
import json


def derive_seed(root: int, *names: str | int) -> int:
    """A seed in [0, 2^31) that depends on `root` and `names` only (their order and types included).

    Source: ours (house rule "seeds are derived by name"); sha256 of the names as a JSON list, that no two lists share.
    """
    digest = hashlib.sha256(json.dumps([root, *names]).encode()).digest()
    return int.from_bytes(digest[:4], "big") & 0x7FFF_FFFF
