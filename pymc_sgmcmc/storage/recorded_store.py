"""A run's folder as a zarr store: metadata come from the record, all else from the files."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from zarr.core.buffer import default_buffer_prototype
from zarr.storage import LocalStore


class RecordedStore(LocalStore):
    """A folder with given metadata, because those on disk may be damaged or outdated."""

    def __init__(self, root: Path, metadata: dict[str, str], *, read_only: bool):
        super().__init__(root, read_only=read_only)
        self._metadata = metadata

    def with_read_only(self, read_only: bool = False) -> "RecordedStore":
        return RecordedStore(self.root, self._metadata, read_only=read_only)

    async def get(self, key: str, prototype: Any = None, byte_range: Any = None) -> Any:
        if key in self._metadata:
            prototype = prototype or default_buffer_prototype()
            return prototype.buffer.from_bytes(self._metadata[key].encode())
        return await super().get(key, prototype, byte_range)

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        start = prefix.rstrip("/") + "/" if prefix else ""
        below = (name[len(start) :] for name in self._metadata if name.startswith(start))
        for name in {name.split("/")[0] for name in below}:
            yield name
