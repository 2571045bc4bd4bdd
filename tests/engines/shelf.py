"""A store in memory whose entries a test can look at and spoil."""

from collections import Counter


class Shelf:
    """Keeps bytes by kind and key, and counts what was asked of it."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], bytes] = {}
        self.calls: Counter[tuple[str, str]] = Counter()

    def get(self, kind: str, key: str) -> bytes | None:
        self.calls["get", kind] += 1
        return self.kept.get((kind, key))

    def put(self, kind: str, key: str, content: bytes) -> None:
        self.calls["put", kind] += 1
        self.kept[kind, key] = content

    def drop(self, kind: str, key: str) -> None:
        self.calls["drop", kind] += 1
        self.kept.pop((kind, key), None)

    def kinds(self) -> list[str]:
        """The kinds of all entries."""
        return sorted(kind for kind, _ in self.kept)
