"""Run as a process of its own: reads and writes one cache directory, and fails when it reads something wrong."""

import random
import sys

from graphdnn.runtime.cache import DiskStore


def content(key: int, version: int) -> bytes:
    return f"{key}:{version}:".encode() * (50 + 97 * key % 400)


def main(directory: str, seed: int) -> None:
    store, draw = DiskStore(directory, limit=60_000), random.Random(seed)
    hits = 0
    for turn in range(150):
        key = draw.randrange(40)
        found = store.get("kernel", str(key))
        if found is not None:
            hits += 1
            start, version, _ = found.split(b":", 2)
            assert int(start) == key
            assert found == content(key, int(version))
        if found is None or draw.random() < 0.3:
            store.put("kernel", str(key), content(key, 1000 * seed + turn))
    assert hits > 10


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
